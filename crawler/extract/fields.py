"""Fields of a wrapper: where a value is on the page and what type it has."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, Self
from zoneinfo import ZoneInfo

import jmespath
from cssselect import SelectorError
from lxml import etree
from parsel import Selector, SelectorList
from pydantic import BaseModel, ConfigDict, model_validator
from pydantic import Field as Key
from scrapy.http import TextResponse

from crawler.extract.plain_text import Markup, text_below
from crawler.utils.regex import XPATH_NAMESPACES, compiled, patterns_in

# A sign that no word ends with, then digits in groups of three, or digits, or a bare fraction.
NUMBER = re.compile(
    r"(?P<sign>(?<![\w.])[-+\u2212])?\s?"
    r"(?P<size>\d{1,3}(?:[ .,'\u00a0\u202f]\d{3})+(?!\d)(?:[.,]\d+)?"
    r"|\d+(?:[.,]\d+)*|(?<!\w)[.,]\d+)"
)
NEGATIVE = re.compile(r"(?<![\w.])[-\u2212]\s?[^\w\s]?\s?\d")
MOST_DIGITS = 300
LONGEST_DATE = 200
# Digits alone, or a time of day: dateparser would make up the rest.
NO_DATE = re.compile(r"\d+|\d{1,2}:\d{2}(?::\d{2})?(?:\s?[ap]\.?m\.?)?", re.I)


class FieldType(StrEnum):
    """What a field's text is read as."""

    TEXT = "text"
    NUMBER = "number"
    PRICE = "price"
    DATE = "date"
    LIST = "list"
    HTML = "html"


class Field(BaseModel):
    """One field: exactly one of `css`, `xpath` and `jmespath`, and a type."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    css: str | None = Key(default=None, description="CSS selector")
    xpath: str | None = Key(default=None, description="XPath selector")
    jmespath: str | None = Key(default=None, description="JMESPath expression, for JSON")
    type: FieldType = Key(
        default=FieldType.TEXT,
        description="type of the value: `text`, `number`, `price`, `date`, `list` or `html`",
    )

    @model_validator(mode="after")
    def _one_readable_selector(self) -> Self:
        given = [s for s in (self.css, self.xpath, self.jmespath) if s is not None]
        if len(given) != 1:
            raise ValueError("needs exactly one of css, xpath and jmespath")
        _check_selector(self)
        return self

    @property
    def selector(self) -> str:
        """The selector as it is written."""
        return self.css or self.xpath or self.jmespath or ""

    def read(self, response: TextResponse, zone: ZoneInfo) -> Any:
        """The field's value on the page; None (an empty list for `list`) where it is not there.

        Numbers are int or float, prices {"amount", "currency"}, dates aware and in UTC.
        """
        if self.jmespath is not None:
            return _typed_json(response.jmespath(self.jmespath), self.type, zone)
        found = self._select(response)
        if self.type is FieldType.LIST:
            return [text for node in found if (text := node_text(node))]
        if not found:
            return None
        if self.type is FieldType.HTML:
            return Markup(squeeze(found[0].get() or "")) or None
        return typed(node_text(found[0]), self.type, zone)

    def _select(self, response: TextResponse) -> SelectorList[Any]:
        return selected(response, self.css, self.xpath)


def text(css: str | None = None, *, xpath: str | None = None, jmespath: str | None = None) -> Field:
    """A field of text: all text below the first match, as one line.

    Blocks and table cells are separated by a space; scripts, styles, templates and noscript are
    left out, unless the match itself is one.
    """
    return Field(css=css, xpath=xpath, jmespath=jmespath, type=FieldType.TEXT)


def number(
    css: str | None = None, *, xpath: str | None = None, jmespath: str | None = None
) -> Field:
    """A field of one number, read out of the first match's text."""
    return Field(css=css, xpath=xpath, jmespath=jmespath, type=FieldType.NUMBER)


def price(
    css: str | None = None, *, xpath: str | None = None, jmespath: str | None = None
) -> Field:
    """A field of an amount and its currency."""
    return Field(css=css, xpath=xpath, jmespath=jmespath, type=FieldType.PRICE)


def date(css: str | None = None, *, xpath: str | None = None, jmespath: str | None = None) -> Field:
    """A field of a date and time; without an offset it is in the wrapper's time zone."""
    return Field(css=css, xpath=xpath, jmespath=jmespath, type=FieldType.DATE)


def texts(
    css: str | None = None, *, xpath: str | None = None, jmespath: str | None = None
) -> Field:
    """A field of the texts of all matches (type `list`)."""
    return Field(css=css, xpath=xpath, jmespath=jmespath, type=FieldType.LIST)


def html(css: str | None = None, *, xpath: str | None = None, jmespath: str | None = None) -> Field:
    """A field of the first match's markup."""
    return Field(css=css, xpath=xpath, jmespath=jmespath, type=FieldType.HTML)


