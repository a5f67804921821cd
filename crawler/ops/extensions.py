"""Scrapy extensions of every crawl, in the order of this module.

The summary at its end, metrics, the live display, the ends for a full disk and for a grace time
that is over, garbage collection, AutoThrottle.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, ClassVar, Self

from scrapy import Spider, signals
from scrapy.core.downloader import Slot
from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.extensions import throttle
from scrapy.http import Response
from scrapy.utils.asyncio import create_looping_call

from crawler.errors import FreshetError, StorageError
from crawler.fetch.downloader import Downloader
from crawler.frontier.session import Session
from crawler.items import SEEN, Outcome
from crawler.ops.progress import logs_above
from crawler.storage.health import room
from crawler.utils.garbage import collect_again
from crawler.utils.terminal import SafeConsole, print_line
from crawler.utils.text import count, moment

if TYPE_CHECKING:
    from crawler.ops.metrics import Export, ProcessMetrics

logger = logging.getLogger(__name__)
# Fewer fetched pages than these say nothing of a site definition's accuracy.
MIN_FETCHED = 20
MAX_SHOWN_HOSTS = 3
# Counts of what a run left due, by the reason.
LEFT = ("over_cap", "closed", "over_limit")
ALL_NOW = "to fetch them all now, add -a full=1"
# Counts of feeds, as the session names them.
POSTS = ("posts", "edited posts", "missed posts")
UPDATE_SECONDS = 0.5
# Between checks of the free space: of the embedded server a system call, of another a command.
NEAR_SECONDS, FAR_SECONDS = 5.0, 30.0
DISK_FULL = "disk"
GRACE_CHECK_SECONDS = 0.5
# Of the grace time, what is kept for storing what has been read and for closing: a share, and the
# most that it is.
CLOSING_SHARE, MAX_CLOSING_SECONDS = 0.2, 5.0
# Some libraries are loaded with the first page that needs them.
ITEMS = 50


class Summary:
    """Prints the summary on a terminal, logs it elsewhere, and puts it into Scrapy's stats."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.session = Session.of(crawler)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The summary of a crawl."""
        summary = cls(crawler)
        crawler.signals.connect(summary.show, signals.spider_closed)
        return summary

    async def show(self, spider: Spider) -> None:
        """Print it once the session has ended; nothing after a run that failed."""
        await self.session.ended.wait()
        if self.session.error is not None:
            return
        counts = figures(self.session)
        for name, value in counts.items():
            self.crawler.stats.set_value(f"freshet/{name}", value)
        if self.session.sums_up:
            line = sentence(self.session, counts)
        else:
            # Of a shared run the last worker to end reports what all have done.
            others = self.session.others
            line = (
                f"{self.session.spider}: {self.session.counts['visits']} fetched by this worker, "
                f"{self.session.visits_of_all} by all; {others} other "
                f"{'worker is' if others == 1 else 'workers are'} still at work"
            )
        # On a terminal the log is quiet, and the line is below the live display.
        if sys.stderr.isatty() and self.crawler.settings["LOG_LEVEL"] != "INFO":
            print_line(line, error=True)
        else:
            logger.info("%s", line)


def figures(session: Session) -> dict[str, float]:
    """The counts of a run.

    accuracy: of all fetched, those that could be read and were wanted (the paper's equation 1);
              left out where fewer than MIN_FETCHED were fetched
    left_out: links that became no targets, as there are caps for sites without end
    due:      still due at the end (a limit, a host's cap)
    posts, edited_posts, missed_posts: of feeds; the last is an estimate
    missed_visits: that plans asked for since the visits before, and that nobody made
    over_cap, closed, over_limit: of these, left as the plan's cap or the user's limit was reached,
              or the site definition's hours were over
    saved:    requests less than fetching every target
    """
    counts = session.counts
    visits = counts["visits"]
    result: dict[str, float] = {
        "fetched": visits,
        **{str(outcome): counts[outcome] for outcome in Outcome},
        "discovered": counts["discovered"],
        "left_out": counts["left out"],
        "unlisted": counts["unlisted"],
        "targets": session.targets_at_end,
        "due": counts["due"],
        "missed_visits": counts["missed visits"],
        **{name: counts[name] for name in LEFT},
        **{name.replace(" ", "_"): counts[name] for name in POSTS},
        "saved": max(0, session.targets_at_end - visits - counts["due"]),
    }
    if visits >= MIN_FETCHED:
        result["accuracy"] = sum(counts[outcome] for outcome in SEEN) / visits
    return result


