"""Make plans from options and stored history, and write them.

`replan_parts` does the whole replan: it reads the database, plans pages and feeds, and writes the
plans. `replanned` and `replanned_feeds` make a plan that is not yet in effect.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from crawler.config import Config
from crawler.errors import ConfigError, NoTargets
from crawler.planning.documents import (
    Figures,
    daily_sample,
    document_of,
    document_of_feeds,
    limits_of,
    replan_report,
)
from crawler.planning.options import (
    BALANCED,
    FEEDS,
    GOAL,
    OBJECTIVES,
    Effect,
    Part,
    PlanOptions,
    ReplanRequest,
    parts_of,
    terms_of,
    terms_within,
    too_small,
)
from crawler.planning.population import Gathered, gather, longest_interval
from crawler.planning.report_types import ReplanReport
from crawler.planning.signals import Signals, signals_of
from crawler.planning.silence import store_silences
from crawler.storage import histories, plans, runs, targets
from crawler.storage.client import Database, Document
from crawler.storage.histories import Watched
from crawler.storage.plans import TargetPlan
from crawler.storage.targets import ADAPTIVE
from crawler.utils.process import Say, return_large_blocks
from crawler.utils.text import amount, count, period, rounded_up
from crawler.utils.time import EPOCH
from schedules import calendar
from schedules.allocation.plan import Plan, draft, plan, sampled
from schedules.allocation.trust import flag_scale
from schedules.compiled import parts
from schedules.estimation.estimate import Estimate, estimate
from schedules.feeds.plan import FeedsPlan, plan_feeds
from schedules.history import DAY_HOURS, Flags, Floats, Ints
from schedules.intervals import DEFAULT_FEED_SIZE
from schedules.population import min_per_day
from schedules.schedule import (
    FREQUENCY_CLASSES,
    WEEK_DAYS,
    WEEK_HOURS,
    Schedule,
    Schedules,
    nearest_class,
)
from schedules.terms import LIMITS, BudgetTooSmall, Terms

DIGITS = 5
# Number of targets in a staged document. Slots and texts of a target take at most a few kilobytes,
# so a document stays below MongoDB's limit of 16 MB.
BATCH = 1000
DAY_SETS = 2**7
# If a plan misses a goal, its budget is raised by this factor, at most MAX_TRIES times.
MAX_TRIES, BUDGET_STEP = 4, 1.02
# Number of bisection steps for a shared budget.
HALVINGS = 10
# Maximum number of feeds that determine the price, and of targets that determine the weekly profile
# of all changes.
MAX_SAMPLED_FEEDS, MAX_SAMPLED_TARGETS = 4_000, 50_000

Price = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Replan:
    """Hold a new plan that is not yet in effect.

    document: as stored in `plans`, without the fields that `plans.activate` adds
    written:  (n,) flags of the targets whose plan is written
    """

    gathered: Gathered
    plan: Plan | FeedsPlan
    policy: str
    document: Document
    written: Flags
    now_hours: float

    @property
    def updated(self) -> int:
        """Return the number of targets whose plan is written."""
        return int(np.count_nonzero(self.written))

    def batches(self, *, by_id: bool = False) -> Iterator[list[TargetPlan]]:
        """Yield the plans of the targets whose plan is written, in reading order or by `_id`."""
        ids, rows = self.gathered.watched.ids, np.flatnonzero(self.written)
        rows = ids.order(rows) if by_id else rows
        when = next_visits(self.gathered, self.plan.schedules, rows, self.now_hours)
        for begin in range(0, len(rows), BATCH):
            own = rows[begin : begin + BATCH]
            times = [EPOCH + timedelta(hours=hours) for hours in when[begin : begin + BATCH]]
            yield list(map(TargetPlan, ids.of(own), self._plans(own), times))

    def _plans(self, rows: Ints) -> Iterator[Document]:
        """Yield the field `plan` of some targets, without `id`."""
        made, population = self.plan, self.gathered.population
        schedules = made.schedules.of(rows)
        classes = nearest_class(schedules.visits_per_week)
        slots, first = schedules.slots.tolist(), schedules.first.tolist()
        columns: dict[str, list[Any]] = {
            "policy": [self.policy] * len(rows),
            "frequency_class": [FREQUENCY_CLASSES[number] for number in classes],
            "windows": in_words(schedules),
            "visits_per_week": _rounded(schedules.visits_per_week),
            "weeks": schedules.weeks.tolist(),
            "slots": [slots[begin:end] for begin, end in pairwise(first)],
            "every_hours": schedules.every_hours.tolist(),
            "phase_hours": schedules.phase_hours.tolist(),
            **{name: _rounded(column) for name, column in made.figures(rows).items()},
            "marginal_value": _rounded(made.value[rows]),
            "last_value": _rounded(made.worth[rows]),
            "limited_by": [LIMITS[number] for number in made.bound[rows]],
        }
        if isinstance(made, Plan) and made.signals is not None:
            columns |= self._shown(made, rows)
        if self.policy == ADAPTIVE:
            columns["min_hours"] = population.min_hours[rows].tolist()
            columns["max_hours"] = population.max_hours[rows].tolist()
        each = zip(*columns.values(), strict=True)
        return (dict(zip(columns, values, strict=True)) for values in each)

    def _shown(self, made: Plan, rows: Ints) -> dict[str, list[Any]]:
        """Return what list pages show of some targets, and how many targets each list page shows.

        Flags of targets that are not followed change too fast; without a source, none is set.
        """
        signals = self.gathered.signals
        assert signals is not None
        coverage, n = signals.coverage, len(made.rate)
        recall, covers = np.full(n, np.nan), np.zeros(n, np.int64)
        recall[coverage.item] = coverage.recall
        covers[coverage.source] = np.diff(coverage.first)
        is_covered, follows = ~np.isnan(recall[rows]), made.follows[rows]
        return {
            "shown": _rounded(recall[rows]),
            "shows": covers[rows].tolist(),
            "follows": [
                bool(flag) if covered else None
                for covered, flag in zip(is_covered, follows, strict=True)
            ],
        }


def _rounded(values: Floats) -> list[float | None]:
    """Return rounded numbers; None for NaN and inf."""
    numbers = values.round(DIGITS).astype(object)
    numbers[~np.isfinite(values)] = None
    listed: list[float | None] = numbers.tolist()
    return listed


Watch = Callable[[Replan], None]


def next_visits(gathered: Gathered, schedules: Schedules, rows: Ints, now_hours: float) -> Floats:
    """Return the (m,) next visits of some targets under new schedules, in hours since 1970 (UTC).

    No next visit is later than the longest interval after the last visit. Due targets stay due.
    """
    watched, population = gathered.watched, gathered.population
    when = np.empty(len(rows))
    zone = np.array([str(each) for each in population.zones])[population.site[rows]]
    for name in np.unique(zone):
        here = np.flatnonzero(zone == name)
        clock_zone = population.zones[population.site[rows[here[0]]]]
        when[here] = calendar.next_visits(schedules.of(rows[here]), clock_zone, now_hours)
    latest = watched.visited[rows] + population.max_hours[rows]
    when = np.maximum(np.fmin(when, latest), now_hours)
    due: Floats = watched.next_visit[rows]
    result: Floats = np.where(due <= now_hours, due, when)
    return result


def in_words(schedules: Schedules) -> list[list[str]]:
    """Return the visiting times of each schedule, formatted as by `calendar.times_of`."""
    # Nearly all schedules have slots in a single week, so find the hours of their days together.
    owner = np.repeat(np.arange(len(schedules)), np.diff(schedules.first))
    here = schedules.weeks[owner] == 1
    day, hour = np.divmod(schedules.slots[here].astype(np.int64), DAY_HOURS)
    hours, inverse = np.unique(owner[here] * DAY_HOURS + hour, return_inverse=True)
    days = np.zeros(len(hours), np.int64)
    np.bitwise_or.at(days, inverse, 1 << day)
    texts, words = _daily_texts(), [list[str]() for _ in range(len(schedules))]
    place = hours % DAY_HOURS * DAY_SETS + days
    for row, number in zip((hours // DAY_HOURS).tolist(), place.tolist(), strict=True):
        words[row].append(texts[number])
    # The others have few distinct values, or are few.
    for row in np.flatnonzero((schedules.weeks > 1) | (schedules.every_hours > 0)).tolist():
        words[row] = _words(schedules[row])
    return words


@cache
def _daily_texts() -> list[str]:
    """Return 3072 texts: one for each hour of the day on each set of weekdays."""
    days = [[day for day in range(7) if chosen >> day & 1] for chosen in range(DAY_SETS)]
    names = [calendar.day_names(listed) or "daily" for listed in days]
    return [f"{name} {hour:02}:00" for hour in range(DAY_HOURS) for name in names]


@lru_cache(maxsize=4096)
def _words(schedule: Schedule) -> list[str]:
    if schedule.every_hours:
        return [f"every {period(schedule.every_hours)}"]
    return [" ".join(time) for time in calendar.times_of(schedule)]


def hours_of(moment: datetime) -> float:
    """Return hours since 1970 (UTC)."""
    return (moment - EPOCH) / timedelta(hours=1)


async def gathered_of(
    db: Database, config: Config, now: datetime, spiders: Sequence[str] | None
) -> Gathered:
    """Return the input of a plan for some spiders. Raises ConfigError if they have no targets."""
    watched = await histories.read(db, now, spiders)
    if not len(watched):
        raise NoTargets
    gathered = await gather(db, watched, config, hours_of(now))
    # Only plans need the edges of all list pages.
    signals = await signals_of(db, watched, gathered.histories, hours_of(now))
    # Drop what is in the histories and the population: five numbers of each target.
    no_counts, nothing = np.empty(0, np.int64), np.empty(0)
    kept = replace(
        watched, stated=nothing, refreshed=no_counts, false_dates=no_counts,
        feed_min_hours=nothing, min_hours=nothing, max_hours=nothing,
    )  # fmt: skip
    return replace(gathered, watched=kept, signals=signals)


async def effect_of(db: Database, watched: Watched, now: datetime, *, everything: bool) -> Effect:
    """Return the plans in effect for these targets. everything: whether these are all targets."""
    latest = {name: await plans.latest(db, name, now) for name in watched.spiders}
    return Effect(latest, await plans.plans_of(db, watched.plans), everything)


def replanned(gathered: Gathered, options: PlanOptions, effect: Effect, now: datetime) -> Replan:
    """Return the plan for pages. Raises ConfigError if the options cannot be met."""
    hours, schedules, signals = hours_of(now), gathered.watched.schedules, gathered.signals
    histories = signals.histories if signals else gathered.histories
    coverage = replace(signals.coverage, scale=scale_of(signals, effect)) if signals else None
    terms, budget = terms_of(gathered, options, effect, hours)
    # The budget of a goal is computed without caps and without keeping current schedules, so the
    # plan may fall slightly short.
    tries = MAX_TRIES if budget.source == GOAL and not budget.kept else 0
    while True:
        try:
            made = plan(gathered.population, histories, terms, hours, schedules, coverage)
        except BudgetTooSmall as error:
            raise too_small(budget.per_day, error, gathered.population.max_hours) from None
        freshness, age_days = float(1 - made.stale.mean()), float(made.age_days.mean())
        if not tries or options.is_reached(freshness, age_days):
            break
        tries -= 1
        budget = replace(budget, per_day=budget.per_day * BUDGET_STEP)
        terms = terms_within(options, budget)
    learning = learned(gathered, effect, now)
    written = (made.updated | on_other_plans(gathered, terms.policy, effect)) & ~learning
    count = int(np.count_nonzero(learning))
    updated, sample = int(np.count_nonzero(written)), daily_sample(gathered.population.key)
    figures = Figures.of(gathered, made, hours, count, updated, sample)
    sites, dated = gathered.sites, gathered.reliable_dates
    document = document_of(sites, dated, options, terms, budget, made.price, figures)
    if terms.policy == ADAPTIVE:
        document["limits"] = limits_of(gathered)
    document["at"] = now
    if signals is not None and coverage is not None:
        document["totals"]["flags_scale"] = coverage.scale
        document["warnings"] += signals.lost
    return Replan(gathered, made, terms.policy, document, written, hours)


def scale_of(signals: Signals, effect: Effect) -> float:
    """Return the flags that were followed in a week, divided by those that plans expected."""
    latest = {str(each["_id"]): each["totals"] for each in effect.latest.values() if each}
    per_day = sum(
        float(totals.get("flags_per_day") or 0) / float(totals.get("flags_scale") or 1)
        for totals in latest.values()
    )
    return flag_scale(signals.followed, per_day * WEEK_DAYS) if per_day else 1.0


def replanned_feeds(
    gathered: Gathered, options: PlanOptions, effect: Effect, now: datetime
) -> Replan:
    """Return the plan for feeds. Raises ConfigError if the options cannot be met."""
    hours, windows = hours_of(now), windows_of(gathered)
    terms, budget = terms_of(gathered, options, effect, hours)
    try:
        made = plan_feeds(
            gathered.population, gathered.histories, windows, terms, hours,
            gathered.watched.schedules,
        )  # fmt: skip
    except BudgetTooSmall as error:
        raise too_small(terms.budget_per_day, error, gathered.population.max_hours) from None
    written = made.updated | on_other_plans(gathered, terms.policy, effect)
    document = document_of_feeds(gathered, terms, budget, made, hours) | {"at": now}
    return Replan(gathered, made, terms.policy, document, written, hours)


def windows_of(gathered: Gathered) -> Ints:
    """Return the (n,) feed sizes in posts; the usual size where none was observed."""
    window = gathered.watched.feed_size
    return np.where(window > 0, window, DEFAULT_FEED_SIZE)


def on_other_plans(gathered: Gathered, policy: str, effect: Effect) -> Flags:
    """Return (n,) flags of targets that follow another policy, or adapt within other limits.

    Only these and moved targets are written. The others keep the figures of their previous plan;
    otherwise a million documents a day would be written to change a rate from 2.0 to 2.1.
    """
    watched, limits = gathered.watched, limits_of(gathered) if policy == ADAPTIVE else None
    other = [
        old is None or old.get("policy") != policy or old.get("limits") != limits
        for old in map(effect.older.get, watched.plans)
    ]
    return np.array([*other, True])[watched.plan]


def learned(gathered: Gathered, effect: Effect, now: datetime) -> Flags:
    """Return (n,) flags of targets whose plan ends automatically and has not ended."""
    followed = map(effect.older.get, gathered.watched.plans)
    goes_on = [old is not None and old.get("until", now) > now for old in followed]
    return np.array([*goes_on, False])[gathered.watched.plan]


@dataclass(frozen=True, slots=True)
class Task:
    """Hold a part with the input of its plan. began: start of reading, in seconds."""

    part: Part
    gathered: Gathered
    effect: Effect
    options: PlanOptions
    began: float


async def replan_parts(
    db: Database,
    config: Config,
    request: ReplanRequest,
    say: Say,
    watch: Watch | None = None,
) -> list[ReplanReport]:
    """Make and write the plans of a request; return their reports, pages first.

    watch: called with each plan before it is written
    """
    return_large_blocks()
    clock = config.clock
    stored, of_feeds = await targets.spiders(db), await targets.feed_spiders(db)
    requested = parts_of(request, stored, of_feeds, config)
    if not requested:
        raise NoTargets
    if not request.dry_run:
        await plans.recover(db, clock.now(), request.spiders)
    whole = len(requested) == 1 and request.kind is None
    tasks = []
    for part in requested:
        began, now = time.perf_counter(), clock.now()
        say(f"reading {part.kind}")
        spiders = None if part.everything and whole else part.spiders
        gathered = await gathered_of(db, config, now, spiders)
        effect = await effect_of(db, gathered.watched, now, everything=part.everything)
        options = part.options.over(effect.options) if part.is_default else part.options
        tasks.append(Task(part, gathered, effect, options, began))
    if request.shared and len(tasks) > 1:
        say("dividing the budget")
        pages, feeds = tasks
        shares = shares_of(pages.gathered, feeds.gathered, pages.options, config, clock.now())
        tasks = [
            replace(task, options=replace(task.options, budget=share))
            for task, share in zip(tasks, shares, strict=True)
        ]
    return [
        await _carry_out(db, config, task, say, watch, dry_run=request.dry_run) for task in tasks
    ]


async def _carry_out(
    db: Database,
    config: Config,
    task: Task,
    say: Say,
    watch: Watch | None,
    *,
    dry_run: bool,
) -> ReplanReport:
    """Make and write the plan of one part."""
    now, feeds = config.clock.now(), task.part.kind == FEEDS
    say(f"planning {len(task.gathered.watched):,} {task.part.kind}")
    began = time.perf_counter()
    make = replanned_feeds if feeds else replanned
    replan = make(task.gathered, task.options, task.effect, now)
    planning_seconds, moved = time.perf_counter() - began, replan.updated
    if watch is not None:
        watch(replan)
    if not dry_run:
        say(f"writing {moved:,} of {replan.document['targets']:,} plans")
        longest = timedelta(hours=longest_interval(config, feeds=feeds))
        mixtures = replan.plan.estimates.mixtures if isinstance(replan.plan, Plan) else None
        silences = store_silences(db, config, task.gathered, now, task.part.spiders, mixtures)
        finding_silences = asyncio.ensure_future(silences)
        try:
            await plans.activate(db, replan.document, replan.batches(), longest)
        finally:
            await finding_silences
        if (signals := task.gathered.signals) is not None and len(signals.audited):
            ids = list(task.gathered.watched.ids.of(signals.audited))
            say(f"visiting {count(len(ids), 'page')} of silent list pages")
            await targets.make_due(db, ids, now)
    seconds = round(time.perf_counter() - task.began, 3)
    second = await runs.second_requests(db, replan.document["spiders"], now)
    return replan_report(
        replan.document, moved, second, seconds, round(planning_seconds, 3), dry_run=dry_run
    )


def shares_of(
    pages: Gathered, feeds: Gathered, options: PlanOptions, config: Config, now: datetime
) -> tuple[float, float]:
    """Return the requests a day for pages and for feeds. Raises ConfigError without enough budget.

    A missed post counts as `post_hours` hours in which a page is stale.
    """
    if options.budget is None:
        raise ConfigError("no shared budget given. Set --budget N or FRESHET_BUDGET")
    minima = min_per_day(pages.population), min_per_day(feeds.population)
    if options.budget < sum(minima):
        raise ConfigError(
            f"budget {amount(options.budget)}/day is too small: pages and feeds together need "
            f"{rounded_up(sum(minima))}/day. Use --budget {rounded_up(sum(minima))}/day or more"
        )
    hours = hours_of(now)
    return split_budget(
        options.budget, minima, _page_price(pages, options, hours),
        _feed_price(feeds, hours, config.post_hours),
    )  # fmt: skip


def split_budget(
    budget: float, minima: tuple[float, float], of_pages: Price, of_feeds: Price
) -> tuple[float, float]:
    """Return the shares of a budget at which both prices are equal, within the minimum needs.

    Prices decrease with the budget. They are hours of staleness that the last request a day saves.
    """
    low, high = minima[0], budget - minima[1]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if of_pages(middle) > of_feeds(budget - middle):
            low = middle
        else:
            high = middle
    share = (low + high) / 2
    return share, budget - share


def _page_price(pages: Gathered, options: PlanOptions, now_hours: float) -> Price:
    """Return the price of a request for pages as a function of requests a day."""
    sample, share = sampled(estimate(pages.population, pages.histories))
    terms = Terms(aim=OBJECTIVES[options.objective or BALANCED])
    none = Schedules.none(len(sample.population))
    min_budget = min_per_day(sample.population)

    def price(per_day: float) -> float:
        spending = replace(terms, budget_per_day=max(per_day * share, min_budget))
        try:
            return draft(sample, spending, now_hours, none)[1]
        except BudgetTooSmall:
            # On a site with closed days, the longest intervals may need more visits.
            return math.inf

    return price


def _feed_price(feeds: Gathered, now_hours: float, post_hours: float) -> Price:
    """Return the price of a request for feeds as a function of requests a day."""
    rows = np.argsort(feeds.population.key)[:MAX_SAMPLED_FEEDS]
    population, histories = feeds.population.of(rows), feeds.histories.of(rows)
    window, share = windows_of(feeds)[rows], len(rows) / len(feeds.population)
    none, min_budget = Schedules.none(len(rows)), min_per_day(population)

    def price(per_day: float) -> float:
        terms = Terms(budget_per_day=max(per_day * share, min_budget))
        try:
            made = plan_feeds(population, histories, window, terms, now_hours, none)
        except BudgetTooSmall:
            return math.inf
        return made.price * post_hours

    return price


def changes_by_hour(estimates: Estimate) -> Floats:
    """Return the (168,) expected changes of all targets in each hour of the local week."""
    n = len(estimates.population)
    if n > MAX_SAMPLED_TARGETS:
        estimates = estimates.of(np.argsort(estimates.population.key)[:MAX_SAMPLED_TARGETS])
    week = np.zeros(WEEK_HOURS)
    for part in parts(len(estimates.population)):
        week += estimates.rates(part).mean @ estimates.profiles(part)
    return week * (n / max(1, len(estimates.population)))
