"""Open and close one process's part of a run: its database, lease, frontier and writer."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, suppress
from datetime import datetime
from typing import Any

from scrapy import Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.http import Response
from twisted.python.failure import Failure

from crawler.archive.writer import ArchiveWriter
from crawler.config import Config
from crawler.errors import Busy, FreshetError, StorageError
from crawler.extract.links import Traps
from crawler.extract.site_definition import Wrapper
from crawler.frontier.frontiers import IN_DOUBT, Frontier, LocalFrontier, Settled, SharedFrontier
from crawler.frontier.lifecycle import COPIED_LISTS, prepare, warnings_of, whole
from crawler.frontier.run import Run, in_line
from crawler.frontier.run_limits import Allowance
from crawler.items import Fetched, Skipped, Target, Visit
from crawler.storage import alarms, cells, plans, posts, runs, sampling_phases, targets
from crawler.storage.client import SKEW_SECONDS, MongoRetry, skew_text
from crawler.storage.dedup.index import opened
from crawler.storage.leases import CRAWL, Lease
from crawler.storage.listings import Patterns
from crawler.storage.old_contents import OldContents
from crawler.storage.store import Store
from crawler.storage.writer import BothLeases, Surroundings, Writer
from crawler.utils.time import Clock

logger = logging.getLogger(__name__)
# Counts of due targets that were not handed out, and of pushed URLs.
NOT_OF_VISITS = ("over_cap", "closed", "over_limit", "pushed", "pushed refused")
# Loggers of Scrapy modules that log exceptions and continue, without another way to detect them.
SWALLOWING = ("scrapy.core.engine", "scrapy.extensions.feedexport", "scrapy.utils.signal")
EXPORTER = "feedexport"
EXCEPTIONS = "spider_exceptions/"
NOTE_SECONDS = 3.0


class Session:
    """Opens and closes a run; stored as `spider.session`.

    run:          what this process holds of the run
    frontier:     source of the targets, which takes them back
    writer:       stores visits
    old_contents: reads the contents of pages before a change
    lease:        lease on the runs of this spider; a process without it must not write
    archive:      archive of the site; None without one
    ended:        set when everything is stored and closed
    is_open:      whether the run has been opened
    """

    lease: Lease
    writer: Writer
    old_contents: OldContents
    archive: ArchiveWriter | None = None

    def __init__(self, crawler: Crawler, wrapper: Wrapper, config: Config, clock: Clock) -> None:
        self.run = Run(crawler, wrapper, config, clock)
        kind = LocalFrontier if config.redis_url is None else SharedFrontier
        self.frontier: Frontier = kind(self.run, self.shares)
        self.run.on_failure = self.frontier.stop
        self.ended = asyncio.Event()
        self.is_open = False
        self._traps = Traps(wrapper)
        self._opened = AsyncExitStack()
        crawler.signals.connect(self._open, signals.spider_opened)
        crawler.signals.connect(self._close, signals.spider_closed)
        crawler.signals.connect(self._item_failed, signals.item_error)
        crawler.signals.connect(self._callback_failed, signals.spider_error)
        crawler.signals.connect(self._forget_watch, signals.engine_stopped)
        self._watch = _Watch(self.run)
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
        state = self.run.state
        if state.error is None and state.flaw is None and not self.ended.is_set():
            return FreshetError(f"{self.run.spider}: the run did not reach its end")
        return state.error or state.flaw

    @property
    def discovered(self) -> int:
        """Number of targets discovered in this run so far."""
        return self.writer.discovered if self.is_open else 0

    def stored(self, target: Target, visit: Visit) -> None:
        """Count a stored visit, and give its target back to the frontier."""
        is_of_host = self.run.limits.is_unreachable(target.host)
        counts = self.run.state.count(visit, is_of_host=is_of_host)
        finds = bool(visit.fetched.links or visit.collected or visit.alias_of)
        self.frontier.settle(target, Settled.STORED, counts, finds=finds)

    async def pause_host(self, host: str, until: datetime) -> None:
        """Pause requests to a host until `until`, also in later runs."""
        run = self.run
        run.limits.hold(host, until)
        await self.frontier.hold(host, (until - run.clock.now()).total_seconds())
        await run.patience.read(lambda: runs.hold_host(run.db, host, until))

    def hurry(self) -> None:
        """Stop waiting and retrying: the grace period is over."""
        self.run.patience.hurry()
        self.frontier.hurry()

    def _item_failed(self, item: Any, failure: Failure) -> None:
        """End the run after an exception in a pipeline, or it would wait for the target forever."""
        fetched = item.fetched if isinstance(item, Visit) else item
        if isinstance(fetched, Fetched | Skipped):
            self._give_up(fetched.target, failure.value)
        else:
            self.run.note_flaw(in_line(failure.value))

    def _callback_failed(self, failure: Failure, response: Response | None) -> None:
        """End the run after an exception in a callback, which yields no item for its target."""
        target = response.request.meta.get("target") if response and response.request else None
        if isinstance(target, Target):
            self._give_up(target, failure.value)

    def _give_up(self, target: Target, error: BaseException | None) -> None:
        if not isinstance(error, FreshetError):
            logger.debug("%s ended the run", target.url, exc_info=error)
            error = StorageError(f"{target.url}: {in_line(error)}")
        self.run.fail(error)
        self.frontier.settle(target, Settled.LEFT)

    async def _open(self, spider: Spider) -> None:
        try:
            await self._open_all(full=bool(getattr(spider, "full", False)))
            self.is_open = True
        except Exception as error:  # noqa: BLE001 - Scrapy would log it, and end successfully
            self.run.fail(error)

    async def _open_all(self, *, full: bool) -> None:
        """Open everything in order; it is closed in reverse order."""
        run, opened_parts = self.run, self._opened
        store = await Store.open(run.config)
        opened_parts.push_async_callback(store.close)
        run.db = store.db
        run.patience = MongoRetry(run.config.commit_retry_seconds, store.revive)
        name, seconds = f"{CRAWL}{run.spider}", run.config.lease_seconds
        self.lease = Lease(store.db, name, seconds, run.patience)
        opened_parts.push_async_callback(self.lease.release)
        if abs(store.clock.ahead_seconds) > SKEW_SECONDS:
            logger.warning(
                "%s: this machine's clock is %s MongoDB's; the run uses MongoDB's. Set the "
                "clock (timedatectl set-ntp true)",
                run.spider,
                skew_text(store.clock.ahead_seconds),
            )
        run.started = run.clock.now()
        opened_parts.push_async_callback(self.frontier.close)
        # The lease excludes other processes, except workers that share the run.
        shared = await self.frontier.open()
        await self.lease.take(f"{run.spider} is already being crawled", shared)
        self.lease.keep(run.fail)
        run.allowance = Allowance(store.db, run.patience, run.wrapper, run.clock, self.lease)
        run.registry = await opened_parts.enter_async_context(opened(store.db, run.config))
        if run.wrapper.archive:
            self.archive = ArchiveWriter(run.config, run.spider)
            opened_parts.push_async_callback(self.archive.close)
            await self.archive.open()
        await self._begin(full=full)
        patterns = Patterns(store.db, self._traps)
        await run.patience.read(patterns.open)
        self.writer = Writer(
            store.db, run.config, run.started, run.patience, patterns, run.registry,
            Surroundings(
                BothLeases(self.lease, self.frontier), run.in_flight, self.archive,
                run.state.is_baseline,
            ),
        )  # fmt: skip
        self.old_contents = OldContents(
            lambda some: run.patience.read(lambda: posts.contents(store.db, some)),
            run.config, run.in_flight,
        )  # fmt: skip

    async def _begin(self, *, full: bool) -> None:
        """Prepare the run, or join a run that another worker has prepared."""
        run = self.run
        run.state.prepares, run.id, started = await self.frontier.join()
        if started is not None:
            run.started = started
            logger.info("%s: joined a run in progress", run.spider)
        if run.state.prepares:

            async def prepared() -> None:
                run.id = await prepare(
                    run.db, run.registry, run.wrapper, run.config, run.started, run.id, full=full
                )
                await self.frontier.begin(run.id, run.started)

            await run.patience.read(prepared)
        await run.patience.read(self._load_state)
        if full and not run.state.is_full:
            logger.warning(
                "%s: -a full=1 ignored, because this worker joined a run in progress; repeat the "
                "command after that run",
                run.spider,
            )

    async def _load_state(self) -> None:
        """Load the state that every process of a run needs: plan, paused hosts, due targets."""
        run, state = self.run, self.run.state
        state.is_full = run.id is not None and await runs.is_full(run.db, run.id)
        if plan := await plans.latest(run.db, run.spider, run.started):
            extra = await sampling_phases.requests_per_day(run.db, plan["spiders"], run.started)
            extra += await cells.requests_per_day(run.db, plan["spiders"])
            run.allowance.follow(plan, extra, is_full=state.is_full)
        state.is_baseline = await runs.is_baseline(run.db, run.spider, run.started)
        run.limits.holds |= await runs.held_hosts(run.db, run.started)
        state.due_at_start = await targets.count_due(run.db, run.spider, run.started)

    def shares(self) -> dict[str, int]:
        """Return the counts of this process that do not come from visits."""
        state = self.run.state
        own = {name: state.counts[name] for name in NOT_OF_VISITS if state.counts[name]}
        shares = {"discovered": self.discovered, "left out": self._traps.left_out, **own}
        shares[COPIED_LISTS] = self._traps.copied_lists
        if state.second_requests:
            shares["second requests"] = state.second_requests
        if self.is_open and (state.error is not None or self.writer.is_in_doubt):
            shares[IN_DOUBT] = 1
        return shares

    async def _close(self, spider: Spider, reason: str) -> None:
        run = self.run
        try:
            await self._end(reason)
        except Exception as error:  # noqa: BLE001 - as in `_open`
            run.fail(error)
        try:
            # Other workers that still run would sum up the run.
            cause, is_own = run.state.error, run.state.tally.sums_up and hasattr(run, "started")
            if cause is not None and is_own and not isinstance(cause, Busy):
                # The cause of the failure may be that the server is unavailable.
                with suppress(StorageError, TimeoutError):
                    async with asyncio.timeout(NOTE_SECONDS):
                        now = run.clock.now()
                        await runs.fail(run.db, run.spider, run.started, now, str(cause))
            await self._opened.aclose()
        except Exception as error:  # noqa: BLE001 - as in `_open`
            run.fail(error)
        finally:
            self.ended.set()

    async def _end(self, reason: str) -> None:
        run, state = self.run, self.run.state
        if self.is_open:
            try:
                self.old_contents.close()
                await self.writer.close()
            except Exception as error:  # noqa: BLE001 - leave the frontier all the same
                run.fail(error)
        # Exceptions of callbacks that were not for a target.
        stats = run.crawler.stats
        assert stats is not None
        names = {name.removeprefix(EXCEPTIONS) for name in stats.get_stats() if EXCEPTIONS in name}
        if raised := sorted(names - {"count"}):
            run.note_flaw(f"the spider raised {', '.join(raised)}")
        own = {**state.counts, **self.shares()}
        own.pop(IN_DOUBT, None)
        state.own = whole(own)
        state.tally = tally = await self.frontier.leave(was_open=self.is_open)
        if tally.counts is not None:
            state.counts = tally.counts
        has_worked = state.error is None
        if has_worked and state.flaw is not None:
            run.fail(state.flaw)
        if self.is_open and has_worked and tally.sums_up:
            await run.patience.read(lambda: self._sum_up(reason))
            # The write succeeded, so the server is available whatever failed before.
            run.patience.outage.succeeds(asyncio.get_running_loop().time(), has_failed=True)
        if tally.sums_up:
            await self.frontier.finish()

    def _forget_watch(self) -> None:
        for name in SWALLOWING:
            logging.getLogger(name).removeFilter(self._watch)

    async def _sum_up(self, reason: str) -> None:
        run, state = self.run, self.run.state
        state.reason = reason
        state.counts, state.end_state = await run.ending.with_remaining({**state.counts})
        counts = {name.replace(" ", "_"): n for name, n in state.counts.items()}
        assert run.id is not None
        state.warnings = await warnings_of(
            run.db, run.wrapper, state.counts, state.links, self._traps, state.failures.example,
            gave_up=bool(run.limits.given_up),
        )  # fmt: skip
        now, visits, wanted = run.clock.now(), state.counts["visits"], self.writer.wanted
        broken = await alarms.record_broken(run.db, run.spider, visits, now, await wanted.read())
        for line in (*state.warnings.lines, *broken):
            logger.warning("%s: %s", run.spider, line)
        await runs.finish(run.db, run.id, run.clock.now(), reason, counts, state.tally.workers)


class _Watch(logging.Filter):
    """Fails the run for exceptions that Scrapy logs and ignores."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def filter(self, record: logging.LogRecord) -> bool:
        """Fail the run, unless the record is from another run in this process.

        Return False to drop the record: if the disk of exported items is full, Scrapy would log the
        same traceback for each of them.
        """
        own = getattr(record, "spider", None) in (None, self._run.crawler.spider)
        if record.levelno < logging.ERROR or not own:
            return True
        raised = record.exc_info[1] if record.exc_info else None
        if isinstance(raised, OSError) and EXPORTER in f"{record.name} {record.getMessage()}":
            cause = raised.strerror or str(raised)
            place = f"{raised.filename}: " if raised.filename else ""
            self._run.end_early(
                "export",
                f"items could not be exported: {place}{cause}. All items that were read are stored "
                "in MongoDB; scrapy export posts FOLDER writes them",
            )
            return False
        message = record.getMessage().partition(":")[0]
        self._run.note_flaw(f"{message}: {in_line(raised)}" if raised else message)
        return True
