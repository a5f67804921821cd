"""Runs with nothing to do: recognize and record them without Scrapy's engine and the spider.

Loading a site definition and the libraries that read pages takes most of the time of such a run. A
run whose inputs are those of the run before needs neither: all it would do is in the database.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path

import scrapy

from crawler.config import PROJECT, VARIABLE, Config
from crawler.storage import leases, runs
from crawler.storage.client import Database, MongoRetry, is_current
from crawler.storage.leases import CRAWL, Lease
from crawler.storage.targets import RemainingTargets
from crawler.utils.time import Clock

DIGEST_BYTES = 16
# Packages of the project whose code a run executes.
PACKAGES = ("crawler", "spiders", "pipelines", "schedules")
# Settings that do not change what a run does when nothing is due.
WITHOUT_EFFECT = ("clock_offset_hours", "progress")
MAX_DEFINITION_BYTES = 16 * 1024**2
# Code that was edited later may not be the code that this process runs.
LOADED_AT = time.time()
# File systems store the time of a change with this resolution, or a better one.
FILE_TIME_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class QuietRun:
    """A recorded run that visited nothing. outlook: the targets of the spider, none of them due."""

    spider: str
    started: datetime
    finished: datetime
    outlook: RemainingTargets


def digest_of_inputs(
    config: Config,
    modules: Sequence[str],
    keys: str | None,
    file: str | None,
    read_at: float | None = None,
) -> str | None:
    """Return a digest of everything that a run reads outside of the database; None if unknown.

    modules: SPIDER_MODULES
    keys:    site definition as JSON; None if a spider class defines the site
    file:    its TOML file, which takes precedence; None without one
    read_at: Unix time at which the definition was read; None: not yet. Without a digest if the
             definition was edited since then, or the code since it was loaded
    """
    try:
        text = keys or ""
        if file is not None:
            with Path(file).open("rb") as opened:
                text = opened.read(MAX_DEFINITION_BYTES).decode("utf-8", "replace")
                status = os.fstat(opened.fileno())
            is_edited = read_at is not None and status.st_mtime >= read_at - FILE_TIME_SECONDS
            if is_edited or status.st_size > MAX_DEFINITION_BYTES:
                return None
        code = list(_stamps(modules))
    except (OSError, ImportError, ValueError):
        return None
    is_late = max((stamp[1] for stamp in code), default=0) >= LOADED_AT * 1e9
    if not code or (read_at is not None and is_late):
        return None
    variables = sorted(set(VARIABLE.findall(text)))
    parts = (
        sys.version, scrapy.__version__, code, tuple(modules), file, text,
        [(name, os.environ.get(name)) for name in variables],
        sorted(config.model_dump(exclude=set(WITHOUT_EFFECT)).items()),
    )  # fmt: skip
    return blake2b(repr(parts).encode("utf-8", "replace"), digest_size=DIGEST_BYTES).hexdigest()


def _stamps(modules: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield path, time and size of each source file, as Python compares them for its bytecode."""
    places = [PROJECT / name for name in PACKAGES]
    for name in modules:
        spec = find_spec(name)
        if spec is None or not spec.origin:
            raise ImportError(name)
        places += map(Path, spec.submodule_search_locations or [spec.origin])
    for place in sorted(set(places)):
        yield from _stamps_in(place)


def _stamps_in(place: Path) -> Iterator[tuple[str, int, int]]:
    if place.is_file():
        status = place.stat()
        yield str(place), status.st_mtime_ns, status.st_size
        return
    with os.scandir(place) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _stamps_in(Path(entry.path))
            elif entry.name.endswith(".py"):
                status = entry.stat()
                yield entry.path, status.st_mtime_ns, status.st_size


async def end_quietly(
    db: Database, config: Config, spider: str, modules: Sequence[str], file: str | None
) -> QuietRun | None:
    """Record a run of a spider with nothing to do; None if it may have something to do.

    file: site definition that the user names; None: as in the last run

    Raises Busy if the site is already being crawled.
    """
    if not await is_current(db):
        return None
    busy = f"{spider} is already being crawled"
    await leases.refuse_second(db, f"{CRAWL}{spider}", busy, shares=False)
    last = await runs.last_inputs(db, spider)
    if last is None or last.digest is None or (file is not None and file != last.file):
        return None
    if last.digest != digest_of_inputs(config, modules, last.keys, last.file):
        return None
    started = Clock(config.clock_offset_hours).now()
    if not await runs.is_quiet(db, spider, started, config.gone_confirmations):
        return None
    outlook = await runs.outlook(db, spider, started)
    if not outlook.waiting:
        return None
    lease = Lease(db, f"{CRAWL}{spider}", config.lease_seconds, MongoRetry(0))
    await lease.take(busy)
    try:
        finished = Clock(config.clock_offset_hours).now()
        await runs.record_quiet(db, spider, started, finished, outlook)
    finally:
        await lease.release()
    return QuietRun(spider, started, finished, outlook)
