"""The service of `scrapy refresh run`: one process that runs crawls when targets are due.

`serve` sets up the process: reactor, log, signals, metrics. `Service` is its loop, `Run` one crawl.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import threading
import time
import traceback
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from scrapy.crawler import AsyncCrawlerProcess, Crawler
from scrapy.settings import SETTINGS_PRIORITIES, Settings

from crawler.config import Config
from crawler.errors import Busy, ConfigError, FreshetError, LeaseLost, StorageError
from crawler.extract.notification_rules import read_keys
from crawler.frontier.session import Session
from crawler.frontier.summary import figures
from crawler.items import Outcome
from crawler.ops.jobs import (
    Job,
    default_jobs,
    read_stored_sites,
    spiders_of,
    undefined_words,
)
from crawler.ops.schedule import (
    DUE_SECONDS,
    HOUR_SECONDS,
    NOTIFY,
    REPLAN,
    RETRY_SECONDS,
    PeriodicJob,
    RunEnd,
    ServiceOptions,
    SpiderState,
    command_line_settings,
    decide,
    notify_job,
    periodic_jobs,
    run_periodic_jobs,
)
from crawler.ops.service_report import Report, ServiceReport, run_line
from crawler.storage import change_events, due, leases, notification_channels, outbox, sites
from crawler.storage.client import MongoRetry
from crawler.storage.store import Store
from crawler.utils.files import file_errors
from crawler.utils.process import end_tasks

logger = logging.getLogger(__name__)
SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Time for storing a run's last visits after Scrapy has ended it.
CLOSED_SECONDS = 60.0
CLOSE_CHECK_SECONDS = 0.05
MIN_RETRY_SECONDS = 60.0
# Interval of checks of messages that wait for the next visit of their page.
CONFIRM_SECONDS = 600.0
# Time for the rest of the shutdown, in addition to FRESHET_GRACE_SECONDS for requests in flight.
REST_SECONDS = 10.0
# Tolerated difference between the clocks of machines.
CLOCKS_SECONDS = 2.0
MAX_MESSAGE_CHARACTERS = 300
# Extensions disabled in the service: it logs its own summaries, and objects that Garbage freezes in
# one run would never be freed in later ones.
DISABLED = {"crawler.frontier.summary.Summary": None, "crawler.ops.extensions.Garbage": None}
LIMIT = "CLOSESPIDER_TIMEOUT"
# Minimum duration of a run, in delays between two requests.
MIN_DELAYS = 5
# Counts of this process's part of a run, by their names in its state.
OWN = {"visits": "visits", "missed_visits": "missed visits", "posts": "posts"} | {
    str(outcome): str(outcome) for outcome in Outcome
}


def serve(
    config: Config, settings: Settings, jobs: list[Job], options: ServiceOptions
) -> ServiceReport:
    """Run the service until it is stopped; return the summary. Raises FreshetError."""
    # Used only to set up reactor, DNS and threads as in a crawl: the service creates the crawlers.
    own = settings.copy()
    own.set("LOG_INSTALL_ROOT_HANDLER", False, priority="cmdline")
    process = AsyncCrawlerProcess(own)
    _set_up_log(settings)
    task = asyncio.get_event_loop().create_task(_work(config, settings, jobs, options))
    # Imported here: an import before AsyncCrawlerProcess would install Twisted's default reactor.
    from twisted.internet import reactor as installed

    reactor: Any = installed
    task.add_done_callback(lambda _: reactor.stop())
    process.start(stop_after_crawl=False, install_signal_handlers=False)
    # Runs that did not end in time are abandoned, so asyncio would log their pending tasks as
    # errors. The next run repairs their change log.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    return task.result()


def _set_up_log(settings: Settings) -> None:
    """Log the service's records from `LOG_LEVEL`, all others from WARNING (or all with DEBUG)."""
    level = logging.getLevelNamesMapping().get(str(settings["LOG_LEVEL"]).upper())
    if level is None:
        raise ConfigError(
            f"LOG_LEVEL: {settings['LOG_LEVEL']!r} is not a log level. "
            "Choices: DEBUG, INFO, WARNING, ERROR, CRITICAL"
        )
    # LOG_ENABLED is off by default in all commands, so only an explicit --nolog counts.
    is_set = settings.getpriority("LOG_ENABLED") == SETTINGS_PRIORITIES["cmdline"]
    path = settings["LOG_FILE"]
    handler: logging.Handler = logging.StreamHandler()
    if is_set and not settings.getbool("LOG_ENABLED"):
        handler = logging.NullHandler()
    elif path:
        with file_errors(f"LOG_FILE {path}"):
            handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    logging.root.addHandler(handler)
    is_debugged = level <= logging.DEBUG
    logging.root.setLevel(level if is_debugged else max(level, logging.WARNING))
    logging.getLogger("scrapy").setLevel(logging.NOTSET)
    logging.getLogger("crawler.ops").setLevel(level)
    # The service itself logs why a run failed and when it is retried.
    run_log = logging.getLogger("crawler.frontier.run")
    run_log.addFilter(lambda record: record.levelno < logging.ERROR)


