"""Types and validators for the keys of a site definition."""

from __future__ import annotations

import re
from typing import Annotated, Self
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from parsel import Selector
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Tag,
    model_validator,
)
from pydantic import Field as Key

from crawler.config import SECRET_NAMES, VARIABLE, expanded, shows_secret
from crawler.extract.fields import SELECTOR_ERRORS, Field, squeeze
from crawler.utils.regex import compiled
from crawler.utils.urls import BLANKS, canonical, host_of, is_http, proxy_problem, scheme_hint
from schedules.calendar import open_hours
from schedules.schedule import MAX_FEED_WEEKS, MAX_WEEKS, WEEK_HOURS

# Keys of stored items with a fixed meaning; a field must not have such a name.
RESERVED = frozenset({"url", "outcome", "categories", "at", "duplicate_of", "similarity"})
# Prefix of a category's name in `weights`, where keys are URL patterns by default.
CATEGORY_PREFIX = "category:"


def checked_pattern(value: str) -> str:
    """Return a regular expression for URLs.

    Raises ValueError if it is invalid or unsupported, or cannot match a URL.
    """
    compiled(value, "To exclude URLs, use not_list_pages or not_item_pages")
    if value.startswith("^/"):
        raise ValueError(
            f"matches no URL: '{value}'. Patterns are searched in the whole URL: leave out ^"
        )
    return value


def checked_weights(value: dict[str, float]) -> dict[str, float]:
    """Return weights by URL pattern or category. Raises ValueError like `checked_pattern`."""
    for key in value:
        if key == CATEGORY_PREFIX:
            raise ValueError(f"{key!r} has no category name. Write '{CATEGORY_PREFIX}NAME'")
        if not key.startswith(CATEGORY_PREFIX):
            compiled(key, "To exclude URLs, list them first: the first pattern that matches counts")
    return value


def as_tuple(value: object) -> object:
    """Treat a plain string as a tuple with one entry."""
    return (value,) if isinstance(value, str) else value


def checked_css(value: str) -> str:
    """Return a CSS selector of elements. Raises ValueError for others."""
    if "::" in value:
        raise ValueError(f"{value!r} selects texts or attributes, not elements: leave out ::")
    try:
        Selector("<a/>").css(value)
    except SELECTOR_ERRORS as error:
        raise ValueError(f"bad selector {value!r}: {squeeze(str(error))}") from None
    return value


def as_field(value: object) -> object:
    """Treat a plain string as the CSS selector of a text field."""
    return {"css": value} if isinstance(value, str) else value


def checked_fields(value: dict[str, Field]) -> dict[str, Field]:
    """Return fields by name. Raises ValueError for names that stored items cannot have."""
    for name in value:
        if name in RESERVED or not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ValueError(f"invalid or reserved field name: {name!r}")
    return value


def checked_timezone(value: str) -> str:
    """Return an IANA time zone. Raises ValueError if this machine has no such zone."""
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"unknown time zone: {value!r}. Use an IANA name such as Europe/London"
        ) from None
    return value


def expanded_texts(value: dict[str, str]) -> dict[str, str]:
    """Expand `${VARIABLE}` in headers or cookies. Raises ValueError for secrets as plain text."""
    for name, text in value.items():
        if SECRET_NAMES.search(name) and not VARIABLE.search(text):
            raise ValueError(f"{name}: keep secrets in the environment: {name} = '${{VARIABLE}}'")
    # Expand after the checks, which need the references as written.
    return {name: expanded(text) for name, text in value.items()}


def expanded_proxy(value: str) -> str:
    """Expand `${VARIABLE}` in a proxy's URL.

    Raises ValueError for a password as plain text, and for a proxy that requests cannot use.
    """
    if shows_secret(value):
        raise ValueError("keep the password in the environment: http://user:${VARIABLE}@host")
    url = expanded(value)
    if (problem := proxy_problem(url)) is not None:
        raise ValueError(problem)
    return url


def absolute_url(value: str) -> str:
    """Return an absolute http(s) URL. Raises ValueError for other values and for credentials."""
    try:
        is_valid = is_http(canonical(value)) and urlsplit(value.strip(BLANKS)).port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        hint = scheme_hint(value)
        raise ValueError(f"{value!r} is not an absolute http or https URL{hint}")
    if "@" in urlsplit(value.strip(BLANKS)).netloc:
        raise ValueError(
            "URLs must not contain a user name or password. "
            "Use headers = { Authorization = 'Basic ${VARIABLE}' }"
        )
    return value


def domain_of(value: str) -> str:
    """Return the canonical name of a domain."""
    return host_of(canonical(f"http://{value}/"))


def checked_window(value: str) -> str:
    """Return visiting hours such as `Mon-Fri 08:00-18:00`. Raises ValueError if invalid."""
    open_hours([value])
    return value


Pattern = Annotated[str, AfterValidator(checked_pattern)]
Selectors = Annotated[
    tuple[Annotated[str, AfterValidator(checked_css)], ...], BeforeValidator(as_tuple)
]
Patterns = Annotated[tuple[Pattern, ...], BeforeValidator(as_tuple)]
StartUrls = Annotated[
    tuple[Annotated[str, AfterValidator(absolute_url)], ...], BeforeValidator(as_tuple)
]
Domains = Annotated[
    tuple[Annotated[str, AfterValidator(domain_of)], ...], BeforeValidator(as_tuple)
]
Names = Annotated[tuple[str, ...], BeforeValidator(as_tuple)]
Windows = Annotated[
    tuple[Annotated[str, AfterValidator(checked_window)], ...], BeforeValidator(as_tuple)
]
# Intervals must fit into the longest cycle that can be planned, for pages and for feeds.
CycleHours = Annotated[float, Key(gt=0, le=MAX_WEEKS * WEEK_HOURS)]
FeedCycleHours = Annotated[float, Key(gt=0, le=MAX_FEED_WEEKS * WEEK_HOURS)]
Amount = Annotated[float, Key(gt=0, le=1_000_000, allow_inf_nan=False)]
Fields = Annotated[
    dict[str, Annotated[Field, BeforeValidator(as_field)]], AfterValidator(checked_fields)
]
Weights = Annotated[dict[str, Amount], AfterValidator(checked_weights)]
TimeZone = Annotated[str, AfterValidator(checked_timezone)]
Expanded = Annotated[dict[str, str], AfterValidator(expanded_texts)]
Proxy = Annotated[str, AfterValidator(expanded_proxy)]


class CategoryRule(BaseModel):
    """Source of a list page's category: a pattern for its URL, or a selector on the page."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pattern: Pattern | None = Key(
        None,
        description="URL pattern: group `category`, or else group 1, or else the whole match",
    )
    css: str | None = Key(None, description="CSS selector of a text on the list page")
    xpath: str | None = Key(None, description="XPath selector of a text on the list page")

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if sum(rule is not None for rule in (self.pattern, self.css, self.xpath)) != 1:
            raise ValueError("needs exactly one of pattern, css and xpath")
        if self.pattern is None:
            Field(css=self.css, xpath=self.xpath)
        return self


Category = Annotated[
    Annotated[str, Tag("text")] | Annotated[CategoryRule, Tag("rule")],
    Discriminator(lambda value: "text" if isinstance(value, str) else "rule"),
]
