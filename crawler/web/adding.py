"""Adds feeds by URL, with `scrapy feeds add` in a process of its own.

Fetching needs Scrapy's engine, which cannot run beside the server. The command has the guards:
robots.txt, private addresses, sizes and times. This module adds a limit on its duration.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from crawler.config import PREFIX, PROJECT, UNPREFIXED, Config
from crawler.errors import Busy, ConfigError
from crawler.feeds.subscriptions import feed_url
from crawler.reports.subscribing import AddReport
from crawler.utils.process import end_tasks

MAX_SECONDS = 60.0
MAX_PROCESSES = 2
MAX_MESSAGE = 300
_running: set[object] = set()


async def add_feeds(
    config: Config,
    spider: str,
    url: str,
    *,
    title: str = "",
    categories: Sequence[str] = (),
    every: bool = False,
) -> AddReport:
    """Fetch a URL, and add the feed there or the first one that the page links to.

    every: add all feeds that the page links to

    Raises ConfigError for an invalid URL and after MAX_SECONDS, and Busy if MAX_PROCESSES others
    are being added.
    """
    try:
        feed_url(url, config)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if len(_running) >= MAX_PROCESSES:
        raise Busy("other feeds are being added. Try again in a minute")
    options = ["--spider", spider, *(["--all"] if every else [])]
    options += [f"--title={title}"] if title else []
    options += [f"--category={category}" for category in categories]
    command = (sys.executable, "-m", "scrapy", "feeds", "add", "--json", *options, "--", url)
    slot = object()
    _running.add(slot)
    try:
        return await _report_of(command, config)
    finally:
        _running.discard(slot)


async def _report_of(command: Sequence[str], config: Config) -> AddReport:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, cwd=PROJECT, env=_environment(config), stdin=asyncio.subprocess.DEVNULL,
        stdout=pipe, stderr=pipe,
    )  # fmt: skip
    reading = asyncio.ensure_future(process.communicate())
    try:
        output, errors = await asyncio.wait_for(asyncio.shield(reading), MAX_SECONDS)
    except TimeoutError:
        raise ConfigError(f"the site did not answer within {MAX_SECONDS:g} s. Try again") from None
    finally:
        if process.returncode is None:
            process.kill()
        await end_tasks(reading)
        await process.wait()
    try:
        return cast(AddReport, json.loads(output))
    except ValueError:
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        raise ConfigError((lines or ["the feed could not be added"])[-1][:MAX_MESSAGE]) from None


def _environment(config: Config) -> dict[str, str]:
    """Return the environment in which the command has the settings of this process."""
    names = {field: name for name, field in UNPREFIXED.items()}
    settings = {
        names.get(field, f"{PREFIX}{field.upper()}"): str(value)
        for field in config.model_fields_set
        if isinstance(value := getattr(config, field), str | int | float | Path)
    }
    return os.environ | settings | {"SCRAPY_SETTINGS_MODULE": "crawler.settings"}
