"""`scrapy crawl` with nothing to do: the run ends before Scrapy loads a spider.

Loading a site definition and the libraries that read pages takes most of the time of such a run. A
run with the same inputs as the last one needs neither: it would only use the database.

A run ends here only if a complete one would have the same results: with Freshet's own components,
and without exports, metrics or workers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from pprint import pformat

import scrapy
from scrapy.settings import BaseSettings, Settings, get_settings_priority
from scrapy.utils.log import configure_logging, log_scrapy_info

from crawler.config import PROJECT, VARIABLE, Config, value_of
from crawler.errors import WrapperError
from crawler.extract.stored_definition import read_toml
from crawler.frontier.summary import figures, quiet_sentence, show
from crawler.storage import leases, runs, targets
from crawler.storage.client import Database, MongoRetry, is_current, opened, storage_errors
from crawler.storage.leases import CRAWL, Lease
from crawler.storage.targets import RemainingTargets
from crawler.utils.terminal import guard_logs
from crawler.utils.text import is_spider_name

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
# Spiders whose argument is the file of a site definition, and the argument.
FILES = {"site": "wrapper", "feeds": "wrapper", "cells": "file"}
# Settings that have no effect in a run without requests, or that quiet runs apply as well.
IGNORED = (
    "FRESHET_", "LOG_", "AUTOTHROTTLE_", "CONCURRENT_", "COOKIES_", "DOWNLOAD_", "HTTPERROR_",
    "REDIRECT_", "RETRY_", "ROBOTSTXT_", "USER_AGENT",
)  # fmt: skip
PROJECT_SETTINGS = {
    "BOT_NAME", "SPIDER_MODULES", "NEWSPIDER_MODULE", "COMMANDS_MODULE", "FEED_EXPORT_ENCODING",
    "FEED_EXPORTERS", "SETTINGS_MODULE", "EDITOR",
}  # fmt: skip
# Other settings end a run quietly only with these values.
FIXED = {
    "ADDONS": {"crawler.addon.FreshetAddon": 100},
    "SPIDER_LOADER_CLASS": "spiders.site.Loader",
    "REMOTE_CONTROL_ENABLED": False,
    "TELNETCONSOLE_ENABLED": False,
}


@dataclass(frozen=True, slots=True)
class QuietRun:
    """A recorded run that visited nothing. remaining: the spider's targets, none of them due."""

    spider: str
    started: datetime
    finished: datetime
    remaining: RemainingTargets


def end_quietly(settings: Settings, name: str, arguments: Mapping[str, str]) -> bool:
    """Run a spider if nothing is due; return False, with nothing changed, if a target may be due.

    name, arguments: of `scrapy crawl`

    Raises StorageError, ConfigError, and Busy if the site is already being crawled.
    """
    config = Config.of(settings)
    if config.redis_url is not None or config.metrics_dir is not None or not is_plain(settings):
        return False
    if (site := _site_of(name, arguments)) is None:
        return False
    spider, file = site
    modules = settings.getlist("SPIDER_MODULES")

    async def end() -> QuietRun | None:
        async with opened(config, prepares=False) as db:
            with storage_errors():
                return await record_quiet_run(db, config, spider, modules, file)

    if (run := asyncio.run(end())) is None:
        return False
    _report(run, settings)
    return True


def is_plain(settings: Settings) -> bool:
    """Return whether settings add nothing to Freshet that would act in a run without requests."""
    lowest = get_settings_priority("project")
    return all(
        name.startswith(IGNORED)
        or name in PROJECT_SETTINGS
        or FIXED.get(name) == (dict(value) if isinstance(value, BaseSettings) else value)
        for name, value in settings.items()
        if (settings.getpriority(name) or 0) >= lowest
    )


def _site_of(name: str, arguments: Mapping[str, str]) -> tuple[str, str | None] | None:
    """Return the site that a spider and its arguments name, and its file; None if unclear."""
    if not arguments:
        return (name, None) if is_spider_name(name) else None
    argument = FILES.get(name, "wrapper")
    if set(arguments) != {argument}:
        return None
    path = Path(arguments[argument])
    try:
        defined = read_toml(path).get("name", name)
    except WrapperError:
        return None
    is_valid = isinstance(defined, str) and is_spider_name(defined)
    return (defined, str(path.resolve())) if is_valid else None


async def record_quiet_run(
    db: Database, config: Config, spider: str, modules: Sequence[str], file: str | None
) -> QuietRun | None:
    """Record and return a run with nothing to do; return None if there may be something to do.

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
    started = config.clock.now()
    if not await runs.is_quiet(db, spider, started, config.gone_confirmations):
        return None
    remaining = await targets.remaining(db, spider, started, started)
    if not remaining.waiting:
        return None
    lease = Lease(db, f"{CRAWL}{spider}", config.lease_seconds, MongoRetry(0))
    await lease.take(busy)
    try:
        finished = config.clock.now()
        await runs.record_quiet(db, spider, started, finished, remaining)
    finally:
        await lease.release()
    return QuietRun(spider, started, finished, remaining)


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
    read_at: Unix time at which the definition was read; None: not yet

    None is also returned if the definition was edited after it was read, or the code after it was
    loaded.
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
        [(name, value_of(name)) for name in variables],
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


def _report(run: QuietRun, settings: Settings) -> None:
    """Log a run as Scrapy and its extensions do."""
    guard_logs()
    configure_logging(settings)
    log_scrapy_info(settings)
    counts = figures({}, run.remaining.targets)
    stats = {f"freshet/{name}": value for name, value in counts.items()} | {
        "start_time": run.started,
        "finish_time": run.finished,
        "elapsed_time_seconds": (run.finished - run.started).total_seconds(),
        "finish_reason": "finished",
    }
    logging.getLogger("scrapy.statscollectors").info("Dumping Scrapy stats:\n%s", pformat(stats))
    # The last line, where people look first.
    show(quiet_sentence(run.spider, run.remaining, run.finished), settings)
