"""`scrapy crawl` with nothing due: the run ends before Scrapy loads a spider.

Only runs that nobody could tell from a complete one end here: with Freshet's own components, and
without exports, metrics or workers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from pprint import pformat
from typing import TYPE_CHECKING

from scrapy.settings import BaseSettings, Settings, get_settings_priority
from scrapy.utils.log import configure_logging, log_scrapy_info

from crawler.config import Config
from crawler.errors import WrapperError
from crawler.extract.stored_definition import read_toml
from crawler.frontier.summary import figures, quiet_sentence, show
from crawler.utils.terminal import guard_logs
from crawler.utils.text import is_spider_name

if TYPE_CHECKING:
    from crawler.frontier.quiet import QuietRun

# Spiders whose argument is the file of a site definition, and the argument.
FILES = {"site": "wrapper", "feeds": "wrapper", "cells": "file"}
# Settings that have no effect, or their effect, in a run without requests.
IGNORED = (
    "FRESHET_", "LOG_", "AUTOTHROTTLE_", "CONCURRENT_", "COOKIES_", "DOWNLOAD_", "HTTPERROR_",
    "REDIRECT_", "RETRY_", "ROBOTSTXT_", "USER_AGENT",
)  # fmt: skip
OF_PROJECT = {
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


def end_quietly(settings: Settings, name: str, arguments: Mapping[str, str]) -> bool:
    """Run a spider if nothing is due; return False, with nothing changed, if something may be.

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
    # Slow to import.
    from crawler.frontier import quiet
    from crawler.storage.client import opened

    async def end() -> QuietRun | None:
        async with opened(config, prepares=False) as db:
            return await quiet.end_quietly(db, config, spider, modules, file)

    if (run := asyncio.run(end())) is None:
        return False
    _report(run, settings)
    return True


def is_plain(settings: Settings) -> bool:
    """Return whether settings add nothing to Freshet that would act in a run without requests."""
    lowest = get_settings_priority("project")
    return all(
        name.startswith(IGNORED) or name in OF_PROJECT or FIXED.get(name) == _plain(value)
        for name, value in settings.items()
        if (settings.getpriority(name) or 0) >= lowest
    )


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, BaseSettings) else value


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


def _report(run: QuietRun, settings: Settings) -> None:
    """Log a run as Scrapy and its extensions do."""
    guard_logs()
    configure_logging(settings)
    log_scrapy_info(settings)
    show(quiet_sentence(run.spider, run.outlook, run.finished), settings)
    counts = figures({}, run.outlook.targets)
    stats = {f"freshet/{name}": value for name, value in counts.items()} | {
        "start_time": run.started,
        "finish_time": run.finished,
        "elapsed_time_seconds": (run.finished - run.started).total_seconds(),
        "finish_reason": "finished",
    }
    logging.getLogger("scrapy.statscollectors").info("Dumping Scrapy stats:\n%s", pformat(stats))
