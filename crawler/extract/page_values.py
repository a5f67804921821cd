"""Read what changes on pages without fields: title, main text, offers, details and files.

The main text of an article is what its page is about. Of a product or an event, extractors of main
texts return the description, and often leave out price, stock and date, which are short lines.

Shops and calendars state price, availability, and the time of an event for search engines, as
JSON-LD, microdata, RDFa or meta tags (schema.org, https://ogp.me). Often no visible text has these
values when the page is loaded, because a script shows them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from html import unescape
from itertools import chain, islice
from typing import Any

from lxml import etree
from parsel.selector import CannotDropElementWithoutParent
from scrapy.http import HtmlResponse, TextResponse

from crawler.extract.article import texts_in
from crawler.extract.blocks import (
    CONTENT_TAGS,
    HEADINGS,
    Block,
    blocks_of,
    elements_beside,
    title_heading,
)
from crawler.extract.documents import PlainTextPage, XmlPage, text_lines, xml_lines
from crawler.extract.fields import squeeze, value_text
from crawler.extract.json_ld import script_values
from crawler.extract.main_text import main_text, titles_of
from crawler.extract.plain_text import UNSEEN
from crawler.extract.prices import PRICE, amount_text, read_price
from crawler.utils.urls import base_url, joined

MAX_LINES = 100
# A page with a longer main text is an article.
MAX_UNSURE_CHARACTERS = 2000
MAX_FILES = 200
# Longer texts are prose, which main texts have.
MAX_LINE_CHARACTERS = 200
# Maximum number of blocks from the main heading to the price, options to choose not counted.
MAX_HEAD_BLOCKS = 40
_MONTH = (
    r"(?:jan|feb|f\u00e9v|fev|ene|gen|m[a\u00e4]r|mrt|apr|avr|abr|ma[ijy]|mei|mag|jun|juin|giu|jul"
    r"|juil|lug|aug|ao\u00fb|ago|sep|set|oct|okt|ott|out|nov|dec|dez|d\u00e9c|dic|\u044f\u043d\u0432"
    r"|\u0444\u0435\u0432|\u043c\u0430\u0440|\u0430\u043f\u0440|\u043c\u0430[\u0439\u044f]"
    r"|\u0438\u044e\u043d|\u0438\u044e\u043b|\u0430\u0432\u0433|\u0441\u0435\u043d"
    r"|\u043e\u043a\u0442|\u043d\u043e\u044f|\u0434\u0435\u043a)"
)
# A year, a day and a month, or a time of day.
DATE = re.compile(
    r"\b(?:19|20)\d\d\b|\b\d{1,2}[./-]\d{1,2}\b|\b\d{1,2}[:h]\d\d\b|\d\u6708\d"
    rf"|\b\d{{1,2}}(?:st|nd|rd|th|\.)?(?: de)? {_MONTH}|\b{_MONTH}[^\W\d_]{{0,7}}\.? \d{{1,2}}\b",
    re.I,
)
REVIEWS = re.compile(
    r"\d\W{0,3}(?:customer |\w{0,9})(?:reviews?|ratings?|votes?|comments?|likes?|shares?|questions?"
    r"|bewertung(?:en)?|rezension(?:en)?|kommentare?|avis|commentaires?|opiniones|valoraciones"
    r"|rese\u00f1as|comentarios|recensioni|commenti|beoordelingen|reacties|opini[ei]"
    r"|\u043e\u0442\u0437\u044b\u0432\w{0,3}|\u30ec\u30d3\u30e5\u30fc|\u8bc4\u8bba)\b",
    re.I,
)
FILE = re.compile(
    r"\.(?:pdf|docx?|odt|rtf|xlsx?|ods|csv|tsv|pptx?|odp|zip|7z|gz|ics|epub|kml|geojson)$", re.I
)
Node = Mapping[str, Any]
MAX_SCRIPTS = 50
MAX_NODES = 5000
MAX_OFFER_LINES = 200
MAX_VALUE_CHARACTERS = 200
# Keys with the items of a page, as opposed to related items, authors or reviews.
CONTAINERS = ("@graph", "mainEntity", "mainEntityOfPage")
# Keys with the offers of an item, outermost first.
OFFERS = ("offers", "hasVariant", "priceSpecification")
PRICES = ("price", "lowPrice", "highPrice")
DATES = ("startDate", "endDate")
OFFER = frozenset({"availability", "priceCurrency", *PRICES})
PROPERTIES = OFFER | {"name", "sku", "eventStatus", *DATES}
END = object()
# Parts of an item in microdata and RDFa, by the end of their type.
PART_TYPES = ("Offer", "PriceSpecification")
META = {
    "product:price:amount": "price", "og:price:amount": "price",
    "product:price:currency": "priceCurrency", "og:price:currency": "priceCurrency",
    "product:availability": "availability", "og:availability": "availability",
}  # fmt: skip
_SCRIPTS: Callable[[Any], Any] = etree.XPath(
    "//script[contains(translate(@type, 'LDJSON', 'ldjson'), 'ld+json')]", smart_strings=False
)
_MARKED: Callable[[Any], Any] = etree.XPath(
    "//*[@itemprop or @itemscope or @property or @typeof]", smart_strings=False
)


def without_elements(page: TextResponse, selectors: Sequence[str]) -> TextResponse:
    """Return a page without the elements that CSS selectors match."""
    if not selectors or page.selector.type == "json":
        return page
    if isinstance(page, PlainTextPage):
        return page
    # A copy, because links and fields may be in these elements.
    copy = page.replace()
    for element in [each for css in selectors for each in copy.css(css)]:
        with suppress(CannotDropElementWithoutParent):
            element.drop()
    return page.replace(body=(copy.selector.get() or "").encode(), encoding="utf-8")


def markup_without(markup: str, selectors: Sequence[str]) -> str:
    """Return a piece of HTML without the elements that CSS selectors match."""
    if not selectors or "<" not in markup:
        return markup
    piece = HtmlResponse("", body=f"<body>{markup}</body>".encode(), encoding="utf-8")
    return without_elements(piece, selectors).text


def page_values(response: TextResponse) -> dict[str, Any]:
    """Return title and main text of a page, and as far as it has them, offers, details and files.

    title, main_text: see `main_text`
    offers:           prices, availability and dates that the page marks up for search engines
    details:          short lines near the main heading that are missing in the main text; of a page
                      without a price, only those with a date, and prices anywhere in the content
    files:            URLs of linked documents, without parameters
    """
    if isinstance(response, PlainTextPage):
        return {"title": None, "main_text": text_lines(response.text) or None}
    bodies = response.xpath("//body")
    if not bodies and isinstance(response, XmlPage):
        return {"title": None, "main_text": xml_lines(response.selector.root) or None}
    # lxml makes the Python objects of elements again in each pass unless they are kept.
    elements = list(bodies[0].root.iter()) if bodies else []
    values = main_text(response)
    if not bodies:
        return values
    body = bodies[0].root
    titles = [*titles_of(response), values["title"] or ""]
    blocks = blocks_of(body, without=UNSEEN)
    beside = elements_beside(elements, blocks)
    if offers := structured_lines(body.getroottree().getroot(), titles, beside):
        values["offers"] = offers
    content = [block for block in blocks if block.element not in beside]
    main_lines = (values["main_text"] or "").split("\n")
    lines = {text for line in main_lines for text in texts_in(line)}
    heading = title_heading(body, titles)
    head = list(_head(content, heading if heading is not None else next(body.iter("h1"), None)))
    is_long = len(values["main_text"] or "") >= MAX_UNSURE_CHARACTERS
    if is_long:
        # Advertisements of an article may have prices, too.
        inside: set[Any] = set()
        for element in elements:
            if element.tag in CONTENT_TAGS or element.getparent() in inside:
                inside.add(element)
        content = [block for block in content if block.element in inside]
    details = _details(content, head, is_product=bool(offers))
    if details := [line for line in details if line not in lines][:MAX_LINES]:
        values["details"] = details
    if files := _files(body, beside, response.url):
        values["files"] = files
    return values


def _details(content: list[Block], head: list[Block], *, is_product: bool) -> list[str]:
    """Return the short texts of the head of a page that state what it offers, or when it is."""
    texts = [block.text for block in head if _is_line(block) and not REVIEWS.search(block.text)]
    if is_product or any(map(PRICE.search, texts)):
        return texts
    is_priced = (block.text for block in content if _is_line(block) and PRICE.search(block.text))
    return [*filter(DATE.search, texts), *is_priced]


def _is_line(block: Block) -> bool:
    return len(block.text) <= MAX_LINE_CHARACTERS and block.linked * 2 <= len(block.text)


def _head(content: list[Block], heading: Any) -> Iterator[Block]:
    """Yield the blocks from the main heading to the next section, without the heading."""
    if heading is None:
        return
    own = set(heading.iter())
    at = max((n for n, block in enumerate(content, 1) if block.element in own), default=0)
    box = next((above for above in heading.iterancestors() if above.tag == "main"), None)
    inside = None if box is None else set(box.iter())
    counted, has_prose = 0, False
    for block in content[at:] if at else ():
        if inside is not None and block.element not in inside:
            return
        if block.teaser or (has_prose and block.element.tag in HEADINGS):
            return
        counted += block.element.tag != "option"
        has_prose = has_prose or block.prose
        if counted > MAX_HEAD_BLOCKS:
            return
        yield block


def _files(body: Any, beside: set[Any], url: str) -> list[str]:
    base = base_url(body.getroottree().getroot(), url)
    files: dict[str, None] = {}
    for link in body.iter("a"):
        target = (link.get("href") or "").partition("#")[0].partition("?")[0].strip()
        is_file = FILE.search(target[-10:]) and link not in beside and len(target) <= 2000
        if is_file and (file := joined(base, target)):
            files[file] = None
    return sorted(islice(files, MAX_FILES))


def structured_lines(root: Any, titles: Collection[str], beside: Collection[Any]) -> list[str]:
    """Return the offers and dates of a page, one per line, sorted: "Tea: 4.50 EUR, InStock".

    root:   lxml element of the page
    titles: titles of the page. Of several products, the first whose name is part of a title is
            used, else the first: the others are related products.
    beside: elements beside the content, whose microdata is ignored

    Ratings, images, and the date until which a price is valid are left out: they change although
    the offer does not.
    """
    lines: list[str] = []
    all_titles = "\n".join(titles).casefold()
    for items in (_json_items(root), _marked_items(root, beside)):
        products = [item for item in items if not _is_event(item)]
        named = ((item, _text(item.get("name")).casefold()) for item in products)
        main = next((item for item, name in named if name and name in all_titles), None)
        used = [item for item in items if _is_event(item) or item is (main or products[0])]
        of_items = chain.from_iterable(map(_lines_of, used))
        # Microdata often repeats JSON-LD, and meta tags repeat both without the name.
        new = [line for line in of_items if not any(line in other for other in lines)]
        lines += new[: MAX_OFFER_LINES - len(lines)]
    return sorted(lines)


def _is_event(item: Node) -> bool:
    return any(item.get(key) for key in DATES)


def _json_items(root: Any) -> list[Node]:
    """Return the items with offers or dates in the JSON-LD of a page."""
    scripts = [script_values(script.text or "") for script in islice(_SCRIPTS(root), MAX_SCRIPTS)]
    return [
        node
        for node in _nodes(scripts, CONTAINERS)
        if _is_event(node) or node.get("offers") or node.get("hasVariant")
    ]


def _nodes(value: Any, keys: Collection[str]) -> Iterator[Node]:
    """Yield the objects in a value of JSON and below their keys, in the order of the document."""
    levels = [iter([value])]
    for _ in range(MAX_NODES):
        while levels and (node := next(levels[-1], END)) is END:
            levels.pop()
        if not levels:
            return
        if isinstance(node, list):
            levels.append(iter(node))
        elif isinstance(node, dict):
            yield node
            levels.append(iter([node[key] for key in keys if key in node]))


def _marked_items(root: Any, beside: Collection[Any]) -> list[Node]:
    """Return the items with offers or dates in microdata, RDFa and meta tags."""
    scopes: dict[Any, dict[str, Any]] = {}
    items: list[dict[str, Any]] = []
    meta: dict[str, Any] = {}
    for element in islice(_MARKED(root), MAX_NODES):
        names = (element.get("itemprop") or element.get("property") or "").split()
        kind = element.get("itemtype") or element.get("typeof")
        if element.tag == "meta" and names and names[0] in META:
            meta.setdefault(META[names[0]], element.get("content"))
            continue
        ancestors = islice(element.iterancestors(), 100)
        scope = next((scopes[parent] for parent in ancestors if parent in scopes), None)
        if kind is not None or element.get("itemscope") is not None:
            part: dict[str, Any] = {}
            if scope is not None and (kind or "").rstrip("/ ").endswith(PART_TYPES):
                scope.setdefault("offers", []).append(part)
            elif element not in beside:
                items.append(part)
            scopes[element] = part
        elif scope is not None:
            for name in PROPERTIES.intersection(names) - scope.keys():
                scope[name] = _marked_value(element, is_price=name in PRICES)
    found = [*items, {"offers": [meta]}] if meta else items
    return [
        item
        | {"offers": [{key: item[key] for key in OFFER & item.keys()}, *item.get("offers", ())]}
        for item in found
        if any(item.get(key) for key in ("offers", *OFFER, *DATES))
    ]


def _marked_value(element: Any, *, is_price: bool) -> str:
    for name in ("content", "href", "datetime"):
        if (value := element.get(name)) is not None:
            return str(value)
    return amount_text(element) if is_price else value_text(element)


def _lines_of(item: Node) -> Iterator[str]:
    """Yield a line for the dates of an item, and one for each of its offers."""
    name = _text(item.get("name") or item.get("title"))
    if dates := [_text(item.get(key)) for key in DATES if _text(item.get(key))]:
        status = _text(item.get("eventStatus")).rpartition("/")[2]
        yield _line(name, [" to ".join(dates), status])
    for node in _nodes([item.get(key) for key in OFFERS], OFFERS):
        own = _text(node.get("name") or node.get("sku"))
        price = " to ".join(filter(None, (_price(node.get(key)) for key in PRICES)))
        currency = _text(node.get("priceCurrency")) if price else ""
        stock = _text(node.get("availability")).rpartition("/")[2]
        if price or stock:
            yield _line(own or name, [f"{price} {currency}".strip(), stock])


def _line(name: str, values: Iterable[str]) -> str:
    return ": ".join(filter(None, (name, ", ".join(filter(None, values)))))


def _price(value: Any) -> str:
    """Return a price with two decimals, or the text as it is if it is not a number."""
    text = _text(value)
    first = value[0] if isinstance(value, list) and value else value
    amount: float
    # A number of JSON has no thousands separators: 1.299 is no 1299.
    if isinstance(first, int | float) and not isinstance(first, bool):
        amount = first
    elif text and (read := read_price(text)) is not None:
        amount = read["amount"]
    else:
        return text
    if isinstance(amount, int):
        return f"{amount}.00"[:MAX_VALUE_CHARACTERS]
    return f"{amount:.2f}" if amount == round(amount, 2) else str(amount)


def _text(value: Any) -> str:
    """Return a value of JSON as one line without HTML references; empty for objects."""
    if isinstance(value, list):
        value = value[0] if value else ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    text = str(value)[:MAX_VALUE_CHARACTERS]
    # Templates escape values for HTML, although scripts have no references.
    return squeeze(unescape(text) if "&" in text else text)
