"""Read what changes on pages without fields: title, main text, offers, details and files.

The main text of an article is what its page is about. Of a product or an event, extractors of main
texts return the description, and often leave out price, stock and date, which are short lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any
from urllib.parse import urljoin

from scrapy.http import TextResponse

from crawler.extract.absolute_links import base_url
from crawler.extract.main_text import (
    CONTENT_TAGS,
    HEADINGS,
    MAX_UNSURE_CHARACTERS,
    OG_TITLE,
    Block,
    blocks_of,
    elements_beside,
    main_text,
    title_heading,
)
from crawler.extract.plain_text import UNSEEN
from crawler.extract.structured_data import structured_lines

MAX_LINES = 100
MAX_FILES = 200
# Longer texts are prose, which main texts have.
MAX_LINE_CHARACTERS = 200
# Maximum number of blocks from the main heading to the price, options to choose not counted.
MAX_HEAD_BLOCKS = 40
_CURRENCY = (
    r"(?:[$\u00a3\u00a5\u20a0-\u20cf\u0e3f]|(?:AED|AUD|BRL|CAD|CHF|CNY|CZK|DKK|EUR|GBP|HKD|HUF|INR"
    r"|JPY|KRW|MXN|NOK|NZD|PLN|RON|RUB|SEK|SGD|TRY|UAH|USD|ZAR|Euro?|Fr\.|Ft|K\u010d|RM|R\$|Rp|Rs\.?"
    r"|TL|kn|kr\.?|lei|z\u0142|\u0433\u0440\u043d|\u043b\u0432|\u0440\u0443\u0431|\u5143|\u5186"
    r"|\uc6d0)(?![^\W\d_]))"
)
PRICE = re.compile(
    rf"(?<![^\W\d_]){_CURRENCY}[ \u00a0\u202f]?[-\u2212]?\d|\d[ \u00a0\u202f]?{_CURRENCY}"
    r"|\d[ \u00a0\u202f]?[,.:][-\u2013\u2014]"
)
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


def page_values(response: TextResponse) -> dict[str, Any]:
    """Return title and main text of a page, and as far as it has them, offers, details and files.

    title, main_text: see `main_text`
    offers:           prices, availability and dates that the page marks up for search engines
    details:          short lines near the main heading that are missing in the main text; of a page
                      without a price, only those with a date, and prices anywhere in the content
    files:            URLs of linked documents, without parameters
    """
    bodies = response.xpath("//body")
    # lxml makes the Python objects of elements again in each pass unless they are kept.
    elements = list(bodies[0].root.iter()) if bodies else []
    values = main_text(response)
    if not bodies:
        return values
    body = bodies[0].root
    titles = [response.xpath(query).get() or "" for query in (OG_TITLE, "string(//title)")]
    titles.append(values["title"] or "")
    blocks = blocks_of(body, without=UNSEEN)
    beside = elements_beside(body, blocks)
    if offers := structured_lines(body.getroottree().getroot(), titles, beside):
        values["offers"] = offers
    content = [block for block in blocks if block.element not in beside]
    lines = {line.removeprefix("- ").strip() for line in (values["main_text"] or "").split("\n")}
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
        if FILE.search(target[-10:]) and link not in beside and len(target) <= 2000:
            with suppress(ValueError):
                files[urljoin(base, target)] = None
    return sorted(islice(files, MAX_FILES))
