"""Read the offers and dates that a page marks up for search engines.

Shops and calendars state price, availability, and the time of an event as JSON-LD, microdata, RDFa
or meta tags (schema.org, https://ogp.me). Often no visible text has these values when the page is
loaded, because a script shows them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from typing import Any

from lxml import etree

from crawler.extract.fields import read_price, squeeze, value_text

Node = Mapping[str, Any]
MAX_SCRIPTS = 50
MAX_SCRIPT_CHARACTERS = 500_000
MAX_NODES = 5000
MAX_LINES = 200
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
# Markers around JSON, and commas that JSON does not allow.
START = re.compile(r"(?:\s|//|/\*|\*/|<!\[CDATA\[|<!--)+")
END_MARKS = re.compile(r"(?:\s|//|/\*|\*/|\]\]>|-->|;)+$")
# The search for marks at the end takes quadratic time, so only this part of a script is searched.
MAX_END_CHARACTERS = 50
EXTRA_COMMA = re.compile(r",(?=\s{0,100}[}\]])")
_SCRIPTS: Callable[[Any], Any] = etree.XPath(
    "//script[contains(translate(@type, 'LDJSON', 'ldjson'), 'ld+json')]", smart_strings=False
)
_MARKED: Callable[[Any], Any] = etree.XPath(
    "//*[@itemprop or @itemscope or @property or @typeof]", smart_strings=False
)


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
    for items in (_json_items(root), _marked_items(root, beside)):
        products = [item for item in items if not _is_event(item)]
        main = next((item for item in products if _is_named(item, titles)), None)
        used = [item for item in items if _is_event(item) or item is (main or products[0])]
        of_items = chain.from_iterable(map(_lines_of, used))
        # Microdata often repeats JSON-LD, and meta tags repeat both without the name.
        new = [line for line in of_items if not any(line in other for other in lines)]
        lines += new[: MAX_LINES - len(lines)]
    return sorted(lines)


def _is_event(item: Node) -> bool:
    return any(item.get(key) for key in DATES)


def _is_named(item: Node, titles: Collection[str]) -> bool:
    name = _text(item.get("name")).casefold()
    return bool(name) and any(name in title.casefold() for title in titles)


def _json_items(root: Any) -> list[Node]:
    """Return the items with offers or dates in the JSON-LD of a page."""
    scripts = [_json_of(script.text or "") for script in islice(_SCRIPTS(root), MAX_SCRIPTS)]
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


def _json_of(text: str) -> Any:
    """Return the value of a script; None if it cannot be read. Common mistakes are repaired."""
    text = text[:MAX_SCRIPT_CHARACTERS].strip()
    start = START.match(text)
    text = text[start.end() :] if start else text
    last = text[-MAX_END_CHARACTERS:]
    text = text[: len(text) - len(last)] + END_MARKS.sub("", last)
    with suppress(ValueError, RecursionError):
        return json.loads(text, strict=False)
    with suppress(ValueError, RecursionError):
        return json.loads(EXTRA_COMMA.sub("", text), strict=False)
    return None


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
        scope = _scope_of(element, scopes)
        if kind is not None or element.get("itemscope") is not None:
            part: dict[str, Any] = {}
            if scope is not None and (kind or "").rstrip("/ ").endswith(PART_TYPES):
                scope.setdefault("offers", []).append(part)
            elif element not in beside:
                items.append(part)
            scopes[element] = part
        elif scope is not None:
            for name in PROPERTIES.intersection(names) - scope.keys():
                scope[name] = _marked_value(element)
    found = [*items, {"offers": [meta]}] if meta else items
    return [
        item
        | {"offers": [{key: item[key] for key in OFFER & item.keys()}, *item.get("offers", ())]}
        for item in found
        if any(item.get(key) for key in ("offers", *OFFER, *DATES))
    ]


def _scope_of(element: Any, scopes: Mapping[Any, dict[str, Any]]) -> dict[str, Any] | None:
    above = (scopes[parent] for parent in islice(element.iterancestors(), 100) if parent in scopes)
    return next(above, None)


def _marked_value(element: Any) -> str:
    for name in ("content", "href", "datetime"):
        if (value := element.get(name)) is not None:
            return str(value)
    return value_text(element)


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
    read = read_price(text) if text else None
    if read is None:
        return text
    amount = read["amount"]
    return f"{amount:.2f}" if amount == round(amount, 2) else f"{amount:g}"


def _text(value: Any) -> str:
    """Return a value of JSON as one line; the first of a list; empty for objects."""
    if isinstance(value, list):
        value = value[0] if value else ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return squeeze(str(value)[:MAX_VALUE_CHARACTERS])
