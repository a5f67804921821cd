"""The wrapper model: one site, described once, as a Python class or as a TOML file."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import unquote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    BaseModel,
    ConfigDict,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic import Field as Key

from crawler.config import SECRET_NAMES, VARIABLE, Config, Hours, Seconds, expanded, shows_secret
from crawler.errors import WrapperError, first_problem
from crawler.extract.cells import Cells, Sources, checked_names
from crawler.extract.definition import Definition
from crawler.extract.fields import FieldType
from crawler.extract.keys import (
    Amount,
    Category,
    CategoryRule,
    CycleHours,
    Domains,
    Fields,
    Names,
    Patterns,
    StartUrls,
    Windows,
    checked_weight,
)
from crawler.items import OF_CAPS, Kind, Target
from crawler.utils.regex import Found, Pattern, compiled
from crawler.utils.text import SPIDER_NAME, storable_name
from crawler.utils.urls import TRACKING_PARAMETERS, canonical, host_of, within
from schedules.history import DAY_HOURS
from schedules.windows import Week, open_hours

# Names that stand for themselves in a stored item; a field may not hide one.
RESERVED = frozenset({"url", "outcome", "categories", "at", "duplicate_of", "similarity"})
# What a content has besides its fields.
OF_PAGES = ("title", "main_text")
# Keys that only a site has.
OF_SITES = (
    "start_urls", "list_pages", "item_pages", "not_list_pages", "not_item_pages", "category",
    "fields", "main_text", "allowed_domains", "follow_item_links",
    "list_interval_hours", "item_interval_hours",
    "max_depth", "max_pattern_lists", "max_pattern_items", "max_path_repeats",
)  # fmt: skip
# What keeps a crawl out of sites without end.
CAPS = ("max_depth", "max_pattern_lists", "max_pattern_items", "max_path_repeats")
# Before the name of a category where a URL pattern could stand as well.
OF_CATEGORY = "category:"


# A pattern, its digest, and the number of its group `category`.
_Wanted = tuple[Pattern, str, int | None]


class _Met(NamedTuple):
    """A pattern that a URL meets, by its digest, and the category that is in the URL."""

    digest: str
    category: str | None


@dataclass(frozen=True, slots=True)
class Match:
    """What a URL is to a wrapper; `kind` None: not wanted, or `both` patterns claim it.

    pattern: digest of the pattern that it meets; None for a start URL
    """

    kind: Kind | None = None
    category: str | None = None
    both: bool = False
    pattern: str | None = field(default=None, compare=False)


class Wrapper(BaseModel):
    """One site: where its list and item pages are, what an item holds, how to behave there."""

    # With Python's regular expressions: pydantic's own take 20 ms to compile the name's pattern.
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
    duplicates: bool | Names = Key(
        True,
        description="fields by which posts are compared; `true`: title and main text, or else all "
        "fields; `false`: none",
    )
    timezone: str = Key("UTC", description="IANA time zone of the site")

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

    headers: dict[str, str] = Key({}, description="request headers for the site's own hosts")
    cookies: dict[str, str] = Key({}, description="cookies for the site's own hosts")
    proxy: str | None = Key(None, description="URL of the proxy for all requests")

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

    windows: Windows = Key((), description="visiting hours; unset: always")
    blackout: Windows = Key((), description="hours without visits")
    requests_per_day: int | None = Key(
        None, ge=1, description="maximum planned requests per day; unset: no limit"
    )
    requests_per_hour: int | None = Key(
        None, ge=1, description="maximum planned requests per hour; unset: no limit"
    )
    min_interval_hours: CycleHours | None = Key(
        None, description="minimum interval between planned visits, in hours; unset: 1"
    )
    max_interval_hours: CycleHours | None = Key(
        None,
        description="maximum interval between planned visits, in hours; unset: 672, for feeds 4032",
    )
    weight: Amount = Key(1.0, description="importance of a page when visits are allocated")
    weights: dict[str, Amount] = Key(
        {},
        description="weights by URL pattern or `category:NAME`; the first match counts, and all "
        "other pages have `weight`",
    )
    cost: Amount = Key(1.0, description="budget that a request takes")

    databases: Sources = Key({}, description="databases that cells query, by name")
    cells: Cells = Key({}, description="cells by name: parts of pages and results of queries")

    _code: str = PrivateAttr("")
    _definition: Definition | None = PrivateAttr(None)

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(
                f"{value!r} is no time zone (an IANA name such as Europe/London)"
            ) from None
        return value

    @field_validator("fields")
    @classmethod
    def _usable_names(cls, value: Fields) -> Fields:
        for name in value:
            if name in RESERVED or not re.fullmatch(r"[A-Za-z_]\w*", name):
                raise ValueError(f"{name!r} cannot name a field")
        return value

    @field_validator("databases", "cells")
    @classmethod
    def _usable_as_address(cls, value: dict[str, Any]) -> dict[str, Any]:
        return checked_names(value)

    @field_validator("weights")
    @classmethod
    def _patterns_or_categories(cls, value: dict[str, float]) -> dict[str, float]:
        for key in value:
            if key == OF_CATEGORY:
                raise ValueError(f"{key!r} names no category")
            if not key.startswith(OF_CATEGORY):
                checked_weight(key)
        return value

    @field_validator("headers", "cookies")
    @classmethod
    def _secrets_outside(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if SECRET_NAMES.search(name) and not VARIABLE.search(text):
                raise ValueError(
                    f"{name}: keep secrets in the environment: {name} = '${{VARIABLE}}'"
                )
        return {name: expanded(text) for name, text in value.items()}

    @field_validator("proxy")
    @classmethod
    def _proxy(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if shows_secret(value):
            raise ValueError("keep the password in the environment: http://user:${VARIABLE}@host")
        return expanded(value)

    @model_validator(mode="after")
    def _distinct_patterns(self) -> Self:
        if shared := set(self.list_pages) & set(self.item_pages):
            raise ValueError(f"list_pages and item_pages share the pattern {shared.pop()!r}")
        return self

    @model_validator(mode="after")
    def _comparable(self) -> Self:
        unknown = [name for name in self.compared or () if name not in {*self.fields, *OF_PAGES}]
        # Without fields a spider's own `read_item` may give any names.
        if self.fields and unknown:
            raise ValueError(f"duplicates: {unknown[0]!r} is no field of this wrapper")
        if self.duplicates == ():
            raise ValueError("duplicates: names no field (false: posts are not compared)")
        return self

    @model_validator(mode="after")
    def _known_databases(self) -> Self:
        for name, cell in self.cells.items():
            if cell.database is not None and cell.database not in self.databases:
                raise ValueError(f"cells.{name}: there is no [databases.{cell.database}]")
        return self

    @model_validator(mode="after")
    def _open_at_some_time(self) -> Self:
        _open_hours(self.windows, self.blackout)
        return self

    @model_validator(mode="after")
    def _ordered_intervals(self) -> Self:
        least, most = self.min_interval_hours, self.max_interval_hours
        if least is not None and most is not None and least > most:
            raise ValueError(
                f"min_interval_hours {least:g} is longer than max_interval_hours {most:g}"
            )
        return self

    @classmethod
    def of(cls, values: Mapping[str, Any], source: str) -> Self:
        """The wrapper with these keys; WrapperError names `source`, key and cause."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            key, cause = first_problem(error)
            raise WrapperError(f"{source}: {key + ': ' if key else ''}{cause}") from None

    @property
    def definition(self) -> Definition | None:
        """What the database keeps of a site without a spider class; None: a class describes it."""
        return self._definition

    def defined_by(self, definition: Definition) -> Self:
        """Return a copy that carries its definition."""
        copied = self.model_copy()
        copied._definition = definition
        return copied

    def completed(self, config: Config) -> Self:
        """The wrapper with the config's values for what it leaves open."""
        names = ("strip_parameters", *CAPS)
        open_ones = [name for name in names if getattr(self, name) is None]
        return self.model_copy(update={name: getattr(config, name) for name in open_ones})

    @cached_property
    def zone(self) -> ZoneInfo:
        """The site's time zone."""
        return ZoneInfo(self.timezone)

    @property
    def open_hours(self) -> Week:
        """(168,) hours of the local week in which the site may be visited; not to be written to."""
        return _open_hours(self.windows, self.blackout)

    def open_at(self, moment: datetime) -> bool:
        """Whether the site may be visited at an aware time."""
        local = moment.astimezone(self.zone)
        return bool(self.open_hours[local.weekday() * DAY_HOURS + local.hour])

    def opens_at(self, moment: datetime) -> datetime:
        """When the site may be visited, from an aware time on, to the minute."""
        moment = moment.replace(second=0, microsecond=0)
        while not self.open_at(moment):
            moment += timedelta(minutes=1)
        return moment

    @cached_property
    def hosts(self) -> frozenset[str]:
        """Hosts of the start URLs, with and without `www.`; their subdomains are other sites."""
        bare = {host_of(url).removeprefix("www.") for url in self.starts}
        return frozenset(bare | {f"www.{host}" for host in bare})

    def is_own(self, url: str) -> bool:
        """Whether a URL is on this site: in `allowed_domains`, else on a start URL's host."""
        host = host_of(url)
        return within(host, self.allowed_domains) if self.allowed_domains else host in self.hosts

    @property
    def starts(self) -> tuple[str, ...]:
        """Canonical start URLs."""
        return tuple(self.start_matches)

    @cached_property
    def start_matches(self) -> dict[str, Match]:
        """Canonical start URLs, and what each of them is.

        One that `item_pages` matches (or has word for word) and `list_pages` does not is an item:
        a single page to keep fresh. All others are list pages, whatever the patterns match.
        """
        written = {self.canonical(url) for url in self.start_urls if url in self.item_pages}
        found = {}
        for url in map(self.canonical, self.start_urls):
            text = _utf8(url)
            as_list, as_item = self._found(Kind.LIST, text), self._found(Kind.ITEM, text)
            if (as_item or url in written) and not as_list:
                found[url] = Match(Kind.ITEM, as_item and as_item.category)
            else:
                found[url] = Match(Kind.LIST, self._category_of(text, as_list))
        return found

    @property
    def wants_main_text(self) -> bool:
        """Main text is extracted where it is asked for, or where there are no fields."""
        return not self.fields if self.main_text is None else self.main_text

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names of all that an item is to have, title and main text among them where wanted."""
        of_pages = OF_PAGES if self.wants_main_text else ()
        return tuple(dict.fromkeys((*self.fields, *of_pages)))

    @property
    def compared(self) -> tuple[str, ...] | None:
        """The fields that tell whether two posts are the same; None: Freshet's own choice."""
        if isinstance(self.duplicates, bool):
            return None if self.duplicates else ()
        return tuple(map(storable_name, self.duplicates))

    @cached_property
    def markup(self) -> tuple[str, ...]:
        """The fields that hold HTML."""
        return tuple(name for name, field in self.fields.items() if field.type is FieldType.HTML)

    def scheme(self, kind: Kind) -> str:
        """Digest of all that decides what a page's content is; an edit of it is no change."""
        return self._list_scheme if kind is Kind.LIST else self._item_scheme

    def scheme_of(self, target: Target) -> str:
        """As `scheme`, of one target: each cell has its own, and a page that had links too many."""
        if target.cell:
            return self.cell_schemes[target.cell]
        had_too_many = OF_CAPS in (target.scheme or "")
        return self.capped_scheme(target) if had_too_many else self.scheme(target.kind)

    def capped_scheme(self, target: Target) -> str:
        """The scheme of a page some of whose links were left out: other caps read it anew."""
        caps = [getattr(self, name) for name in CAPS]
        return f"{self.scheme(target.kind)}{OF_CAPS}{digest_of(target.depth, *caps)}"

    @cached_property
    def digest(self) -> str:
        """Digest of all that decides which pages are read, how they are asked for, what they hold.

        Hours, intervals, weights and politeness do not: an edit of these makes nothing due.
        """
        return digest_of(
            self.starts, self.scheme(Kind.LIST), self.scheme(Kind.ITEM), self.cell_schemes,
            [getattr(self, name) for name in CAPS],
            self.headers, self.cookies, self.proxy, self.robots, self.verify_tls,
            {name: source.url for name, source in self.databases.items()},
        )  # fmt: skip

    def with_code(self, code: str) -> Self:
        """The wrapper of a spider that reads pages by code of its own: an edit of it is one too."""
        copied = self.model_copy()
        copied._code = code
        return copied

    @cached_property
    def cell_schemes(self) -> dict[str, str]:
        """Digests of what decides each cell's content, by name; periods and limits do not."""
        return {
            name: digest_of(
                cell.url, cell.selectors if cell.url else {}, self.timezone,
                cell.database, cell.sql, cell.parameters,
            )
            for name, cell in self.cells.items()
        }  # fmt: skip

    @cached_property
    def _list_scheme(self) -> str:
        hosts = self.allowed_domains or sorted(self.hosts)
        return digest_of(
            self.list_pages, self.item_pages, self.not_list_pages, self.not_item_pages,
            self.category, hosts, self.strip_parameters,
        )  # fmt: skip

    @cached_property
    def _item_scheme(self) -> str:
        links = self._list_scheme if self.follow_item_links else None
        code = (self._code,) if self._code else ()
        return digest_of(self.fields, self.wants_main_text, self.timezone, links, *code)

    def canonical(self, url: str) -> str:
        """The canonical form of an absolute URL under this wrapper's rules."""
        return canonical(
            url, TRACKING_PARAMETERS if self.strip_parameters is None else self.strip_parameters
        )

    def match(self, url: str) -> Match:
        """What a canonical URL is to this wrapper."""
        if not self.is_own(url):
            return Match()
        if (start := self.start_matches.get(url)) is not None:
            return start
        text = _utf8(url)
        as_list, as_item = self._found(Kind.LIST, text), self._found(Kind.ITEM, text)
        if as_list and as_item:
            return Match(both=True)
        if as_list:
            return Match(Kind.LIST, self._category_of(text, as_list), pattern=as_list.digest)
        if as_item:
            return Match(Kind.ITEM, as_item.category, pattern=as_item.digest)
        return Match()

    def has_matched_start(self, kind: Kind) -> bool:
        """Whether the patterns of a kind match a start URL, or the start URL is written as one."""
        if kind is Kind.LIST:
            return any(self._found(kind, _utf8(url)) for url in self.starts)
        return any(match.kind is kind for match in self.start_matches.values())

    @cached_property
    def patterns(self) -> dict[str, str]:
        """The patterns of list and item pages, by their digests."""
        return {digest_of(pattern): pattern for pattern in (*self.list_pages, *self.item_pages)}

    def digests_of(self, patterns: Sequence[str]) -> list[str]:
        """Digests of some of the patterns, by which their targets are counted."""
        return [self._digests[pattern] for pattern in patterns]

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {pattern: digest for digest, pattern in self.patterns.items()}

    def _category_of(self, text: bytes, as_list: _Met | None) -> str | None:
        """The category of a list page by its URL."""
        if isinstance(self.category, str):
            return self.category
        if isinstance(self.category, CategoryRule):
            if (pattern := self.category.pattern) is None:
                return None
            one = compiled(pattern)
            found = one.search(text)
            return _category(found, _group(one, or_first=True)) if found else None
        return as_list and as_list.category

    def _found(self, kind: Kind, text: bytes) -> _Met | None:
        """The first pattern of a kind that a URL meets, if none excludes it."""
        wanted, excluded = self._compiled[kind]
        for pattern, digest, group in wanted:
            if found := pattern.search(text):
                if any(one.search(text) for one in excluded):
                    return None
                return _Met(digest, _category(found, group))
        return None

    @cached_property
    def _compiled(self) -> dict[Kind, tuple[list[_Wanted], list[Pattern]]]:
        """The patterns of list and of item pages, and those that exclude some."""
        made = {}
        for kind, wanted, excluded in (
            (Kind.LIST, self.list_pages, self.not_list_pages),
            (Kind.ITEM, self.item_pages, self.not_item_pages),
        ):
            all_wanted = [(one := compiled(x), digest_of(x), _group(one)) for x in wanted]
            made[kind] = (all_wanted, [compiled(x) for x in excluded])
        return made


