"""Find selectors of single elements on a page, and show the page without active content.

Elements are numbered in the order of the parsed page. `numbered_html` keeps the numbers as
attributes, so that a click on the shown page identifies an element of the original one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from zoneinfo import ZoneInfo

import nh3
from lxml import etree
from parsel import Selector

from crawler.extract.fields import FieldType, node_text, proposed_type

MAX_ELEMENTS = 20_000
MAX_DEPTH = 300
MAX_CANDIDATES = 60
MAX_ANCESTORS = 6
MAX_NAMES = 4
NUMBER_ATTRIBUTE = "data-n"
SHOWN_TAGS = {
    "a", "abbr", "address", "article", "aside", "b", "bdi", "bdo", "blockquote", "br", "caption",
    "center", "cite", "code", "col", "colgroup", "data", "dd", "del", "details", "dfn", "div", "dl",
    "dt", "em", "figcaption", "figure", "footer", "h1", "h2", "h3", "h4", "h5", "h6", "header",
    "hgroup", "hr", "i", "img", "ins", "kbd", "label", "li", "main", "mark", "nav", "ol", "p",
    "pre", "q", "rp", "rt", "ruby", "s", "samp", "section", "small", "span", "strike", "strong",
    "sub", "summary", "sup", "table", "tbody", "td", "tfoot", "th", "thead", "time", "tr", "tt",
    "u", "ul", "var", "wbr",
}  # fmt: skip
# Elements that are removed with their content.
HIDDEN_TAGS = {
    "script", "style", "template", "noscript", "iframe", "object", "embed", "svg", "math", "title",
    "select", "textarea", "audio", "video", "canvas",
}  # fmt: skip
# Classes and ids that probably survive the next release: words, without counters or hashes.
NAME = re.compile(r"[A-Za-z][A-Za-z]+(?:[-_]{1,2}[A-Za-z]+)*", re.ASCII)
GENERATED = re.compile(
    r"^(?:css|sc|jsx|svelte|emotion|ng|ember|react|js|is|has)[-_]"
    r"|(?:^|[-_])(?:active|current|open|opened|selected|hover|focus|hidden|visible|loaded|odd|even|first|last)(?:[-_]|$)"
)
ITEMPROP = re.compile(r"[A-Za-z]{2,40}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A field that a page probably has.

    css: selector, which may end in `::attr(NAME)`
    """

    name: str
    css: str
    type: FieldType


# Places where many sites keep the values of an item, the most reliable first.
USUAL_PLACES = {
    "title": ("[itemprop=name]", "article h1", "main h1", "h1", ".entry-title", ".post-title"),
    "price": (
        "[itemprop=price]", ".product-price", "p.price ins", "p.price", ".price", "[class*=price]",
    ),
    "stock": (
        ".stock", ".availability", "[itemprop=availability]", "[class*=in-stock]",
        "[class*=availab]",
    ),
    "date": (
        "article time[datetime]::attr(datetime)", "time[datetime]::attr(datetime)",
        "meta[property='article:published_time']::attr(content)", "[itemprop=datePublished]",
        ".entry-date", ".post-date", ".date",
    ),
    "author": ("[itemprop=author]", "[rel=author]", ".author", ".byline"),
    "text": (
        "[itemprop=articleBody]", ".entry-content", ".post-content", ".article-content",
        "#description", "[itemprop=description]", "article", "main",
    ),
}  # fmt: skip


def numbered_html(page: Selector) -> str:
    """Return the markup of a page without scripts, styles, links, forms and external files.

    Each element has its number in the attribute `data-n`. Elements beyond MAX_ELEMENTS, and deeper
    than MAX_DEPTH, are left out.
    """
    for number, element in enumerate(_elements(page)):
        parent = element.getparent()
        depth = sum(1 for _ in islice(element.iterancestors(), MAX_DEPTH))
        if parent is not None and (number >= MAX_ELEMENTS or depth == MAX_DEPTH):
            parent.remove(element)
        else:
            element.set(NUMBER_ATTRIBUTE, str(number))
    html = etree.tostring(page.root, encoding="unicode", method="html")
    return nh3.clean(
        html,
        tags=SHOWN_TAGS,
        clean_content_tags=HIDDEN_TAGS,
        # The names by which selectors find elements; no style of the app uses them.
        attributes={"*": {NUMBER_ATTRIBUTE, "class", "id", "itemprop"}, "img": {"alt"}},
        link_rel=None,
        url_schemes=set(),
    )


