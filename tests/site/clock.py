"""The site's clock: a text file with an ISO time in UTC, which is read again after each change."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path


class FileClock:
    """Read the time from the file; without a file, time runs from `start`."""

    def __init__(self, path: Path | None, start: datetime) -> None:
        self._path = path
        self._start = start
        self._began = time.monotonic()
        self._seen: tuple[int, int, int] | None = None
        self._time = start

    def now(self) -> datetime:
        """Return the site's time.

        Raises ValueError if the file does not contain an ISO time.
        """
        try:
            stat = None if self._path is None else self._path.stat()
        except FileNotFoundError:
            stat = None
        if stat is None or self._path is None:
            return self._start + timedelta(seconds=time.monotonic() - self._began)
        mark = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
        if mark != self._seen:
            self._time = parse(self._path.read_text(encoding="ascii"))
            self._seen = mark
        return self._time


def parse(text: str) -> datetime:
    """Return an ISO time as an aware UTC time; a time without a time zone is read as UTC."""
    moment = datetime.fromisoformat(text.strip())
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def write(path: Path, moment: datetime) -> None:
    """Write the clock file atomically, so that readers never see a partial time."""
    draft = path.with_name(f"{path.name}.new")
    draft.write_text(moment.astimezone(UTC).isoformat(), encoding="ascii")
    draft.replace(path)