async def _work(
    config: Config, settings: Settings, jobs: list[Job], options: ServiceOptions
) -> ServiceReport:
    began, loop = time.monotonic(), asyncio.get_running_loop()
    stop = asyncio.Event()

    def request_stop() -> None:
        # Restore the default handlers, so that a second signal ends the process immediately.
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        stop.set()

    for number in SIGNALS:
        loop.add_signal_handler(number, request_stop)
    if options.seconds is not None:
        loop.call_later(options.seconds, stop.set)
    if options.attached:
        threading.Thread(target=_wait_for_end_of_input, args=(loop, stop), daemon=True).start()
    store = await Store.open(config)
    try:
        service = Service(store, jobs, settings, options)
        stopping = asyncio.create_task(stop.wait())
        stopping.add_done_callback(lambda _: service.stop())
        # Imported modules are never freed: exclude them from garbage collection.
        gc.freeze()
        async with contextlib.AsyncExitStack() as stack:
            if options.metrics is not None or config.metrics_dir is not None:
                # Imported only if needed: prometheus_client is slow to import.
                from crawler.ops.service_metrics import service_measured

                measured = service_measured(store, service.report, options.metrics)
                await stack.enter_async_context(measured)
            await service.work()
        stopping.cancel()
    finally:
        await store.close()
    return service.report.totals(time.monotonic() - began)