def selected(response: TextResponse, css: str | None, xpath: str | None) -> SelectorList[Any]:
    """What a user's selector finds; `re:` functions of XPath search in linear time."""
    if css is not None:
        return response.css(css)
    return response.xpath(xpath or "", namespaces=XPATH_NAMESPACES)


def squeeze(value: str) -> str:
    """`value` with every run of white space as one blank, and none at the ends."""
    return " ".join(value.split())


def node_text(node: Selector) -> str:
    """All text below a node as `text_below` reads it; for attributes and text nodes their value."""
    root = node.root
    if isinstance(root, str):
        return squeeze(root)
    if isinstance(root, etree._Element):
        if not isinstance(root.tag, str):
            return squeeze(root.text or "")  # a comment or processing instruction
        return text_below(root)
    return squeeze(str(root))


def typed(value: str, kind: FieldType, zone: ZoneInfo) -> Any:
    """A text read as a field's type; None where it cannot be."""
    if not value:
        return None
    if kind is FieldType.NUMBER:
        return read_number(value)
    if kind is FieldType.PRICE:
        return read_price(value)
    if kind is FieldType.DATE:
        return read_date(value, zone)
    return value


def read_number(value: str) -> int | float | None:
    """The first number in a text; 1,234.5 and 1.234,5 alike."""
    from price_parser import Price  # a tenth of the imports' time, and many wrappers need none

    if (found := NUMBER.search(value)) is None:
        return None
    size, factor = found["size"], -1 if found["sign"] in ("-", "\u2212") else 1
    if len(size) > MOST_DIGITS:
        return None
    if size.isdigit():
        return factor * int(size)
    amount = Price.fromstring(size if size[0].isdigit() else f"0{size}").amount_float
    if amount is None:
        return None
    # 1,234 and 1234 are one number: their hashes have to be equal.
    return factor * (int(amount) if amount.is_integer() else amount)


@lru_cache(maxsize=1024)
def _price(value: str) -> tuple[float, str | None] | None:
    from price_parser import Price

    read = Price.fromstring(value)
    if read.amount_float is None:
        return None
    return (-read.amount_float if NEGATIVE.search(value) else read.amount_float), read.currency


def read_price(value: str) -> dict[str, Any] | None:
    """Amount and currency in a text, as {"amount": float, "currency": str or None}."""
    # What is read is kept: no more than that.
    read = _price(value[:MOST_DIGITS])
    return None if read is None else {"amount": read[0], "currency": read[1]}


def read_date(value: str, zone: ZoneInfo) -> datetime | None:
    """A date in a text, in UTC; relative ones ("2 hours ago") are none, as they never stand."""
    read = _iso_date(value) or _parse_date(value[:LONGEST_DATE])
    if read is None:
        return None
    try:
        return (read if read.tzinfo else read.replace(tzinfo=zone)).astimezone(UTC)
    except OverflowError:
        return None


def _iso_date(value: str) -> datetime | None:
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        return None


@lru_cache(maxsize=1024)
def _parse_date(value: str) -> datetime | None:
    import dateparser  # half a second of imports, for wrappers with dates in words alone

    if NO_DATE.fullmatch(value):
        return None
    read: datetime | None = dateparser.parse(
        value,
        settings={
            "PARSERS": ["custom-formats", "absolute-time", "no-spaces-time"],
            "REQUIRE_PARTS": ["day", "month", "year"],
        },
    )
    return read


def _typed_json(found: SelectorList[Any], kind: FieldType, zone: ZoneInfo) -> Any:
    values = [value for value in found.getall() if value is not None]
    if kind is FieldType.LIST:
        return [squeeze(str(value)) for value in values]
    if not values:
        return None
    value = values[0]
    if isinstance(value, str):
        if kind is FieldType.HTML:
            return Markup(squeeze(value)) or None
        return typed(squeeze(value), kind, zone)
    return value if kind in (FieldType.NUMBER, FieldType.TEXT) else typed(str(value), kind, zone)


def _check_selector(field: Field) -> None:
    try:
        if field.css is not None:
            Selector("<a/>").css(field.css)
        elif field.xpath is not None:
            for pattern in patterns_in(field.xpath):
                compiled(pattern, "To exclude texts, use not(re:test(…))")
            Selector("<a/>").xpath(field.xpath, namespaces=XPATH_NAMESPACES)
        else:
            jmespath.compile(field.jmespath or "")
    except (SelectorError, etree.XPathError, jmespath.exceptions.JMESPathError, ValueError) as bad:
        shown = next(x for x in (field.css, field.xpath, field.jmespath) if x is not None)
        raise ValueError(f"bad selector {shown!r}: {squeeze(str(bad))}") from None
