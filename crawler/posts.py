"""Posts of feeds, and what is known of a feed from one visit to the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from crawler.documents import Bounds
from schedules.firstlook import USUAL_WINDOW

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
