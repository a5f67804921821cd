"""Define the records of feeds: documents, posts, and the state of a feed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from schedules.intervals import DEFAULT_FEED_SIZE


@dataclass(frozen=True, slots=True)
class Bounds:
    """Polling limits that a feed requests from its readers.

    every_hours: minimum interval between polls (ttl, sy:updatePeriod); None: not specified
    skip_hours:  hours of the UTC day without polls
    skip_days:   days of the week without polls, 0 = Monday
    """

    every_hours: float | None = None
    skip_hours: tuple[int, ...] = ()
    skip_days: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """Entry of a feed document.

    id:        permanent id: guid or id, else the link, else a hash of title and date
    url:       absolute; None for an entry without a link
    published: UTC; None without a plausible date
    stated:    date in the future, in UTC
    has_offset: whether the date has a UTC offset, or the time zone of the site is known
    content:   title, main_text (plain text of the full content, else of the summary), author,
               tags and enclosures, as far as present; compared to detect edits
    """

    id: str
    url: str | None
    published: datetime | None
    content: dict[str, Any]
    stated: datetime | None = None
    has_offset: bool = True


@dataclass(frozen=True, slots=True)
class FeedDocument:
    """Parsed feed document.

    format:   feedparser's name of the format, such as rss20, atom10 or json11
    entries:  in the order of the document, each id once
    problems: errors in the document, one line each; includes entries that were skipped
    hubs:     URLs of WebSub hubs
    topic:    URL of the feed at its hubs
    utc_offset_hours: UTC offset that was assumed for dates without one
    """

    format: str
    title: str | None
    site: str | None
    entries: tuple[Entry, ...]
    problems: tuple[str, ...] = ()
    bounds: Bounds = field(default_factory=Bounds)
    hubs: tuple[str, ...] = ()
    topic: str | None = None
    utc_offset_hours: float = 0.0


class NoFeed(Exception):
    """Raised if a document is not a feed; the message names what it is instead."""


NO_BOUNDS = Bounds()


@dataclass(frozen=True, slots=True)
class Post:
    """Normalized feed entry; the fields are those of `Entry`."""

    id: str
    url: str | None
    published: datetime | None
    content: dict[str, Any]
    content_hash: str
    stated: datetime | None = None
    has_offset: bool = True


@dataclass(frozen=True, slots=True)
class KnownPost:
    """Stored post.

    key: its `_id`
    id:  stored id of a post that was found by its link; None: the post was found by its id
    title: its title
    """

    key: str
    content_hash: str
    first_seen: datetime
    id: str | None = None
    title: str | None = None


@dataclass(frozen=True, slots=True)
class Monitor:
    """State of a feed after its latest visit.

    feed_size:    number of posts that the document holds (S in the paper)
    full:         posts have dropped out of the document, so `feed_size` is its full size
    ids:          digests of the last document's post ids, 8 bytes each, in document order
    posts:        number of posts collected so far
    missed_posts: estimated number of posts that left the document before they were seen
    gaps:         number of visits that missed posts
    last_gap_at:  time of the last of these visits
    newest:       date of the newest post
    false_dates:  number of new posts that stated a date before a visit that did not show them
    edited_visits: number of visits in a row that found edited posts
    utc_offset_hours: UTC offset assumed for dates without one; visits only raise it
    bounds:       polling limits that the feed requests
    push:         state of its WebSub subscription; empty: none
    """

    feed_size: int = 0
    full: bool = False
    ids: bytes = b""
    posts: int = 0
    missed_posts: float = 0.0
    gaps: int = 0
    last_gap_at: datetime | None = None
    newest: datetime | None = None
    false_dates: int = 0
    edited_visits: int = 0
    utc_offset_hours: float = 0.0
    bounds: Bounds = NO_BOUNDS
    push: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KnownFeed:
    """What is stored of a feed when its document arrives.

    posts: stored posts of the document by id; None if the document has not changed
    """

    monitor: Monitor
    posts: Mapping[str, KnownPost] | None


@dataclass(frozen=True, slots=True)
class Collected:
    """Posts collected by one visit of a feed.

    new, edited:  posts, each with the `_id` under which it is stored
    missed_posts: estimated number of posts missed since the previous visit
    doubted:      number of stored posts for which a hub delivered different content
    monitor:      state of the feed after this visit
    renamed:      stored posts whose ids the feed has changed: `_id` and new id of each
    problems:     problems of the document that only a comparison with earlier ones shows
    """

    new: tuple[tuple[str, Post], ...] = ()
    edited: tuple[tuple[str, Post], ...] = ()
    missed_posts: float = 0.0
    doubted: int = 0
    monitor: Monitor = field(default_factory=Monitor)
    renamed: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def posts(self) -> tuple[tuple[str, Post], ...]:
        """Posts that have to be stored."""
        return self.new + self.edited


def planned_feed_size(monitor: Monitor) -> int:
    """Return how many posts can appear between two visits before some are missed."""
    return max(1, monitor.feed_size) if monitor.full else max(DEFAULT_FEED_SIZE, monitor.feed_size)
