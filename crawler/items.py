"""What travels from a spider through the pipelines to storage, and the words for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from bson import ObjectId

from crawler.utils.urls import shapes
from schedules.first_look import USUAL_WINDOW

if TYPE_CHECKING:
    from crawler.dedup.model import Candidate, Verdict
    from schedules.history import History
    from schedules.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a feed asks of its readers.

    every_hours: not to come sooner than that (ttl, sy:updatePeriod); None: it says nothing
    skip_hours:  hours of the UTC day in which nobody is to come
    skip_days:   days of the week in which nobody is to come, 0 = Monday
    """

    every_hours: float | None = None
    skip_hours: tuple[int, ...] = ()
    skip_days: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One post of a feed.

    id:        stays with the post: its guid or id, else its link, else a hash of title and date
    url:       absolute; None for a post without link
    published: UTC; None where the post says nothing that can be believed
    content:   title, main_text (plain text; of the full content, else of the summary), author,
               tags, enclosures; only those that are there. What is compared to find edits
    """

    id: str
    url: str | None
    published: datetime | None
    content: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FeedDocument:
    """A feed document.

    format:   as feedparser names it, such as rss20, atom10, json11
    entries:  in the order of the document, each id once
    problems: what is wrong with it, one line each; entries left out are among them
    hubs:     WebSub hubs       topic: the URL under which the hubs know it
    """

    format: str
    title: str | None
    site: str | None
    entries: tuple[Entry, ...]
    problems: tuple[str, ...] = ()
    bounds: Bounds = field(default_factory=Bounds)
    hubs: tuple[str, ...] = ()
    topic: str | None = None


class NoFeed(Exception):
    """The document is no feed; `str()` says in a few words what it is instead."""


NO_BOUNDS = Bounds()


@dataclass(frozen=True, slots=True)
class Post:
    """An entry of a feed in its normal form; fields as in `documents.Entry`."""

    id: str
    url: str | None
    published: datetime | None
    content: dict[str, Any]
    content_hash: str


@dataclass(frozen=True, slots=True)
class KnownPost:
    """A post that is stored. key: its `_id`."""

    key: str
    content_hash: str
    first_seen: datetime


@dataclass(frozen=True, slots=True)
class Monitor:
    """What is known of a feed.

    window:  posts that the document holds (the paper's S)
    full:    posts have been seen to leave the document, so the window is not larger
    ids:     digests of the last document's post ids, 8 bytes each, in its order
    posts:   collected so far        missed: lost before a visit, as far as can be told
    lapses:  visits that met no post of the visit before
    """

    window: int = 0
    full: bool = False
    ids: bytes = b""
    posts: int = 0
    missed: float = 0.0
    lapses: int = 0
    lapsed_at: datetime | None = None
    newest: datetime | None = None
    bounds: Bounds = NO_BOUNDS
    push: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Collected:
    """What a visit of a feed brought.

    new, edited: posts, each with the `_id` under which it is stored
    missed:      posts lost since the visit before, estimated
    doubted:     stored posts of which a hub delivered another content
    monitor:     what is known of the feed from now on
    """

    new: tuple[tuple[str, Post], ...] = ()
    edited: tuple[tuple[str, Post], ...] = ()
    missed: float = 0.0
    doubted: int = 0
    monitor: Monitor = field(default_factory=Monitor)

    @property
    def posts(self) -> tuple[tuple[str, Post], ...]:
        """All that has to be stored."""
        return self.new + self.edited


def planned_window(monitor: Monitor) -> int:
    """Posts that may come between two visits without a loss, as far as is known."""
    return max(1, monitor.window) if monitor.full else max(USUAL_WINDOW, monitor.window)


class Kind(StrEnum):
    """What a target is."""

    LIST = "list"
    ITEM = "item"
    FEED = "feed"
    CELL = "cell"


# Before a cell's name, where other targets have their URL.
CELL = "cell:"
# Before the digest of caps in the scheme of a page some of whose links were left out.
OF_CAPS = "+"


class Outcome(StrEnum):
    """What a visit found."""

    NEW = "new"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    NOT_MODIFIED = "not_modified"
    GONE = "gone"
    ERROR = "error"
    BLOCKED = "blocked"


class LinkCount(StrEnum):
    """Names of what is counted of the links of pages, as in a run's counts.

    PAGES:      pages that were read for links
    ALL:        links on these pages to pages of the site, each once a page
    LISTS, ITEMS: of these, matched by list_pages and by item_pages; links to start URLs are neither
    AMBIGUOUS:  of these, matched by both and left out
    UNMATCHED:  of these, matched by neither
    FOREIGN:    links to other hosts
    UNFOLLOWED: links that matched a pattern on a start URL that is an item
    """

    PAGES = "pages with links"
    ALL = "links"
    LISTS = "list links"
    ITEMS = "item links"
    AMBIGUOUS = "ambiguous links"
    UNMATCHED = "unmatched links"
    FOREIGN = "foreign links"
    UNFOLLOWED = "unfollowed links"


# So long after a post its hub has had its time.
HUB_PATIENCE = timedelta(hours=1)
SEEN = frozenset({Outcome.NEW, Outcome.CHANGED, Outcome.UNCHANGED, Outcome.NOT_MODIFIED})


@dataclass(frozen=True, slots=True)
class Validators:
    """What the server gave for conditional requests."""

    etag: str | None = None
    last_modified: str | None = None

    def __bool__(self) -> bool:
        return bool(self.etag or self.last_modified)


@dataclass(frozen=True, slots=True)
class Planned:
    """What a replan decided about a target, as far as a visit has to know it.

    id:         of the plan
    until:      from then on it does not count any more (a learning phase); None: no end
    adaptive:   each visit adapts the schedule's interval between least_hours and most_hours
    """

    id: Any
    schedule: Schedule
    until: datetime | None = None
    adaptive: bool = False
    least_hours: float = 0.0
    most_hours: float = 0.0


@dataclass(slots=True)
class Target:
    """A URL under watch, as the database knew it when it was handed to the spider.

    depth:    pages between a start URL and this one: 0 for a start, 1 for what it links to
    post:     `_id` of the feed's post whose page this is; such a page is fetched once
    moved_to: where a feed has said so many times (`moves`) in a row that it now is
    execution_ms: mean time that a cell's refresh took lately
    kept_bytes: of all versions that are kept of it, or more
    visited_at: time of the last visit
    fence:    number under which a visit is stored (crawler/storage/fences.py)
    again:    an interrupted fetch may have stored a part of what it found
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
    scheme: str | None = None
    final_url: str | None = None
    hinted: bool = False
    hint: str = "lastmod"
    visits: int = 0
    missed: int = 0
    refreshed: int = 0
    consecutive_errors: int = 0
    consecutive_gone: int = 0
    history: History | None = None
    lies: int = 0
    plan: Planned | None = None
    depth: int = 0
    post: str | None = None
    moved_to: str | None = None
    moves: int = 0
    next_visit: datetime | None = None
    execution_ms: float | None = None
    kept_bytes: int = 0
    visited_at: datetime | None = None
    fence: int = 0
    again: bool = False

    @property
    def key(self) -> str:
        """The `_id` in MongoDB: one target per spider and canonical URL."""
        return f"{self.spider} {self.url}"

    @property
    def cell(self) -> str | None:
        """The name of a cell; None for other targets."""
        return self.url.removeprefix(CELL) if self.kind is Kind.CELL else None


@dataclass(frozen=True, slots=True)
class Link:
    """A wanted URL found on a page.

    card:    digest of what the page says of an item around it
    pattern: digest of the wrapper's pattern that it meets
    """

    url: str
    kind: Kind
    category: str | None = None
    lastmod: datetime | None = None
    card: str | None = None
    pattern: str | None = field(default=None, compare=False)


@dataclass(slots=True)
class LinkCounts:
    """What the patterns of a site definition made of the links of one page, or of several.

    kept:      how many links that matched no pattern are kept
    counts:    by LinkCount
    unmatched: links of this site that matched no pattern, `kept` at most
    examples:  the first link (or page) of some of the counts, by their names
    """

    kept: int = 20
    counts: Counter[str] = field(default_factory=Counter)
    unmatched: dict[str, None] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, name: LinkCount, example: str = "") -> None:
        """Count one link, and keep the first of its kind as an example."""
        self.counts[name] += 1
        if example:
            self.examples.setdefault(name, example)

    def keep(self, url: str) -> None:
        """Count a link that matched no pattern, and keep it as long as there is room."""
        self.counts[LinkCount.UNMATCHED] += 1
        self._keep(url)

    def _keep(self, url: str) -> None:
        if len(self.unmatched) < self.kept:
            self.unmatched[url] = None

    def few(self, most: int) -> LinkCounts:
        """`most` of the links that matched no pattern, of different shapes, and the examples."""
        found = [shape.example for shape in shapes(self.unmatched)[:most]]
        return LinkCounts(most, unmatched=dict.fromkeys(found), examples=self.examples)

    def merge(self, other: LinkCounts) -> None:
        """Add what other pages had."""
        self.counts.update(other.counts)
        for url in other.unmatched:
            self._keep(url)
        self.examples = other.examples | self.examples


