"""Read traces of pages and feeds from CSV files, plain or gzip, and write visits.

changes: page_id, commit_time_utc, content_sha1_12 (optional): rows of a page in chronological
         order; its first row is its first record, not a change
pages:   page_id, source_id, until_utc (optional; empty: the page's trace has no end)
posts:   feed_id, posted_at_utc
feeds:   feed_id, window_size_S (empty: unknown, the feed is left out), weight (optional)
"""

from __future__ import annotations

import csv
import errno
import gzip
import io
import math
import os
import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import IO

import numpy as np

from crawler.errors import TraceError
from crawler.utils.files import atomic_replace
from schedules.history import Floats, Ints, Times, offsets

HOUR_SECONDS = 3600
GZIP = b"\x1f\x8b"
MAX_SHOWN = 80
# Upper limits of feed sizes and weights. Larger feed sizes are errors and could overflow.
MAX_WINDOW = 2**31
MAX_WEIGHT = 1e6


def rows(
    path: Path, needed: tuple[str, ...], optional: tuple[str, ...] = ()
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield each row's line number and its values in these columns, at least two.

    optional: "" if there is no such column. Raises TraceError.
    """
    line = 0
    try:
        with _opened(path) as text:
            reader = csv.reader(text, strict=True)
            header = next(reader, [])
            pick = itemgetter(*_places(path, header, needed, optional))
            for row in reader:
                line = reader.line_num
                if not row:
                    continue
                if len(row) != len(header):
                    raise wrong(path, line, f"{len(row)} values for {len(header)} columns")
                row.append("")
                yield line, pick(row)
    except csv.Error as broken:
        raise TraceError(f"{path}, after line {line}: not CSV: {broken}") from None
    except UnicodeDecodeError:
        cause = "not UTF-8. Save the file as UTF-8"
        raise TraceError(f"{path}, after line {line}: {cause}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        cause = "invalid gzip data. Download or write the file again"
        raise TraceError(f"{path}, after line {line}: {cause}") from None
    except OSError as broken:
        raise TraceError(f"{path}: {broken.strerror or broken}") from None
    if not line:
        raise TraceError(f"{path}: no rows below the header")


def _places(
    path: Path, header: list[str], needed: tuple[str, ...], optional: tuple[str, ...]
) -> list[int]:
    """Return the indices of the columns in a row; missing optional ones are past the last index."""
    if not header:
        raise TraceError(f"{path}: empty file. Required columns: {', '.join(needed)}")
    for name in needed:
        if name not in header:
            columns = short(", ".join(header))
            raise wrong(path, 1, f"column not found: {name}. Rename one of {columns}")
    places = {name: place for place, name in reversed(list(enumerate(header)))}
    return [places.get(name, len(header)) for name in (*needed, *optional)]


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """Open a file as text; decompress it if it is gzip."""
    with path.open("rb") as raw:
        start = raw.peek(len(GZIP))
        packed = start.startswith(GZIP)
        if start and not packed and path.suffix == ".gz":
            raise TraceError(f"{path}: not gzip. Compress it, or remove .gz from its name")
        data = gzip.GzipFile(fileobj=raw) if packed else raw
        with io.TextIOWrapper(data, "utf-8-sig", newline="") as text:
            yield text


def hours(time: str) -> float:
    """Convert an ISO time to hours since 1970 (UTC). Raises ValueError with the problem."""
    try:
        moment = datetime.fromisoformat(time.strip())
    except ValueError:
        raise ValueError("is not a valid time. Use a format such as 2024-01-31T08:00:00Z") from None
    if moment.tzinfo is None:
        raise ValueError("has no time zone. Append Z for UTC")
    return moment.timestamp() / HOUR_SECONDS


def isos(moments: Floats) -> list[str]:
    """Convert hours since 1970 to ISO times in UTC, to the second."""
    seconds = np.rint(moments * HOUR_SECONDS).astype("datetime64[s]")
    texts: list[str] = np.datetime_as_string(seconds, timezone="UTC").tolist()
    return texts


def iso(moment: float) -> str:
    """Convert hours since 1970 to an ISO time in UTC, to the second."""
    return isos(np.array([moment]))[0]


def wrong(path: Path, line: int, cause: str) -> TraceError:
    """Return the error for a line of a file."""
    return TraceError(f"{path}, line {line}: {cause}")


def short(value: str) -> str:
    """Return a value, quoted and shortened for a one-line message."""
    return repr(value if len(value) <= MAX_SHOWN else value[:MAX_SHOWN] + "…")


def _listing(trace: Path, given: Path | None, name: str) -> Path:
    """Return the file that lists the targets of a trace: the given one, else one next to it."""
    if not trace.exists():
        raise TraceError(f"{trace}: {os.strerror(errno.ENOENT)}")
    return given or trace.with_name(name)


@dataclass(frozen=True, slots=True)
class Trace:
    """Hold the true changes of n pages, in the order of the pages file; hours since 1970 (UTC).

    ids:     names of the n pages
    sources: names of the sources, in the order of their first page
    source:  (n,) index of each page's source
    began:   (n,) first record of each page, which is not a change; NaN without records
    changes: changes of each page in chronological order, including those after its end
    ends:    (n,) end of each page's trace; inf: none
    """

    ids: tuple[str, ...]
    sources: tuple[str, ...]
    source: Ints
    began: Floats
    changes: Times
    ends: Floats

    def __len__(self) -> int:
        return len(self.ids)


def read_trace(changes: Path, pages: Path | None = None) -> Trace:
    """Read the trace of two files; `pages` defaults to `pages.csv` in the folder of `changes`.

    Raises TraceError.
    """
    listed = _Pages(_listing(changes, pages, "pages.csv"))
    for line, row in rows(listed.path, ("page_id", "source_id"), ("until_utc",)):
        listed.add(line, *row)
    page, at = listed.read_changes(changes)
    order = np.argsort(page, kind="stable")
    page, at = page[order], at[order]
    n = len(listed.index)
    is_first = np.diff(page, prepend=-1) != 0
    began = np.full(n, np.nan)
    began[page[is_first]] = at[is_first]
    ends = np.array(listed.ends)
    for i in np.flatnonzero(ends < began):
        cause = f"ends at {iso(ends[i])}, before its first record at {iso(began[i])}"
        raise listed.error(int(i), f"{cause}. Correct until_utc or leave it empty")
    counts = np.bincount(page[~is_first], minlength=n)
    return Trace(
        ids=tuple(listed.index),
        sources=tuple(listed.sources),
        source=np.array(listed.source, np.int64),
        began=began,
        changes=Times(offsets(counts), at[~is_first]),
        ends=ends,
    )


@dataclass(slots=True)
class _Pages:
    """Collect the rows of a pages file: the index of each page's name, and its columns."""

    path: Path
    index: dict[str, int] = field(default_factory=dict)
    lines: list[int] = field(default_factory=list)
    sources: dict[str, int] = field(default_factory=dict)
    source: list[int] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def add(self, line: int, page: str, source: str, until: str) -> None:
        """Add a row."""
        if not page or not source:
            raise wrong(self.path, line, "page_id or source_id is empty")
        if self.index.setdefault(page, len(self.lines)) != len(self.lines):
            raise wrong(self.path, line, f"page {short(page)} is listed twice. Remove one row")
        try:
            self.ends.append(hours(until) if until.strip() else np.inf)
        except ValueError as error:
            raise wrong(self.path, line, f"until_utc {short(until)} {error}") from None
        self.lines.append(line)
        self.source.append(self.sources.setdefault(source, len(self.sources)))

    def error(self, i: int, cause: str) -> TraceError:
        """Return an error for the row of page i."""
        return wrong(self.path, self.lines[i], f"page {short(list(self.index)[i])} {cause}")

    def read_changes(self, path: Path) -> tuple[Ints, Floats]:
        """Return page and time of all rows, in the order of the file."""
        pages, times = [], []
        latest = [-np.inf] * len(self.index)
        contents = [""] * len(self.index)
        columns = ("page_id", "commit_time_utc")
        for line, (name, time, content) in rows(path, columns, ("content_sha1_12",)):
            try:
                page, at = self.index[name], hours(time)
            except KeyError:
                cause = f"page {short(name)} is not in {self.path}. Add it there"
                raise wrong(path, line, cause) from None
            except ValueError as error:
                raise wrong(path, line, f"commit_time_utc {short(time)} {error}") from None
            if at < latest[page]:
                cause = f"record of page {short(name)} at {short(time)} follows one at"
                advice = "Sort the rows by page_id and commit_time_utc"
                raise wrong(path, line, f"{cause} {iso(latest[page])}. {advice}")
            # Two different contents within one second are two changes; some sources do that.
            if at == latest[page] and content == contents[page]:
                cause = f"duplicate record of page {short(name)} at {short(time)}. Remove one"
                raise wrong(path, line, cause)
            latest[page], contents[page] = at, content
            pages.append(page)
            times.append(at)
        return np.array(pages, np.int64), np.array(times, np.float64)


@dataclass(frozen=True, slots=True)
class FeedTrace:
    """Hold the true posts of n feeds, in the order of the feeds file; hours since 1970 (UTC).

    ids:        names of the n feeds
    window:     (n,) posts that each document holds, >= 1
    weight:     (n,) importance, > 0
    posts:      posts of each feed in chronological order
    unlisted:   number of posts left out because their feed is not listed
    windowless: number of feeds left out because their size is unknown
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
    """Read the trace of two files; `feeds` defaults to `feeds.csv` in the folder of `posts`.

    Raises TraceError.
    """
    listed = _Feeds(_listing(posts, feeds, "feeds.csv"))
    for line, row in rows(listed.path, ("feed_id", "window_size_S"), ("weight",)):
        listed.add(line, *row)
    if not listed.index:
        raise TraceError(f"{listed.path}: no feed has a known size. Fill in window_size_S")
    feed, at, unlisted = listed.read_posts(posts)
    order = np.lexsort((at, feed))
    counts = np.bincount(feed, minlength=len(listed.index))
    return FeedTrace(
        ids=tuple(listed.index),
        window=np.array(listed.window, np.int64),
        weight=np.array(listed.weight, np.float64),
        posts=Times(offsets(counts), at[order]),
        unlisted=unlisted,
        windowless=len(listed.windowless),
    )


@dataclass(slots=True)
class _Feeds:
    """Collect the rows of a feeds file: index and columns of each feed with a known size."""

    path: Path
    index: dict[str, int] = field(default_factory=dict)
    window: list[int] = field(default_factory=list)
    weight: list[float] = field(default_factory=list)
    windowless: set[str] = field(default_factory=set)

    def add(self, line: int, feed: str, window: str, weight: str) -> None:
        """Add a row."""
        if not feed:
            raise wrong(self.path, line, "feed_id is empty")
        if feed in self.index or feed in self.windowless:
            raise wrong(self.path, line, f"feed {short(feed)} is listed twice. Remove one row")
        if not window.strip():
            self.windowless.add(feed)
            return
        size = _number(window)
        if not (1 <= size <= MAX_WINDOW and size == int(size)):
            cause = "is not a valid size. Use a whole number of 1 or more, or leave it empty"
            raise wrong(self.path, line, f"window_size_S {short(window)} {cause}")
        importance = _number(weight) if weight.strip() else 1.0
        if not 0 < importance <= MAX_WEIGHT:
            cause = (
                f"is not in (0, {MAX_WEIGHT:,.0f}]. Use a number in that range, or leave it empty"
            )
            raise wrong(self.path, line, f"weight {short(weight)} {cause}")
        self.window.append(int(size))
        self.weight.append(importance)
        self.index[feed] = len(self.index)

    def read_posts(self, path: Path) -> tuple[Ints, Floats, int]:
        """Return feed and time of the posts, and the number of posts of unlisted feeds."""
        # An array takes 8 bytes per number, a list 32.
        feeds, times, unlisted = array("q"), array("d"), 0
        for line, (name, time) in rows(path, ("feed_id", "posted_at_utc")):
            if not name:
                raise wrong(path, line, "feed_id is empty")
            try:
                at = hours(time)
            except ValueError as error:
                raise wrong(path, line, f"posted_at_utc {short(time)} {error}") from None
            feed = self.index.get(name)
            if feed is not None:
                feeds.append(feed)
                times.append(at)
            elif name not in self.windowless:
                unlisted += 1
        return np.array(feeds, np.int64), np.array(times, np.float64), unlisted


def _number(text: str) -> float:
    """Parse a number; NaN if it is invalid."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def whole_seconds(hours: Floats) -> Floats:
    """Round to whole seconds, the resolution of visit files. Times are hours since 1970."""
    return np.rint(hours * HOUR_SECONDS) / HOUR_SECONDS


def write_visits(path: Path, ids: Sequence[str], visits: Times) -> None:
    """Write the visits of targets as gzip CSV with the columns target and at (UTC, to the second).

    The file is replaced atomically; missing folders are created. Raises TraceError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Leave out the time, so that equal visits give identical files.
        with (
            atomic_replace(path) as draft,
            draft.open("wb") as raw,
            gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
            io.TextIOWrapper(packed, "utf-8", newline="") as text,
        ):
            table = csv.writer(text, lineterminator="\n")
            table.writerow(("target", "at"))
            for i, name in enumerate(ids):
                at = visits.at[visits.first[i] : visits.first[i + 1]]
                table.writerows((name, moment) for moment in isos(at))
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from None
