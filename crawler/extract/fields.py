"""Fields of a site definition: the selector of a value on the page, and the type of the value.

URLs in HTML values are made absolute, including those of images that pages load later.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from functools import cache, lru_cache
from html import escape
from itertools import groupby
from typing import Any, Self
from zoneinfo import ZoneInfo

import jmespath
from cssselect import SelectorError
from lxml import etree
from lxml.html import HtmlElement, fragments_fromstring, tostring
from parsel import Selector, SelectorList
from parsel.csstranslator import GenericTranslator, HTMLTranslator
from pydantic import BaseModel, ConfigDict, model_validator
from pydantic import Field as Key
from scrapy.http import TextResponse

from crawler.extract.documents import json_value
from crawler.extract.plain_text import Markup, text_below
from crawler.extract.prices import PRICE, amount_text, exact_amount, read_number, read_price
from crawler.utils.exact_json import Digits
from crawler.utils.regex import XPATH_NAMESPACES, compiled, patterns_in
from crawler.utils.time import split_zone, unix_time
from crawler.utils.urls import BLANKS, base_url, joined

# The largest number that is read.
MAX_NUMBER = 1e300
# Only digits, or only a time of day: dateparser would fill in the missing parts from today's date.
INCOMPLETE_DATE = re.compile(r"\d+|\d{1,2}:\d{2}(?::\d{2})?(?:\s?[ap]\.?m\.?)?", re.I)
# With dots, the day comes first, in English texts, too. With slashes, US English is assumed.
DOTTED_DATE = re.compile(r"\D*\d\d?\. ?\d\d?\. ?(?:\d{4}|\d\d)(?!\d)")
# A date of which the language or the site decides whether the day or the month comes first.
AMBIGUOUS_DATE = re.compile(r"\D*\d\d?([/-])\d\d?\1(?:\d{4}|\d\d)(?!\d)")
# Languages, and regions of English, that write the day first. In others, the order is not certain.
DAY_FIRST_LANGUAGES = frozenset({
    "ar", "bg", "ca", "cs", "da", "de", "el", "es", "et", "fi", "fr", "he", "hi", "hr", "id", "it",
    "nb", "nl", "no", "pl", "pt", "ro", "ru", "sk", "sl", "sr", "th", "tr", "uk", "vi",
})  # fmt: skip
DAY_FIRST_REGIONS = frozenset({"au", "gb", "ie", "in", "nz", "uk", "za"})
# A date without separators has at least this many digits, for example 20240715.
MIN_JOINED_DIGITS = 6
# Languages of dates in words by the script of their letters, as Unicode names it. dateparser reads
# 205 languages and tries all of them on a text that is not a date. That takes 2 s for the first one
# and 20 ms for each further one.
LANGUAGES = {
    "LATIN": (
        "en es fr de tr pt it nl vi pl cs id sv ro hu da fi sk nb hr lt sl ca et lv sw fil ms uz "
        "az-Latn af sr-Latn eu sq is gl cy ga"
    ),
    "CYRILLIC": "ru uk bg sr sr-Cyrl kk be mk mn ky",
    "ARABIC": "fa ar ur pa-Arab ps ckb ug",
    "CJK": "ja zh zh-Hans yue zh-Hant",
    "HIRAGANA": "ja", "KATAKANA": "ja", "HANGUL": "ko", "GREEK": "el", "HEBREW": "he",
    "THAI": "th", "DEVANAGARI": "hi mr ne", "BENGALI": "bn as", "GURMUKHI": "pa", "GUJARATI": "gu",
    "TAMIL": "ta", "TELUGU": "te", "KANNADA": "kn", "MALAYALAM": "ml", "ORIYA": "or",
    "SINHALA": "si", "GEORGIAN": "ka", "ARMENIAN": "hy", "KHMER": "km", "LAO": "lo",
    "MYANMAR": "my", "ETHIOPIC": "am ti",
}  # fmt: skip
# For dates without words: each order of day, month and year.
ALL_ORDERS = ["en", "es", "ja"]
# Longer values are proposed as text or HTML, never as a number, price or date.
MAX_VALUE_CHARACTERS = 80
# Minimum number of paragraphs, list items or similar blocks in a value that is proposed as HTML.
HTML_BLOCKS = 3
_BLOCKS = etree.XPath(f"boolean((.//p | .//li | .//h2 | .//h3 | .//tr)[{HTML_BLOCKS}])")
# Attributes with one URL that lxml does not know. Scripts copy the values of `data-` attributes
# into `src` and `srcset` when an image comes into view.
URL_ATTRIBUTE = re.compile(r"poster|data-(?:[\w-]+-)?(?:src|poster)")
# Attributes that are also used for other values.
OFTEN_URL_ATTRIBUTE = re.compile(
    r"data-(?:(?:[\w-]+-)?(?:original|lazy|href|url|image|img|bg|background|thumb(?:nail)?))"
)
URL_LIKE = re.compile(r"[^\s{}()<>\"']*[./][^\s{}()<>\"']*")
SRCSET_ATTRIBUTE = re.compile(r"(?:image)?srcset|data-(?:[\w-]+-)?srcset")
SELECTOR_ERRORS = (
    SelectorError, etree.XPathError, jmespath.exceptions.JMESPathError, ValueError,
)  # fmt: skip


# Functions of XPath 1.0, and those that parsel and lxml add. libxml2 reports an unknown function
# only when it evaluates the call, which may be in a predicate of an element that the page lacks.
XPATH_FUNCTIONS = frozenset({
    "last", "position", "count", "id", "local-name", "namespace-uri", "name", "string", "concat",
    "starts-with", "contains", "substring-before", "substring-after", "substring", "string-length",
    "normalize-space", "translate", "boolean", "not", "true", "false", "lang", "number", "sum",
    "floor", "ceiling", "round", "has-class", "re:test", "re:match", "re:replace",
    "set:difference", "set:distinct", "set:has-same-node", "set:intersection", "set:leading",
    "set:trailing",
})  # fmt: skip
# Node tests and operators that may precede a parenthesis.
_NO_FUNCTIONS = frozenset({
    "node", "text", "comment", "processing-instruction", "and", "or", "div", "mod",
})  # fmt: skip
_LITERAL = re.compile(r"'[^']*'|\"[^\"]*\"")
_CALL = re.compile(r"(?<![\w.-])([A-Za-z_][\w.-]*(?::[A-Za-z_][\w.-]*)?)\s*\(")
_XPATH_VARIABLE = re.compile(r"\$\s*[A-Za-z_][\w.-]*")


def check_names(xpath: str) -> None:
    """Raise ValueError for functions that XPath 1.0 lacks, and for variables."""
    bare = _LITERAL.sub("''", xpath)
    for call in _CALL.findall(bare):
        if call not in XPATH_FUNCTIONS | _NO_FUNCTIONS:
            raise ValueError(
                f"unknown function {call}(). Selectors are XPath 1.0; re:test, re:match and "
                "re:replace take regular expressions"
            )
    if variable := _XPATH_VARIABLE.search(bare):
        raise ValueError(f"undefined variable {variable[0]}")


class FieldType(StrEnum):
    """Types that the text of a field can be converted to."""

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
    def _check_selector(self) -> Self:
        given = [s for s in (self.css, self.xpath, self.jmespath) if s is not None]
        if len(given) != 1:
            raise ValueError("needs exactly one of css, xpath and jmespath")
        try:
            if self.css is not None:
                Selector("<a/>").css(self.css)
            elif self.xpath is not None:
                check_names(self.xpath)
                for pattern in patterns_in(self.xpath):
                    compiled(pattern, "To exclude texts, use not(re:test(…))")
                Selector("<a/>").xpath(self.xpath, namespaces=XPATH_NAMESPACES)
            else:
                jmespath.compile(self.jmespath or "")
        except SELECTOR_ERRORS as error:
            raise ValueError(f"bad selector {given[0]!r}: {squeeze(str(error))}") from None
        return self

    @property
    def selector(self) -> str:
        """Return the selector as the user wrote it."""
        return self.css or self.xpath or self.jmespath or ""

    def read(self, response: TextResponse, zone: ZoneInfo, *, day_first: bool | None = None) -> Any:
        """Return the field's value on a page; None (an empty list for `list`) if it is missing.

        day_first: whether 05/01/2024 is in January; None: by the language of the page

        Numbers are int or float, prices are dicts with the keys `amount` and `currency`, and dates
        are aware datetimes in UTC.
        """
        if self.jmespath is not None:
            if (document := json_value(response)) is None:
                return [] if self.type is FieldType.LIST else None
            matches = jmespath.search(self.jmespath, document)
            values = matches if isinstance(matches, list) else [matches]
            return self._read_json(values, zone, response.url, day_first=bool(day_first))
        if self.type is FieldType.HTML:
            nodes = selected(response, self.css, self.xpath)
            return (Markup(squeeze(_markup(nodes[0], response))) or None) if nodes else None
        values = matched_values(response, self.css, self.xpath)
        if self.type is FieldType.LIST:
            return [text for value in values if (text := value_text(value))]
        if not values:
            return None
        if self.type is FieldType.DATE and day_first is None:
            day_first = writes_day_first(response)
        is_amount = self.type in (FieldType.NUMBER, FieldType.PRICE)
        if is_amount and isinstance(values[0], etree._Element):
            return typed(amount_text(values[0]), self.type, zone)
        return typed(value_text(values[0]), self.type, zone, day_first=bool(day_first))

    def _read_json(
        self, matches: Sequence[Any], zone: ZoneInfo, url: str, *, day_first: bool
    ) -> Any:
        values = [value for value in matches if value is not None]
        if self.type is FieldType.LIST:
            return [json_text(value) for value in values]
        if not values:
            return None
        value = values[0]
        if isinstance(value, str) and self.type is FieldType.HTML:
            return Markup(with_absolute_links(squeeze(value), url)) or None
        if isinstance(value, Digits) and self.type is FieldType.NUMBER:
            return _number(value)
        if isinstance(value, str) or self.type in (FieldType.DATE, FieldType.HTML):
            return typed(json_text(value), self.type, zone, day_first=day_first)
        return value if self.type is FieldType.TEXT else self._amount(value)

    def _amount(self, value: Any) -> Any:
        if type(value) not in (int, float) or abs(value) > MAX_NUMBER:
            return None
        if self.type is FieldType.PRICE:
            return {"amount": exact_amount(value), "currency": None}
        return value


def _number(digits: Digits) -> str | None:
    """Return a number that a float cannot represent, as text; None if it is too large."""
    try:
        return str(digits) if abs(Decimal(digits)) < MAX_NUMBER else None
    except InvalidOperation:
        return None


def json_text(value: Any) -> str:
    """Return a value of JSON as one line: a text as it is, anything else as JSON."""
    return squeeze(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def text(css: str | None = None, *, xpath: str | None = None, jmespath: str | None = None) -> Field:
    """Define a text field: all text inside the first match, as one line.

    Blocks and table cells are separated by a space. The contents of scripts, styles, templates and
    noscript elements are left out, unless the selector matches such an element itself.
    """
    return Field(css=css, xpath=xpath, jmespath=jmespath, type=FieldType.TEXT)


def number(
    css: str | None = None, *, xpath: str | None = None, jmespath: str | None = None
) -> Field:
    """Define a number field: the first number in the text of the first match."""
    return Field(css=css, xpath=xpath, jmespath=jmespath, type=FieldType.NUMBER)


def price(
    css: str | None = None, *, xpath: str | None = None, jmespath: str | None = None
) -> Field:
    """Define a price field: an amount and its currency."""
    return Field(css=css, xpath=xpath, jmespath=jmespath, type=FieldType.PRICE)


def date(css: str | None = None, *, xpath: str | None = None, jmespath: str | None = None) -> Field:
    """Define a date field; dates without a UTC offset are in the site's time zone."""
    return Field(css=css, xpath=xpath, jmespath=jmespath, type=FieldType.DATE)