def load_toml(path: Path) -> Wrapper:
    """The wrapper in a TOML file; WrapperError names the file, the key and the cause."""
    return Wrapper.of(read_toml(path), str(path))


def read_toml(path: Path) -> dict[str, Any]:
    """The keys of a TOML file; WrapperError where it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise WrapperError(f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WrapperError(f"{path}: not valid TOML: {error}") from None


@lru_cache
def _open_hours(windows: tuple[str, ...], blackout: tuple[str, ...]) -> Week:
    # Not kept on the wrapper: wrappers are compared, and arrays do not compare to one truth.
    hours = open_hours(windows, blackout)
    hours.flags.writeable = False
    return hours


def digest_of(*parts: object) -> str:
    """A short digest of values that have a plain text."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=6).hexdigest()


def _utf8(url: str) -> bytes:
    # A page can put half of a surrogate pair into a link.
    return url.encode(errors="surrogatepass")


def _group(pattern: Pattern, *, or_first: bool = False) -> int | None:
    """The number of the group `category`; or, if asked for, 1 for the first one or 0 for all."""
    first = min(pattern.groups, 1) if or_first else None
    return pattern.groupindex.get("category", first)


def _category(found: Found[bytes], group: int | None) -> str | None:
    value = None if group is None else found[group]
    return unquote(value) if value else None