def sentence(session: Session, counts: dict[str, float]) -> str:
    """Return what a run did and what it left, in one line; where it fetched nothing, why."""
    fetched, due = counts["fetched"], counts["due"]
    why = _why_left(session, counts) if due else []
    reasons = f", as {' and '.join(why)}" if why else ""
    parts: list[str] = []
    if fetched:
        parts.append(_outcomes(counts))
    elif due:
        are = "target is" if due == 1 else "targets are"
        parts.append(f"nothing fetched: {due:.0f} {are} due{reasons}")
    elif session.left is None or not session.left.outlook.targets:
        parts.append("nothing fetched: there are no targets, or all are gone (scrapy targets)")
    else:
        parts += ["nothing fetched: nothing was due", *_not_due(session)]
    new, edited, missed = (counts[name.replace(" ", "_")] for name in POSTS)
    if new or edited or missed:
        parts.append(f"{new:.0f} new posts, {edited:.0f} edited, about {missed:.0f} missed")
    if counts["left_out"]:
        parts.append(f"{counts['left_out']:.0f} links left out by the caps named in the warnings")
    if counts["missed_visits"]:
        parts.append(f"{counts['missed_visits']:.0f} visits missed")
    if fetched:
        parts += _not_due(session)
    if fetched and due:
        parts.append(f"{due:.0f} still due{reasons}")
    if session.is_full and session.allowance.caps:
        parts.append(f"full run: the plan's cap of {session.allowance.caps} was ignored")
    return f"{session.spider}: {'; '.join(parts)}"


def _outcomes(counts: dict[str, float]) -> str:
    fetched = counts["fetched"]
    line = (
        f"{fetched:.0f} fetched: {counts['new']:.0f} new, "
        f"{counts['changed']:.0f} changed, {counts['unchanged']:.0f} unchanged, "
        f"{counts['not_modified']:.0f} not modified (304), {counts['gone']:.0f} gone, "
        f"{counts['error']:.0f} errors, {counts['blocked']:.0f} blocked; "
        f"{counts['discovered']:.0f} discovered, {counts['unlisted']:.0f} unlisted"
    )
    if (accuracy := counts.get("accuracy")) is None:
        return line
    read = sum(counts[outcome] for outcome in SEEN)
    readable = f"{read:.0f} of the {fetched:.0f} fetched could be read"
    unread = "" if accuracy == 1 else "; the others failed, were blocked or are gone"
    return f"{line}; accuracy {accuracy:.2%} ({readable}{unread})"


def _not_due(session: Session) -> list[str]:
    """What was not due, until when, and how to have it all the same."""
    left, now = session.left, session.clock.now()
    if left is None:
        return []
    outlook, parts = left.outlook, []
    if outlook.repeated:
        parts.append(f"{outlook.repeated:,} that failed are due at the next run")
    if outlook.waiting and outlook.next_visit is not None:
        first = moment(outlook.next_visit, now)
        parts.append(
            f"{outlook.waiting:,} of {count(outlook.targets, 'target')} not due, the first of "
            f"them at {first}; {ALL_NOW}"
        )
    if outlook.failed and outlook.failed_until is not None:
        first = moment(outlook.failed_until, now)
        parts.append(f"{outlook.failed:,} of these failed before, the first is due at {first}")
    return parts


