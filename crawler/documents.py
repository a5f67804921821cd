"""A feed document as it was read, whatever its format."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


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
