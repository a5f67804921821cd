"""Commands that users start in the web app, in processes of their own.

`scrapy crawl` continues when the app ends; its progress is read from the database like that of any
run. `scrapy feeds add` uses Scrapy's engine, which cannot run in the process of the server, with
its guards: robots.txt, private addresses, limits of size and time. The app limits its duration.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, cast

from crawler.config import PREFIX, PROJECT, UNPREFIXED, Config
from crawler.errors import Busy, ConfigError
from crawler.feeds.subscriptions import feed_url
from crawler.reports.feeds import AddReport
from crawler.utils.process import end_tasks
from crawler.utils.terminal import printable

# Maximum number of crawls in progress that the app has started.
MAX_CRAWLS = 4
# Maximum number of crawls that are kept for their results.
MAX_RESULTS = 100
POLL_SECONDS = 0.25
MAX_LOG_BYTES, MAX_MESSAGE_CHARACTERS = 4096, 500
# Limits on adding feeds: how many at a time, seconds for each, and characters of its error.
MAX_ADDS, MAX_ADD_SECONDS, MAX_ADD_CHARACTERS = 2, 60.0, 300
_adding: set[object] = set()


@dataclass(slots=True)
class Crawl:
    """A crawl that the app has started.

    code:    exit code; None while it is in progress
    message: last line that the command printed, if it failed; else empty
    """

    site: str
    by: str
    started: datetime
    code: int | None = None
    message: str = ""
    watch: asyncio.Task[None] | None = field(default=None, repr=False)


class Crawls:
    """Starts crawls, and keeps the results of the last ones by site.

    settings: `-s NAME=VALUE` words, to pass on to the command
    """

    def __init__(self, settings: Sequence[str] = ()) -> None:
        self._settings = list(settings)
        self._crawls: OrderedDict[str, Crawl] = OrderedDict()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def of(self, site: str) -> Crawl | None:
        """Return the last crawl of a site that the app has started; None without one."""
        return self._crawls.get(site)

    def start(self, site: str, by: str, now: datetime) -> Crawl:
        """Start a crawl of a site; raises Busy if the app has started too many, and ConfigError."""
        if site.startswith("-") or not site.isprintable():
            raise ConfigError(f"not the name of a site: {site!r}")
        if site in self._processes:
            raise Busy(f"{site} is already being crawled")
        if len(self._processes) >= MAX_CRAWLS:
            raise Busy(
                f"{MAX_CRAWLS} crawls started here are in progress. Wait until one of them ends"
            )
        words = [sys.executable, "-m", "scrapy", "crawl", site, "-L", "WARNING", *self._settings]
        # An unnamed file, which disappears when the last process that has it open ends.
        log = tempfile.TemporaryFile()  # noqa: SIM115
        try:
            # Not asyncio's subprocess: the event loop would kill it when the app ends.
            process = subprocess.Popen(
                words, cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            log.close()
            raise ConfigError(f"scrapy crawl: {error.strerror or error}") from None
        crawl = Crawl(site, by, now)
        self._crawls.pop(site, None)
        self._crawls[site] = crawl
        self._processes[site] = process
        crawl.watch = asyncio.create_task(self._wait(crawl, process, log))
        while len(self._crawls) > MAX_RESULTS:
            self._crawls.popitem(last=False)
        return crawl

    async def close(self) -> None:
        """Stop waiting for crawls, which continue."""
        await end_tasks(*(crawl.watch for crawl in self._crawls.values() if crawl.watch))
        for process in self._processes.values():
            if process.poll() is None:
                # Popen would warn that the process outlives this one, which is intended.
                process.returncode = 0
        self._processes.clear()

    async def _wait(self, crawl: Crawl, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
        with log:
            # Waiting in a thread would delay the end of the app.
            while process.poll() is None:  # noqa: ASYNC110
                await asyncio.sleep(POLL_SECONDS)
            crawl.code = process.returncode
            del self._processes[crawl.site]
            if crawl.code:
                size = log.seek(0, 2)
                log.seek(max(0, size - MAX_LOG_BYTES))
                lines = log.read(MAX_LOG_BYTES).decode(errors="replace").strip().splitlines()
                last = printable(lines[-1])[:MAX_MESSAGE_CHARACTERS] if lines else ""
                crawl.message = last or f"exit code {crawl.code}"


async def add_feeds(
    config: Config,
    spider: str,
    url: str,
    *,
    title: str = "",
    categories: Sequence[str] = (),
    every: bool = False,
    settings: Sequence[str] = (),
) -> AddReport:
    """Fetch a URL, and add its feed, or the first feed that the page links to.

    every:    add all feeds that the page links to
    settings: `-s NAME=VALUE` words, to pass on to the command

    Raises ConfigError for an invalid URL and after MAX_ADD_SECONDS, and Busy if MAX_ADDS other
    commands are running.
    """
    try:
        feed_url(url, config)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if len(_adding) >= MAX_ADDS:
        raise Busy("other feeds are being added. Try again in a minute")
    options = ["--spider", spider, *(["--all"] if every else [])]
    options += [f"--title={title}"] if title else []
    options += [f"--category={category}" for category in categories]
    words = ("feeds", "add", "--json", *options, *settings, "--", url)
    command = (sys.executable, "-m", "scrapy", *words)
    slot = object()
    _adding.add(slot)
    try:
        return await _report_of(command, config)
    finally:
        _adding.discard(slot)


async def _report_of(command: Sequence[str], config: Config) -> AddReport:
    # The settings of this process, for the command.
    names = {field: name for name, field in UNPREFIXED.items()}
    settings = {
        names.get(field, f"{PREFIX}{field.upper()}"): str(value)
        for field in config.model_fields_set
        if isinstance(value := getattr(config, field), str | int | float | Path)
    }
    environment = os.environ | settings | {"SCRAPY_SETTINGS_MODULE": "crawler.settings"}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, cwd=PROJECT, env=environment, stdin=asyncio.subprocess.DEVNULL,
        stdout=pipe, stderr=pipe,
    )  # fmt: skip
    reading = asyncio.ensure_future(process.communicate())
    try:
        output, errors = await asyncio.wait_for(asyncio.shield(reading), MAX_ADD_SECONDS)
    except TimeoutError:
        raise ConfigError(
            f"the site did not answer within {MAX_ADD_SECONDS:g} s. Try again"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
        await end_tasks(reading)
        await process.wait()
    try:
        return cast(AddReport, json.loads(output))
    except ValueError:
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        raise ConfigError(
            (lines or ["the feed could not be added"])[-1][:MAX_ADD_CHARACTERS]
        ) from None