def _why_left(session: Session, counts: dict[str, float]) -> list[str]:
    """Why a run left what was due, each with its way out."""
    now, why = session.clock.now(), []
    if counts["over_cap"]:
        why.append(session.allowance.reached)
    if counts["closed"]:
        opens = moment(session.wrapper.opens_at(now), now)
        why.append(f"the site definition's windows or blackout close it until {opens}")
    if counts["over_limit"]:
        limit = getattr(getattr(session.crawler.spider, "arguments", None), "limit", None)
        given = "-a limit" if limit is None else f"-a limit={limit}"
        why.append(f"{given} is reached (the next run goes on, or leave it out)")
    held = list(session.left.held.items()) if session.left else []
    for host, until in held[:MAX_SHOWN_HOSTS]:
        why.append(f"{host} asked to be left alone until {moment(until, now)}")
    if len(held) > MAX_SHOWN_HOSTS:
        why.append(f"{count(len(held) - MAX_SHOWN_HOSTS, 'more host')} asked for that")
    cap = session.limits.cap
    if session.frontier.is_shared:
        # What other workers asked for is not known here.
        is_capped = not why and session.reason == "finished"
    else:
        is_capped = any(requests >= cap for requests in session.limits.asked.values())
    if cap and is_capped:
        why.append(
            f"a host gets {count(cap, 'request')} in one run at most "
            "(host_requests in the site definition, or FRESHET_HOST_REQUESTS)"
        )
    if session.reason not in ("", "finished"):
        # Scrapy's own setting, if one ended the run.
        name = session.reason.upper()
        value = session.crawler.settings.get(name)
        reason = session.reason if value is None else f"{name}={value}"
        why.append(f"the run was ended early ({reason})")
    return why or ["their hosts could not be asked (see the log)"]


