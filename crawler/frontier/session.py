"""Open and close one process's part of a run, and keep its state and counts."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import AsyncExitStack, suppress
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId
from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.http import Response
from twisted.python.failure import Failure

from crawler.archive.writer import ArchiveWriter
from crawler.config import Config
from crawler.errors import HOST_ERRORS, Busy, FreshetError, StorageError
from crawler.extract.links import Traps
from crawler.extract.site_definition import Wrapper
from crawler.frontier.frontiers import IN_DOUBT, Frontier, LocalFrontier, SharedFrontier
from crawler.frontier.lifecycle import (
    COPIED_LISTS,
    Ending,
    EndState,
    RunWarnings,
    counts_of,
    prepare,
    warnings_of,
    whole,
)
from crawler.frontier.run_limits import Allowance, HostLimits
from crawler.items import FAILED, Fetched, LinkCounts, Skipped, Target, Visit
from crawler.storage import alarms, cells, plans, runs, sampling_phases, targets
from crawler.storage.client import SKEW_SECONDS, Database, MongoRetry, Store, skew_text
from crawler.storage.dedup.index import opened
from crawler.storage.dedup.signatures import Registry
from crawler.storage.leases import CRAWL, Lease
from crawler.storage.listings import Patterns
from crawler.storage.writer import BothLeases, Writer
from crawler.utils.time import Clock

logger = logging.getLogger(__name__)
# Counts of due targets that were not handed out.
LEFT_OVER = ("over_cap", "closed", "over_limit")
# Maximum number of unmatched links that a process keeps as examples.
MAX_UNMATCHED_LINKS = 200
# Number of failed visits with the same problem that a run logs, and of problems that it counts.
MAX_SAME_PROBLEM, MAX_PROBLEMS = 10, 1000
# Loggers of Scrapy modules that log exceptions and continue, without another way to detect them.
SWALLOWING = ("scrapy.core.engine", "scrapy.extensions.feedexport", "scrapy.utils.signal")
EXPORTER = "feedexport"
EXCEPTIONS = "spider_exceptions/"
NOTE_SECONDS = 3.0
MAX_CHARACTERS = 300


class Session:
    """Opens and closes a run, and keeps its state; stored as `spider.session`.

    frontier:  source of the targets
    archive:   archive of the site; None without one
    inputs:    digest of what the run reads outside of the database; None if runs with nothing due
               must not be skipped
    lease:     lease on the runs of this spider; a process without it must not write
    in_flight: keys of targets that are handed out but not stored yet
    findings:  number of released targets whose visits may have made other targets due
    shared_fetches: keys of cells that are read from the page of another cell
    postponed: keys of due targets that are not handed out again in this run
    prepares:  whether this process prepares the run
    sums_up:   whether this process sums up the run
    counts:    counts of the run; only of this process until it has left the run
    own:       counts of only this process, once it has left the run
    links:     examples of links that this process has seen
    failure_example: URL and reason of the last failed visit of this process; empty without one
    failures:  number of failed visits of this process by problem
    second_requests: number of second requests of this process, which find random text
    warnings:  warnings about the run, once it is summed up
    is_full:   whether this is a full run, which ignores the plan's caps
    end_state: state of the spider after the run, once the run is summed up
    reason:    reason why the run ended
    error:     error that ended the run; Busy if another process is already running the spider
    flaw:      error that did not end the run, but makes it fail at its end
    """

    db: Database
    lease: Lease
    writer: Writer
    patience: MongoRetry
    allowance: Allowance
    registry: Registry | None
    archive: ArchiveWriter | None = None
    started: datetime
    run: ObjectId | None = None
    inputs: str | None = None

    def __init__(self, crawler: Crawler, wrapper: Wrapper, config: Config, clock: Clock) -> None:
        self.crawler = crawler
        self.wrapper = wrapper
        self.config = config
        self.clock = clock
        is_shared = config.redis_url is not None
        self.frontier: Frontier = SharedFrontier(self) if is_shared else LocalFrontier(self)
        self.limits = HostLimits(
            wrapper.host_requests or self.config.host_requests, self.config.blocked_failures
        )
        self.traps = Traps(wrapper)
        self.in_flight: set[str] = set()
        self.shared_fetches: set[str] = set()
        self.postponed: set[str] = set()
        self.releases = self.findings = 0
        self.counts: Counter[str] = Counter()
        self.own: Counter[str] = Counter()
        self.links = LinkCounts(MAX_UNMATCHED_LINKS)
        self.failure_example = ""
        self.failures: Counter[str] = Counter()
        self.warnings = RunWarnings()
        self.error: FreshetError | None = None
        self.flaw: FreshetError | None = None
        self.due_at_start = self.second_requests = 0
        self.targets_at_end = 0
        self.is_full = False
        self.end_state: EndState | None = None
        self.reason = ""
        self.prepares = self.sums_up = True
        self.is_hurried = False
        self.workers, self.others, self.visits_of_all = 1, 0, 0
        self.ended = asyncio.Event()
        self._released = asyncio.Event()
        self.is_open = False
        self._opened = AsyncExitStack()
        crawler.signals.connect(self._open, signals.spider_opened)
        crawler.signals.connect(self._close, signals.spider_closed)
        crawler.signals.connect(self._item_failed, signals.item_error)
        crawler.signals.connect(self._callback_failed, signals.spider_error)
        crawler.signals.connect(self._forget_watch, signals.engine_stopped)
        self._watch = _Watch(self)
        for name in SWALLOWING:
            logging.getLogger(name).addFilter(self._watch)

    @staticmethod
    def of(crawler: Crawler) -> Session:
        """Return the session of a crawl; raises NotConfigured for spiders without one."""
        session = getattr(crawler.spider, "session", None)
        if not isinstance(session, Session):
            raise NotConfigured
        return session

    @property
    def failure(self) -> FreshetError | None:
        """Error that made the run fail; None after a successful run."""
        if self.error is None and self.flaw is None and not self.ended.is_set():
            return FreshetError(f"{self.spider}: the run did not reach its end")
        return self.error or self.flaw

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
    def discovered(self) -> int:
        """Number of targets discovered in this run so far."""
        return self.writer.discovered if self.is_open else 0

    def take(self, target: Target) -> None:
        """Note that a target is handed to the spider."""
        self.in_flight.add(target.key)

    def take_with(self, target: Target, others: list[Target]) -> None:
        """Note that the page of a cell is also read for other cells, which need no request."""
        for other in others:
            self.shared_fetches.add(other.key)
            self.take(other)
        self.frontier.take_with(target, others)

    def release(self, target: Target, visit: Visit | None = None) -> None:
        """Release a target after its visit; visit: the stored visit, if there is one."""
        counts = {} if visit is None else counts_of(visit)
        if visit is not None and visit.outcome in FAILED:
            # Some errors are logged once per host instead (HOST_ERRORS).
            reason = visit.reason or ""
            self.failure_example = f"{target.url}: {reason or visit.outcome}"
            is_of_host = reason.endswith(HOST_ERRORS) or self.limits.is_unreachable(target.host)
            if not visit.fetched.shared_fetch and not is_of_host:
                self._log_failure(target, f"{visit.outcome}: {reason}")
        for name, value in counts.items():
            self.counts[name] += value  # type: ignore[assignment]
        if visit is not None and visit.fetched.link_counts is not None:
            self.links.merge(visit.fetched.link_counts)
        if visit is None or visit.fetched.links or visit.collected or visit.alias_of:
            self.findings += 1
        self.in_flight.discard(target.key)
        # After an error, the target may not be stored: leave it to the other workers.
        if self.error is None:
            self.frontier.done(target.key, counts)
        self._wake()

    def skip(self, target: Target, *, elsewhere: bool = False) -> None:
        """Release a target that was not fetched, and give up its host for this run.

        The target remains due, so the run would otherwise hand it out forever.

        elsewhere: the target redirects to another host, which is the cause: give up only the
                   target. Until the other host's pause ends, it stays due in every run, before
                   other targets
        """
        if elsewhere:
            self.frontier.postpone(target.key)
        else:
            self.frontier.give_up(target.host)
        self.release(target)

    def leave(self, target: Target) -> None:
        """Give up a target, because this process stops or has lost its lease."""
        self.in_flight.discard(target.key)
        self.findings += 1
        self._wake()

    def drop_visit(self, target: Target) -> None:
        """Drop a visit of a target that another process has visited or taken over."""
        # Complete the entry: Redis may still list it as leased by this worker.
        self.frontier.done(target.key, {})
        self.leave(target)

    async def until_released(self, releases: int) -> None:
        """Wait until more than `releases` targets were released since the start of the run."""
        while self.releases <= releases:
            self._released.clear()
            await self._released.wait()

    async def until_found(self, findings: int) -> None:
        """Wait until more than `findings` visits may have made targets due, or all are stored."""
        while self.in_flight and self.findings <= findings and self.error is None:
            await self.until_released(self.releases)

    def _wake(self) -> None:
        self.releases += 1
        self._released.set()
        if self.is_open:
            self.writer.check()

    def closed_hosts(self) -> list[str]:
        """Return hosts that get no more requests in this run."""
        patience = timedelta(seconds=self.config.retry_after_seconds)
        return self.limits.closed(self.clock.now(), patience)

    async def pause_host(self, host: str, until: datetime) -> None:
        """Pause requests to a host until `until`, also in later runs."""
        self.limits.hold(host, until)
        await self.frontier.hold(host, (until - self.clock.now()).total_seconds())
        await self.patience.read(lambda: runs.hold_host(self.db, host, until))

    def hurry(self) -> None:
        """Stop waiting and retrying: the grace period is over."""
        self.is_hurried = True
        self.patience.hurry()
        self.frontier.hurry()

    def fail(self, error: BaseException) -> None:
        """End the run because of an error that affects more than one page; log it once."""
        if self.error is None:
            if not isinstance(error, FreshetError):
                logger.debug("Run failed", exc_info=error)
                error = self._failed(_in_line(error))
            self.error = error
            # Busy is not an error, and the command reports it.
            logger.log(logging.DEBUG if isinstance(error, Busy) else logging.ERROR, "%s", error)
            engine = self.crawler.engine
            if engine is not None and engine.spider is not None:
                closing = engine.close_spider_async(reason="storage")
                self._closing = asyncio.ensure_future(closing)
        self.frontier.stop()
        self._wake()

    def end_early(self, reason: str, message: str) -> None:
        """Stop the run gracefully: store the targets in progress, then fail the run."""
        if self.flaw is None:
            self.flaw = FreshetError(f"{self.spider}: the run ended early: {message}")
        engine = self.crawler.engine
        if self.error is None and engine is not None and engine.spider is not None:
            self._closing = asyncio.ensure_future(engine.close_spider_async(reason=reason))
        self._wake()

    def note_flaw(self, message: str) -> None:
        """Fail the run at its end, without stopping it; only the first message is reported."""
        if self.flaw is None:
            self.flaw = self._failed(message)

    def _failed(self, message: str) -> FreshetError:
        return FreshetError(f"{self.spider}: the run failed: {message}")

    def _item_failed(self, item: Any, failure: Failure) -> None:
        """End the run after an exception in a pipeline, or it would wait for the target forever."""
        fetched = item.fetched if isinstance(item, Visit) else item
        if isinstance(fetched, Fetched | Skipped):
            self._give_up(fetched.target, failure.value)
        else:
            self.note_flaw(_in_line(failure.value))

    def _callback_failed(self, failure: Failure, response: Response | None) -> None:
        """End the run after an exception in a callback, which yields no item for its target."""
        target = response.request.meta.get("target") if response and response.request else None
        if isinstance(target, Target):
            self._give_up(target, failure.value)

    def _give_up(self, target: Target, error: BaseException | None) -> None:
        if not isinstance(error, FreshetError):
            logger.debug("%s ended the run", target.url, exc_info=error)
            error = StorageError(f"{target.url}: {_in_line(error)}")
        self.fail(error)
        self.release(target)

    async def _open(self, spider: Spider) -> None:
        try:
            store = await Store.open(self.config)
            self._opened.push_async_callback(store.close)
            self.db = store.db
            self.patience = MongoRetry(self.config.commit_retry_seconds, store.revive)
            name, seconds = f"{CRAWL}{self.spider}", self.config.lease_seconds
            self.lease = Lease(store.db, name, seconds, self.patience)
            self._opened.push_async_callback(self.lease.release)
            if abs(store.clock.ahead_seconds) > SKEW_SECONDS:
                logger.warning(
                    "%s: this machine's clock is %s MongoDB's; the run uses MongoDB's. Set the "
                    "clock (timedatectl set-ntp true)",
                    self.spider,
                    skew_text(store.clock.ahead_seconds),
                )
            self.started = self.clock.now()
            self._opened.push_async_callback(self.frontier.close)
            # The lease excludes other processes, except workers that share the run.
            shared = await self.frontier.open()
            await self.lease.take(f"{self.spider} is already being crawled", shared)
            self.lease.keep(self.fail)
            self.allowance = Allowance(
                store.db, self.patience, self.wrapper, self.clock, self.lease
            )
            self.registry = await self._opened.enter_async_context(opened(store.db, self.config))
            if self.wrapper.archive:
                self.archive = ArchiveWriter(self.config, self.wrapper.name)
                self._opened.push_async_callback(self.archive.close)
                await self.archive.open()
            await self._begin(full=bool(getattr(spider, "full", False)))
            patterns = Patterns(store.db, self.traps)
            await self.patience.read(patterns.open)
            self.writer = Writer(
                store.db,
                self.config,
                self.started,
                self.patience,
                patterns,
                self.registry,
                BothLeases(self.lease, self.frontier),
            )
            self.writer.in_flight = lambda: len(self.in_flight)
            if self.archive is not None:
                self.writer.before_store = self.archive.flush
            self.is_open = True
        except Exception as error:  # noqa: BLE001 - Scrapy would log it, and end successfully
            self.fail(error)

    async def _begin(self, *, full: bool) -> None:
        """Prepare the run, or join a run that another worker has prepared."""
        self.prepares, self.run, started = await self.frontier.join()
        if started is not None:
            self.started = started
            logger.info("%s: joined a run in progress", self.spider)
        if self.prepares:

            async def prepared() -> None:
                self.run = await prepare(
                    self.db, self.registry, self.wrapper, self.config, self.started, self.run,
                    full=full,
                )  # fmt: skip
                await self.frontier.begin(self.run, self.started)

            await self.patience.read(prepared)
        await self.patience.read(self._load_state)
        if full and not self.is_full:
            logger.warning(
                "%s: -a full=1 ignored, because this worker joined a run in progress; repeat the "
                "command after that run",
                self.spider,
            )

    async def _load_state(self) -> None:
        """Load the state that every process of a run needs: plan, paused hosts, due targets."""
        self.is_full = self.run is not None and await runs.is_full(self.db, self.run)
        if plan := await plans.latest(self.db, self.spider, self.started):
            extra = await sampling_phases.requests_per_day(self.db, plan["spiders"], self.started)
            extra += await cells.requests_per_day(self.db, plan["spiders"])
            self.allowance.follow(plan, extra, is_full=self.is_full)
        self.limits.holds |= await runs.held_hosts(self.db, self.started)
        self.due_at_start = await targets.count_due(self.db, self.spider, self.started)

    def shares(self) -> dict[str, int]:
        """Return the counts of this process that do not come from visits."""
        own = {name: self.counts[name] for name in LEFT_OVER if self.counts[name]}
        shares = {"discovered": self.discovered, "left out": self.traps.left_out, **own}
        shares[COPIED_LISTS] = self.traps.copied_lists
        if self.second_requests:
            shares["second requests"] = self.second_requests
        if self.is_open and (self.error is not None or self.writer.is_in_doubt):
            shares[IN_DOUBT] = 1
        return shares

    async def _close(self, spider: Spider, reason: str) -> None:
        try:
            await self._end(reason)
        except Exception as error:  # noqa: BLE001 - as in `_open`
            self.fail(error)
        try:
            # Other workers that still run would sum up the run.
            is_own = self.sums_up and hasattr(self, "started")
            if self.error is not None and is_own and not isinstance(self.error, Busy):
                # The cause of the failure may be that the server is unavailable.
                with suppress(StorageError, TimeoutError):
                    async with asyncio.timeout(NOTE_SECONDS):
                        now, why = self.clock.now(), str(self.error)
                        await runs.fail(self.db, self.spider, self.started, now, why)
            await self._opened.aclose()
        except Exception as error:  # noqa: BLE001 - as in `_open`
            self.fail(error)
        finally:
            self.ended.set()

    async def _end(self, reason: str) -> None:
        if self.is_open:
            try:
                await self.writer.close()
            except Exception as error:  # noqa: BLE001 - leave the frontier all the same
                self.fail(error)
        # Exceptions of callbacks that were not for a target.
        stats = self.crawler.stats
        assert stats is not None
        names = {name.removeprefix(EXCEPTIONS) for name in stats.get_stats() if EXCEPTIONS in name}
        if raised := sorted(names - {"count"}):
            self.note_flaw(f"the spider raised {', '.join(raised)}")
        own = {**self.counts, **self.shares()}
        own.pop(IN_DOUBT, None)
        self.own = whole(own)
        tally = await self.frontier.leave()
        self.sums_up, self.workers = tally.sums_up, tally.workers
        self.others, self.visits_of_all = tally.others, tally.visits_of_all
        if tally.counts is not None:
            self.counts = tally.counts
        has_worked = self.error is None
        if has_worked and self.flaw is not None:
            self.fail(self.flaw)
        if self.is_open and has_worked and self.sums_up:
            await self.patience.read(lambda: self._sum_up(reason))
            # The write succeeded, so the server is available whatever failed before.
            self.patience.outage.succeeds(asyncio.get_running_loop().time(), has_failed=True)
        if self.sums_up:
            await self.frontier.finish()

    def _log_failure(self, target: Target, problem: str) -> None:
        """Log a failed visit; of many with the same problem, only the first ones."""
        if len(self.failures) < MAX_PROBLEMS or problem in self.failures:
            self.failures[problem] += 1
        n = self.failures[problem]
        if n == MAX_SAME_PROBLEM:
            problem += f" (no more are logged; scrapy targets {self.spider} --errors lists all)"
        if n <= MAX_SAME_PROBLEM:
            logger.warning("%s: %s", target.url, problem)

    def _forget_watch(self) -> None:
        for name in SWALLOWING:
            logging.getLogger(name).removeFilter(self._watch)

    async def _sum_up(self, reason: str) -> None:
        self.reason = reason
        self.counts, self.end_state = await self.ending.with_remaining({**self.counts})
        self.targets_at_end = self.counts["targets"]
        counts = {name.replace(" ", "_"): n for name, n in self.counts.items()}
        assert self.run is not None
        self.warnings = await warnings_of(
            self.db, self.wrapper, self.counts, self.links, self.traps,
            self.failure_example, gave_up=bool(self.limits.given_up),
        )  # fmt: skip
        visits, wanted = self.counts["visits"], await self.writer.wanted.read()
        broken = await alarms.record_broken(self.db, self.spider, visits, self.clock.now(), wanted)
        for line in (*self.warnings.lines, *broken):
            logger.warning("%s: %s", self.spider, line)
        await runs.note_inputs(self.db, self.spider, self.inputs)
        await runs.finish(self.db, self.run, self.clock.now(), reason, counts, self.workers)

    @property
    def found_nothing(self) -> bool:
        """Return whether the run must not end as a success, although no part of it failed."""
        end = self.end_state
        return self.warnings.found_nothing or (end is not None and end.never_read)

    @property
    def ending(self) -> Ending:
        """Functions for the end of the run, as of now."""
        return Ending(self.db, self.registry, self.spider, self.started, self.clock.now())


class _Watch(logging.Filter):
    """Fails the run for exceptions that Scrapy logs and ignores."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def filter(self, record: logging.LogRecord) -> bool:
        """Fail the run, unless the record is from another run in this process.

        Return False to drop the record: if the disk of exported items is full, Scrapy would log the
        same traceback for each of them.
        """
        own = getattr(record, "spider", None) in (None, self._session.crawler.spider)
        if record.levelno < logging.ERROR or not own:
            return True
        raised = record.exc_info[1] if record.exc_info else None
        if isinstance(raised, OSError) and EXPORTER in f"{record.name} {record.getMessage()}":
            cause = raised.strerror or str(raised)
            place = f"{raised.filename}: " if raised.filename else ""
            self._session.end_early(
                "export",
                f"items could not be exported: {place}{cause}. All items that were read are stored "
                "in MongoDB; scrapy export posts FOLDER writes them",
            )
            return False
        message = record.getMessage().partition(":")[0]
        self._session.note_flaw(f"{message}: {_in_line(raised)}" if raised else message)
        return True


def _in_line(error: BaseException | None) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:MAX_CHARACTERS]
