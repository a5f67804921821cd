"""Files of visits: which target was visited when."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from crawler.errors import TraceError
from crawler.traces.files import HOUR_SECONDS, isos
from crawler.utils.files import atomic_replace
from schedules.history import Floats, Times


def whole_seconds(hours: Floats) -> Floats:
    """The nearest moments that a file of visits can tell, in hours since 1970."""
    return np.rint(hours * HOUR_SECONDS) / HOUR_SECONDS


def write_visits(path: Path, ids: Sequence[str], visits: Times) -> None:
    """Write the visits of targets as gzip CSV: columns target, at (UTC, to the second).

    The file is there entirely or not at all; one that was there is replaced. Its folder is made.
    Raises TraceError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_replace(path) as draft:
            _write(draft, ids, visits)
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
            rows.writerows((name, moment) for moment in isos(at))