def texts(
    css: str | None = None, *, xpath: str | None = None, jmespath: str | None = None
) -> Field:
    """Define a list field: the texts of all matches."""
    return Field(css=css, xpath=xpath, jmespath=jmespath, type=FieldType.LIST)


def html(css: str | None = None, *, xpath: str | None = None, jmespath: str | None = None) -> Field:
    """Define an HTML field: the markup of the first match."""
    return Field(css=css, xpath=xpath, jmespath=jmespath, type=FieldType.HTML)


def selected(response: TextResponse, css: str | None, xpath: str | None) -> SelectorList[Any]:
    """Return the matches of a user's selector; the `re:` functions in XPath take linear time."""
    if css is not None:
        return response.css(css)
    return response.xpath(xpath or "", namespaces=XPATH_NAMESPACES)


def matched_values(response: TextResponse, css: str | None, xpath: str | None) -> list[Any]:
    """Return the roots of what `selected` returns, without the cost of a Selector for each.

    A value is an element, a text, an attribute, or the result of an XPath function.
    """
    page = response.selector
    if isinstance(page.root, etree._Element):
        # For an invalid expression, `selected` raises the same error as for other selectors.
        with suppress(etree.XPathError):
            found = _evaluator(css, xpath, page.type)(page.root)
            return found if isinstance(found, list) else [found]
    return [node.root for node in selected(response, css, xpath)]


