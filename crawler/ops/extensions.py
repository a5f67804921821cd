"""The closing line of a run: what it did, what it left, and the next step."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Self

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
from crawler.ops.metrics_state import Process
from crawler.ops.progress import logs_above
from crawler.storage.health import room
from crawler.utils.garbage import collect_again
from crawler.utils.terminal import SafeConsole, print_line
from crawler.utils.text import count, moment

if TYPE_CHECKING:
    from crawler.ops.metrics import Measuring
    from crawler.ops.metrics_export import Export

logger = logging.getLogger(__name__)
# Fewer fetched pages than these say nothing of a site definition's accuracy.
MIN_FETCHED = 20
# Hosts that a line names at most.
SHOWN = 3
# Counts of what a run left due, by the reason.
LEFT = ("over_cap", "closed", "over_limit")
ALL_NOW = "to fetch them all now, add -a full=1"

POSTS = ("posts", "edited posts", "missed posts")


class Summary:
    """Prints the summary on a terminal, logs it elsewhere, and puts it into Scrapy's stats."""

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self.session = Session.of(crawler)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The summary of a crawl."""
        summary = cls(crawler)
        crawler.signals.connect(summary.say, signals.spider_closed)
        return summary

    async def say(self, spider: Spider) -> None:
        """Say it once the session has ended; nothing after a pass that failed."""
        await self.session.ended.wait()
        if self.session.error is not None:
            return
        counts = figures(self.session)
        for name, value in counts.items():
            self.crawler.stats.set_value(f"freshet/{name}", value)
        line = sentence(self.session, counts)
        if not self.session.sums_up:
            line = part_of_a_pass(self.session)
        # On a terminal the log is quiet, and the line stands below the live display.
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
    found: dict[str, float] = {
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
        found["accuracy"] = _read(counts) / visits
    return found


def sentence(session: Session, counts: dict[str, float]) -> str:
    """What a run did and what it left, in one line; where it fetched nothing, why."""
    did = _nothing(session, counts) if not counts["fetched"] else _outcomes(counts)
    parts = [f"{session.spider}: {did}", *_of_posts(counts)]
    if counts["left_out"]:
        parts.append(f"{counts['left_out']:.0f} links left out by the caps named in the warnings")
    if counts["missed_visits"]:
        parts.append(f"{counts['missed_visits']:.0f} visits missed")
    if counts["fetched"]:
        parts += _not_due(session)
    if counts["fetched"] and counts["due"]:
        parts.append(f"{counts['due']:.0f} still due{_as(_why_left(session, counts))}")
    if session.is_full and session.allowance.caps:
        parts.append(f"full run: the plan's cap of {session.allowance.caps} was ignored")
    return "; ".join(parts)


def _outcomes(counts: dict[str, float]) -> str:
    """What was fetched and found."""
    line = (
        f"{counts['fetched']:.0f} fetched: {counts['new']:.0f} new, "
        f"{counts['changed']:.0f} changed, {counts['unchanged']:.0f} unchanged, "
        f"{counts['not_modified']:.0f} not modified (304), {counts['gone']:.0f} gone, "
        f"{counts['error']:.0f} errors, {counts['blocked']:.0f} blocked; "
        f"{counts['discovered']:.0f} discovered, {counts['unlisted']:.0f} unlisted"
    )
    if (accuracy := counts.get("accuracy")) is None:
        return line
    readable = f"{_read(counts):.0f} of the {counts['fetched']:.0f} fetched could be read"
    others = "" if accuracy == 1 else "; the others failed, were blocked or are gone"
    return f"{line}; accuracy {accuracy:.2%} ({readable}{others})"


def _read(counts: Mapping[str, float]) -> float:
    return sum(counts[outcome] for outcome in SEEN)


def _nothing(session: Session, counts: dict[str, float]) -> str:
    """Why nothing was fetched, and what to do."""
    if due := counts["due"]:
        are = "target is" if due == 1 else "targets are"
        return f"nothing fetched: {due:.0f} {are} due{_as(_why_left(session, counts))}"
    left = session.left
    if left is None or not left.outlook.targets:
        return "nothing fetched: there are no targets, or all are gone (scrapy targets)"
    parts = _not_due(session)
    return "; ".join(["nothing fetched: nothing was due", *parts])


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
    for host, until in held[:SHOWN]:
        why.append(f"{host} asked to be left alone until {moment(until, now)}")
    if len(held) > SHOWN:
        why.append(f"{count(len(held) - SHOWN, 'more host')} asked for that")
    if _is_host_capped(session, why):
        why.append(
            f"a host gets {count(session.limits.cap, 'request')} in one run at most "
            "(host_requests in the site definition, or FRESHET_HOST_REQUESTS)"
        )
    if session.reason not in ("", "finished"):
        why.append(f"the run was ended early ({_ended(session)})")
    return why or ["their hosts could not be asked (see the log)"]


def _is_host_capped(session: Session, why: list[str]) -> bool:
    """Whether a host had all its requests; what other workers asked for is not known here."""
    cap = session.limits.cap
    if not cap or not session.frontier.is_shared:
        return bool(cap) and any(asked >= cap for asked in session.limits.asked.values())
    return not why and session.reason == "finished"


def _ended(session: Session) -> str:
    """Why Scrapy ended a run early: its own setting, if one did."""
    name = session.reason.upper()
    value = session.crawler.settings.get(name)
    return session.reason if value is None else f"{name}={value}"


def _as(why: list[str]) -> str:
    return f", as {' and '.join(why)}" if why else ""


def part_of_a_pass(session: Session) -> str:
    """What this worker did, in one line; the last one to end says what all have done."""
    others = "worker is" if session.others == 1 else "workers are"
    return (
        f"{session.spider}: {session.counts['visits']} fetched by this worker, "
        f"{session.visits_of_all} by all; {session.others} other {others} still at work"
    )


def _of_posts(counts: dict[str, float]) -> list[str]:
    """What feeds brought; nothing where there are none."""
    if not any(counts[name.replace(" ", "_")] for name in POSTS):
        return []
    return [
        f"{counts['posts']:.0f} new posts, {counts['edited_posts']:.0f} edited, "
        f"about {counts['missed_posts']:.0f} missed"
    ]


class Metrics:
    """Tells a process's measuring of one pass.

    export: of a process that is measured for this pass alone; None: it is measured already
    """

    def __init__(self, crawler: Crawler, measuring: Measuring, export: Export | None) -> None:
        self.session = Session.of(crawler)
        self.measuring = measuring
        self.export = export
        self.began = time.monotonic()
        crawler.signals.connect(self.open, signals.spider_opened)
        crawler.signals.connect(self.start, signals.engine_started)
        crawler.signals.connect(self.close, signals.spider_closed)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """The measuring of a crawl; NotConfigured where nobody wants to know."""
        session = Session.of(crawler)
        if (measuring := Process.measuring) is not None:
            return cls(crawler, measuring, None)
        if session.config.metrics_dir is None:
            raise NotConfigured
        # Slow to import, and needed by few.
        from crawler.ops.metrics_export import Export

        try:
            export = Export(session.config.metrics_dir, session.spider)
        except FreshetError as error:
            logger.error("%s; no metrics are written", error)
            raise NotConfigured from None
        return cls(crawler, export.measuring, export)

    def open(self) -> None:
        """The pass begins."""
        if self.export is not None:
            self.export.begin()
        self.measuring.passes.begin(self.session)

    def start(self) -> None:
        """The database is open, unless that failed."""
        if self.session.error is None:
            self.session.writer.on_stored = self.measuring.batches(self.session)

    async def close(self, spider: Spider, reason: str) -> None:
        """The pass has ended, once the session has stored all of it."""
        await self.session.ended.wait()
        self.measuring.ended(self.session, reason, time.monotonic() - self.began)
        if self.export is not None:
            self.export.end()


UPDATE_SECONDS = 0.5


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
        known = max(self.session.due_at_start + self.session.discovered, counts["visits"], 1)
        note = f"{counts[Outcome.NEW]} new, {counts[Outcome.CHANGED]} changed"
        self.bar.update(self.task, total=known, completed=counts["visits"], note=note)


# Of the embedded server the file system is asked, of another the server.
LOOK_SECONDS, LOOK_FAR_SECONDS = 5.0, 30.0
REASON = "disk"


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
        self._loop.start(LOOK_SECONDS if is_near else LOOK_FAR_SECONDS, now=True)

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
                self.session.end_early(REASON, lack)


GRACE_LOOK_SECONDS = 0.5
# Of the grace time, what is kept for storing what has been read and for closing: a share, and the
# most that it is.
CLOSING_SHARE, MAX_CLOSING_SECONDS = 0.2, 5.0


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
        self._loop.start(GRACE_LOOK_SECONDS, now=False)

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


# Some libraries are loaded with the first page that needs them.
ITEMS = 50


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
