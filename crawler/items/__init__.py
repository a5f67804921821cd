"""Define the records that spiders pass through the pipelines to storage, and their enums."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from bson import ObjectId

from crawler.items.feeds import (
    NO_BOUNDS as NO_BOUNDS,
)
from crawler.items.feeds import (
    Bounds as Bounds,
)
from crawler.items.feeds import (
    Collected as Collected,
)
from crawler.items.feeds import (
    Entry as Entry,
)
from crawler.items.feeds import (
    FeedDocument as FeedDocument,
)
from crawler.items.feeds import (
    KnownFeed as KnownFeed,
)
from crawler.items.feeds import (
    KnownPost as KnownPost,
)
from crawler.items.feeds import (
    Monitor as Monitor,
)
from crawler.items.feeds import (
    NoFeed as NoFeed,
)
from crawler.items.feeds import (
    Post as Post,
)
from crawler.items.feeds import (
    planned_feed_size as planned_feed_size,
)
from crawler.utils.urls import shapes

if TYPE_CHECKING:
    from crawler.archive.records import Archived
    from crawler.archive.writer import Archiving
    from crawler.dedup.posts import Candidate, Verdict
    from schedules.history import FieldHistory, History
    from schedules.schedule import Schedule


class Kind(StrEnum):
    """Kind of a target."""

    LIST = "list"
    ITEM = "item"
    FEED = "feed"
    CELL = "cell"


# Prefix of a cell's name, which takes the place of the URL of other targets.
CELL = "cell:"
# Separates the selector digest from the digest of the caps that dropped some of a page's links.
CAPS_SEPARATOR = "+"
# Key in request.meta of the last response, an Archiving; absent if the site has no archive.
ARCHIVED = "archived"
# Key in request.meta of a second request, which confirms a change. Its response is not archived.
CONFIRMS = "confirms"


class Outcome(StrEnum):
    """Outcome of a visit. SHELL: only a browser would show the content of the page."""

    NEW = "new"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    NOT_MODIFIED = "not_modified"
    GONE = "gone"
    ERROR = "error"
    BLOCKED = "blocked"
    SHELL = "shell"


# Outcomes of visits that could not read their page.
FAILED = (Outcome.ERROR, Outcome.BLOCKED, Outcome.SHELL)


class LinkCount(StrEnum):
    """Names of the link counts of a run.

    PAGES:      pages whose links were extracted
    ALL:        links to pages of the site, counted once per page
    LISTS:      of these, links that match list_pages; links to start URLs are not counted
    ITEMS:      of these, links that match item_pages; links to start URLs are not counted
    AMBIGUOUS:  of these, links that match both and are skipped
    UNMATCHED:  of these, links that match neither
    FOREIGN:    links to other hosts
    UNFOLLOWED: links that match a pattern, on a start URL that is an item
    VARIANTS:   items whose page states another form of their URL as canonical; the example has both
    """

    PAGES = "pages with links"
    ALL = "links"
    LISTS = "list links"
    ITEMS = "item links"
    AMBIGUOUS = "ambiguous links"
    UNMATCHED = "unmatched links"
    FOREIGN = "foreign links"
    UNFOLLOWED = "unfollowed links"
    VARIANTS = "variant urls"


WEEK = timedelta(weeks=1)
RECHECK = 4 * WEEK
# A hub that has not delivered a post this long after its publication has failed.
HUB_PATIENCE = timedelta(hours=1)
SEEN = frozenset({Outcome.NEW, Outcome.CHANGED, Outcome.UNCHANGED, Outcome.NOT_MODIFIED})


@dataclass(frozen=True, slots=True)
class Validators:
    """Validators of the last response, for conditional requests."""

    etag: str | None = None
    last_modified: str | None = None

    def __bool__(self) -> bool:
        return bool(self.etag or self.last_modified)


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


@dataclass(frozen=True, slots=True)
class Link:
    """Link on a page that matches the site definition.

    digest:  listing digest: hash of the text around a link to an item
    pattern: digest of the site definition's pattern that the URL matches
    """

    url: str
    kind: Kind
    category: str | None = None
    lastmod: datetime | None = None
    digest: str | None = None
    pattern: str | None = field(default=None, compare=False)


@dataclass(slots=True)
class LinkCounts:
    """Counts of how the links of one or several pages matched a site definition's patterns.

    kept:      maximum number of unmatched links to keep
    counts:    number of links by LinkCount
    unmatched: links of this site that match no pattern, at most `kept`; the values are unused
    examples:  first link (or page) of some counts, by LinkCount; of PAGES, a page that asks for a
               password and has no wanted link; of ALL, a redirect to a page without wanted links
    """

    kept: int = 20
    counts: Counter[str] = field(default_factory=Counter)
    unmatched: dict[str, None] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, name: LinkCount, example: str = "") -> None:
        """Count one link, and keep the first one as the example of its count."""
        self.counts[name] += 1
        if example:
            self.examples.setdefault(name, example)

    def keep(self, url: str) -> None:
        """Count an unmatched link, and keep it if fewer than `kept` are kept."""
        self.counts[LinkCount.UNMATCHED] += 1
        self._keep(url)

    def _keep(self, url: str) -> None:
        if len(self.unmatched) < self.kept:
            self.unmatched[url] = None

    def few(self, max_links: int) -> LinkCounts:
        """Return at most `max_links` unmatched links of different URL shapes, and the examples."""
        urls = [shape.example for shape in shapes(self.unmatched)[:max_links]]
        return LinkCounts(max_links, unmatched=dict.fromkeys(urls), examples=self.examples)

    def merge(self, other: LinkCounts) -> None:
        """Add the counts, links and examples of other pages."""
        self.counts.update(other.counts)
        for url in other.unmatched:
            self._keep(url)
        self.examples = other.examples | self.examples


@dataclass(slots=True)
class Fetched:
    """Result of fetching a target, before it is compared with the stored state.

    outcome:        set by the spider if the response determines it (not_modified, gone, error,
                    blocked); None if the content has to be compared
    content:        fields of the site definition, or title and main text; None for list pages
    links:          matching links on a list page, or on an item page that is followed
    document:       parsed document of a feed
    posts:          normalized entries of `document`
    moved_to:       final URL if all redirects were permanent
    is_direct:      the request went to the `moved_to` of the target, not to its own URL
    canonical_url:  URL of another item that the page states as its canonical one
    fresh_hours: how long the response stays fresh according to its Cache-Control header
    push:           `_id` of the WebSub delivery with this document, which may lack old posts
    pushed_at:      time of that delivery
    follow:         fetch the pages of new posts, too
    compared:       fields in which duplicates are compared; empty: none; None: the usual ones
    markup:         fields that contain HTML: their text is compared and searched
    shared_fetch:   a cell: the page was fetched for another cell
    link_counts:    counts of the page's links, if links were extracted
    empty_fields:   fields that the page lacks; None if no fields were extracted
    unordered:      values whose lines or entries are compared in any order
    stand_in:       outcome and reason if another page, such as a login page, was probably sent
                    instead; applies only if the content differs from the stored one
    doubtful:       the page may be a login page or similar, and is read as the requested one
    archived:       the response, which is being archived; None if it is not archived
    noise:          random text of an item whose content differs, after a second request or a wait
                    for one; None: as before
    known:          what is stored of a feed, to compare its document with
    """

    target: Target
    at: datetime
    selector_digest: str
    status: int | None = None
    elapsed_ms: int = 0
    outcome: Outcome | None = None
    reason: str | None = None
    size: int = 0
    raw_hash: str | None = None
    validators: Validators = Validators()
    final_url: str | None = None
    content: dict[str, Any] | None = None
    links: tuple[Link, ...] | None = None
    document: FeedDocument | None = None
    posts: tuple[Post, ...] = ()
    moved_to: str | None = None
    is_direct: bool = False
    canonical_url: str | None = None
    fresh_hours: float | None = None
    push: str | None = None
    pushed_at: datetime | None = None
    follow: bool = False
    compared: tuple[str, ...] | None = None
    markup: tuple[str, ...] = ()
    unordered: tuple[str, ...] = ()
    shared_fetch: bool = False
    content_hash: str | None = None
    link_counts: LinkCounts | None = None
    empty_fields: tuple[str, ...] | None = None
    stand_in: tuple[Outcome, str] | None = None
    doubtful: bool = False
    archived: Archiving | None = None
    noise: Noise | None = None
    known: KnownFeed | None = None

    @property
    def random_text(self) -> Noise:
        """Return what is known of the random text of this page, with its present definition."""
        noise = self.noise or self.target.noise
        is_known = noise is not None and noise.scheme == self.selector_digest
        return noise if noise is not None and is_known else Noise(self.selector_digest)


@dataclass(slots=True)
class Skipped:
    """Target that was handed out but not fetched (cap of the host, Retry-After); not a visit.

    ended:     the process stopped before the fetch
    elsewhere: the cause is another host, to which the target redirects
    """

    target: Target
    reason: str
    ended: bool = False
    elsewhere: bool = False


class Event(StrEnum):
    """Event that a notification rule can match."""

    NEW = "new"
    CHANGED = "changed"
    GONE = "gone"
    BACK = "back"
    NEAR_DUPLICATE = "near-duplicate"
    FAILING = "failing"
    SILENT = "silent"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Events that the notification rules of a site match; a crawl marks the visits that have one.

    failures: numbers of consecutive errors at which a page is `failing`
    """

    events: frozenset[Event] = frozenset()
    failures: frozenset[int] = frozenset()


