"""Metrics as a file for node_exporter's textfile collector: `freshet-NAME.prom`.

Several processes of one name take `NAME`, `NAME-2`, `NAME-3`; names, unlike process ids, come
again, so Prometheus keeps few series.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from crawler import __version__
from crawler.errors import ConfigError
from crawler.ops.metrics import Carried, Measuring, Past, past_of
from crawler.ops.metrics_state import Process

logger = logging.getLogger(__name__)
PREFIX, SUFFIX = "freshet-", ".prom"
MOST_ALIKE = 64
# What nobody has written for so long belongs to a spider that is no more.
KEPT_SECONDS = 40 * 24 * 3600.0


class TextFile:
    """The file of one process, which holds its name until `close`; raises ConfigError."""

    def __init__(self, folder: Path, name: str, registry: CollectorRegistry) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock, stem = _claimed(folder, name)
            _remove_old(folder)
        except OSError as error:
            raise ConfigError(_in_words(folder, error)) from None
        self.path = folder / f"{PREFIX}{stem}{SUFFIX}"
        self._draft = folder / f".{PREFIX}{stem}.new"
        self._written = Gauge(
            "freshet_metrics_timestamp_seconds", "When this file was written.", registry=registry
        )
        self._carried = Carried(registry, _past(self.path), stem)
        self._is_failing = False

    def write(self) -> None:
        """Replace the file, at once as a whole; that it cannot be written is said once."""
        self._written.set_to_current_time()
        try:
            self._draft.write_bytes(generate_latest(self._carried))
            self._draft.replace(self.path)
        except OSError as error:
            if not self._is_failing:
                logger.warning("%s; it is tried again", _in_words(self.path, error))
            self._is_failing = True
        else:
            self._is_failing = False

    def close(self) -> None:
        """Write it for the last time: what only a process at work has is left out."""
        self._carried.is_over = True
        self.write()
        self._lock.release()


def _claimed(folder: Path, name: str) -> tuple[FileLock, str]:
    """The first name that no other process has, and the lock that keeps it."""
    for number in range(1, MOST_ALIKE + 1):
        stem = name if number == 1 else f"{name}-{number}"
        try:
            lock = _lock(folder, stem)
            lock.acquire()
        except Timeout:
            continue
        return lock, stem
    raise ConfigError(f"FRESHET_METRICS_DIR {folder}: {MOST_ALIKE} processes of {name} at work")


def _lock(folder: Path, stem: str) -> FileLock:
    return FileLock(folder / f".{PREFIX}{stem}.lock", timeout=0)


def _remove_old(folder: Path) -> None:
    """Files of spiders that are crawled no longer."""
    oldest = time.time() - KEPT_SECONDS
    for path in folder.glob(f"{PREFIX}*{SUFFIX}"):
        stem = path.name.removeprefix(PREFIX).removesuffix(SUFFIX)
        # Another process may be at the same, or about to write this one.
        with contextlib.suppress(Timeout, FileNotFoundError):
            if path.stat().st_mtime < oldest:
                with _lock(folder, stem):
                    path.unlink()


def _past(path: Path) -> Past:
    """What the last process of this name has counted; nothing where the file is none of ours."""
    try:
        families = list(text_string_to_metric_families(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
    return past_of(families, __version__)


def _in_words(place: Path, error: OSError) -> str:
    return f"FRESHET_METRICS_DIR {place}: {error.strerror or error}"


WRITE_SECONDS = 10.0


class Export:
    """Measures from `begin` to `end`; raises ConfigError where the file cannot be had.

    folder: where the file `freshet-NAME.prom` goes; None: no file
    """

    def __init__(self, folder: Path | None, name: str) -> None:
        self.measuring = Measuring()
        self._file = None if folder is None else TextFile(folder, name, self.measuring.registry)
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """The passes of this process are measured from now on."""
        Process.measuring = self.measuring
        self._do(self.measuring.watch_lag())
        if self._file is not None:
            self._do(_keep_writing(self._file))

    def end(self) -> None:
        """All is over; the file is written for the last time."""
        Process.measuring = None
        for task in self._tasks:
            task.cancel()
        if self._file is not None:
            self._file.close()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))


async def _keep_writing(file: TextFile) -> None:
    while True:
        file.write()
        await asyncio.sleep(WRITE_SECONDS)