@lru_cache(maxsize=2048)
def _evaluator(css: str | None, xpath: str | None, page_type: str) -> etree.XPath:
    """Compile a selector for all pages of a type (`html` or `xml`)."""
    if css is not None:
        translator = HTMLTranslator() if page_type == "html" else GenericTranslator()
        xpath = translator.css_to_xpath(css)
    # With the prefixes of parsel, as in `selected`.
    namespaces = Selector._default_namespaces | (XPATH_NAMESPACES if css is None else {})
    return etree.XPath(xpath or "", namespaces=namespaces, smart_strings=False)


def _markup(node: Selector, page: TextResponse) -> str:
    """Return the markup of a match with absolute URLs, or the value of a text or attribute."""
    element = node.root
    if not isinstance(element, etree._Element):
        return node.get() or ""
    base = base_url(page.selector.root, page.url)
    if not isinstance(element, HtmlElement):
        return with_absolute_links(node.get() or "", base)
    part = deepcopy(element)
    make_absolute(part, base)
    markup: str = tostring(part, encoding="unicode", with_tail=False)
    return markup


def with_absolute_links(markup: str, base: str) -> str:
    """Return HTML with absolute URLs, given the URL that relative ones refer to."""
    if "<" not in markup:
        return markup
    try:
        first, *parts = ["", *fragments_fromstring(markup)]
    except (etree.ParserError, ValueError):
        return markup
    if parts and isinstance(parts[0], str):
        first = escape(parts.pop(0), quote=False)
    for part in parts:
        make_absolute(part, base)
    return first + "".join(tostring(part, encoding="unicode") for part in parts)


