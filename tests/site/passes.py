"""What cron does in some simulated days, without the waiting: passes of one spider in one process.

`python -m tests.site.passes CLOCK SINCE UNTIL EVERY_HOURS NAME KEY=VALUE…`: at each of these times
the spider `site` makes one pass with these arguments if a target of NAME is due, exactly as `scrapy
crawl` does, with the site's clock (the file CLOCK) and Freshet's at that time. Each pass is a line.
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
    """Every time from `since` to `until`, both included."""
    while since <= until:
        yield since
        since += every


async def crawl(moments: Iterator[datetime], at: Path, name: str, given: Arguments) -> None:
    """A pass at each moment at which something is due; `at` is the file of the site's clock."""
    async with opened(Config.of(get_project_settings())) as db:
        for now in moments:
            if await targets.count_due(db, name, now):
                clock.write(at, now)
                await _one_pass(now, given)
                print(now.isoformat(), flush=True)


async def _one_pass(now: datetime, given: Arguments) -> None:
    settings = get_project_settings()
    offset_hours = (now - datetime.now(UTC)) / timedelta(hours=1)
    settings.set("FRESHET_CLOCK_OFFSET_HOURS", offset_hours, priority="cmdline")
    runner = AsyncCrawlerRunner(settings)
    crawler = runner.create_crawler("site")
    await runner.crawl(crawler, **given)
    if error := Session.of(crawler).error:
        raise error


def main(site_clock: str, since: str, until: str, every_hours: str, name: str, *given: str) -> int:
    """Make the passes; exit code 1 if one fails."""
    install_reactor(REACTOR)
    # What its types say of `run` is not what Twisted does.
    reactor: Any = import_module("twisted.internet.reactor")
    moments = times(clock.parse(since), clock.parse(until), timedelta(hours=float(every_hours)))
    arguments = dict(pair.split("=", 1) for pair in given)
    passes = asyncio.ensure_future(crawl(moments, Path(site_clock), name, arguments))
    passes.add_done_callback(lambda _: reactor.stop())
    reactor.run()
    try:
        passes.result()
    except FreshetError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
