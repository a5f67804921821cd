"""Detect whether a page has changed, and determine its history and next visit; store nothing."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Self
from zoneinfo import ZoneInfo

from scrapy.crawler import Crawler
from scrapy.exceptions import DropItem

from crawler.errors import StorageError
from crawler.extract.content import comparable, digest
from crawler.extract.list_wrappers import definitions
from crawler.extract.noise import (
    RANDOM,
    after_visit,
    is_long,
    passage_of,
)
from crawler.extract.response import settle_stand_in
from crawler.extract.site_definition import Wrapper
from crawler.frontier.frontiers import Settled
from crawler.frontier.run import Run
from crawler.frontier.session import Session
from crawler.items import (
    CAPS_SEPARATOR,
    FAILED,
    SEEN,
    Breakage,
    Broken,
    Fetched,
    Kind,
    Noise,
    Outcome,
    Target,
    TargetPlan,
    Visit,
)
from crawler.storage import listings, posts, visits
from crawler.storage.client import Document
from crawler.utils.sandbox import LimitExceeded, ProcessPool
from crawler.utils.text import count
from crawler.utils.time import EPOCH, NEVER, http_date
from pipelines.broken import BreakageDetector, is_replaced
from schedules import calendar
from schedules.history import FieldHistory, History
from schedules.intervals import Intervals, next_interval
from schedules.schedule import WEEK_HOURS

logger = logging.getLogger(__name__)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
MILLISECOND = timedelta(milliseconds=1)
HOUR_SECONDS = 3600
# A cell's mean execution time covers about this many recent visits.
RECENT_VISITS = 20
# Limits of one diff in a subprocess; the largest takes about 1.5 s.
MAX_DIFF_SECONDS, MAX_DIFF_MB = 5, 512
UTC_ZONE = ZoneInfo("UTC")
FEEDS = Intervals(6.0, 1.0, 672.0, planned_hours=4032.0)
CELLS = Intervals(1.0, 1.0, 672.0)
# A redundant list page that follows at least this many others is visited half as often after each
# visit, down to the maximum interval.
MIN_REDUNDANT_LISTS, MAX_REDUNDANT_INTERVAL = 3, timedelta(days=7)
UNDECIDED = "cannot be processed"
EDITED = "the site definition was edited"
NOTHING_NEW = "no new link"
# A list page that differs on this many visits in a row, or on all of its visits, may have random
# boxes.
MIN_DIFFERING = 3
AGAIN = "stored again after an interrupted fetch"
# Numbers of changes in a row in one passage that a run reports.
REPORTED = frozenset({5, 10, 20, 40, 80, 160, 320})
MAX_CHARACTERS = 80
# Minimum number of pages of a run with a field of which only a random part changed.
MIN_RANDOM = 3
MAX_RANDOM_CHARACTERS = 4000
# Session ids, signatures and times of the request, mostly in a URL.
TOKEN = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9A-Za-z]{16,}|\b\d{10,}\b")


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings that determine the next visit.

    zone:               time zone of the site's weekly profile
    gone_confirmations: number of consecutive 404 or 410 responses until a page is gone
    push_poll_hours:    interval between polls of a feed with WebSub pushes
    once_tries:         maximum number of tries to fetch the page of a feed post
    periods:            intervals of cells with a fixed period, by name
    """

    list_pages: Intervals
    items: Intervals
    gone_confirmations: int
    zone: ZoneInfo = UTC_ZONE
    feeds: Intervals = FEEDS
    push_poll_hours: float = 72.0
    once_tries: int = 5
    cells: Intervals = CELLS
    periods: Mapping[str, Intervals] = field(default_factory=dict)

    def intervals(self, target: Target) -> Intervals:
        """Return the intervals for a target's kind."""
        if target.kind is Kind.FEED:
            return self.feeds
        if target.kind is Kind.CELL:
            return self.periods.get(target.cell or "", self.cells)
        return self.list_pages if target.kind is Kind.LIST else self.items


class NotStored(DropItem):
    """Raised for a visit that is not stored because the run ends; its target stays due."""

    def __init__(self) -> None:
        super().__init__("the run ended before the visit was stored", log_level="DEBUG")


