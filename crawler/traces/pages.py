"""The trace of pages: when they truly changed.

changes: page_id, commit_time_utc, content_sha1_12 (optional): a page's rows in the order of time;
         its first row is its first record and no change
pages:   page_id, source_id, until_utc (optional; empty: the page's trace goes on)
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from crawler.errors import TraceError
from crawler.traces.files import hours, iso, rows, short, wrong
from schedules.history import Floats, Ints, Times


@dataclass(frozen=True, slots=True)
class Trace:
    """The true changes of n pages, in the order of the pages file; hours since 1970 (UTC).

    ids:     n names of pages
    sources: names of the sources, in the order of their first page
    source:  (n,) index of each page's source
    began:   (n,) first record of each page, which is no change; NaN where it has none
    changes: changes of each page in the order of time, also those after its end
    ends:    (n,) where each page's trace ends; inf: nowhere
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
    """The trace of two files; `pages` is by default `pages.csv` in the folder of `changes`.

    Raises TraceError.
    """
    if not changes.exists():
        raise TraceError(f"{changes}: {os.strerror(errno.ENOENT)}")
    listed = _read_pages(pages or changes.with_name("pages.csv"))
    page, at = _read_changes(changes, listed)
    order = np.argsort(page, kind="stable")
    page, at = page[order], at[order]
    n = len(listed.index)
    is_first = np.diff(page, prepend=-1) != 0
    began = np.full(n, np.nan)
    began[page[is_first]] = at[is_first]
    ends = np.array(listed.ends)
    for i in np.flatnonzero(ends < began):
        cause = f"ends at {iso(ends[i])}, before its first record at {iso(began[i])}"
        raise listed.error(int(i), f"{cause} (correct until_utc, or leave it empty)")
    counts = np.bincount(page[~is_first], minlength=n)
    return Trace(
        ids=tuple(listed.index),
        sources=tuple(listed.sources),
        source=np.array(listed.source, np.int64),
        began=began,
        changes=Times(np.concatenate(([0], np.cumsum(counts))), at[~is_first]),
        ends=ends,
    )


@dataclass(slots=True)
class _Pages:
    """What a pages file lists: the place of each page's name, and its columns."""

    path: Path
    index: dict[str, int] = field(default_factory=dict)
    lines: list[int] = field(default_factory=list)
    sources: dict[str, int] = field(default_factory=dict)
    source: list[int] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)

    def add(self, line: int, page: str, source: str, until: str) -> None:
        """Take one more row."""
        if not page or not source:
            raise wrong(self.path, line, "page_id or source_id is empty")
        if self.index.setdefault(page, len(self.lines)) != len(self.lines):
            raise wrong(self.path, line, f"page {short(page)} is listed twice (remove one)")
        try:
            self.ends.append(hours(until) if until.strip() else np.inf)
        except ValueError as error:
            raise wrong(self.path, line, f"until_utc {short(until)} {error}") from None
        self.lines.append(line)
        self.source.append(self.sources.setdefault(source, len(self.sources)))

    def error(self, i: int, cause: str) -> TraceError:
        """An error in the row of page i."""
        return wrong(self.path, self.lines[i], f"page {short(list(self.index)[i])} {cause}")


def _read_pages(path: Path) -> _Pages:
    listed = _Pages(path)
    for line, (page, source, until) in rows(path, ("page_id", "source_id"), ("until_utc",)):
        listed.add(line, page, source, until)
    return listed


def _read_changes(path: Path, listed: _Pages) -> tuple[Ints, Floats]:
    """Page and time of all rows, as they stand in the file."""
    pages, times = [], []
    latest = [-np.inf] * len(listed.index)
    contents = [""] * len(listed.index)
    columns = ("page_id", "commit_time_utc")
    for line, (name, time, content) in rows(path, columns, ("content_sha1_12",)):
        try:
            page, at = listed.index[name], hours(time)
        except KeyError:
            cause = f"page {short(name)} is not in {listed.path} (add it there)"
            raise wrong(path, line, cause) from None
        except ValueError as error:
            raise wrong(path, line, f"commit_time_utc {short(time)} {error}") from None
        if at < latest[page]:
            cause = f"page {short(name)} goes back from {iso(latest[page])} to {short(time)}"
            raise wrong(path, line, f"{cause} (sort the rows by page_id and commit_time_utc)")
        # Two contents in one second are two changes: some sources do that.
        if at == latest[page] and content == contents[page]:
            cause = f"page {short(name)} has its record of {short(time)} twice (remove one)"
            raise wrong(path, line, cause)
        latest[page], contents[page] = at, content
        pages.append(page)
        times.append(at)
    return np.array(pages, np.int64), np.array(times, np.float64)
