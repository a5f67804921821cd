"""The kinds of keys that a wrapper has, and what is wrong with some values."""

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
from schedules.schedule import MAX_FEED_WEEKS, MAX_WEEKS, WEEK_HOURS
from schedules.windows import open_hours


def checked_pattern(value: str) -> str:
    """Return a regular expression for URLs; raises ValueError if it cannot be searched."""
    compiled(value, "To exclude URLs, use not_list_pages or not_item_pages")
    return value


def checked_weight(value: str) -> str:
    """As `checked_pattern`, of `weights`."""
    compiled(value, "To exclude URLs, list them first: the first pattern that matches counts")
    return value


def _as_tuple(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def as_field(value: object) -> object:
    """A selector alone is a field of text."""
    return {"css": value} if isinstance(value, str) else value


def absolute_url(value: str) -> str:
    """The URL; ValueError where it is no absolute one of the web."""
    try:
        readable = is_http(canonical(value))
    except ValueError:
        readable = False
    if not readable:
        raise ValueError(f"{value!r} is not an absolute http or https URL")
    if "@" in urlsplit(value.strip(BLANKS)).netloc:
        raise ValueError(
            "a URL must not hold a user name or a password. "
            "Use headers = { Authorization = 'Basic ${VARIABLE}' }"
        )
    return value


def _window(value: str) -> str:
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
Windows = Annotated[tuple[Annotated[str, AfterValidator(_window)], ...], BeforeValidator(_as_tuple)]
# No longer than the longest cycle, of pages and of feeds.
CycleHours = Annotated[float, Key(gt=0, le=MAX_WEEKS * WEEK_HOURS)]
FeedCycleHours = Annotated[float, Key(gt=0, le=MAX_FEED_WEEKS * WEEK_HOURS)]
Amount = Annotated[float, Key(gt=0, le=1_000_000, allow_inf_nan=False)]
Fields = dict[str, Annotated[Field, BeforeValidator(as_field)]]


class CategoryRule(BaseModel):
    """Where the category of a list page comes from: its URL or a selector on it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pattern: Pattern | None = None
    css: str | None = None
    xpath: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(rule is not None for rule in (self.pattern, self.css, self.xpath)) != 1:
            raise ValueError("needs exactly one of pattern, css and xpath")
        if self.pattern is None:
            Field(css=self.css, xpath=self.xpath)
        return self


Category = Annotated[
    Annotated[str, Tag("text")] | Annotated[CategoryRule, Tag("rule")],
    Discriminator(lambda value: "text" if isinstance(value, str) else "rule"),
]
