"""Edits of site definitions, and previews of what patterns select and fields extract.

The web app edits some keys of a definition; all others stay as they are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, ConfigDict, field_validator
from pydantic import Field as Key
from scrapy.http import HtmlResponse, TextResponse
from typing_extensions import TypedDict

from crawler.config import VARIABLE, Config
from crawler.errors import ConfigError, FreshetError
from crawler.extract.fields import Field, FieldType, proposed_type
from crawler.extract.links import category_of
from crawler.extract.list_wrappers import any_wrapper
from crawler.extract.page_values import page_values
from crawler.extract.proposals import Anchor, anchors_of
from crawler.extract.response import with_valid_base
from crawler.extract.selectors import (
    SHOWN_TAGS,
    numbered_html,
    selector_of,
    suggested_fields,
)
from crawler.extract.site_definition import Wrapper
from crawler.extract.stored_definition import as_list, secrets_of
from crawler.fetch.guard import Named, is_public, literal, refusal
from crawler.fetch.places import OwnPlaces
from crawler.items import Kind
from crawler.utils.regex import compiled
from crawler.utils.text import is_price, price, without_surrogates
from crawler.utils.urls import canonical, host_of, shapes

MAX_PATTERNS = 50
MAX_FIELDS = 60
PATTERN_KEYS = ("list_pages", "item_pages", "not_list_pages", "not_item_pages")
# Keys with a single input in a form, which may be empty.
SINGLE_KEYS = ("main_text", "delay_seconds", "concurrency", "robots", "user_agent")
USER_AGENT = "User-Agent"


class FieldEdit(BaseModel):
    """A field of a site definition."""

    model_config = ConfigDict(extra="forbid")

    name: str = Key(max_length=100, description="name of the field")
    selector: str = Key(max_length=2000, description="selector of the value")
    language: str = Key(
        default="css", pattern="^(css|xpath|jmespath)$", description="`css`, `xpath` or `jmespath`"
    )
    type: FieldType = Key(default=FieldType.TEXT, description="type of the value")


class CategoryEdit(BaseModel):
    """The category of a site's items."""

    model_config = ConfigDict(extra="forbid")

    by: Literal["text", "pattern", "css", "xpath"] = Key(
        description="`text`: the value is the category; `pattern`: regular expression for the URLs "
        "of list pages; `css`, `xpath`: selector of a text on list pages"
    )
    value: str = Key(min_length=1, max_length=2000, description="text, pattern or selector")

    @classmethod
    def of(cls, written: Any) -> CategoryEdit | None:
        """Return the category as written in a definition; None without one."""
        if not written:
            return None
        if isinstance(written, str):
            return cls(by="text", value=written)
        ((by, value),) = written.items()
        return cls(by=by, value=value)

    @property
    def written(self) -> str | dict[str, str]:
        """Return the category as it is written in a definition."""
        return self.value if self.by == "text" else {self.by: self.value}