def selector_of(page: Selector, number: int, others: Sequence[Selector] = ()) -> str | None:
    """Return a short CSS selector whose first match is the element with a number.

    others: other pages of the same kind, on which the selector should find one element, too

    Returns None if there is no such element.
    """
    element = next((e for n, e in enumerate(_elements(page)) if n == number), None)
    if element is None:
        return None
    best: tuple[tuple[int, bool, int], str] | None = None
    for css in islice(_candidates(element), MAX_CANDIDATES):
        matches = page.css(css)
        if not matches or matches[0].root is not element:
            continue
        elsewhere = [len(other.css(css)) for other in others]
        misses = sum(not n for n in elsewhere)
        is_ambiguous = len(matches) > 1 or any(n > 1 for n in elsewhere)
        rank = (misses, is_ambiguous, len(css))
        if best is None or rank < best[0]:
            best = rank, css
    if best:
        return best[1]
    # The exact path of the element, from the next ancestor with an id.
    parts: list[str] = []
    node: etree._Element | None = element
    while node is not None and isinstance(node.tag, str) and len(parts) < MAX_DEPTH:
        if _is_stable(node.get("id")):
            parts.append(f"#{node.get('id')}")
            break
        parts.append(node.tag if node.tag in ("html", "body") else _nth(node))
        node = node.getparent()
    return " > ".join(reversed(parts))


def suggested_fields(pages: Sequence[Selector], zone: ZoneInfo) -> list[Suggestion]:
    """Return the fields that most of these item pages have in one of the usual places."""
    suggestions: list[Suggestion] = []
    for name, places in USUAL_PLACES.items():
        for css in places:
            nodes = [matches[0] for page in pages if (matches := page.css(css))]
            filled = [node for node in nodes if node_text(node)]
            if len(filled) * 2 <= len(pages):
                continue
            kind = proposed_type(filled, zone)
            wanted = {"price": FieldType.PRICE, "date": FieldType.DATE}.get(name)
            if wanted is None or kind is wanted:
                suggestions.append(
                    Suggestion(name, css, FieldType.TEXT if name == "title" else kind)
                )
                break
    return suggestions


def _elements(page: Selector) -> Iterator[etree._Element]:
    root = page.root
    if isinstance(root, etree._Element):
        yield from list(root.iter(etree.Element))


def _candidates(element: etree._Element) -> Iterator[str]:
    """Yield selectors, with names of the element itself first, then below its ancestors."""
    own = _names(element)
    yield from own
    node = element.getparent()
    for _ in range(MAX_ANCESTORS):
        if node is None or not isinstance(node.tag, str) or node.tag in ("html", "body"):
            break
        for above in _names(node):
            if above != node.tag:
                yield from (f"{above} {below}" for below in own[:3])
                if node is element.getparent():
                    yield f"{above} > {_nth(element)}"
        node = node.getparent()


def _names(element: etree._Element) -> list[str]:
    """Return simple selectors of an element, the most stable ones first."""
    names, tag = [], element.tag
    if _is_stable(element.get("id")):
        names.append(f"#{element.get('id')}")
    if ITEMPROP.fullmatch(element.get("itemprop") or ""):
        names.append(f"[itemprop={element.get('itemprop')}]")
    classes = [name for name in (element.get("class") or "").split()[:20] if _is_stable(name)]
    for name in classes[:MAX_NAMES]:
        names += [f".{name}", f"{tag}.{name}"]
    if re.fullmatch(r"[a-z][a-z0-9]*", tag):
        names.append(tag)
    return names


def _is_stable(name: str | None) -> bool:
    return bool(name and len(name) <= 40 and NAME.fullmatch(name) and not GENERATED.search(name))


def _nth(element: etree._Element) -> str:
    place = 1 + sum(1 for _ in element.itersiblings(element.tag, preceding=True))
    tag = element.tag if re.fullmatch(r"[a-z][a-z0-9]*", element.tag) else "*"
    return f"{tag}:nth-of-type({place})"