@dataclass(slots=True)
class Visit:
    """Result of comparing a fetch: the change log's row and the target's next state.

    update_size:   size difference from the previous fetch in bytes (as in the paper; 0 if text was
                   replaced by text of the same length)
    diff_size:     number of characters inserted and deleted in the content
    gone:          404 or 410 was confirmed often enough
    reread:        an unchanged page has other content: an edited site definition reads it, or only
                   random text differs
    alias_of:      another target to which this URL redirects, or whose content it has, and which
                   stores the content
    history:       history including this visit; None if the visit is not an observation
    false_dates:   number of visits with a new Last-Modified but unchanged content
    every_hours:   next interval of an adaptive plan; None for other plans
    missed_visits: number of planned visits skipped between the due time and this late visit
    execution_ms:  mean time of a cell's refreshes including this one; None for other targets
    collected:     posts of a feed's document; None for pages, and for feeds without a document
    candidates:    posts to compare with stored posts
    emptied:       keys of posts that have no text
    verdicts:      near-duplicate verdicts on the candidates, by key, once the visit is stored
    items:         items that the posts are sources of, by key, once known
    links:         ids of the posts within their feed, by key
    version_bytes: size of the stored versions
    broken:        how the page broke, at this visit or before; None if it works
    field_history: which fields changed, including this visit; None if it found no change of fields
    noise:         random text of the page, if this visit changed what is known of it; else None
    wanted:        events that the notification rules of the site match; None: there are none
    """

    fetched: Fetched
    outcome: Outcome
    next_visit: datetime
    reason: str | None = None
    update_size: int = 0
    diff_size: int = 0
    consecutive_errors: int = 0
    consecutive_gone: int = 0
    gone: bool = False
    reread: bool = False
    alias_of: str | None = None
    history: History | None = None
    false_dates: int = 0
    every_hours: float | None = None
    missed_visits: int = 0
    execution_ms: float | None = None
    collected: Collected | None = None
    candidates: tuple[Candidate, ...] = ()
    emptied: tuple[str, ...] = ()
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    items: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    version_bytes: int = 0
    broken: Broken | None = None
    field_history: FieldHistory | None = None
    noise: Noise | None = None
    wanted: Wanted | None = None
    id: ObjectId = field(default_factory=ObjectId)

    def become_alias(self, of: str, why: str = "redirects to") -> None:
        """Leave the content to target `of`, which the URL redirects to, or whose content it has."""
        self.alias_of = of
        self.outcome = Outcome.UNCHANGED
        self.reason = f"{why} {of}"
        self.update_size = self.diff_size = 0
        self.history = self.every_hours = self.collected = self.broken = None
        self.field_history = None
        self.candidates = self.emptied = ()

    @property
    def has_new_content(self) -> bool:
        """Return whether the content is new or changed since the previous visit."""
        return self.outcome in (Outcome.NEW, Outcome.CHANGED)

    @property
    def has_new_links(self) -> bool:
        """Return whether the page's links have to be compared with the stored links."""
        if self.fetched.links is None or self.alias_of is not None:
            return False
        return self.stores_content or self.fetched.target.kind is Kind.ITEM

    @property
    def stores_content(self) -> bool:
        """Return whether a version and an item have to be stored."""
        if self.fetched.target.kind is Kind.FEED:
            return False
        return self.has_new_content or (self.reread and self.alias_of is None)

    @property
    def doubts_push(self) -> bool:
        """Return whether a poll found posts that the hub failed to deliver within HUB_PATIENCE."""
        collected, at = self.collected, self.fetched.at
        if collected is None or self.fetched.push is not None or not collected.monitor.push:
            return False
        return any(
            post.published is not None and post.published < at - HUB_PATIENCE
            for _, post in collected.new
        )

    @property
    def changed(self) -> bool:
        """Return whether the content changed; False for the first visit."""
        return self.outcome is Outcome.CHANGED