class DefinitionEdit(BaseModel):
    """The keys of a site definition that the web app edits; all others stay as they are.

    `category`, `main_text`, `delay_seconds`, `concurrency`, `robots` and `user_agent` also stay as
    they are if they are not given.
    """

    model_config = ConfigDict(extra="forbid")

    name: str = Key(default="", max_length=64, description="name of the site")
    start_urls: list[str] = Key(
        default=[], max_length=MAX_PATTERNS, description="URLs to start from"
    )
    list_pages: list[str] = Key(
        default=[], max_length=MAX_PATTERNS, description="list page patterns"
    )
    item_pages: list[str] = Key(
        default=[], max_length=MAX_PATTERNS, description="item page patterns"
    )
    not_list_pages: list[str] = Key(
        default=[], max_length=MAX_PATTERNS, description="patterns excluded from `list_pages`"
    )
    not_item_pages: list[str] = Key(
        default=[], max_length=MAX_PATTERNS, description="patterns excluded from `item_pages`"
    )
    category: CategoryEdit | None = Key(
        default=None,
        description="category of items; null: group `category` of `list_pages`, if there is one",
    )
    timezone: str = Key(default="UTC", max_length=64, description="IANA time zone of the site")
    fields: list[FieldEdit] = Key(
        default=[], max_length=MAX_FIELDS, description="fields of an item"
    )
    main_text: bool | None = Key(
        default=None, description="extract title and main text; null: only without fields"
    )
    delay_seconds: float | None = Key(
        default=None, ge=0, le=24 * 3600,
        description="minimum delay between requests to one host, in seconds; null: the default",
    )  # fmt: skip
    concurrency: int | None = Key(
        default=None, ge=1, le=64,
        description="maximum concurrent requests to one host; null: the default",
    )  # fmt: skip
    robots: bool | None = Key(default=None, description="obey robots.txt; null: `true`")
    user_agent: str | None = Key(
        default=None, max_length=500, description="header `User-Agent`; null: the default"
    )

    @field_validator("user_agent")
    @classmethod
    def _check_user_agent(cls, value: str | None) -> str | None:
        if value is not None and not value.isprintable():
            raise ValueError("contains a line break or another control character")
        return value

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> DefinitionEdit:
        """Return an edit with the keys of a definition as written."""
        fields = []
        for name, value in (values.get("fields") or {}).items():
            table = {"css": value} if isinstance(value, str) else dict(value)
            kind = table.pop("type", FieldType.TEXT)
            ((language, selector),) = table.items()
            fields.append(
                FieldEdit(name=name, selector=selector, language=language, type=FieldType(kind))
            )
        lines = {key: as_list(values.get(key)) for key in ("start_urls", *PATTERN_KEYS)}
        headers = values.get("headers") or {}
        return cls(
            name=values.get("name", ""),
            category=CategoryEdit.of(values.get("category")),
            timezone=values.get("timezone", "UTC"),
            fields=fields,
            main_text=values.get("main_text"),
            delay_seconds=values.get("delay_seconds"),
            concurrency=values.get("concurrency"),
            robots=values.get("robots"),
            user_agent=headers.get(_user_agent_key(headers)),
            **lines,
        )

    @property
    def wants_main_text(self) -> bool:
        """Return whether title and main text of items are extracted."""
        return not self.fields if self.main_text is None else self.main_text

    def values(self, base: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the keys of the definition, with all other keys of `base`.

        Raises ConfigError if two fields have the same name, or for a new environment variable.
        """
        names = [field.name for field in self.fields]
        if duplicate := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(f"fields: two fields have the name {duplicate!r}")
        edited: dict[str, Any] = {"name": self.name, "start_urls": self.start_urls}
        for key in PATTERN_KEYS:
            patterns: list[str] = getattr(self, key)
            edited[key] = patterns[0] if len(patterns) == 1 else patterns
        edited["timezone"] = "" if self.timezone == "UTC" else self.timezone
        if "category" in self.model_fields_set:
            edited["category"] = self.category and self.category.written
        if "main_text" in self.model_fields_set:
            edited["main_text"] = self.main_text
        edited |= self.request_values(base)
        edited["fields"] = {
            field.name: field.selector
            if (field.language, field.type) == ("css", FieldType.TEXT)
            else {field.language: field.selector, "type": str(field.type)}
            for field in self.fields
        }
        kept = {key: value for key, value in (base or {}).items() if key not in edited}
        # Keys without a value are left out; 0 and false are values.
        values = {
            key: value
            for key, value in edited.items()
            if value is not None and value not in ("", [], {})
        } | kept
        is_same = base is not None and DefinitionEdit.of(values) == DefinitionEdit.of(base)
        return dict(base) if base is not None and is_same else values

    def request_values(self, base: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the given keys for requests, and all headers of `base`; unset ones are empty.

        Raises ConfigError if the edit adds a variable: a site could read secrets of this machine
        from the header.
        """
        headers = dict((base or {}).get("headers") or {})
        key = _user_agent_key(headers)
        before = headers.pop(key, None)
        agent = self.user_agent if "user_agent" in self.model_fields_set else before
        if agent and agent != before and VARIABLE.search(agent):
            raise ConfigError(
                "user_agent: variables such as ${NAME} cannot be added here. Edit the TOML file"
            )
        if agent:
            headers[key] = agent
        delay = self.delay_seconds
        values = {
            "delay_seconds": int(delay) if delay is not None and delay.is_integer() else delay,
            "concurrency": self.concurrency,
            "robots": self.robots,
        }
        given = {name: value for name, value in values.items() if name in self.model_fields_set}
        return {**given, "headers": headers}


def _user_agent_key(headers: Mapping[str, Any]) -> str:
    """Return the name of the header as written; names of headers are case-insensitive."""
    return next((name for name in headers if name.lower() == USER_AGENT.lower()), USER_AGENT)


MAX_SHOWN_URLS = 100
MAX_SHOWN_SHAPES = 15
MAX_SHOWN_CATEGORIES = 30
MAX_VALUE_CHARACTERS = 300
MAX_URL_CHARACTERS = 2000
MIN_NAME_CHARACTERS = 3
# Number of item pages whose values are shown.
SAMPLE_PAGES = 6
# Placeholder for the required item pattern, until the user has chosen one.
NO_PATTERN = "^$"
DRAFT_NAME = "new-site"
UTC = ZoneInfo("UTC")


class PatternMatches(TypedDict):
    """The known links that a pattern matches."""

    key: str
    """Key of the definition, such as `item_pages`."""
    pattern: str
    """Pattern as written."""
    count: int
    """Number of known links."""
    urls: list[str]
    """The first of these links, at most 100."""
    problem: str | None
    """Why the pattern is not valid; null if it is."""


class LinkShape(TypedDict):
    """Links that only differ in words and numbers."""

    text: str
    """Path with `{word}` and `{number}`."""
    count: int
    """Number of links."""
    example: str
    """One of the links."""


class Matches(TypedDict):
    """What the patterns of a definition select among the known links of a site."""

    links: int
    """Number of known links."""
    patterns: list[PatternMatches]
    """Result by pattern, in the order of the definition."""
    lists: list[str]
    """Links that are list pages by all keys together, at most 100."""
    items: list[str]
    """Links that are items by all keys together, at most 100."""
    n_lists: int
    """Number of list pages."""
    n_items: int
    """Number of items."""
    both: list[str]
    """Links that match list and item patterns, which a crawl leaves out; at most 100."""
    unmatched: list[LinkShape]
    """Shapes of all other links, most frequent first, at most 15."""
    problem: str | None
    """Why the definition is not valid; null if it is."""


class FieldValues(TypedDict):
    """The values of a field on the sample pages."""

    name: str
    """Name of the field."""
    values: list[str | None]
    """Value by page; null if nothing was found."""
    problem: str | None
    """Why the field is not valid; null if it is."""


class CategoryItems(TypedDict):
    """Items on the fetched list pages that would get a category."""

    category: str | None
    """The category; null: items without one."""
    items: int
    """Number of items."""
    example: str
    """URL of one of the items."""


class ChosenField(TypedDict):
    """A field that is proposed for a clicked place or for the usual places."""

    name: str
    """Proposed name."""
    selector: str
    """CSS selector."""
    type: str
    """Proposed type."""


def checked(edit: DefinitionEdit, base: Mapping[str, Any] | None, config: Config) -> Wrapper:
    """Return the definition of an edit; raises WrapperError or ConfigError with the first problem.

    New start URLs on private addresses are refused, unless FRESHET_PRIVATE_HOSTS lists them.
    """
    values = edit.values(base)
    refuse_new_places(values, base)
    wrapper = any_wrapper(values, edit.name or DRAFT_NAME)
    known = set(as_list((base or {}).get("start_urls")))
    for url in edit.start_urls:
        if url not in known:
            refuse_private(url, config)
    return wrapper


def refuse_new_places(values: Mapping[str, Any], base: Mapping[str, Any] | None) -> None:
    """Raise ConfigError if edited keys would send secrets of `base` to other places.

    Headers and cookies are for the places in the definition that its author wrote. In the web app,
    the user may not know the secrets.
    """
    if base is None or not (secrets := secrets_of(base)):
        return
    try:
        before, after = OwnPlaces.of(base), OwnPlaces.of(values)
    except ValueError:
        raise ConfigError("allowed_domains: not valid. Edit the site definition's file") from None
    if after is not None and (place := after.beyond(before)) is not None:
        name = ".".join(secrets[0])
        raise ConfigError(
            f"start_urls: {place} would receive {name}, which may be secret and is for the places "
            "in the stored definition. Edit the TOML file, or add another site"
        )


def refuse_private(url: str, config: Config) -> None:
    """Raise ConfigError for the URL of a private address that no setting allows.

    In a terminal, typing an address is permission enough. In the web app, the user may not be the
    owner of the machine.
    """
    address = literal(host_of(url))
    if address is None or is_public(address) or config.private_addresses:
        return
    if not Named.of(listed=config.private_hosts).cover(url):
        raise ConfigError(refusal(url, [address]))


def fetchable(edit: DefinitionEdit, base: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a definition that is valid enough to fetch pages with its headers and politeness.

    Raises ConfigError if its secrets would be sent to other places than those of `base`.
    """
    unneeded = {
        *PATTERN_KEYS, "fields", "duplicates", "category", "cells", "weights", "main_text",
    }  # fmt: skip
    values = {**(base or {}), **edit.request_values(base)}
    kept = {key: value for key, value in values.items() if key not in unneeded and value != {}}
    kept = {key: value for key, value in kept.items() if value is not None}
    starts = {"start_urls": edit.start_urls or as_list((base or {}).get("start_urls"))}
    definition = kept | starts | {"name": DRAFT_NAME, "item_pages": NO_PATTERN}
    refuse_new_places(definition, base)
    return definition


def matches(edit: DefinitionEdit, base: Mapping[str, Any] | None, links: Sequence[str]) -> Matches:
    """Return what the patterns of an edit select among some links."""
    patterns: list[PatternMatches] = []
    for key in PATTERN_KEYS:
        for pattern in getattr(edit, key):
            problem: str | None = None
            urls: list[str] = []
            try:
                regex = compiled(pattern, "To exclude URLs, use the fields for excluded pages")
                urls = [link for link in links if regex.search(link)]
            except ValueError as error:
                problem = str(error)
            patterns.append(
                {
                    "key": key,
                    "pattern": pattern,
                    "count": len(urls),
                    "urls": urls[:MAX_SHOWN_URLS],
                    "problem": problem,
                }
            )
    result: Matches = {
        "links": len(links), "patterns": patterns, "lists": [], "items": [], "n_lists": 0,
        "n_items": 0, "both": [], "unmatched": [], "problem": None,
    }  # fmt: skip
    # Other keys may be wrong while somebody edits them.
    given = {key: value for key in PATTERN_KEYS if (value := getattr(edit, key))}
    try:
        wrapper = any_wrapper(fetchable(edit, base) | given, edit.name or DRAFT_NAME)
    except FreshetError as error:
        result["problem"] = str(error)
        return result
    by_kind: dict[Any, list[str]] = {Kind.LIST: [], Kind.ITEM: [], None: [], "both": []}
    for link in links:
        try:
            url = wrapper.canonical(link)
        except ValueError:
            continue
        match = wrapper.match(url)
        by_kind["both" if match.both else match.kind].append(url)
    lists, items = by_kind[Kind.LIST], by_kind[Kind.ITEM]
    result["lists"], result["n_lists"] = lists[:MAX_SHOWN_URLS], len(lists)
    result["items"], result["n_items"] = items[:MAX_SHOWN_URLS], len(items)
    result["both"] = by_kind["both"][:MAX_SHOWN_URLS]
    result["unmatched"] = [
        {"text": shape.text, "count": shape.count, "example": shape.example}
        for shape in shapes(by_kind[None])[:MAX_SHOWN_SHAPES]
    ]
    return result


def categories(
    edit: DefinitionEdit,
    base: Mapping[str, Any] | None,
    pages: Sequence[tuple[str, str, Sequence[str]]],
) -> list[CategoryItems]:
    """Return the categories that the items on some pages would get, most frequent first.

    pages: HTML, URL and links of each. Pages that are not list pages of the edit are skipped, and
    an edit that is not valid has no categories.
    """
    given = {key: value for key in PATTERN_KEYS if (value := getattr(edit, key))}
    category = {"category": edit.category.written} if edit.category else {}
    try:
        wrapper = any_wrapper(fetchable(edit, base) | given | category, edit.name or DRAFT_NAME)
    except FreshetError:
        return []
    by_url: dict[str, str | None] = {}
    for html, page_url, links in pages:
        url = wrapper.canonical(page_url)
        if wrapper.match(url).kind is not Kind.LIST:
            continue
        of_page = category_of(page_of(html, url), wrapper, url)
        for link in links:
            match = wrapper.match(wrapper.canonical(link))
            if match.kind is Kind.ITEM:
                by_url.setdefault(link, match.category or of_page)
    counts = Counter(by_url.values())
    examples = {category: url for url, category in reversed(by_url.items())}
    return [
        {"category": name, "items": items, "example": examples[name]}
        for name, items in counts.most_common(MAX_SHOWN_CATEGORIES)
    ]


def page_of(html: str, url: str) -> TextResponse:
    """Return the response for the text of a fetched page."""
    page = HtmlResponse(url, body=without_surrogates(html).encode(), encoding="utf-8")
    return with_valid_base(page)


def links_of(html: str, url: str) -> tuple[Anchor, ...]:
    """Return the links of the text of a page."""
    return anchors_of(page_of(html, url))


def shown_page(html: str, url: str) -> str:
    """Return the markup of a page with numbered elements, without active content."""
    return numbered_html(page_of(html, url).selector)


def values_of(
    fields: Sequence[FieldEdit], pages: Sequence[tuple[str, str]], timezone: str
) -> list[FieldValues]:
    """Return the values of fields on some pages.

    pages: HTML and URL of each
    """
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        zone = UTC
    responses = [page_of(html, url) for html, url in pages]
    rows: list[FieldValues] = []
    for edit in fields:
        try:
            field = Field.model_validate({edit.language: edit.selector, "type": edit.type})
            if edit.language == "jmespath":
                raise ValueError("JMESPath is for JSON and has no values on HTML pages")
            values = [_shown(field.read(response, zone)) for response in responses]
        except ValueError as error:
            errors = getattr(error, "errors", None)
            text = errors()[0]["msg"].removeprefix("Value error, ") if errors else str(error)
            problem = text.splitlines()[0][:300] if text else "not valid"
            rows.append({"name": edit.name, "values": [], "problem": problem})
            continue
        rows.append({"name": edit.name, "values": values, "problem": None})
    return rows


def page_values_of(pages: Sequence[tuple[str, str]]) -> list[dict[str, str | None]]:
    """Return title, main text and further values of some pages, cut as they are shown.

    pages: HTML and URL of each
    """
    values = [page_values(page_of(html, url)) for html, url in pages]
    return [{name: _shown(value) for name, value in each.items()} for each in values]


def field_at(number: int, pages: Sequence[tuple[str, str]]) -> ChosenField | None:
    """Return a field for the element with a number on the first page; None if there is none.

    pages: HTML and URL of each, the clicked page first
    """
    selectors = [page_of(html, url).selector for html, url in pages]
    css = selector_of(selectors[0], number, selectors[1:])
    if css is None:
        return None
    nodes = [hits[0] for page in selectors if (hits := page.css(css))]
    kind = proposed_type(nodes, UTC)
    # The name is the last class, id or property of the selector, or its type.
    words = [word for word in re.findall(r"[A-Za-z]+", css) if word not in SHOWN_TAGS]
    names = [word.lower() for word in words if len(word) > MIN_NAME_CHARACTERS]
    unnamed = ("html", "body", "type", "itemprop")
    name = next((name for name in reversed(names) if name not in unnamed), str(kind))
    if css.rsplit(maxsplit=1)[-1] == "h1":
        name = "title"
    return {"name": name, "selector": css, "type": str(kind)}


def usual_fields(pages: Sequence[tuple[str, str]]) -> list[ChosenField]:
    """Return the fields that most of these pages have in one of the usual places."""
    selectors = [page_of(html, url).selector for html, url in pages]
    return [
        {"name": field.name, "selector": field.css, "type": str(field.type)}
        for field in suggested_fields(selectors, UTC)
    ]


def site_name(url: str) -> str:
    """Return a name for a site: its host without `www.` and the last part."""
    host = host_of(url).removeprefix("www.")
    if literal(host) is not None:
        return DRAFT_NAME
    name = host.rpartition(".")[0] or host
    return "".join(char if char.isalnum() and char.isascii() else "-" for char in name).strip("-")


def possible_urls(text: str) -> list[str]:
    """Return the canonical URLs that a user may mean, first https and then http without a scheme.

    Raises ConfigError if the text is not a web address.
    """
    text = text.strip()
    schemes = ("",) if "://" in text else ("https://", "http://")
    return [_canonical(f"{scheme}{text}") for scheme in schemes]


def _canonical(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname)
        result = canonical(text)
    except ValueError:
        is_valid = False
    if not is_valid or len(text) > MAX_URL_CHARACTERS or "@" in parts.netloc:
        raise ConfigError("Not a web address. Example: https://shop.example/")
    return result


def _shown(value: Any) -> str | None:
    if value in (None, "", []):
        return None
    if isinstance(value, datetime):
        text = value.isoformat()
    elif is_price(value):
        text = price(value)
    elif isinstance(value, list):
        text = " · ".join(map(str, value[:50]))
    else:
        text = str(value)
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]}…"