def make_absolute(element: HtmlElement, base: str) -> None:
    """Make the URLs in an element and below it absolute; invalid ones stay as they are."""
    element.make_links_absolute(base, resolve_base_href=False, handle_failures="ignore")
    for node in element.iter(etree.Element):
        for name, value in node.items():
            if SRCSET_ATTRIBUTE.fullmatch(name):
                node.set(name, absolute_srcset(value, base))
            elif URL_ATTRIBUTE.fullmatch(name) or (
                OFTEN_URL_ATTRIBUTE.fullmatch(name) and URL_LIKE.fullmatch(value.strip(BLANKS))
            ):
                node.set(name, _joined(base, value))


def absolute_srcset(value: str, base: str) -> str:
    """Return the value of a `srcset` attribute with absolute URLs.

    The value is a list of URLs, each with an optional width or density: `a.png 1x, b.png 2x`. A
    comma ends a URL only before a space.
    """
    images: list[list[str]] = []
    words, begins = deque(value.split()), True
    while words:
        word = words.popleft()
        if begins:
            if url := word.strip(","):
                images.append([_joined(base, url)])
                begins = word.endswith(",")
            continue
        size, comma, rest = word.partition(",")
        images[-1] += [size] if size else []
        begins = bool(comma)
        if rest:
            words.appendleft(rest)
    return ", ".join(map(" ".join, images))


def _joined(base: str, url: str) -> str:
    # An empty URL would become that of the page.
    return (joined(base, url) if url.strip(BLANKS) else "") or url


def squeeze(value: str) -> str:
    """Replace every run of white space with one space, and strip both ends."""
    return " ".join(value.split())


def node_text(node: Selector) -> str:
    """Return the text inside an element (see `text_below`), or the value of a text or attribute."""
    return value_text(node.root)


def value_text(value: Any) -> str:
    """Return the text inside an element (see `text_below`), or another value as one line."""
    if isinstance(value, str):
        return squeeze(value)
    if isinstance(value, etree._Element):
        if not isinstance(value.tag, str):
            return squeeze(value.text or "")  # a comment or processing instruction
        return text_below(value)
    return squeeze(str(value))


