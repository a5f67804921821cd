"""Types and validators for the keys of a site definition."""

from __future__ import annotations

from typing import Annotated, Self
from urllib.parse import urlsplit

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

from crawler.extract.fields import Field
from crawler.utils.regex import compiled
from crawler.utils.urls import BLANKS, canonical, host_of, is_http
from schedules.calendar import open_hours
from schedules.schedule import MAX_FEED_WEEKS, MAX_WEEKS, WEEK_HOURS


def checked_pattern(value: str) -> str:
    """Return a regular expression for URLs. Raises ValueError if it is invalid or unsupported."""
    compiled(value, "To exclude URLs, use not_list_pages or not_item_pages")
    return value


def checked_weight(value: str) -> str:
    """Return a regular expression in `weights`. Raises ValueError like `checked_pattern`."""
    compiled(value, "To exclude URLs, list them first: the first pattern that matches counts")
    return value


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def as_field(value: object) -> object:
    """Treat a plain string as the CSS selector of a text field."""
    return {"css": value} if isinstance(value, str) else value


def absolute_url(value: str) -> str:
    """Return an absolute http(s) URL. Raises ValueError for other values and for credentials."""
    try:
        is_valid = is_http(canonical(value))
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ValueError(f"{value!r} is not an absolute http or https URL")
    if "@" in urlsplit(value.strip(BLANKS)).netloc:
        raise ValueError(
            "URLs must not contain a user name or password. "
            "Use headers = { Authorization = 'Basic ${VARIABLE}' }"
        )
    return value


def checked_window(value: str) -> str:
    """Return visiting hours such as `Mon-Fri 08:00-18:00`. Raises ValueError if invalid."""
    open_hours([value])
    return value


Pattern = Annotated[str, AfterValidator(checked_pattern)]
Patterns = Annotated[tuple[Pattern, ...], BeforeValidator(_as_tuple)]
StartUrls = Annotated[
    tuple[Annotated[str, AfterValidator(absolute_url)], ...], BeforeValidator(_as_tuple)
]
Domains = Annotated[
    tuple[
        Annotated[str, AfterValidator(lambda value: host_of(canonical(f"http://{value}/")))], ...
    ],
    BeforeValidator(_as_tuple),
]
Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
Windows = Annotated[
    tuple[Annotated[str, AfterValidator(checked_window)], ...], BeforeValidator(_as_tuple)
]
# Intervals must fit into the longest cycle that can be planned, for pages and for feeds.
CycleHours = Annotated[float, Key(gt=0, le=MAX_WEEKS * WEEK_HOURS)]
FeedCycleHours = Annotated[float, Key(gt=0, le=MAX_FEED_WEEKS * WEEK_HOURS)]
Amount = Annotated[float, Key(gt=0, le=1_000_000, allow_inf_nan=False)]
Fields = dict[str, Annotated[Field, BeforeValidator(as_field)]]


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