def _wait_for_end_of_input(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Stop the service when the process that started it has ended, even if it was killed."""
    with contextlib.suppress(OSError):
        while os.read(0, 1):
            pass
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(stop.set)


class Turn:
    """Decides whether this service is to start runs, and holds its lease.

    All services share a lease, for people and for those that stand by: services that run at the
    same time do no harm, because runs and periodic jobs have leases of their own. One service may
    stand by; its turn is while no other service runs.
    """

    def __init__(self, store: Store, *, standby: bool) -> None:
        self._store, self._standby = store, standby
        self._patience = MongoRetry(0, store.revive)
        self._lease: leases.Lease | None = None
        self._told = False

    async def is_ours(self) -> bool:
        """Return whether this service is to start runs now; raises StorageError."""
        reason = ""
        try:
            await self._take()
            if self._standby and (others := await self._running()):
                reason = f"another service runs on {others[0]}"
        except Busy as error:
            reason = str(error)
        if reason and not self._told:
            logger.info("Standing by: %s", reason)
        self._told = bool(reason)
        return not reason

    async def release(self) -> None:
        """Let another service take its turn at once."""
        if self._lease is not None:
            await self._lease.release()

    async def _take(self) -> None:
        """Take the lease unless this service has it; raise Busy if another one stands by."""
        if self._lease is not None:
            return
        name, shared = (leases.STANDBY, "") if self._standby else (leases.SERVICE, leases.SERVICE)
        lease = leases.Lease(self._store.db, name, self._store.config.lease_seconds, self._patience)
        await lease.take("another service stands by", shared)
        lease.keep(self._lost)
        self._lease = lease

    async def _running(self) -> list[leases.Holder]:
        db = self._store.db
        active = await self._patience.read(lambda: leases.active(db, leases.SERVICE))
        return active.get(leases.SERVICE, [])

    def _lost(self, error: LeaseLost) -> None:
        logger.debug("%s", error)
        self._lease = None


class Run:
    """A crawl in progress.

    task: returns the counts of `crawler.frontier.summary.figures`, and `of_all`, the visits of all
          processes that shared the run. Raises Busy, FreshetError, or whatever the spider's
          constructor raises.
    """

    def __init__(self, job: Job, settings: Settings, slice_seconds: float) -> None:
        self.job = job
        self.crawler: Crawler | None = None
        self.task = asyncio.create_task(self._crawl(settings, slice_seconds))

    async def close(self) -> None:
        """End the crawl early: wait for requests in flight and store their visits."""
        while not self.task.done():
            try:
                is_open = self.crawler is not None and self.crawler.engine.running
            except RuntimeError:
                # Scrapy cannot stop a crawl before its engine runs.
                is_open = False
            if self.crawler is not None and is_open:
                await self.crawler.stop_async()
                return
            await asyncio.sleep(CLOSE_CHECK_SECONDS)

    async def _crawl(self, settings: Settings, slice_seconds: float) -> dict[str, Any]:
        wrapper = self.job.wrapper()
        obeys = wrapper.robots is not False and settings.getbool("ROBOTSTXT_OBEY")
        own = run_settings(settings, slice_seconds, wrapper.delay_seconds, obeys_robots=obeys)
        self.crawler = Crawler(self.job.spider, own)
        await self.crawler.crawl_async(**self.job.arguments)
        session = Session.of(self.crawler)
        # If close() is called while the run ends on its own, crawl_async() returns before the last
        # visits are stored.
        async with asyncio.timeout(CLOSED_SECONDS):
            await session.ended.wait()
        if (failure := session.failure) is not None:
            raise failure
        counts: dict[str, Any] = {"name": wrapper.name}
        state = session.run.state
        counts |= figures(state.counts)
        # In a shared run, count only this process's part: each process counts its own.
        counts |= {name: state.own[key] for name, key in OWN.items()}
        return counts | {"of_all": state.tally.visits_of_all}


def run_settings(
    settings: Settings,
    slice_seconds: float,
    delay_seconds: float | None = None,
    *,
    obeys_robots: bool = False,
) -> Settings:
    """Return a copy of the project's settings for the runs of a service.

    delay_seconds: delay between two requests in the site definition; None: that of the settings
    obeys_robots:  robots.txt may ask for a longer delay
    """
    own, config = settings.copy(), Config.of(settings)
    if delay_seconds is None:
        delay_seconds = settings.getfloat("DOWNLOAD_DELAY")
    # A run that ends before its first page, after robots.txt, would be repeated forever.
    slice_seconds = max(slice_seconds, MIN_DELAYS * delay_seconds)
    if obeys_robots:
        slice_seconds = max(slice_seconds, 2 * config.crawl_delay_seconds)
    limit = settings.getfloat(LIMIT) or slice_seconds
    own.set(LIMIT, min(limit, slice_seconds), priority="cmdline")
    own.set("FRESHET_PROGRESS", False, priority="cmdline")
    # Without a minimum, failed targets would be retried constantly: runs follow each other
    # directly.
    retry_seconds = max(MIN_RETRY_SECONDS, config.error_retry_seconds)
    own.set("FRESHET_ERROR_RETRY_SECONDS", retry_seconds, priority="cmdline")
    own.set("EXTENSIONS", own.getdict("EXTENSIONS") | DISABLED, priority="cmdline")
    return own


def describe_error(error: BaseException) -> str:
    """Return an error's message in one line; for unexpected errors, with type and place."""
    message = " ".join(str(error).split())[:MAX_MESSAGE_CHARACTERS]
    if isinstance(error, FreshetError):
        return message
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {message}{place}"


class Service:
    """Runs crawls of the jobs' spiders whenever their targets are due."""

    def __init__(
        self, store: Store, jobs: list[Job], settings: Settings, options: ServiceOptions
    ) -> None:
        self.store = store
        self.options = options
        self.settings = settings
        self.jobs = {job.word: job for job in jobs}
        self.states = {word: SpiderState() for word in self.jobs}
        self.report = Report(self.jobs)
        self.clock = store.config.clock
        self.running: dict[str, Run] = {}
        self._names: dict[str, str] = {}
        self._patience = MongoRetry(0, store.revive)
        self._turn = Turn(store, standby=options.standby)
        self._is_our_turn = False
        self._now = asyncio.get_running_loop().time
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._is_offline = False
        self._spiders = {} if options.names else spiders_of(settings)
        self._undefined: set[str] = set()
        self._paused: set[str] = set()
        self._next_sites_at = self._next_confirm_at = 0.0

    def stop(self) -> None:
        """Start no more runs; `work` ends those in progress and returns."""
        self._is_stopping = True
        self._wake.set()

    async def work(self) -> None:
        """Run until stopped and all runs have ended; raises StorageError only at the start."""
        await self._add_sites()
        if not self.jobs:
            logger.warning("No site has targets yet. Run scrapy crawl NAME to discover targets")
        for word, job in self.jobs.items():
            # A broken definition is reported when its run begins.
            with contextlib.suppress(FreshetError):
                self._names[word] = job.name()
        cadence, since = self.options.replan_hours * HOUR_SECONDS, await self._since_plan()
        todo = periodic_jobs(cadence, since, self._now(), prunes=self.options.prunes)
        options = command_line_settings(self.settings)
        maintenance = [
            asyncio.create_task(
                run_periodic_jobs(jobs, options, self.report.periodic_jobs, self._job_waits)
            )
            for jobs in (todo, [notify_job(self._now())])
        ]
        while not self._is_stopping:
            self._wake.clear()
            is_readable = await self._read_due()
            seconds = self._begin_runs() if is_readable and self._is_our_turn else DUE_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
        await asyncio.gather(end_tasks(*maintenance), self._end(), return_exceptions=True)
        await self._turn.release()

    async def _since_plan(self) -> float:
        """Return the seconds since the last plan or, without one, since the first run; else 0."""
        now, names, db = self.clock.now(), list(self._names.values()), self.store.db

        async def last() -> datetime | None:
            return await due.planned_at(db) or await due.first_run_started(db, names)

        at = await self._patience.read(last)
        return max(0.0, (now - at).total_seconds()) if at else 0.0

    async def _job_waits(self, job: PeriodicJob) -> float:
        """Return the seconds a job still has to wait; 0 if this machine is to run it now.

        Only one of several machines runs a job.
        """
        if not self._is_our_turn:
            return DUE_SECONDS
        try:
            # The last plan may have been made by another machine, whose clock may differ.
            if job.name == REPLAN:
                since = await self._since_plan()
                if (seconds := job.every - since - CLOCKS_SECONDS) > 0:
                    return seconds
            if job.name == NOTIFY and not await self._has_notifications():
                return job.every
            now, db = self.clock.now(), self.store.db
            pause = timedelta(seconds=min(job.every, RETRY_SECONDS) / 2)
            is_ours = await self._patience.read(lambda: leases.claim_job(db, job.name, now, pause))
        except StorageError:
            return DUE_SECONDS
        return 0.0 if is_ours else pause.total_seconds()

    async def _has_notifications(self) -> bool:
        """Return whether there is something to deliver, or to confirm by a later visit."""
        db, now = self.store.db, self.clock.now()
        try:
            channels = read_keys(self.store.config.notify_file).get("channels", {})
        except ConfigError:
            # The command reports what is wrong.
            channels = {}
        names = list(channels) if isinstance(channels, dict) else []
        names += await self._patience.read(lambda: notification_channels.names(db))
        if await self._patience.read(lambda: change_events.oldest_mark(db)) is not None:
            return True
        if await self._patience.read(lambda: outbox.is_any_due(db, names, now)):
            return True
        if self._now() < self._next_confirm_at:
            return False
        self._next_confirm_at = self._now() + CONFIRM_SECONDS
        return await self._patience.read(lambda: outbox.is_any_unconfirmed(db))

    async def _read_due(self) -> bool:
        """Read when spiders have due targets; return False if the database is unavailable."""
        try:
            self._is_our_turn = await self._turn.is_ours()
            await self._add_sites()
            self._paused = await self._patience.read(lambda: sites.paused(self.store.db))
            names = {
                word: self._names[word]
                for word, state in self.states.items()
                if state.needs_read(self._now())
            }
            pushed = await self._sites_with_urls([*names.values()])
            for word, name in names.items():
                state, now = self.states[word], self.clock.now()
                read = partial(due.earliest, self.store.db, name, now)
                at = now if name in pushed else await self._patience.read(read)
                state.due = None if at is None else self._now() + (at - now).total_seconds()
                state.read_at = self._now()
        except StorageError as error:
            if not self._is_offline:
                logger.warning("MongoDB connection lost, runs paused: %s", error)
            self._is_offline = True
            with contextlib.suppress(FreshetError):
                await self.store.revive()
            return False
        if self._is_offline:
            logger.warning("MongoDB reconnected, runs resumed")
        self._is_offline = False
        return True

    async def _sites_with_urls(self, names: list[str]) -> set[str]:
        """Return the sites for which URLs wait in Redis."""
        config = self.store.config
        if config.redis_url is None or not names:
            return set()
        from crawler.frontier.pushed_urls import sites_with_urls

        return await sites_with_urls(config, self.settings, names)

    async def _add_sites(self) -> None:
        """Add sites that got targets since the start, unless the user named the sites to run."""
        if self.options.names or self._now() < self._next_sites_at:
            return
        self._next_sites_at = self._now() + self.store.config.refresh_sites_seconds
        stored = await self._patience.read(lambda: read_stored_sites(self.store.db))
        every = default_jobs(self._spiders, stored)
        for job in every.jobs:
            if job.word not in self.jobs:
                self.jobs[job.word] = job
                self.states[job.word] = SpiderState()
                self.report.add_site(job.word)
                with contextlib.suppress(FreshetError):
                    self._names[job.word] = job.name()
                logger.info("Site %s added: it has targets now", job.word)
            elif job.definition is not None:
                # The stored definition may have changed.
                self.jobs[job.word] = job
        for name in set(every.undefined) - self._undefined:
            self._undefined.add(name)
            logger.warning("Site %s skipped: %s", name, undefined_words(name))

    def _begin_runs(self) -> float:
        """Start runs of spiders with due targets; return the seconds to sleep."""
        states = {
            word: state
            for word, state in self.states.items()
            if state.is_running or self._names.get(word) not in self._paused
        }
        begin, sleep = decide(self._now(), states, self.store.config.refresh_runs)
        for word in begin:
            self.states[word].is_running = True
            run = Run(self.jobs[word], self.settings, self.options.slice_seconds)
            self.running[word] = run
            run.task.add_done_callback(partial(self._ended, word, self._now()))
        return sleep

    def _ended(self, word: str, began: float, task: asyncio.Task[dict[str, Any]]) -> None:
        del self.running[word]
        self._wake.set()
        state, now = self.states[word], self._now()
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            counts = task.result()
            self._names[word] = str(counts["name"])
            self.report.add(word, counts)
            is_idle = not counts["of_all"] and not state.skips_read
            state.ended(RunEnd.IDLE if is_idle else RunEnd.SUCCESS, now)
            level = logging.INFO if counts["visits"] else logging.DEBUG
            logger.log(level, "%s", run_line(counts, now - began))
        elif isinstance(error, Busy):
            state.ended(RunEnd.BUSY, now)
            if state.repeated == 1:
                logger.info("Run of %s postponed: %s", word, error)
        else:
            self.report.failed(word)
            seconds, message = state.ended(RunEnd.FAILED, now), describe_error(error)
            logger.error("Run of %s failed, retrying in %.0f s: %s", word, seconds, message)

    async def _end(self) -> None:
        """End the runs in progress; wait for their last visits to be stored, up to a timeout."""
        in_progress = list(self.running.values())
        if not in_progress:
            return
        seconds = self.store.config.grace_seconds + REST_SECONDS
        closing = [asyncio.create_task(run.close()) for run in in_progress]
        await asyncio.wait([run.task for run in in_progress], timeout=seconds)
        for task in closing:
            task.cancel()
        for word in self.running:
            logger.warning("Run of %s abandoned: it did not end within %.0f s", word, seconds)