def typed(value: str, kind: FieldType, zone: ZoneInfo, *, day_first: bool = False) -> Any:
    """Convert a text to a field's type; None if that is not possible."""
    if not value:
        return None
    if kind is FieldType.NUMBER:
        return read_number(value)
    if kind is FieldType.PRICE:
        return read_price(value)
    if kind is FieldType.DATE:
        return read_date(value, zone, day_first=day_first)
    return value


def writes_day_first(response: TextResponse) -> bool:
    """Return whether the language of a page certainly writes the day before the month.

    English does only with a region, as in `en-GB`.
    """
    root = response.selector.root
    tag = root.get("lang") if isinstance(root, etree._Element) else None
    language, _, region = (tag or "").strip().lower().replace("_", "-").partition("-")
    if language == "en":
        return region in DAY_FIRST_REGIONS
    return language in DAY_FIRST_LANGUAGES and region != "us"


def read_date(value: str, zone: ZoneInfo, *, day_first: bool = False) -> datetime | None:
    """Return the date in a text in UTC; None if there is none.

    zone:      time zone of dates without a UTC offset and without the name of a time zone
    day_first: whether the day comes first in dates such as 05/01/2024
    """
    if (read := stated_date(value, day_first=day_first)) is None:
        return None
    try:
        return (read if read.tzinfo else read.replace(tzinfo=zone)).astimezone(UTC)
    except OverflowError:
        return None


def stated_date(value: str, *, day_first: bool = False) -> datetime | None:
    """Return the date in a text, without a time zone if the text has none; None: no date.

    day_first: as in `read_date`

    Unix times are dates, too, in seconds and in milliseconds. Relative dates ("2 hours ago") are
    rejected: they would differ on every visit.
    """
    # First, because 1711010123456 is also an ISO 8601 date.
    if (read := unix_time(value)) is not None:
        return read
    text, named = split_zone(value)
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        is_day_first = day_first and AMBIGUOUS_DATE.match(text) is not None
        read = _parse_date(text, day_first=is_day_first or DOTTED_DATE.match(text) is not None)
    return read.replace(tzinfo=named) if read is not None and read.tzinfo is None else read


@lru_cache(maxsize=1024)
def _parse_date(value: str, *, day_first: bool) -> datetime | None:
    if INCOMPLETE_DATE.fullmatch(value):
        return None
    # Day and year are two numbers, or enough digits for a date without separators.
    runs = [len(list(run)) for is_number, run in groupby(value, str.isnumeric) if is_number]
    if len(runs) < 2 and max(runs, default=0) < MIN_JOINED_DIGITS:
        return None
    scripts = {_script(character) for character in value if character.isalpha()}
    languages = " ".join(LANGUAGES.get(script, "") for script in sorted(scripts)).split()
    import dateparser  # takes 0.1 s to import, and only dates in words need it

    read: datetime | None = dateparser.parse(
        value,
        languages=list(dict.fromkeys(languages or ALL_ORDERS)),
        settings={
            "PARSERS": ["custom-formats", "absolute-time", "no-spaces-time"],
            "REQUIRE_PARTS": ["day", "month", "year"],
        }
        | ({"DATE_ORDER": "DMY"} if day_first else {}),
    )
    return read


@cache
def _script(character: str) -> str:
    return unicodedata.name(character, "").partition(" ")[0]


def proposed_type(nodes: Sequence[Selector], zone: ZoneInfo) -> FieldType:
    """Return the type that fits the matches of a selector on several pages."""
    texts = [text for node in nodes if (text := node_text(node))]
    if not texts:
        return FieldType.TEXT
    if all(isinstance(n.root, etree._Element) and _BLOCKS(n.root) for n in nodes):
        return FieldType.HTML
    if max(map(len, texts)) > MAX_VALUE_CHARACTERS or not all(re.search(r"\d", t) for t in texts):
        return FieldType.TEXT
    if all(PRICE.search(text) and read_price(text) for text in texts):
        return FieldType.PRICE
    # A number that could be a Unix time is rather the number of an item.
    if all(unix_time(text) is None and read_date(text, zone) for text in texts):
        return FieldType.DATE
    is_number = all(
        sum(map(str.isalpha, t)) * 2 <= len(t) and read_number(t) is not None for t in texts
    )
    return FieldType.NUMBER if is_number else FieldType.TEXT
