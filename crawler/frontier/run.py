"""What one process of a run holds: its settings, limits, database and state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from bson import ObjectId
from scrapy.crawler import Crawler

from crawler.config import Config
from crawler.errors import Busy, FreshetError
from crawler.extract.site_definition import Wrapper
from crawler.frontier.lifecycle import Ending
from crawler.frontier.run_limits import Allowance, HostLimits
from crawler.frontier.run_state import FailureLog, RunState
from crawler.storage.client import Database, MongoRetry
from crawler.storage.dedup.signatures import Registry
from crawler.storage.in_flight import InFlight
from crawler.utils.time import Clock

logger = logging.getLogger(__name__)
MAX_CHARACTERS = 300


class Run:
    """Settings, limits, database and state of one process's part of a run.

    The attributes without a value are set while the session opens the run.

    limits:    of hosts
    allowance: caps of the plan
    registry:  of near-duplicates; None if they are not searched
    started:   time of the run's start; targets due until then are visited
    id:        `_id` of the run's document
    on_failure: called when the run fails
    """

    db: Database
    patience: MongoRetry
    allowance: Allowance
    registry: Registry | None
    started: datetime
    id: ObjectId | None = None

    def __init__(self, crawler: Crawler, wrapper: Wrapper, config: Config, clock: Clock) -> None:
        self.crawler = crawler
        self.wrapper = wrapper
        self.config = config
        self.clock = clock
        self.state = RunState(FailureLog(wrapper.name))
        self.limits = HostLimits(
            wrapper.host_requests or config.host_requests, config.blocked_failures
        )
        self.in_flight = InFlight()
        self.on_failure: Callable[[], None] = lambda: None

    @property
    def spider(self) -> str:
        """Name of the spider in the database."""
        return self.wrapper.name

    @property
    def may_end_early(self) -> bool:
        """Return whether a CLOSESPIDER_* setting limits the time, pages or items of the run."""
        counts = ("CLOSESPIDER_PAGECOUNT", "CLOSESPIDER_ITEMCOUNT")
        return self.is_timed or any(map(self.crawler.settings.getint, counts))

    @property
    def is_timed(self) -> bool:
        """Return whether CLOSESPIDER_TIMEOUT limits the time of the run."""
        return self.crawler.settings.getfloat("CLOSESPIDER_TIMEOUT") > 0

    @property
    def ending(self) -> Ending:
        """Functions for the end of the run, as of now."""
        return Ending(self.db, self.registry, self.spider, self.started, self.clock.now())

    def closed_hosts(self) -> list[str]:
        """Return hosts that get no more requests in this run."""
        patience = timedelta(seconds=self.config.retry_after_seconds)
        return self.limits.closed(self.clock.now(), patience)

    def fail(self, error: BaseException) -> None:
        """End the run because of an error that affects more than one page; log it once."""
        state = self.state
        if state.error is None:
            if not isinstance(error, FreshetError):
                logger.debug("Run failed", exc_info=error)
                error = self.failed(in_line(error))
            state.error = error
            # Busy is not an error, and the command reports it.
            logger.log(logging.DEBUG if isinstance(error, Busy) else logging.ERROR, "%s", error)
            self._close_spider("storage")
        self.on_failure()
        self.in_flight.end()

    def end_early(self, reason: str, message: str) -> None:
        """Stop the run gracefully: store the targets in progress, then fail the run."""
        if self.state.flaw is None:
            self.state.flaw = FreshetError(f"{self.spider}: the run ended early: {message}")
        if self.state.error is None:
            self._close_spider(reason)

    def note_flaw(self, message: str) -> None:
        """Fail the run at its end, without stopping it; only the first message is reported."""
        if self.state.flaw is None:
            self.state.flaw = self.failed(message)

    def failed(self, message: str) -> FreshetError:
        """Return the error of a failed run."""
        return FreshetError(f"{self.spider}: the run failed: {message}")

    def _close_spider(self, reason: str) -> None:
        engine = self.crawler.engine
        if engine is not None and engine.spider is not None:
            self._closing = asyncio.ensure_future(engine.close_spider_async(reason=reason))


def in_line(error: BaseException | None) -> str:
    """Return an error with its type in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:MAX_CHARACTERS]