class SessionPipeline:
    """Base class of pipelines that use the session of the run and its rules."""

    def __init__(self, session: Session) -> None:
        self.session, self.run = session, session.run
        self.rules = rules_of(session.run)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Create the pipeline of a crawl."""
        return cls(Session.of(crawler))

    def end_run(self, target: Target, error: StorageError) -> NotStored:
        """End the run because the database failed; return the exception to raise.

        The error is logged once; Scrapy would log it for each visit with the page's content.
        """
        self.run.fail(error)
        self.session.frontier.settle(target, Settled.LEFT)
        return NotStored()


class ChangesPipeline(SessionPipeline):
    """Converts a Fetched to a Visit with outcome, sizes and next visit."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.sandbox = ProcessPool.forking(MAX_DIFF_SECONDS, MAX_DIFF_MB)
        self.detector = BreakageDetector(session.run)
        self.noise = NoiseDetector(session.run)

    def close_spider(self) -> None:
        """Report changes that were not edits, and passages that change again and again."""
        for line in self.noise.report():
            logger.warning("%s: %s", self.run.spider, line)

    async def process_item(self, item: Any) -> Any:
        """Convert a Fetched to a Visit; return other items unchanged."""
        if not isinstance(item, Fetched):
            return item
        try:
            settle_stand_in(item)
            if (login := await self.detector.login(item)) is not None:
                return as_broken(item, login, self.rules)
            visit = decide(item, self.rules)
            visit.noise = noise_after(visit, self.run.wrapper)
            old = await self.session.old_contents.of(item) if visit.changed else None
            if old is not None and self._is_other_page(item, old):
                return as_gone(item, self.rules)
            if (reason := self.noise.reason(visit, old)) is not None:
                as_unchanged(visit, reason, self.rules)
                old = None
            visit.broken = await self.detector.state(visit, old)
            note_breakage(visit, self.rules)
            if visit.changed and visit.broken is None and await self._shows_nothing_new(item):
                as_unchanged(visit, NOTHING_NEW, self.rules)
                old = None
            if old is not None:
                visit.diff_size = await self._diff_size(item, old)
                self.noise.note_fields(visit, old)
                visit.field_history = field_history(visit, old)
        except StorageError as error:
            raise self.end_run(item.target, error) from None
        except Exception as error:
            logger.exception("Processing %s failed", item.target.url)
            return as_error(item, UNDECIDED, error, self.rules)
        return visit

    async def _shows_nothing_new(self, fetched: Fetched) -> bool:
        """Return whether a list page with random boxes has no new link and no new date.

        A page without such boxes stays the same on some visits. What it shows then counts whenever
        it differs, also if one new item has moved others to the next pages of the list.
        """
        target = fetched.target
        differs_always = target.differing + 1 >= min(target.visits, MIN_DIFFERING)
        if target.kind is not Kind.LIST or not differs_always:
            return False
        return not await self.run.patience.read(lambda: listings.shows_news(self.run.db, fetched))

    def _is_other_page(self, fetched: Fetched, old: Document) -> bool:
        """Return whether an item redirects to a page that is not an item, such as a search."""
        is_item = self.run.wrapper.match(fetched.final_url or "").kind is Kind.ITEM
        return not is_item and is_replaced(fetched, old)

    async def _diff_size(self, fetched: Fetched, old: Document) -> int:
        from crawler.utils.diff import diff_size, estimated_diff_size, is_quick

        before = "\n".join(posts.as_lines(old))
        after = "\n".join(posts.as_lines(posts.content_of(fetched)))
        if is_quick(before, after):
            return diff_size(before, after)
        try:
            size: int = await self.sandbox.run(partial(diff_size, before, after))
            return size
        except LimitExceeded as problem:
            url = fetched.target.url
            logger.warning("Size of the change of %s estimated: the comparison %s", url, problem)
            return estimated_diff_size(before, after)