class Metrics:
    """Reports one run to the metrics of its process.

    of_process: the metrics of all runs of this process; None: it is not measured
    export:     of a process that is measured for this run only
    """

    of_process: ClassVar[ProcessMetrics | None] = None

    def __init__(self, crawler: Crawler, metrics: ProcessMetrics, export: Export | None) -> None:
        self.session = Session.of(crawler)
        self.metrics = metrics
        self.export = export
        self.began = time.monotonic()
        crawler.signals.connect(self.open, signals.spider_opened)
        crawler.signals.connect(self.start, signals.engine_started)
        crawler.signals.connect(self.close, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The metrics of a crawl; NotConfigured where there are none."""
        session = Session.of(crawler)
        if cls.of_process is not None:
            return cls(crawler, cls.of_process, None)
        if session.config.metrics_dir is None:
            raise NotConfigured
        # Slow to import, and needed by few.
        from crawler.ops.metrics import Export

        try:
            export = Export(session.config.metrics_dir, session.spider)
        except FreshetError as error:
            logger.error("%s; no metrics are written", error)
            raise NotConfigured from None
        return cls(crawler, export.metrics, export)

    def open(self) -> None:
        """Note that the run begins."""
        if self.export is not None:
            self.export.begin()
        self.metrics.runs.begin(self.session)

    def start(self) -> None:
        """Measure the batches: the database is open, unless that failed."""
        if self.session.error is None:
            self.session.writer.on_stored = self.metrics.on_stored(self.session)

    async def close(self, spider: Spider, reason: str) -> None:
        """Note that the run has ended, once the session has stored all of it."""
        await self.session.ended.wait()
        self.metrics.run_ended(self.session, reason, time.monotonic() - self.began)
        if self.export is not None:
            self.export.end()


class Progress:
    """Shows visits against what is known to be due; silent where there is no terminal."""

    def __init__(self, crawler: Crawler) -> None:
        self.session = Session.of(crawler)
        if not (self.session.config.progress and sys.stderr.isatty()):
            raise NotConfigured
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        self.console = SafeConsole(stderr=True)
        self.bar = Bar(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
        )
        self.task = self.bar.add_task(self.session.spider, total=1, note="")
        self._shown = ExitStack()
        self.loop = create_looping_call(self.update)
        crawler.signals.connect(self.open, signals.engine_started)
        crawler.signals.connect(self.close, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The display of a crawl; NotConfigured where it would not be seen."""
        return cls(crawler)

    def open(self) -> None:
        """Show it, with what is logged from now on above it."""
        self._shown.enter_context(logs_above(self.console))
        self._shown.enter_context(self.bar)
        self.loop.start(UPDATE_SECONDS)

    def close(self) -> None:
        """Take it away."""
        if self.loop.running:
            self.loop.stop()
        self._shown.close()

    def update(self) -> None:
        """Bring it up to date."""
        counts = self.session.counts
        total = max(self.session.due_at_start + self.session.discovered, counts["visits"], 1)
        note = f"{counts[Outcome.NEW]} new, {counts[Outcome.CHANGED]} changed"
        self.bar.update(self.task, total=total, completed=counts["visits"], note=note)


class Room:
    """Ends a run whose database has less free space than FRESHET_MIN_FREE_MB."""

    def __init__(self, crawler: Crawler) -> None:
        self.session = Session.of(crawler)
        self._config = self.session.config
        if not self._config.min_free_mb:
            raise NotConfigured
        self._is_low = False
        self._looking: asyncio.Future[None] | None = None
        self._loop = create_looping_call(self._look)
        crawler.signals.connect(self._open, signals.engine_started)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The extension of a crawl; NotConfigured without a limit."""
        return cls(crawler)

    def _open(self) -> None:
        is_near = self._config.mongo_uri is None
        self._loop.start(NEAR_SECONDS if is_near else FAR_SECONDS, now=True)

    def _look(self) -> None:
        if self._is_low or self.session.ended.is_set() or self.session.error:
            self._loop.stop()
        elif self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._check())

    async def _check(self) -> None:
        """End the run if there is too little room; in an outage the run stands still already."""
        if self.session.patience.outage.is_on:
            return
        with suppress(StorageError):
            lack = await room(self.session.db, self._config)
            if lack is not None and not self.session.ended.is_set():
                self._is_low = True
                self.session.end_early(DISK_FULL, lack)


class Grace:
    """Gives up answers that are still waited for, and servers that are away, after a time."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.session = Session.of(crawler)
        grace = self.session.config.grace_seconds
        self._seconds = grace - min(CLOSING_SHARE * grace, MAX_CLOSING_SECONDS)
        self._began: float | None = None
        # Scrapy says when a pass has ended, not when it begins to.
        self._loop = create_looping_call(self._look)
        crawler.signals.connect(self._open, signals.engine_started)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The extension of a crawl."""
        return cls(crawler)

    def _open(self) -> None:
        self._loop.start(GRACE_CHECK_SECONDS, now=False)

    def _look(self) -> None:
        downloader = getattr(self.crawler.engine, "downloader", None)
        if self.session.ended.is_set() or not isinstance(downloader, Downloader):
            self._loop.stop()
            return
        if self._began is None and downloader.is_closing:
            self._began = time.monotonic()
        if self._began is None or time.monotonic() < self._began + self._seconds:
            return
        if not self.session.is_hurried:
            logger.warning("The time to end is over: what is under way is given up")
            self.session.hurry()
        downloader.give_up()


class Garbage:
    """Leaves out of collections what is there when a crawl starts, and after its first items."""

    def __init__(self, crawler: Crawler) -> None:
        self._signals = crawler.signals
        self._items = 0
        self._signals.connect(collect_again, signals.engine_started)
        self._signals.connect(self.count, signals.item_scraped)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The extension of a crawl."""
        return cls(crawler)

    def count(self) -> None:
        """Note an item."""
        self._items += 1
        if self._items == ITEMS:
            self._signals.disconnect(self.count, signals.item_scraped)
            collect_again()


class AutoThrottle(throttle.AutoThrottle):
    """Scrapy's own, for passes that are answered with 304.

    It never lowers the delay after a status other than 200: a pass over an unchanged site would
    stay at the first delay for ever.
    """

    def _adjust_delay(self, slot: Slot, latency: float, response: Response) -> None:
        if response.status == 304:
            response = response.replace(status=200)
        super()._adjust_delay(slot, latency, response)
