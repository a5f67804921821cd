"""The loop of the service: looks at what is due, begins passes, ends them when it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any

from scrapy.crawler import Crawler
from scrapy.settings import Settings

from crawler.config import Config
from crawler.errors import Busy, FreshetError, StorageError
from crawler.frontier.session import Session
from crawler.items import Outcome
from crawler.ops.extensions import figures
from crawler.ops.jobs import (
    AGAIN_SECONDS,
    REPLAN,
    Chore,
    Job,
    chores,
    keep_doing,
    read_known,
    spiders_of,
    told,
    undefined_words,
    usual,
)
from crawler.ops.options import HOUR_SECONDS, Order
from crawler.ops.report import Report, line_of_a_pass
from crawler.storage import due as duetimes
from crawler.storage import due as turns
from crawler.storage.retry import Patience
from crawler.storage.store import Store
from crawler.utils import tasks
from crawler.utils.time import Clock

CLOSED_SECONDS = 60.0
LOOK_SECONDS = 0.05
MIN_RETRY_SECONDS = 60.0
# The service says what a pass did; and frozen garbage of a pass would stay for ever.
LEFT_OUT = {"crawler.ops.extensions.Summary": None, "crawler.ops.extensions.Garbage": None}
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

    made: its task; the counts of `crawler.ops.extensions.figures`, and the visits of all
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


# Between two looks, as imports and replans may bring visits forward.
DUE_LOOK_SECONDS = 5.0
SHORTEST_SECONDS = 0.2
IDLE_SECONDS = 30.0
FAILED_SECONDS = 5.0
BUSY_SECONDS = 5.0
LONGEST_SECONDS = 300.0


class Ending(StrEnum):
    """How a pass ended. IDLE: it found nothing that it could visit, though something is due."""

    GOOD = "good"
    IDLE = "idle"
    FAILED = "failed"
    BUSY = "busy"


@dataclass(slots=True)
class Standing:
    """How one spider stands; times are those of one monotonic clock.

    due:        when its next target is due; None: it has none
    not_before: end of its pause
    looked:     when `due` was read; None: it has to be read; at first and after a failure the
                next pass does not depend on that
    repeated:   how often in a row its passes ended as the last one did
    """

    due: float | None = 0.0
    not_before: float = 0.0
    looked: float | None = math.inf
    is_running: bool = False
    ending: Ending = Ending.GOOD
    repeated: int = 0

    @property
    def ready(self) -> float | None:
        """When a pass may begin; None: not as things are."""
        return None if self.is_running or self.due is None else max(self.due, self.not_before)

    @property
    def is_blind(self) -> bool:
        """Whether its pass begins, or began, without a look: it need not find anything to do."""
        return self.looked == math.inf

    def needs_look(self, now: float) -> bool:
        """Whether `due` is to be read before the next decision."""
        if self.is_running or now < self.not_before:
            return False
        return self.looked is None or now >= self.looked + DUE_LOOK_SECONDS

    def ended(self, ending: Ending, now: float) -> float:
        """Note the end of a pass; seconds of the pause after it."""
        self.repeated = self.repeated + 1 if ending is self.ending else 1
        self.is_running, self.ending = False, ending
        seconds = pause_seconds(ending, self.repeated)
        self.not_before = now + seconds
        # Of a spider that could not begin the database may know nothing yet.
        is_known = ending in (Ending.GOOD, Ending.IDLE)
        self.due, self.looked = (None, None) if is_known else (self.not_before, math.inf)
        return seconds


@dataclass(frozen=True, slots=True)
class Decision:
    """Names of the spiders whose passes begin, and the seconds to sleep unless one ends."""

    begin: list[str]
    sleep: float


def decide(now: float, standings: Mapping[str, Standing], room: int) -> Decision:
    """Those who have waited longest begin, as many as there is room for.

    room: passes that may be at work at a time
    """
    room -= sum(standing.is_running for standing in standings.values())
    times = {name: ready for name, s in standings.items() if (ready := s.ready) is not None}
    waiting = sorted((name for name, ready in times.items() if ready <= now), key=times.__getitem__)
    begin = waiting[: max(0, room)]
    # Those that find no room wait for the end of a pass, which ends the sleep.
    later = [ready - now for ready in times.values() if ready > now]
    pauses = [s.not_before - now for s in standings.values() if s.not_before > now]
    return Decision(begin, min([DUE_LOOK_SECONDS, *later, *pauses]))


def pause_seconds(ending: Ending, repeated: int) -> float:
    """How long a spider rests after a pass.

    repeated: passes in a row that ended so
    """
    if ending is Ending.GOOD:
        return SHORTEST_SECONDS
    if ending is Ending.BUSY:
        return BUSY_SECONDS
    first = IDLE_SECONDS if ending is Ending.IDLE else FAILED_SECONDS
    return min(LONGEST_SECONDS, first * 2.0 ** min(repeated - 1, 10))


LOOK_SECONDS = DUE_LOOK_SECONDS

logger = logging.getLogger(__name__)
# For the rest, after what is under way has had its time.
REST_SECONDS = 10.0
CLOCKS_SECONDS = 2.0


class Service:
    """Keeps the spiders of some jobs fresh."""

    def __init__(self, store: Store, jobs: list[Job], settings: Settings, order: Order) -> None:
        self.store = store
        self.order = order
        self.settings = settings
        self.jobs = {job.word: job for job in jobs}
        self.standings = {word: Standing() for word in self.jobs}
        self.report = Report(self.jobs)
        self.clock = Clock(store.config.clock_offset_hours)
        self.running: dict[str, Pass] = {}
        self._names: dict[str, str] = {}
        self._patience = Patience(0, store.revive)
        self._now = asyncio.get_running_loop().time
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._is_away = False
        self._spiders = {} if order.names else spiders_of(settings)
        self._undefined: set[str] = set()
        self._meet_at = 0.0

    def stop(self) -> None:
        """Begin no more passes; `work` ends those at work and returns."""
        self._is_stopping = True
        self._wake.set()

    async def work(self) -> None:
        """Return when it was stopped and all has ended; raises StorageError at its start only."""
        await self._meet()
        if not self.jobs:
            logger.warning("no site has targets yet: scrapy crawl NAME finds the first ones")
        todo = await self._chores()
        options = told(self.settings)
        doing = keep_doing(todo, options, self.report.chores, self._waits)
        beside = asyncio.create_task(doing)
        while not self._is_stopping:
            self._wake.clear()
            await self._sleep(self._begin() if await self._look() else LOOK_SECONDS)
        await asyncio.gather(tasks.end(beside), self._end(), return_exceptions=True)

    async def _chores(self) -> list[Chore]:
        for word, job in self.jobs.items():
            # One that is broken is told when its pass begins.
            with contextlib.suppress(FreshetError):
                self._names[word] = job.name()
        since = await self._since_plan()
        cadence = self.order.replan_hours * HOUR_SECONDS
        prunes = self.order.prunes
        return chores(self.store.config, cadence, since, self._now(), prunes=prunes)

    async def _since_plan(self) -> float:
        """Seconds since the last plan, whichever machine made it."""
        now, names = self.clock.now(), list(self._names.values())
        return await self._patience.read(lambda: _since(self.store, names, now))

    async def _waits(self, chore: Chore) -> float:
        """Seconds that a chore waits yet: of several machines one does it, at its time."""
        try:
            # The last plan's time is that of another clock.
            if chore.name == REPLAN:
                since = await self._since_plan()
                if (seconds := chore.every - since - CLOCKS_SECONDS) > 0:
                    return seconds
            now, db = self.clock.now(), self.store.db
            apart = timedelta(seconds=min(chore.every, AGAIN_SECONDS) / 2)
            mine = await self._patience.read(lambda: turns.taken(db, chore.name, now, apart))
        except StorageError:
            return LOOK_SECONDS
        return 0.0 if mine else apart.total_seconds()

    async def _look(self) -> bool:
        """Read what is due of those of whom it is not known; False if the database is away."""
        try:
            await self._meet()
            for word, standing in self.standings.items():
                if standing.needs_look(self._now()):
                    standing.due = await self._due(self._names[word])
                    standing.looked = self._now()
        except StorageError as error:
            if not self._is_away:
                logger.warning("%s; passes wait", error)
            self._is_away = True
            with contextlib.suppress(FreshetError):
                await self.store.revive()
            return False
        if self._is_away:
            logger.warning("MongoDB is back")
        self._is_away = False
        return True

    async def _meet(self) -> None:
        """Where no names are given, take up the sites that have got targets since the start."""
        if self.order.names or self._now() < self._meet_at:
            return
        self._meet_at = self._now() + self.store.config.refresh_sites_seconds
        known = await self._patience.read(lambda: read_known(self.store.db))
        found = usual(self._spiders, known)
        for job in found.jobs:
            if job.word not in self.jobs:
                self._take_up(job)
            elif job.definition is not None:
                # It may have been crawled by other arguments since.
                self.jobs[job.word] = job
        for name in set(found.undefined) - self._undefined:
            self._undefined.add(name)
            logger.warning("%s: left out, %s", name, undefined_words(name))

    def _take_up(self, job: Job) -> None:
        self.jobs[job.word] = job
        self.standings[job.word] = Standing()
        self.report.meet(job.word)
        with contextlib.suppress(FreshetError):
            self._names[job.word] = job.name()
        logger.info("%s: has targets now, is kept fresh from now on", job.word)

    async def _due(self, name: str) -> float | None:
        now = self.clock.now()
        db = self.store.db
        due = await self._patience.read(lambda: duetimes.earliest(db, name, now))
        return None if due is None else self._now() + (due - now).total_seconds()

    def _begin(self) -> float:
        """Begin what is due; the seconds to sleep then."""
        decision = decide(self._now(), self.standings, self.store.config.refresh_passes)
        for word in decision.begin:
            settings = settings_of_a_pass(self.settings, self.order.slice_seconds)
            self.standings[word].is_running = True
            begun = self._now()
            one = self.running[word] = Pass(self.jobs[word], self.store.config, settings)
            one.made.add_done_callback(partial(self._ended, word, begun))
        return decision.sleep

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    def _ended(self, word: str, begun: float, made: Made) -> None:
        del self.running[word]
        error = asyncio.CancelledError() if made.cancelled() else made.exception()
        if error is None:
            self._went_well(word, made.result(), self._now() - begun)
        else:
            self._went_wrong(word, error)
        self._wake.set()

    def _went_well(self, word: str, counts: dict[str, float], seconds: float) -> None:
        self._names[word] = str(counts["name"])
        self.report.add(word, counts)
        standing = self.standings[word]
        is_idle = not counts["of_all"] and not standing.is_blind
        standing.ended(Ending.IDLE if is_idle else Ending.GOOD, self._now())
        level = logging.INFO if counts["fetched"] else logging.DEBUG
        logger.log(level, "%s", line_of_a_pass(counts, seconds))

    def _went_wrong(self, word: str, error: BaseException) -> None:
        standing = self.standings[word]
        if isinstance(error, Busy):
            standing.ended(Ending.BUSY, self._now())
            if standing.repeated == 1:
                logger.info("%s; it is tried again", error)
            return
        self.report.failed(word)
        seconds = standing.ended(Ending.FAILED, self._now())
        logger.error("%s failed: %s; again in %.0f s", word, why(error), seconds)

    async def _end(self) -> None:
        """End the passes at work: what is in flight is stored, if that takes not too long."""
        passes = list(self.running.values())
        if not passes:
            return
        seconds = self.store.config.grace_seconds + REST_SECONDS
        closing = [asyncio.create_task(one.close()) for one in passes]
        await asyncio.wait([one.made for one in passes], timeout=seconds)
        for task in closing:
            task.cancel()
        for word in self.running:
            logger.warning("%s: the pass did not end in %.0f s", word, seconds)


async def _since(store: Store, names: list[str], now: datetime) -> float:
    """Seconds since the last plan, or since the first pass; 0 if there was neither."""
    db = store.db
    last = await duetimes.planned_at(db) or await duetimes.at_work_since(db, names)
    return max(0.0, (now - last).total_seconds()) if last else 0.0