def noise_after(visit: Visit, wrapper: Wrapper) -> Noise | None:
    """Return what is known of the random text of a page after a visit; None: as before. Pure."""
    fetched, target = visit.fetched, visit.fetched.target
    if target.kind is not Kind.ITEM or not wrapper.wants_main_text:
        return None
    noise = fetched.random_text
    if not visit.changed:
        counts = visit.outcome in SEEN and noise.score
        return after_visit(noise, changed=False) if counts else None
    if target.selector_digest != fetched.selector_digest or is_long(fetched.content or {}):
        return None
    return fetched.noise or after_visit(noise, changed=True)


class NoiseDetector:
    """Finds changes that are no edits of the page, during one run of a process."""

    def __init__(self, run: Run) -> None:
        self._run = run
        # By number of changes in a row: the pages, and an example.
        self._repeats: Counter[int] = Counter()
        self._repeated: dict[int, str] = {}
        # By field: the pages on which only a random part of it changed, and an example.
        self._random: Counter[str] = Counter()
        self._random_examples: dict[str, str] = {}

    def reason(self, visit: Visit, old: Document | None) -> str | None:
        """Return why a visit with a content that differs is not a change of the page; else None.

        old: content before; None if it is not stored
        """
        fetched = visit.fetched
        if not visit.changed or old is None or visit.noise is None:
            return None
        before = comparable(old, visit.noise, fetched.unordered)
        after = comparable(fetched.content or {}, visit.noise, fetched.unordered)
        if digest(before) == digest(after):
            return RANDOM
        passage = passage_of(before, after)
        again = passage is not None and passage.name == visit.noise.passage
        repeats = visit.noise.repeats + 1 if again else 1
        name = passage.name if passage is not None else ""
        visit.noise = replace(visit.noise, passage=name, repeats=repeats)
        if passage is not None and repeats in REPORTED:
            self._repeats[repeats] += 1
            text = passage.text[:MAX_CHARACTERS]
            self._repeated.setdefault(repeats, f"{fetched.target.url}: {text!r}")
        return None

    def note_fields(self, visit: Visit, old: Document) -> None:
        """Note the fields of a changed item of which only a random part changed.

        old: content before
        """
        fields, new = self._run.wrapper.fields, visit.fetched.content or {}
        for name in fields if visit.fetched.target.kind is Kind.ITEM else ():
            if is_random(old.get(name), new.get(name)):
                self._random[name] += 1
                example = f"{visit.fetched.target.url}: {str(new[name])[:MAX_CHARACTERS]!r}"
                self._random_examples.setdefault(name, example)

    def report(self) -> list[str]:
        """Return what to report at the end of the run, one line each."""
        lines = [
            f"field {name}: only a random part changed on {count(pages, 'page')}, for example "
            f"{self._random_examples[name]}; such pages change on every visit. Select only the "
            "constant part, such as xpath = \"substring-before(//a/@href, '?')\""
            for name, pages in sorted(self._random.items())
            if pages >= MIN_RANDOM
        ]
        for repeats, pages in sorted(self._repeats.items()):
            lines.append(
                f"{count(pages, 'page')} changed {repeats} times in a row in the same passage, for "
                f"example {self._repeated[repeats]}; if it is not content, exclude it with "
                "ignore = ['SELECTOR'] in the site definition"
            )
        return lines


def is_random(before: object, after: object) -> bool:
    """Return whether two different values are texts that differ only in long random parts."""
    if not (isinstance(before, str) and isinstance(after, str)) or before == after:
        return False
    if max(len(before), len(after)) > MAX_RANDOM_CHARACTERS:
        return False
    if TOKEN.sub("", before) != TOKEN.sub("", after):
        return False
    pairs = zip(TOKEN.findall(before), TOKEN.findall(after), strict=False)
    # Words differ in letters only.
    return all(any(map(str.isdigit, x + y)) for x, y in pairs if x != y)


def as_error(fetched: Fetched, problem: str, error: Exception, rules: Rules) -> Visit:
    """Return an error visit without content, so that only this page fails."""
    bare = Fetched(
        fetched.target,
        fetched.at,
        fetched.selector_digest,
        fetched.status,
        fetched.elapsed_ms,
        Outcome.ERROR,
        f"{problem}: {type(error).__name__}: {str(error)[:200]}",
        fetched.size,
        archived=fetched.archived,
    )
    visit = decide(bare, rules)
    visit.broken = fetched.target.broken
    return visit


