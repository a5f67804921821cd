"""The loop of the service: looks at what is due, begins passes, ends them when it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import datetime, timedelta
from functools import partial

from scrapy.settings import Settings

from crawler.errors import Busy, FreshetError, StorageError
from crawler.refreshing.chores import AGAIN_SECONDS, REPLAN, Chore, chores, keep_doing, told
from crawler.refreshing.deciding import LOOK_SECONDS, Ending, Standing, decide
from crawler.refreshing.jobs import Job, read_known, spiders_of, undefined_words, usual
from crawler.refreshing.options import HOUR_SECONDS, Order
from crawler.refreshing.passes import Made, Pass, settings_of_a_pass, why
from crawler.refreshing.report import Report, line_of_a_pass
from crawler.storage import duetimes, turns
from crawler.storage.patience import Patience
from crawler.storage.store import Store
from crawler.utils import tasks
from crawler.utils.time import Clock

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
