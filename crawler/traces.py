"""Traces: when the pages of a population truly changed, from CSV files; and files of visits.

A trace is two files, plain or gzip, that start with a line of column names; other columns may be
there too.
changes: page_id, commit_time_utc, content_sha1_12 (optional): a page's rows in the order of time;
         its first row is its first record and no change
pages:   page_id, source_id, until_utc (optional; empty: the page's trace goes on)
"""

from __future__ import annotations

import csv
import errno
import gzip
import io
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import IO

import numpy as np

from crawler.errors import TraceError
from schedules.history import Floats, Ints
from schedules.score import Times

HOUR_SECONDS = 3600
GZIP = b"\x1f\x8b"
LONGEST_SHOWN = 80


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
        cause = f"ends at {_iso(ends[i])}, before its first record at {_iso(began[i])}"
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


def whole_seconds(hours: Floats) -> Floats:
    """The nearest moments that a file of visits can tell, in hours since 1970."""
    return np.rint(hours * HOUR_SECONDS) / HOUR_SECONDS


def write_visits(path: Path, ids: Sequence[str], visits: Times) -> None:
    """Write the visits of pages as gzip CSV: columns target, at (UTC, to the second).

    The file is there entirely or not at all; one that was there is replaced. Its folder is made.
    Raises TraceError.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write(unfinished, ids, visits)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from None


def _write(path: Path, ids: Sequence[str], visits: Times) -> None:
    # Without a time in it, equal visits make equal files.
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
        io.TextIOWrapper(packed, "utf-8", newline="") as text,
    ):
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(("target", "at"))
        for i, name in enumerate(ids):
            at = visits.at[visits.first[i] : visits.first[i + 1]]
            rows.writerows((name, moment) for moment in _isos(at))


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
            raise _error(self.path, line, "page_id or source_id is empty")
        if self.index.setdefault(page, len(self.lines)) != len(self.lines):
            raise _error(self.path, line, f"page {_short(page)} is listed twice (remove one)")
        try:
            self.ends.append(_hours(until) if until.strip() else np.inf)
        except ValueError as error:
            raise _error(self.path, line, f"until_utc {_short(until)} {error}") from None
        self.lines.append(line)
        self.source.append(self.sources.setdefault(source, len(self.sources)))

    def error(self, i: int, cause: str) -> TraceError:
        """An error in the row of page i."""
        return _error(self.path, self.lines[i], f"page {_short(list(self.index)[i])} {cause}")


def _read_pages(path: Path) -> _Pages:
    listed = _Pages(path)
    for line, (page, source, until) in _rows(path, ("page_id", "source_id"), "until_utc"):
        listed.add(line, page, source, until)
    return listed


def _read_changes(path: Path, listed: _Pages) -> tuple[Ints, Floats]:
    """Page and time of all rows, as they stand in the file."""
    pages, times = [], []
    latest = [-np.inf] * len(listed.index)
    contents = [""] * len(listed.index)
    columns = ("page_id", "commit_time_utc")
    for line, (name, time, content) in _rows(path, columns, "content_sha1_12"):
        try:
            page, at = listed.index[name], _hours(time)
        except KeyError:
            cause = f"page {_short(name)} is not in {listed.path} (add it there)"
            raise _error(path, line, cause) from None
        except ValueError as error:
            raise _error(path, line, f"commit_time_utc {_short(time)} {error}") from None
        if at < latest[page]:
            cause = f"page {_short(name)} goes back from {_iso(latest[page])} to {_short(time)}"
            raise _error(path, line, f"{cause} (sort the rows by page_id and commit_time_utc)")
        # Two contents in one second are two changes: some sources do that.
        if at == latest[page] and content == contents[page]:
            cause = f"page {_short(name)} has its record of {_short(time)} twice (remove one)"
            raise _error(path, line, cause)
        latest[page], contents[page] = at, content
        pages.append(page)
        times.append(at)
    return np.array(pages, np.int64), np.array(times, np.float64)


def _rows(
    path: Path, needed: tuple[str, ...], optional: str
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Each row's line number and values; "" for the optional column where it is not there."""
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
                    raise _error(path, line, f"{len(row)} values under {len(header)} columns")
                row.append("")
                yield line, pick(row)
    except csv.Error as error:
        raise TraceError(f"{path}, after line {line}: not CSV: {error}") from None
    except UnicodeDecodeError:
        cause = "not UTF-8 (save the file as UTF-8)"
        raise TraceError(f"{path}, after line {line}: {cause}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        cause = "broken gzip data (fetch or write the file again)"
        raise TraceError(f"{path}, after line {line}: {cause}") from None
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from None
    if not line:
        raise TraceError(f"{path}: no rows below the column names")


def _places(path: Path, header: list[str], needed: tuple[str, ...], optional: str) -> list[int]:
    """Where the columns stand in a row; the optional one behind the last if it is not there."""
    if not header:
        raise TraceError(f"{path}: empty (it needs the columns {', '.join(needed)})")
    for name in needed:
        if name not in header:
            found = _short(", ".join(header))
            raise _error(path, 1, f"no column {name} (rename one of {found})")
    names = [*header, optional]
    return [names.index(name) for name in (*needed, optional)]


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """A file as text, unpacked if it is gzip."""
    with path.open("rb") as raw:
        start = raw.peek(len(GZIP))
        packed = start.startswith(GZIP)
        if start and not packed and path.suffix == ".gz":
            raise TraceError(f"{path}: not gzip (pack it, or take .gz off its name)")
        data = gzip.GzipFile(fileobj=raw) if packed else raw
        with io.TextIOWrapper(data, "utf-8-sig", newline="") as text:
            yield text


def _hours(time: str) -> float:
    """An ISO time as hours since 1970; ValueError says what is wrong with it."""
    try:
        moment = datetime.fromisoformat(time.strip())
    except ValueError:
        raise ValueError("is no time (write it like 2024-01-31T08:00:00Z)") from None
    if moment.tzinfo is None:
        raise ValueError("has no time zone (append Z if it is UTC)")
    return moment.timestamp() / HOUR_SECONDS


def _isos(hours: Floats) -> list[str]:
    """Hours since 1970 as ISO times in UTC, to the second."""
    seconds = np.rint(hours * HOUR_SECONDS).astype("datetime64[s]")
    texts: list[str] = np.datetime_as_string(seconds, timezone="UTC").tolist()
    return texts


def _iso(hours: float) -> str:
    return _isos(np.array([hours]))[0]


def _error(path: Path, line: int, cause: str) -> TraceError:
    return TraceError(f"{path}, line {line}: {cause}")


def _short(value: str) -> str:
    """A value as it may stand in a message of one line."""
    return repr(value if len(value) <= LONGEST_SHOWN else value[:LONGEST_SHOWN] + "…")