def as_broken(fetched: Fetched, broken: Broken, rules: Rules) -> Visit:
    """Return an error visit for a page that a login page replaced; its stored content stays."""
    if fetched.outcome is not Outcome.BLOCKED:
        fetched.outcome = Outcome.ERROR
    fetched.reason = broken.text
    fetched.content = fetched.links = fetched.content_hash = None
    visit = decide(fetched, rules)
    visit.broken = continued(broken, fetched.target.broken)
    return visit


def as_gone(fetched: Fetched, rules: Rules) -> Visit:
    """Return a visit without content for an item that another page replaced."""
    fetched.outcome, fetched.reason = Outcome.GONE, f"redirects to {fetched.final_url}"
    fetched.content = fetched.links = fetched.content_hash = None
    visit = decide(fetched, rules)
    visit.broken = fetched.target.broken
    return visit


def as_unchanged(visit: Visit, reason: str, rules: Rules) -> None:
    """Make a visit unchanged whose content differs, but was not edited; its content is stored."""
    fetched = visit.fetched
    visit.outcome, visit.reason, visit.reread = Outcome.UNCHANGED, reason, True
    visit.false_dates = count_false_dates(fetched, Outcome.UNCHANGED)
    visit.history = extended_history(fetched, Outcome.UNCHANGED)
    visit.next_visit, visit.every_hours = next_visit(
        fetched, Outcome.UNCHANGED, rules.zone, rules.intervals(fetched.target)
    )


def note_breakage(visit: Visit, rules: Rules) -> None:
    """Set the reason of a visit to a broken page; do not count breaking and recovery as changes.

    Later changes of a page that stays broken count as usual.
    """
    fetched, broken = visit.fetched, visit.broken
    before = fetched.target.broken
    if broken is not None:
        # Other errors have a reason of their own.
        if visit.outcome in SEEN or fetched.content is not None:
            visit.reason = "; ".join(dict.fromkeys(filter(None, (visit.reason, broken.text))))
        visit.broken = continued(broken, before)
    # A login page is never stored, so changed content means that the page itself changed.
    was = before.how if before is not None and before.how is not Breakage.LOGIN else None
    if visit.changed and was is not (broken.how if broken is not None else None):
        visit.history = extended_history(fetched, Outcome.UNCHANGED)
        visit.next_visit, visit.every_hours = next_visit(
            fetched, Outcome.UNCHANGED, rules.zone, rules.intervals(fetched.target)
        )


def continued(broken: Broken, before: Broken | None) -> Broken:
    """Return a breakage with the time when it began."""
    is_same = before is not None and before.how is broken.how
    return replace(broken, since=before.since) if before is not None and is_same else broken


def field_history(visit: Visit, old: Document) -> FieldHistory | None:
    """Return which fields of an item changed, including this visit; None if unknown.

    old: content at the last visit

    Also None for a page with a single field, which changes whenever the page does.
    """
    fetched, history = visit.fetched, visit.history
    target, at = fetched.target, (fetched.at - EPOCH) // MINUTE
    before, new = target.history, posts.content_of(fetched)
    is_counted = history is not None and history.last_change == at and before is not None
    if before is None or not is_counted or target.kind is not Kind.ITEM or len(new) < 2:
        return None
    # Values that other selectors extracted are not comparable.
    if target.selector_digest != fetched.selector_digest:
        return None
    known = target.field_history
    if known is None or known.digest != fetched.selector_digest:
        known = FieldHistory(fetched.selector_digest, before.until)
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    return known.changed(at, names) if names else None


