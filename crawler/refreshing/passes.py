"""One pass of one spider within the service's process, as `scrapy crawl` makes it in its own."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

from scrapy.crawler import Crawler
from scrapy.settings import Settings

from crawler.config import Config
from crawler.errors import FreshetError
from crawler.extensions.summary import figures
from crawler.items import Outcome
from crawler.refreshing.jobs import Job
from crawler.session import Session

CLOSED_SECONDS = 60.0
LOOK_SECONDS = 0.05
MIN_RETRY_SECONDS = 60.0
# The service says what a pass did; and frozen garbage of a pass would stay for ever.
LEFT_OUT = {"crawler.extensions.summary.Summary": None, "crawler.extensions.garbage.Garbage": None}
LIMIT = "CLOSESPIDER_TIMEOUT"
# What the service sums up, by its name in a session's counts.
OWN = {"fetched": "visits", "missed_visits": "missed visits", "posts": "posts"} | {
    str(outcome): str(outcome) for outcome in Outcome
}
Made = asyncio.Task[dict[str, Any]]


def settings_of_a_pass(settings: Settings, slice_seconds: float) -> Settings:
    """A copy of the project's settings for the passes of a service."""
    own = settings.copy()
    limit = settings.getfloat(LIMIT) or slice_seconds
    own.set(LIMIT, min(limit, slice_seconds), priority="cmdline")
    own.set("FRESHET_PROGRESS", False, priority="cmdline")
    # Its next run may begin in the same second.
    retry_seconds = max(MIN_RETRY_SECONDS, Config.of(settings).error_retry_seconds)
    own.set("FRESHET_ERROR_RETRY_SECONDS", retry_seconds, priority="cmdline")
    own.set("EXTENSIONS", own.getdict("EXTENSIONS") | LEFT_OUT, priority="cmdline")
    return own


class Pass:
    """A pass that is at work.

    made: its task; the counts of `crawler.extensions.summary.figures`, and the visits of all
          processes that shared it. Raises Busy, FreshetError, or whatever a spider raises when it
          is made.
    """

    def __init__(self, job: Job, config: Config, settings: Settings) -> None:
        self.job = job
        self.crawler: Crawler | None = None
        self.made: Made = asyncio.create_task(self._make(config, settings))

    async def close(self) -> None:
        """End it early: what is in flight is waited for and stored."""
        while not self.made.done():
            if self.crawler is not None and _is_open(self.crawler):
                await self.crawler.stop_async()
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _make(self, config: Config, settings: Settings) -> dict[str, Any]:
        name = self.job.name()
        self.crawler = Crawler(self.job.spider, settings)
        await self.crawler.crawl_async(**self.job.arguments)
        session = Session.of(self.crawler)
        # One that is ended while it ends by itself comes back before its visits are stored.
        async with asyncio.timeout(CLOSED_SECONDS):
            await session.ended.wait()
        if (failure := session.failure) is not None:
            raise failure
        return {"name": name} | _counted(session)


def _counted(session: Session) -> dict[str, Any]:
    """What this process did: those of the others count what they did."""
    counts: dict[str, Any] = figures(session)
    if session.own is None:
        return counts | {"of_all": counts["fetched"]}
    own = {name: session.own[of] for name, of in OWN.items()}
    return counts | own | {"of_all": session.visits_of_all}


def _is_open(crawler: Crawler) -> bool:
    """Whether it is so far that it can be ended; before, Scrapy would not hear of it."""
    try:
        return crawler.engine.running
    except RuntimeError:
        return False


def why(error: BaseException) -> str:
    """What went wrong, in one line; of a bug, where it happened."""
    said = " ".join(str(error).split())[:300]
    if isinstance(error, FreshetError):
        return said
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {said}{place}"
