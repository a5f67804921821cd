"""Site definitions: the model behind a spider's attributes, a TOML file or `-a` arguments."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Self
from urllib.parse import unquote
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic import Field as Key

from crawler.config import Config, Hours, Seconds
from crawler.errors import CAUSES, MAX_PROBLEMS, WrapperError, problems
from crawler.extract.cells import Cell, Cells, Source, Sources
from crawler.extract.fields import Field, FieldType
from crawler.extract.keys import (
    Amount,
    Category,
    CategoryRule,
    CycleHours,
    Domains,
    Expanded,
    Fields,
    Names,
    Patterns,
    Proxy,
    Selectors,
    StartUrls,
    TimeZone,
    Weights,
    Windows,
)
from crawler.extract.notification_rules import Rule, Rules, checked_rules
from crawler.extract.stored_definition import Definition
from crawler.items import CAPS_SEPARATOR, Kind, Target
from crawler.utils.regex import Pattern, PatternMatch, compiled
from crawler.utils.text import SPIDER_NAME, is_spider_name, storable_name
from crawler.utils.urls import TRACKING_PARAMETERS, canonical, host_of, within
from schedules.calendar import Week, open_hours
from schedules.history import DAY_HOURS

# Values in the content of an item that are extracted from the page without a field.
PAGE_VALUES = ("title", "main_text")
# Further values that a page has or has not.
OPTIONAL_VALUES = ("offers", "details", "files")
PRICE_KEYS = ("amount", "currency")
# Keys that are not allowed in lists of feeds or cells.
SITE_KEYS = (
    "start_urls", "list_pages", "item_pages", "not_list_pages", "not_item_pages", "category",
    "fields", "main_text", "ignore", "ignore_order", "allowed_domains", "follow_item_links",
    "list_interval_hours", "item_interval_hours",
    "max_depth", "max_redundant_lists", "max_pattern_lists", "max_pattern_items",
    "max_path_repeats",
)  # fmt: skip
# Caps that keep a crawl out of sites with endless links (crawler traps).
CAPS = (
    "max_depth", "max_redundant_lists", "max_pattern_lists", "max_pattern_items",
    "max_path_repeats",
)  # fmt: skip


# A pattern, its digest, and the number of its group `category`.
_Selecting = tuple[Pattern, str, int | None]


class _Hit(NamedTuple):
    """The digest of the pattern that a URL matches, and the category in the URL."""

    digest: str
    category: str | None


def _place_below_table(key: str, values: Mapping[str, Any]) -> str:
    """Return a hint if a missing key is below the header of a table, to which TOML adds it."""
    for name, table in values.items():
        if isinstance(table, Mapping) and key in table:
            return f". It is below [{name}]; move it above the first line in brackets"
    return ""


@dataclass(frozen=True, slots=True)
class Match:
    """The result of matching a URL against a site definition.

    kind:     kind of page; None: not selected, or ambiguous
    category: category of a list page, or the one in an item's URL
    both:     the URL is ambiguous: it matches both `list_pages` and `item_pages`
    pattern:  digest of the pattern that the URL matches; None for a start URL
    """

    kind: Kind | None = None
    category: str | None = None
    both: bool = False
    pattern: str | None = field(default=None, compare=False)


class Wrapper(BaseModel):
    """The definition of one site: its list and item pages, the fields of items, and politeness."""

    # pydantic's default engine takes 20 ms to compile the pattern of `name`.
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        ignored_types=(cached_property,),
        regex_engine="python-re",
    )

    name: str = Key(pattern=SPIDER_NAME, description="name of the spider")
    start_urls: StartUrls = Key(
        min_length=1, description="URLs to start from: list pages, sitemaps or single items"
    )
    list_pages: Patterns = Key((), description="URL patterns of pages that are read for links")
    item_pages: Patterns = Key(min_length=1, description="URL patterns of pages that are collected")
    not_list_pages: Patterns = Key((), description="URL patterns excluded from `list_pages`")
    not_item_pages: Patterns = Key((), description="URL patterns excluded from `item_pages`")
    category: Category | None = Key(
        None,
        description="category of items: a text, or a table with a rule; unset: group `category` of "
        "`list_pages`",
    )
    fields: Fields = Key(
        {}, description="fields of an item by name; a plain string is a CSS selector of type `text`"
    )
    main_text: bool | None = Key(
        None, description="extract title and main text; unset: only without fields"
    )
    ignore: Selectors = Key(
        (),
        description="CSS selectors of elements that main text, title and other values of pages "
        "without fields leave out, and the texts of feed posts",
    )
    ignore_order: bool | Names = Key(
        False,
        description="values whose lines or entries are compared in any order: names of `list` "
        "fields, `main_text` or `details`; `true`: all of these",
    )
    duplicates: bool | Names = Key(
        True,
        description="fields by which posts are compared; `true`: title and main text, or else all "
        "fields; `false`: none",
    )
    timezone: TimeZone = Key("UTC", description="IANA time zone of the site")
    dates: Literal["day-first", "month-first"] | None = Key(
        None,
        description="order of dates such as 05/01/2024: `day-first` or `month-first`; unset: by "
        "the language of the page",
    )

    allowed_domains: Domains = Key(
        (),
        description="hosts whose links are followed, with subdomains; unset: hosts of the start "
        "URLs, with and without `www.`",
    )
    follow_item_links: bool = Key(False, description="follow matching links on item pages")
    strip_parameters: tuple[str, ...] | None = Key(
        None,
        description="query parameters removed from URLs; unset: `FRESHET_STRIP_PARAMETERS`",
    )
    max_depth: int | None = Key(
        None,
        ge=1,
        description="maximum number of links from a start URL to a target; unset: "
        "`FRESHET_MAX_DEPTH`",
    )
    max_redundant_lists: int | None = Key(
        None,
        ge=1,
        description="maximum number of list pages in a row that show no items, or only those of "
        "other pages of the same list; unset: `FRESHET_MAX_REDUNDANT_LISTS`",
    )
    max_pattern_lists: int | None = Key(
        None,
        ge=1,
        description="maximum number of targets per pattern of `list_pages`; unset: "
        "`FRESHET_MAX_PATTERN_LISTS`",
    )
    max_pattern_items: int | None = Key(
        None,
        ge=1,
        description="maximum number of targets per pattern of `item_pages`; unset: "
        "`FRESHET_MAX_PATTERN_ITEMS`",
    )
    max_path_repeats: int | None = Key(
        None,
        ge=1,
        description="maximum repetitions of a segment in a URL path; unset: "
        "`FRESHET_MAX_PATH_REPEATS`",
    )

    headers: Expanded = Key({}, description="request headers for the site's own hosts")
    cookies: Expanded = Key({}, description="cookies for the site's own hosts")
    proxy: Proxy | None = Key(None, description="URL of the proxy for all requests")

    delay_seconds: Seconds | None = Key(
        None,
        description="minimum delay between requests to one host, in seconds; unset: Scrapy's "
        "`DOWNLOAD_DELAY`",
    )
    concurrency: int | None = Key(
        None,
        ge=1,
        le=64,
        description="maximum concurrent requests to one host; unset: Scrapy's "
        "`CONCURRENT_REQUESTS_PER_DOMAIN`",
    )
    throttle: bool | None = Key(None, description="adjust delays to response times; unset: `true`")
    robots: bool | None = Key(None, description="obey robots.txt; unset: `true`")
    archive: bool = Key(False, description="keep each response as received, in WARC files")
    verify_tls: bool | None = Key(None, description="verify TLS certificates; unset: `true`")
    host_requests: int | None = Key(
        None,
        ge=1,
        description="maximum requests per host and run; unset: `FRESHET_HOST_REQUESTS`",
    )
    list_interval_hours: Hours | None = Key(
        None,
        description="initial interval of list pages, in hours; unset: "
        "`FRESHET_LIST_INTERVAL_HOURS`",
    )
    item_interval_hours: Hours | None = Key(
        None,
        description="initial interval of items, in hours; unset: `FRESHET_ITEM_INTERVAL_HOURS`",
    )

    visiting_hours: Windows = Key((), description="visiting hours; unset: always")
    blackout: Windows = Key((), description="hours without visits")
    requests_per_day: int | None = Key(
        None, ge=1, description="maximum planned requests per day; unset: no limit"
    )
    requests_per_hour: int | None = Key(
        None, ge=1, description="maximum requests per UTC hour, also in full runs; unset: no limit"
    )
    min_interval_hours: CycleHours | None = Key(
        None, description="minimum interval between planned visits, in hours; unset: 1"
    )
    max_interval_hours: CycleHours | None = Key(
        None,
        description="maximum interval between planned visits, in hours; unset: 672, for feeds 4032",
    )
    weight: Amount = Key(1.0, description="importance of a page when visits are allocated")
    weights: Weights = Key(
        {},
        description="weights by URL pattern or `category:NAME`; the first match counts, and all "
        "other pages have `weight`",
    )
    cost: Amount = Key(1.0, description="budget that a request uses")

    notify: Annotated[Rules, AfterValidator(checked_rules)] = Key(
        (), description="notification rules for this site"
    )

    databases: Sources = Key({}, description="databases that cells query, by name")
    cells: Cells = Key({}, description="cells by name: parts of pages and results of queries")

    _code: str = PrivateAttr("")
    _definition: Definition | None = PrivateAttr(None)

    @field_validator("name", mode="before")
    @classmethod
    def _explain_name(cls, name: Any) -> Any:
        if isinstance(name, str) and not is_spider_name(name):
            raise ValueError(
                f"invalid: {name[:80]!r}. Use letters, digits, '.', '_' and '-', at most 64 of "
                "them, beginning with one of a to z, A to Z or 0 to 9"
            )
        return name

    @model_validator(mode="after")
    def _check_patterns(self) -> Self:
        if shared := set(self.list_pages) & set(self.item_pages):
            raise ValueError(f"list_pages and item_pages share the pattern {shared.pop()!r}")
        return self

    @model_validator(mode="after")
    def _check_duplicates(self) -> Self:
        unknown = [name for name in self.compared or () if name not in {*self.fields, *PAGE_VALUES}]
        # Without fields, a spider's own `read_item` may return any names.
        if self.fields and unknown:
            raise ValueError(f"duplicates: {unknown[0]!r} is not a field of this site definition")
        if self.duplicates == ():
            raise ValueError("duplicates: the list is empty. To disable the comparison, use false")
        return self

    @model_validator(mode="after")
    def _check_ignore(self) -> Self:
        if self.ignore and not self.wants_main_text:
            raise ValueError("ignore: only for main texts; set main_text, or edit the fields")
        return self

    @model_validator(mode="after")
    def _check_ignore_order(self) -> Self:
        names = () if isinstance(self.ignore_order, bool) else self.ignore_order
        if unknown := [name for name in names if name not in self._with_order]:
            raise ValueError(
                f"ignore_order: {unknown[0]!r} is neither a field of type list, nor main_text or "
                "details"
            )
        return self

    @model_validator(mode="after")
    def _check_databases(self) -> Self:
        for name, cell in self.cells.items():
            if cell.database is not None and cell.database not in self.databases:
                raise ValueError(f"cells.{name}: [databases.{cell.database}] is missing")
        return self

    @model_validator(mode="after")
    def _check_visiting_hours(self) -> Self:
        _open_hours(self.visiting_hours, self.blackout)
        return self

    @model_validator(mode="after")
    def _check_intervals(self) -> Self:
        shortest, longest = self.min_interval_hours, self.max_interval_hours
        if shortest is not None and longest is not None and shortest > longest:
            raise ValueError(
                f"min_interval_hours {shortest:g} is longer than max_interval_hours {longest:g}"
            )
        return self

    @classmethod
    def of(cls, values: Mapping[str, Any], source: str) -> Self:
        """Build a site definition from its keys. Raises WrapperError with keys and causes.

        source: file or place of the definition, for errors
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            tables = {
                "fields": Field.model_fields,
                "cells": Cell.model_fields,
                "databases": Source.model_fields,
                "notify": Rule.model_fields,
            }
            texts = []
            for key, cause in problems(error, cls.model_fields, tables):
                hint = _place_below_table(key, values) if cause == CAUSES["missing"] else ""
                # A single pattern or URL was not written as a list.
                first = key.removesuffix(".0")
                shown = first if isinstance(values.get(first), str) else key
                texts.append(f"{shown + ': ' if shown else ''}{cause}{hint}")
            more = f"; and {count} more" if (count := len(texts) - MAX_PROBLEMS) > 0 else ""
            raise WrapperError(f"{source}: {'; '.join(texts[:MAX_PROBLEMS])}{more}") from None

    @property
    def definition(self) -> Definition | None:
        """Return the stored form of a site without a spider class; None if a class defines it."""
        return self._definition

    def defined_by(self, definition: Definition) -> Self:
        """Return a copy that carries its definition."""
        copied = self.model_copy()
        copied._definition = definition
        return copied

    def completed(self, config: Config) -> Self:
        """Return a copy with the settings' values for the keys that are not set."""
        names = ("strip_parameters", *CAPS)
        unset = [name for name in names if getattr(self, name) is None]
        return self.model_copy(update={name: getattr(config, name) for name in unset})

    @cached_property
    def zone(self) -> ZoneInfo:
        """Return the site's time zone."""
        return ZoneInfo(self.timezone)

    @property
    def day_first(self) -> bool | None:
        """Return whether the day comes first in 05/01/2024; None: by the language of the page."""
        return None if self.dates is None else self.dates == "day-first"

    @property
    def open_hours(self) -> Week:
        """Return a read-only (168,) array: True for each hour of the local week with visits."""
        return _open_hours(self.visiting_hours, self.blackout)

    def open_at(self, moment: datetime) -> bool:
        """Return True if the site may be visited at an aware time."""
        local = moment.astimezone(self.zone)
        return bool(self.open_hours[local.weekday() * DAY_HOURS + local.hour])

    def opens_at(self, moment: datetime) -> datetime:
        """Return the first minute from an aware time on in which the site may be visited."""
        moment = moment.replace(second=0, microsecond=0)
        while not self.open_at(moment):
            moment += timedelta(minutes=1)
        return moment

    @cached_property
    def hosts(self) -> frozenset[str]:
        """Return the hosts of the start URLs, with and without `www.`, without subdomains."""
        bare = {host_of(url).removeprefix("www.") for url in self.starts}
        return frozenset(bare | {f"www.{host}" for host in bare})

    def is_own(self, url: str) -> bool:
        """Return True if a URL is on this site.

        The URL must be in `allowed_domains`, or, if that is not set, on the host of a start URL.
        """
        host = host_of(url)
        return within(host, self.allowed_domains) if self.allowed_domains else host in self.hosts

    @property
    def starts(self) -> tuple[str, ...]:
        """Return the canonical start URLs."""
        return tuple(self.start_matches)

    @cached_property
    def start_matches(self) -> dict[str, Match]:
        """Return the canonical start URLs with their matches.

        A start URL that matches `item_pages` (or is repeated there literally) but not `list_pages`
        is an item: a single page to keep fresh. All other start URLs are list pages, whatever the
        patterns match.
        """
        literal = {self.canonical(url) for url in self.start_urls if url in self.item_pages}
        fixed = self.category if isinstance(self.category, str) else None
        matches = {}
        for url in map(self.canonical, self.start_urls):
            text = _utf8(url)
            as_list, as_item = self._hit(Kind.LIST, text), self._hit(Kind.ITEM, text)
            if (as_item or url in literal) and not as_list:
                matches[url] = Match(Kind.ITEM, (as_item and as_item.category) or fixed)
            else:
                matches[url] = Match(Kind.LIST, self._category_of(text, as_list))
        return matches

    @property
    def wants_main_text(self) -> bool:
        """Return `main_text` if it is set, else True if there are no fields."""
        return not self.fields if self.main_text is None else self.main_text

    @property
    def field_names(self) -> tuple[str, ...]:
        """Return the names of all values of an item, with title and main text if extracted."""
        of_pages = PAGE_VALUES if self.wants_main_text else ()
        return tuple(dict.fromkeys((*self.fields, *of_pages)))

    @property
    def columns(self) -> Iterator[str]:
        """Yield the names of the columns of an item in CSV; a price has two."""
        optional = OPTIONAL_VALUES if self.wants_main_text else ()
        for name in dict.fromkeys((*self.field_names, *optional)):
            field = self.fields.get(name)
            is_price = field is not None and field.type is FieldType.PRICE
            yield from (f"{name}.{key}" for key in PRICE_KEYS) if is_price else (name,)

    @property
    def _with_order(self) -> tuple[str, ...]:
        """Return the names of the values with lines or entries."""
        of_pages = ("main_text", "details") if self.wants_main_text else ()
        lists = (name for name, field in self.fields.items() if field.type is FieldType.LIST)
        return tuple(dict.fromkeys((*of_pages, *lists)))

    @property
    def unordered(self) -> tuple[str, ...]:
        """Return the names of the values whose lines or entries are compared in any order."""
        if isinstance(self.ignore_order, bool):
            return self._with_order if self.ignore_order else ()
        return self.ignore_order

    @property
    def compared(self) -> tuple[str, ...] | None:
        """Return the fields to compare in the search for near-duplicates; None for the default."""
        if isinstance(self.duplicates, bool):
            return None if self.duplicates else ()
        return tuple(map(storable_name, self.duplicates))

    @cached_property
    def markup(self) -> tuple[str, ...]:
        """Return the names of the fields that contain HTML."""
        return tuple(name for name, field in self.fields.items() if field.type is FieldType.HTML)

    def selector_digest(self, kind: Kind) -> str:
        """Return the selector digest: a hash of everything that determines a page's content.

        When the digest differs between two visits, a difference in content is due to an edit of
        the site definition and does not count as a change of the page.
        """
        return self._list_digest if kind is Kind.LIST else self._item_digest

    def selector_digest_of(self, target: Target) -> str:
        """Return the selector digest of a target.

        Cells have digests of their own. Pages with links over a cap use `capped_digest`.
        """
        if target.cell:
            return self.cell_digests[target.cell]
        had_too_many = CAPS_SEPARATOR in (target.selector_digest or "")
        return self.capped_digest(target) if had_too_many else self.selector_digest(target.kind)

    def capped_digest(self, target: Target) -> str:
        """Return the selector digest of a page with links that were left out because of caps.

        This digest contains the caps, so that the page is read again when one of them changes.
        """
        caps = [getattr(self, name) for name in CAPS]
        return (
            f"{self.selector_digest(target.kind)}{CAPS_SEPARATOR}{digest_of(target.depth, *caps)}"
        )

    @cached_property
    def digest(self) -> str:
        """Return a hash of everything that determines the pages, their requests and their content.

        When this digest changes, the site's targets become due. Visiting hours, intervals, weights
        and politeness are not included.
        """
        return digest_of(
            self.starts, self.selector_digest(Kind.LIST), self.selector_digest(Kind.ITEM),
            self.cell_digests,
            [getattr(self, name) for name in CAPS],
            self.headers, self.cookies, self.proxy, self.robots, self.verify_tls,
            {name: source.url for name, source in self.databases.items()},
        )  # fmt: skip

    def with_code(self, code: str) -> Self:
        """Return a copy for a spider that reads pages with its own code.

        code: source of its methods; an edit of the code changes the selector digest of items
        """
        copied = self.model_copy()
        copied._code = code
        return copied

    @cached_property
    def cell_digests(self) -> dict[str, str]:
        """Return the selector digest of each cell by name; periods and limits do not affect it."""
        return {
            name: digest_of(
                cell.url, cell.selectors if cell.url else {}, self.timezone, self.dates,
                cell.database, cell.sql, cell.parameters,
            )
            for name, cell in self.cells.items()
        }  # fmt: skip

    @cached_property
    def _list_digest(self) -> str:
        hosts = self.allowed_domains or sorted(self.hosts)
        return digest_of(
            self.list_pages, self.item_pages, self.not_list_pages, self.not_item_pages,
            self.category, hosts, self.strip_parameters,
        )  # fmt: skip

    @cached_property
    def _item_digest(self) -> str:
        links = self._list_digest if self.follow_item_links else None
        order = ("ignore_order", *self.unordered) if self.unordered else ()
        others = tuple(filter(None, (self.ignore, self._code, order)))
        read = self.fields, self.wants_main_text, self.timezone, self.dates, links
        return digest_of(*read, *others)

    def canonical(self, url: str, others: tuple[str, ...] = ()) -> str:
        """Return the canonical form of an absolute URL, using this site's `strip_parameters`.

        others: further parameters to remove
        """
        strip = TRACKING_PARAMETERS if self.strip_parameters is None else self.strip_parameters
        return canonical(url, (*strip, *others) if others else strip)

    def match(self, url: str) -> Match:
        """Match a canonical URL against this site definition."""
        if not self.is_own(url):
            return Match()
        if (start := self.start_matches.get(url)) is not None:
            return start
        text = _utf8(url)
        as_list, as_item = self._hit(Kind.LIST, text), self._hit(Kind.ITEM, text)
        if as_list and as_item:
            return Match(both=True)
        if as_list:
            return Match(Kind.LIST, self._category_of(text, as_list), pattern=as_list.digest)
        if as_item:
            return Match(Kind.ITEM, as_item.category, pattern=as_item.digest)
        return Match()

    def has_matched_start(self, kind: Kind) -> bool:
        """Return True if a pattern of this kind matches, or literally repeats, a start URL."""
        if kind is Kind.LIST:
            return any(self._hit(kind, _utf8(url)) for url in self.starts)
        return any(match.kind is kind for match in self.start_matches.values())

    @cached_property
    def patterns(self) -> dict[str, str]:
        """Return the patterns of list and item pages by their digests."""
        return {digest_of(pattern): pattern for pattern in (*self.list_pages, *self.item_pages)}

    def digests_of(self, patterns: Sequence[str]) -> list[str]:
        """Return the digests of some patterns, under which their targets are counted."""
        return [self._digests[pattern] for pattern in patterns]

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {pattern: digest for digest, pattern in self.patterns.items()}

    def _category_of(self, text: bytes, as_list: _Hit | None) -> str | None:
        """Return the fixed category of a list page, or the category in its URL."""
        if isinstance(self.category, str):
            return self.category
        if isinstance(self.category, CategoryRule):
            if (pattern := self.category.pattern) is None:
                return None
            regex = compiled(pattern)
            match = regex.search(text)
            return _category(match, _group(regex, or_first=True)) if match else None
        return as_list and as_list.category

    def _hit(self, kind: Kind, text: bytes) -> _Hit | None:
        """Return the first pattern of a kind that a URL matches; None if the URL is excluded."""
        selecting, excluding = self._compiled[kind]
        for pattern, digest, group in selecting:
            if match := pattern.search(text):
                if any(other.search(text) for other in excluding):
                    return None
                return _Hit(digest, _category(match, group))
        return None

    @cached_property
    def _compiled(self) -> dict[Kind, tuple[list[_Selecting], list[Pattern]]]:
        """Return the selecting and the excluding patterns of list and item pages."""
        by_kind = {}
        for kind, selecting, excluding in (
            (Kind.LIST, self.list_pages, self.not_list_pages),
            (Kind.ITEM, self.item_pages, self.not_item_pages),
        ):
            rows = [(regex := compiled(x), digest_of(x), _group(regex)) for x in selecting]
            by_kind[kind] = (rows, [compiled(x) for x in excluding])
        return by_kind


@lru_cache
def _open_hours(windows: tuple[str, ...], blackout: tuple[str, ...]) -> Week:
    # Cached here, not on the Wrapper: comparing two models would compare the arrays, whose `==`
    # returns an array.
    hours = open_hours(windows, blackout)
    hours.flags.writeable = False
    return hours


def digest_of(*parts: object) -> str:
    """Return a short hash of values with a stable `repr`."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=6).hexdigest()


def _utf8(url: str) -> bytes:
    # Links may contain unpaired surrogates.
    return url.encode(errors="surrogatepass")


def _group(pattern: Pattern, *, or_first: bool = False) -> int | None:
    """Return the number of the group `category`; None if the pattern has no such group.

    or_first: fall back to the first group, or without any groups to the whole match (0)
    """
    first = min(pattern.groups, 1) if or_first else None
    return pattern.groupindex.get("category", first)


def _category(match: PatternMatch[bytes], group: int | None) -> str | None:
    value = None if group is None else match[group]
    return unquote(value) if value else None
