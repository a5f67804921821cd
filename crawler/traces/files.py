"""CSV files as they are read, row by row: what is wrong in one is said with file and line."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import IO

import numpy as np

from crawler.errors import TraceError
from schedules.history import Floats

HOUR_SECONDS = 3600
GZIP = b"\x1f\x8b"
LONGEST_SHOWN = 80


def rows(
    path: Path, needed: tuple[str, ...], optional: tuple[str, ...] = ()
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Each row's line number and its values in these columns, two or more.

    optional: "" where there is no such column. Raises TraceError.
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
                    raise wrong(path, line, f"{len(row)} values under {len(header)} columns")
                row.append("")
                yield line, pick(row)
    except csv.Error as broken:
        raise TraceError(f"{path}, after line {line}: not CSV: {broken}") from None
    except UnicodeDecodeError:
        cause = "not UTF-8 (save the file as UTF-8)"
        raise TraceError(f"{path}, after line {line}: {cause}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        cause = "broken gzip data (fetch or write the file again)"
        raise TraceError(f"{path}, after line {line}: {cause}") from None
    except OSError as broken:
        raise TraceError(f"{path}: {broken.strerror or broken}") from None
    if not line:
        raise TraceError(f"{path}: no rows below the column names")


def _places(
    path: Path, header: list[str], needed: tuple[str, ...], optional: tuple[str, ...]
) -> list[int]:
    """Where the columns stand in a row; optional ones that are not there behind the last."""
    if not header:
        raise TraceError(f"{path}: empty (it needs the columns {', '.join(needed)})")
    for name in needed:
        if name not in header:
            found = short(", ".join(header))
            raise wrong(path, 1, f"no column {name} (rename one of {found})")
    places = {name: place for place, name in reversed(list(enumerate(header)))}
    return [places.get(name, len(header)) for name in (*needed, *optional)]


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


def hours(time: str) -> float:
    """An ISO time as hours since 1970; ValueError says what is wrong with it."""
    try:
        moment = datetime.fromisoformat(time.strip())
    except ValueError:
        raise ValueError("is no time (write it like 2024-01-31T08:00:00Z)") from None
    if moment.tzinfo is None:
        raise ValueError("has no time zone (append Z if it is UTC)")
    return moment.timestamp() / HOUR_SECONDS


def isos(moments: Floats) -> list[str]:
    """Hours since 1970 as ISO times in UTC, to the second."""
    seconds = np.rint(moments * HOUR_SECONDS).astype("datetime64[s]")
    texts: list[str] = np.datetime_as_string(seconds, timezone="UTC").tolist()
    return texts


def iso(moment: float) -> str:
    """Hours since 1970 as an ISO time in UTC, to the second."""
    return isos(np.array([moment]))[0]


def wrong(path: Path, line: int, cause: str) -> TraceError:
    """What is wrong in a line of a file."""
    return TraceError(f"{path}, line {line}: {cause}")


def short(value: str) -> str:
    """A value as it may stand in a message of one line."""
    return repr(value if len(value) <= LONGEST_SHOWN else value[:LONGEST_SHOWN] + "…")