@dataclass(slots=True)
class Fetched:
    """One fetch of a target, before anything is decided about it.

    outcome: set by the spider only where the response alone tells (not_modified, gone, error,
             blocked); None where the content has to be compared
    content: the wrapper's fields, or title and main text; None for list pages
    links:   wanted URLs on a list page (and on an item page that is followed)
    document, posts: a feed's, as it was read and in normal form
    moved_to: final URL where all redirects on the way were permanent
    at_least_hours: how long the answer is good by its own account (Cache-Control)
    push:    `_id` of the delivery that brought it; None where it was asked for. A hub may leave
             out old posts, so a delivery tells nothing of those that are not in it
    pushed_at: when that delivery came
    follow:  the pages of new posts are wanted too
    compared: the fields that tell duplicates, where the wrapper names them; empty: none are told
    markup:  the fields that hold HTML: their text is compared and searched
    along:   a cell of a page that was fetched for another cell: no request of its own
    link_counts: of the page's links, where it was read for links
    empty_fields: fields of the site definition that the page does not have; None where no fields
             were read
    """

    target: Target
    at: datetime
    scheme: str
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
    at_least_hours: float | None = None
    push: str | None = None
    pushed_at: datetime | None = None
    follow: bool = False
    compared: tuple[str, ...] | None = None
    markup: tuple[str, ...] = ()
    along: bool = False
    content_hash: str | None = None
    link_counts: LinkCounts | None = None
    empty_fields: tuple[str, ...] | None = None


