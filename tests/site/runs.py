"""Make the runs that cron would start in some simulated days, without waiting, in one process.

`python -m tests.site.runs CLOCK SINCE UNTIL EVERY_HOURS NAME KEY=VALUE…`: at each of these times
the spider `site` makes one run with these arguments if a target of NAME is due, exactly as `scrapy
crawl` does, with the site's clock (the file CLOCK) and Freshet's at that time.
Prints a line per run.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from scrapy.crawler import AsyncCrawlerRunner
from scrapy.utils.project import get_project_settings
from scrapy.utils.reactor import install_reactor

from crawler.config import Config
from crawler.errors import FreshetError
from crawler.frontier.session import Session
from crawler.storage import targets
from crawler.storage.store import opened
from tests.site import clock

Arguments = Mapping[str, str]
REACTOR = "twisted.internet.asyncioreactor.AsyncioSelectorReactor"


def times(since: datetime, until: datetime, every: timedelta) -> Iterator[datetime]:
    """Return every time from `since` to `until`, both included."""
    while since <= until:
        yield since
        since += every


async def crawl(moments: Iterator[datetime], at: Path, name: str, arguments: Arguments) -> None:
    """Make a run at each time at which a target is due; `at` is the file of the site's clock."""
    async with opened(Config.of(get_project_settings())) as db:
        for now in moments:
            if await targets.count_due(db, name, now):
                clock.write(at, now)
                await _run(now, arguments)
                print(now.isoformat(), flush=True)


async def _run(now: datetime, arguments: Arguments) -> None:
    settings = get_project_settings()
    offset_hours = (now - datetime.now(UTC)) / timedelta(hours=1)
    settings.set("FRESHET_CLOCK_OFFSET_HOURS", offset_hours, priority="cmdline")
    runner = AsyncCrawlerRunner(settings)
    crawler = runner.create_crawler("site")
    await runner.crawl(crawler, **arguments)
    if error := Session.of(crawler).run.state.error:
        raise error


def main(site_clock: str, since: str, until: str, every_hours: str, name: str, *given: str) -> int:
    """Make the runs; return exit code 1 if a run fails."""
    install_reactor(REACTOR)
    # The type annotation of `run` is wrong.
    reactor: Any = import_module("twisted.internet.reactor")
    moments = times(clock.parse(since), clock.parse(until), timedelta(hours=float(every_hours)))
    arguments = dict(pair.split("=", 1) for pair in given)
    runs = asyncio.ensure_future(crawl(moments, Path(site_clock), name, arguments))
    runs.add_done_callback(lambda _: reactor.stop())
    reactor.run()
    try:
        runs.result()
    except FreshetError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