def decide(fetched: Fetched, rules: Rules) -> Visit:
    """Return the visit of a fetch: its outcome and its target's next state. Pure."""
    target, intervals = fetched.target, rules.intervals(fetched.target)
    outcome, reason = fetched.outcome, fetched.reason
    if outcome is Outcome.NOT_MODIFIED and target.content_hash is None:
        # The request had no condition, so the server had to send the page.
        outcome, reason = Outcome.ERROR, "status 304, but the page was never read"
    if outcome is Outcome.GONE:
        gone = target.consecutive_gone + 1
        confirmed = gone >= rules.gone_confirmations
        when = intervals.after_gone(fetched.at, confirmed=confirmed)
        progress = None if confirmed else f"{gone} of {rules.gone_confirmations} confirmations"
        reason = "; ".join(filter(None, (reason, progress))) or None
        visit = Visit(fetched, Outcome.GONE, when, reason, consecutive_gone=gone, gone=confirmed)
    elif outcome in FAILED:
        errors = target.consecutive_errors + 1
        # Back off from a host that refused.
        is_refused = outcome is Outcome.BLOCKED
        after = intervals.after_refusals if is_refused else intervals.after_errors
        visit = Visit(
            fetched,
            outcome,
            after(fetched.at, errors),
            reason,
            consecutive_errors=errors,
            consecutive_gone=target.consecutive_gone,
        )
    else:
        outcome, reason = (outcome, None) if outcome else compare(fetched)
        if target.consecutive_gone and outcome is not Outcome.NEW:
            reason = reason or visits.WAS_GONE
        when, every_hours = next_visit(fetched, outcome, rules.zone, intervals)
        visit = Visit(
            fetched,
            outcome,
            when,
            reason,
            update_size=update_size(fetched, outcome),
            reread=reason in (EDITED, AGAIN),
            history=extended_history(fetched, outcome),
            false_dates=count_false_dates(fetched, outcome),
            every_hours=every_hours,
        )
    # The page of a feed post is fetched until one fetch succeeds, or once_tries have failed.
    settled = visit.gone or visit.outcome in SEEN or visit.consecutive_errors >= rules.once_tries
    if target.post and settled:
        visit.next_visit = NEVER
    visit.missed_visits = count_missed_visits(fetched)
    visit.execution_ms = execution_ms(fetched)
    return visit


def extended_history(fetched: Fetched, outcome: Outcome) -> History:
    """Return the target's history with this observation added."""
    at, before = (fetched.at - EPOCH) // MINUTE, fetched.target.history
    if before is None or outcome is Outcome.NEW:
        return History.begin(at)
    if outcome is not Outcome.CHANGED:
        return before.seen(at, changed=False)
    return before.seen(at, changed=True, stated_minute=stated_minute(fetched))


