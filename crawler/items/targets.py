"""A target, as it was stored when the run handed it to the spider."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from crawler.items.outcomes import CELL, Kind

if TYPE_CHECKING:
    from crawler.archive.records import Archived
    from schedules.history import FieldHistory, History
    from schedules.schedule import Schedule


# Separates the selector digest from the digest of the caps that dropped some of a page's links.
CAPS_SEPARATOR = "+"
WEEK = timedelta(weeks=1)
RECHECK = 4 * WEEK


@dataclass(frozen=True, slots=True)
class Validators:
    """Validators of the last response, for conditional requests."""

    etag: str | None = None
    last_modified: str | None = None

    def __bool__(self) -> bool:
        return bool(self.etag or self.last_modified)


NO_VALIDATORS = Validators()


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """Part of a target's plan that a visit needs.

    id:       `_id` of the plan
    until:    end of the plan (a sampling phase); None: no end
    adaptive: each visit adapts the interval, within min_hours and max_hours
    """

    id: Any
    schedule: Schedule
    until: datetime | None = None
    adaptive: bool = False
    min_hours: float = 0.0
    max_hours: float = 0.0


class Breakage(StrEnum):
    """How a page broke.

    SELECTOR: a field that the pages of the site usually have is missing
    SHRUNK:   a list page lost at least half of its links to items
    LOGIN:    a login, consent, captcha or error page took the place of the page
    """

    SELECTOR = "selector"
    SHRUNK = "shrunk"
    LOGIN = "login"


@dataclass(frozen=True, slots=True)
class Broken:
    """State of a page that broke rather than changed, until it works again.

    since:  time of the visit that found it
    fields: lost fields that are still missing
    links:  number of links to items on the list page before
    digest: hash of the content that many pages had
    """

    how: Breakage
    since: datetime
    text: str
    fields: tuple[str, ...] = ()
    links: int = 0
    digest: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the text of a page that has other lines on each request.

    before, after: digests of the lines around it
    lines:         maximum number of lines in it
    """

    before: str
    after: str
    lines: int


@dataclass(frozen=True, slots=True)
class Noise:
    """Random text of a page, which is not compared (crawler/extract/noise.py).

    scheme:  selector digest of the definition that read the text
    lines:   digests of lines, and of titles, that some requests show and others do not; and ORDER
    score:   how often the page changed lately
    wait:    score at which a change is confirmed by a second request
    requests: number of second requests
    passage: digest of the lines around the last change; repeats: changes in a row there
    suspected: digests of places and lines that differed between the requests of one visit
    """

    scheme: str = ""
    places: tuple[Place, ...] = ()
    lines: tuple[str, ...] = ()
    score: int = 0
    wait: int = 3
    requests: int = 0
    passage: str = ""
    repeats: int = 0
    suspected: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return whether all text of the page is compared."""
        return not (self.places or self.lines)

    @property
    def is_suspicious(self) -> bool:
        """Return whether any second request has shown other text."""
        return bool(self.places or self.lines or self.suspected)


@dataclass(slots=True)
class Target:
    """Watched URL, as it was stored when the run handed it to the spider.

    depth:        number of links from a start URL; 0 for start URLs
    redundant_lists: number of redundant list pages in a row on the way to this target
    differing:    number of visits in a row at which this list page had other links than before
    is_redundant: whether this list page showed no items, or only those of other pages of its list
    post:         `_id` of the feed post whose page this is; such a page is fetched once
    canonical_url: URL of another item that the page states as its canonical one
    alias_of:     URL of the target that has the content of this one
    moved_to:     URL to which this URL has permanently redirected on `moves` visits in a row
    moved_at:     last visit on which a page's own URL redirected there
    execution_ms: mean time of a cell's recent refreshes
    kept_bytes:   upper bound of the size of all stored versions
    visited_at:   time of the last visit
    fence:        fencing token under which a visit is stored (crawler/storage/leases.py)
    again:        an interrupted fetch may have stored part of its results
    archived:     last response with a body in the archive
    broken:       how the page broke; None if it works
    field_history: which fields changed, and when; None before the first change
    noise:        random text of the page; None before the first change
    min_hours, max_hours: limits of the interval between two visits, set for this target; 0: none
    """

    spider: str
    url: str
    kind: Kind
    host: str = ""
    categories: tuple[str, ...] = ()
    validators: Validators = Validators()
    content_hash: str | None = None
    raw_hash: str | None = None
    size: int = 0
    selector_digest: str | None = None
    final_url: str | None = None
    hinted: bool = False
    hint: str = "lastmod"
    visits: int = 0
    missed_visits: int = 0
    refreshed: int = 0
    consecutive_errors: int = 0
    consecutive_gone: int = 0
    history: History | None = None
    false_dates: int = 0
    plan: TargetPlan | None = None
    depth: int = 0
    redundant_lists: int = 0
    is_redundant: bool = False
    differing: int = 0
    post: str | None = None
    canonical_url: str | None = None
    alias_of: str | None = None
    moved_to: str | None = None
    moves: int = 0
    moved_at: datetime | None = None
    next_visit: datetime | None = None
    execution_ms: float | None = None
    kept_bytes: int = 0
    visited_at: datetime | None = None
    fence: int = 0
    again: bool = False
    archived: Archived | None = None
    broken: Broken | None = None
    field_history: FieldHistory | None = None
    noise: Noise | None = None
    min_hours: float = 0.0
    max_hours: float = 0.0

    @property
    def key(self) -> str:
        """`_id` in MongoDB: one target per spider and canonical URL."""
        return f"{self.spider} {self.url}"

    def doubts_not_modified(self, now: datetime) -> bool:
        """Return whether to fetch a page without conditions, once a week without a change.

        Some servers answer all conditional requests with "not modified", even after changes. Items
        are many, so they are fetched without conditions only every four weeks.
        """
        if self.history is None or self.visited_at is None:
            return False
        period = RECHECK if self.kind is Kind.ITEM else WEEK
        last_change = self.history.last_change or self.history.since
        quiet_since = datetime.fromtimestamp(60 * last_change, UTC)
        return (now - quiet_since) // period > (self.visited_at - quiet_since) // period

    def url_at(self, now: datetime, confirmations: int) -> str:
        """Return the URL to request: that to which the page has moved permanently, else its own.

        Once in RECHECK, the page's own URL is requested, in case it no longer redirects.

        confirmations: number of visits in a row that have to find the redirect
        """
        if self.moved_to is None or self.moved_at is None or self.moves < confirmations:
            return self.url
        return self.url if now - self.moved_at >= RECHECK else self.moved_to

    @property
    def cell(self) -> str | None:
        """Name of the cell; None for other targets."""
        return self.url.removeprefix(CELL) if self.kind is Kind.CELL else None
