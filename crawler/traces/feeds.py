"""The trace of feeds: when posts truly appeared, and how many each feed's document holds.

posts: feed_id, posted_at_utc: in any order
feeds: feed_id, window_size_S, weight (optional; empty: 1)

A feed without a window is left out: nobody knows what it would have missed. So are posts of feeds
that are not listed. A feed without posts counts.
"""

from __future__ import annotations

import errno
import math
import os
from array import array
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from crawler.errors import TraceError
from crawler.traces.files import hours, rows, short, wrong
from schedules.history import Floats, Ints, Times

# Larger numbers are no windows, and would not fit.
LARGEST_WINDOW = 2**31
LARGEST_WEIGHT = 1e6


@dataclass(frozen=True, slots=True)
class FeedTrace:
    """The true posts of n feeds, in the order of the feeds file; hours since 1970 (UTC).

    ids:    n names of feeds
    window: (n,) >= 1 posts that each document holds
    weight: (n,) > 0 importance
    posts:  posts of each feed in the order of time
    unlisted:   posts that were left out, as their feed is not listed
    windowless: feeds that were left out, as their window is not known
    """

    ids: tuple[str, ...]
    window: Ints
    weight: Floats
    posts: Times
    unlisted: int
    windowless: int

    def __len__(self) -> int:
        return len(self.ids)


def read_feed_trace(posts: Path, feeds: Path | None = None) -> FeedTrace:
    """The trace of two files; `feeds` is by default `feeds.csv` in the folder of `posts`.

    Raises TraceError.
    """
    if not posts.exists():
        raise TraceError(f"{posts}: {os.strerror(errno.ENOENT)}")
    listed = _read_feeds(feeds or posts.with_name("feeds.csv"))
    feed, at, unlisted = _read_posts(posts, listed)
    order = np.lexsort((at, feed))
    counts = np.bincount(feed, minlength=len(listed.index))
    return FeedTrace(
        ids=tuple(listed.index),
        window=np.array(listed.window, np.int64),
        weight=np.array(listed.weight, np.float64),
        posts=Times(np.concatenate(([0], np.cumsum(counts))), at[order]),
        unlisted=unlisted,
        windowless=len(listed.windowless),
    )


@dataclass(slots=True)
class _Feeds:
    """What a feeds file lists: the place of each feed with a window, and its columns."""

    path: Path
    index: dict[str, int] = field(default_factory=dict)
    window: list[int] = field(default_factory=list)
    weight: list[float] = field(default_factory=list)
    windowless: set[str] = field(default_factory=set)

    def add(self, line: int, feed: str, window: str, weight: str) -> None:
        """Take one more row."""
        if not feed:
            raise wrong(self.path, line, "feed_id is empty")
        if feed in self.index or feed in self.windowless:
            raise wrong(self.path, line, f"feed {short(feed)} is listed twice (remove one)")
        if not window.strip():
            self.windowless.add(feed)
            return
        self.window.append(self._window(line, window))
        self.weight.append(self._weight(line, weight) if weight.strip() else 1.0)
        self.index[feed] = len(self.index)

    def _window(self, line: int, text: str) -> int:
        number = _number(text)
        if not (1 <= number <= LARGEST_WINDOW and number == int(number)):
            cause = "is no number of posts (write a whole number from 1 on, or leave it empty)"
            raise wrong(self.path, line, f"window_size_S {short(text)} {cause}")
        return int(number)

    def _weight(self, line: int, text: str) -> float:
        number = _number(text)
        if not 0 < number <= LARGEST_WEIGHT:
            cause = f"is no number from 0 to {LARGEST_WEIGHT:,.0f}, without 0 (or leave it empty)"
            raise wrong(self.path, line, f"weight {short(text)} {cause}")
        return number


def _number(text: str) -> float:
    """A number; NaN where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _read_feeds(path: Path) -> _Feeds:
    listed = _Feeds(path)
    for line, row in rows(path, ("feed_id", "window_size_S"), ("weight",)):
        listed.add(line, *row)
    if not listed.index:
        raise TraceError(f"{path}: no feed has a window (fill in window_size_S)")
    return listed


def _read_posts(path: Path, listed: _Feeds) -> tuple[Ints, Floats, int]:
    """Feed and time of the rows of feeds with a window, as they stand; how many are of none."""
    # A number takes 8 bytes here, in a list 32.
    feeds, times, unlisted = array("q"), array("d"), 0
    for line, (name, time) in rows(path, ("feed_id", "posted_at_utc")):
        if not name:
            raise wrong(path, line, "feed_id is empty")
        try:
            at = hours(time)
        except ValueError as error:
            raise wrong(path, line, f"posted_at_utc {short(time)} {error}") from None
        feed = listed.index.get(name)
        if feed is not None:
            feeds.append(feed)
            times.append(at)
        elif name not in listed.windowless:
            unlisted += 1
    return np.array(feeds, np.int64), np.array(times, np.float64), unlisted