@dataclass(slots=True)
class Skipped:
    """A target that was handed out and not fetched (a host's cap, a hold): no visit.

    ended: it was this process that had no more time for it
    """

    target: Target
    reason: str
    ended: bool = False


@dataclass(slots=True)
class Visit:
    """What was decided about a fetch: the change log's row and the target's next state.

    update_size: difference in bytes to the previous fetch (the paper's; blind to replacements)
    diff_size:   characters really inserted and deleted in the content
    gone:        404 or 410 was confirmed often enough
    reread:      the wrapper was edited and reads the same page differently
    alias_of:    another target that this URL redirects to; it holds the content
    history:     the target's past with this visit; None where the visit is no look at the page
    lies:        visits so far whose Last-Modified was new and whose content was not
    every_hours: the interval that an adaptive plan has from here on; None where nothing adapts
    missed:      visits of the plan that should have been before this one, but the one it waited for
    execution_ms: mean time that the refreshes of a cell take, this one included; None for others
    collected:   what came of a feed's document; None for pages, and where there was none to read
    candidates:  posts that are compared with those stored; emptied: keys of those without text
    verdicts:    what they are, by key, once the visit is stored
    items:       what its posts are sources of, by key, once that is settled; links: what they are
                 known by within their feed
    version_bytes: of the versions that it brought
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
    lies: int = 0
    every_hours: float | None = None
    missed: int = 0
    execution_ms: float | None = None
    collected: Collected | None = None
    candidates: tuple[Candidate, ...] = ()
    emptied: tuple[str, ...] = ()
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    items: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    version_bytes: int = 0
    id: ObjectId = field(default_factory=ObjectId)

    def become_alias(self, of: str, why: str = "redirects to") -> None:
        """The URL redirects to another target, or shows the same: that one holds the content."""
        self.alias_of = of
        self.outcome = Outcome.UNCHANGED
        self.reason = f"{why} {of}"
        self.update_size = self.diff_size = 0
        self.history = self.every_hours = self.collected = None
        self.candidates = self.emptied = ()

    @property
    def has_new_content(self) -> bool:
        """Whether this visit saw a content that the previous one did not."""
        return self.outcome in (Outcome.NEW, Outcome.CHANGED)

    @property
    def has_new_links(self) -> bool:
        """Whether what the page links to has to be compared with what it linked to before."""
        if self.fetched.links is None or self.alias_of is not None:
            return False
        return self.stores_content or self.fetched.target.kind is Kind.ITEM

    @property
    def stores_content(self) -> bool:
        """Whether version and item have to be written: new content, or an old one read anew."""
        if self.fetched.target.kind is Kind.FEED:
            return False
        return self.has_new_content or (self.reread and self.alias_of is None)

    @property
    def doubts_push(self) -> bool:
        """Whether a poll found posts that a hub should have delivered long before."""
        found, at = self.collected, self.fetched.at
        if found is None or self.fetched.push is not None or not found.monitor.push:
            return False
        return any(
            post.published is not None and post.published < at - HUB_PATIENCE
            for _, post in found.new
        )

    @property
    def changed(self) -> bool:
        """Whether a change was seen; a first visit has nothing to compare with."""
        return self.outcome is Outcome.CHANGED