def stated_minute(fetched: Fetched) -> int:
    """Return the stated time of the change in minutes since 1970; 0 without a new one."""
    header = fetched.validators.last_modified
    if not header or header == fetched.target.validators.last_modified:
        return 0
    moment = http_date(header)
    if moment is None or moment > fetched.at:
        return 0
    return max(0, (moment - EPOCH) // MINUTE)


def count_false_dates(fetched: Fetched, outcome: Outcome) -> int:
    """Return the number of visits with a new Last-Modified and unchanged content."""
    before, now = fetched.target.validators.last_modified, fetched.validators.last_modified
    is_false = outcome is Outcome.UNCHANGED and None not in (before, now) and before != now
    return fetched.target.false_dates + is_false


def next_visit(
    fetched: Fetched, outcome: Outcome, zone: ZoneInfo, intervals: Intervals
) -> tuple[datetime, float | None]:
    """Return the time of the next visit, and the new interval of an adaptive plan."""
    target, plan, at = fetched.target, fetched.target.plan, fetched.at
    earliest = at + timedelta(hours=target.min_hours)
    longest = intervals.planned_hours or intervals.longest_hours
    latest = at + timedelta(hours=min(target.max_hours or longest, longest))
    if plan is None or not _is_in_effect(plan, at):
        when = max(intervals.after_seen(at), earliest, after_redundant(target, at))
        return (min(when, latest) if target.max_hours else when), None
    every = plan.schedule.every_hours if plan.adaptive else None
    if every is not None and outcome is not Outcome.NEW:
        changed = outcome is Outcome.CHANGED
        least = target.min_hours or plan.min_hours
        every = next_interval(every, least, target.max_hours or plan.max_hours, changed=changed)
    if every:
        planned = max(at + timedelta(hours=every), earliest)
    else:
        # The first planned time after the minimum interval.
        planned = calendar.next_visit(plan.schedule, zone, max(at, earliest - MILLISECOND))
    return min(planned, latest), every


def after_redundant(target: Target, at: datetime) -> datetime:
    """Return the earliest next visit of a redundant list page after others: back off; else `at`.

    The first redundant pages keep their interval: other list pages may show the same new items, but
    later.
    """
    is_late = target.is_redundant and target.redundant_lists >= MIN_REDUNDANT_LISTS
    if not is_late or target.visited_at is None:
        return at
    return at + min(2 * (at - target.visited_at), MAX_REDUNDANT_INTERVAL)


def count_missed_visits(fetched: Fetched) -> int:
    """Return the number of planned visits missed since the one that was due."""
    plan, due = fetched.target.plan, fetched.target.next_visit
    if (
        plan is None
        or due is None
        or fetched.push is not None
        or not _is_in_effect(plan, fetched.at)
    ):
        return 0
    periods = (fetched.at - due) / HOUR * plan.schedule.visits_per_week / WEEK_HOURS
    return max(0, int(periods))


def execution_ms(fetched: Fetched) -> float | None:
    """Return the mean refresh time of a cell, weighted to recent ones (the paper's avg(Eq))."""
    target = fetched.target
    if target.kind is not Kind.CELL or not fetched.elapsed_ms:
        return target.execution_ms
    before = fetched.elapsed_ms if target.execution_ms is None else target.execution_ms
    return before + (fetched.elapsed_ms - before) / min(target.visits + 1, RECENT_VISITS)


def _is_in_effect(plan: TargetPlan, at: datetime) -> bool:
    return plan.until is None or plan.until > at


def compare(fetched: Fetched) -> tuple[Outcome, str | None]:
    """Return new, changed or unchanged by the content hash, and the reason.

    Content hashes before and after an edit of the site definition are not comparable, so the hashes
    of the raw pages are compared. If the caps were edited, a page with too many links has the same
    content, but more of its links may be kept.
    """
    target = fetched.target
    if target.content_hash is None:
        return Outcome.NEW, None
    if fetched.content_hash == target.content_hash:
        if target.again:
            return Outcome.UNCHANGED, AGAIN
        other_caps = (
            CAPS_SEPARATOR in (target.selector_digest or "")
            and fetched.selector_digest != target.selector_digest
        )
        return Outcome.UNCHANGED, EDITED if other_caps else None
    if fetched.selector_digest != target.selector_digest and fetched.raw_hash == target.raw_hash:
        return Outcome.UNCHANGED, EDITED
    return Outcome.CHANGED, None


def update_size(fetched: Fetched, outcome: Outcome) -> int:
    """Return the size difference from the previous fetch in bytes (the paper's update_size).

    0 for the first fetch.
    """
    if outcome not in (Outcome.CHANGED, Outcome.UNCHANGED):
        return 0
    return abs(fetched.size - fetched.target.size)


def rules_of(run: Run) -> Rules:
    """Return the rules of a crawl: the site definition's intervals, else the configured ones."""
    config, wrapper = run.config, run.wrapper
    retry_hours = config.error_retry_seconds / HOUR_SECONDS

    def intervals(hours: float | None, default_hours: float, *, feeds: bool = False) -> Intervals:
        return Intervals(
            hours or default_hours,
            config.error_interval_hours,
            config.longest_hours(feeds=False),
            retry_hours,
            config.longest_hours(feeds=feeds),
        )

    # A failed cell with a fixed period is retried no later than in its next period.
    error_hours = config.error_interval_hours
    periods = {
        cell.name: Intervals(
            cell.every_hours, min(error_hours, cell.every_hours), cell.every_hours, retry_hours
        )
        for cell in definitions(wrapper)
        if cell.every_hours is not None
    }
    return Rules(
        intervals(wrapper.list_interval_hours, config.list_interval_hours),
        intervals(wrapper.item_interval_hours, config.item_interval_hours),
        config.gone_confirmations,
        wrapper.zone,
        intervals(None, config.feed_interval_hours, feeds=True),
        config.push_poll_hours,
        cells=intervals(None, config.cell_interval_hours),
        periods=periods,
    )
