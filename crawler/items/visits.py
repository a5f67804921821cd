"""What is stored of a visit."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from bson import ObjectId

from crawler.items.feeds import Collected
from crawler.items.fetched import Fetched
from crawler.items.outcomes import Kind, Outcome
from crawler.items.targets import Broken, Noise

if TYPE_CHECKING:
    from crawler.dedup.posts import Candidate, Verdict
    from schedules.history import FieldHistory, History


# A hub that has not delivered a post this long after its publication has failed.
HUB_PATIENCE = timedelta(hours=1)


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
    is_baseline:   whether the first crawl of the site is not complete: its new pages are not news
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
    is_baseline: bool = False
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
