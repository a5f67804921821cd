"""Plan the pages of more sites than fit into one process: in shards, on an engine.

Processes read ranges of targets, and the driver hands them to the shards. These exchange sums and
a limited number of rows through the driver (`schedules.allocation.plan`), and stage the plans of
their own targets. The driver activates the whole plan, or discards it after any error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np

from crawler.config import Config
from crawler.errors import ConfigError, NoTargets
from crawler.planning import silence
from crawler.planning.documents import MAX_SAMPLE, Figures, daily_sample, document_of, replan_report
from crawler.planning.engines import Engine, InFiles
from crawler.planning.options import (
    FEEDS,
    GIVEN,
    GOAL,
    Budget,
    Effect,
    Part,
    PlanOptions,
    ReplanRequest,
    Usage,
    current_budget,
    goal_budget,
    parts_of,
    terms_within,
    too_small,
)
from crawler.planning.population import (
    Gathered,
    date_counts,
    gather_some,
    group_numbers,
    longest_interval,
)
from crawler.planning.replan import (
    BUDGET_STEP,
    MAX_TRIES,
    Replan,
    hours_of,
    learned,
    on_other_plans,
    replan_parts,
)
from crawler.planning.report_types import ReplanReport
from crawler.storage import alarms, histories, plans, runs, signals, sites, targets
from crawler.storage.alarms import Silence
from crawler.storage.client import Database, Document, open_client, server_uri
from crawler.storage.histories import Watched
from crawler.storage.sites import Site
from crawler.utils.process import Say
from schedules.allocation.plan import MAX_SAMPLE as MAX_PRICE_SAMPLE
from schedules.allocation.plan import Plan, Shard, budget_for, plan_of, plan_shards
from schedules.estimation.estimate import estimate_shards, first_rows, lowest_keys
from schedules.estimation.rates import DateCounts, Mixtures
from schedules.estimation.silence import MAX_SAMPLE as MAX_SILENCE_SAMPLE
from schedules.estimation.silence import GapModel, allowed_per_target
from schedules.history import DAY_HOURS, FieldHistories, Flags, Floats, Histories, Ints
from schedules.population import Population, Shards, shard_of
from schedules.terms import POLICIES, BudgetTooSmall

Value = TypeVar("Value")
# Number of targets in a shard. Such a shard takes a few hundred megabytes in the largest step.
# Ranges are smaller, as what is read goes through the process of the command.
TARGETS_OF_A_SHARD, RANGES_OF_A_SHARD = 100_000, 4
OPTIMAL = POLICIES[0]


@dataclass(frozen=True, slots=True)
class Place:
    """Hold the address of the database for the shards, and the time of the replan."""

    uri: str
    config: Config
    now: datetime

    def run(self, work: Callable[[Database], Awaitable[Value]]) -> Value:
        """Return the result of database operations, in this process."""

        async def connected() -> Value:
            client = open_client(self.uri, self.config)
            try:
                return await work(client.get_default_database())
            finally:
                await client.close()

        return asyncio.run(connected())


class Names(NamedTuple):
    """Hold the names in a shard, and the number of its targets.

    dates:  of each of its spiders
    groups: distinct spiders, categories and kinds of targets; "" for none
    """

    targets: int
    spiders: tuple[str, ...]
    plans: tuple[str, ...]
    dates: DateCounts
    groups: frozenset[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Common:
    """Hold the data that all shards need to describe their targets.

    stored:         (s,) sites
    reliable_dates: (s,)
    groups:         all groups, as in Names
    """

    stored: tuple[Site, ...]
    reliable_dates: Flags
    groups: tuple[tuple[str, ...], ...]

    @property
    def names(self) -> tuple[tuple[str, ...], ...]:
        """Return all spiders, categories and kinds, in alphabetical order."""
        categories, kinds = (
            tuple(sorted({group[part] for group in self.groups} - {""})) for part in (1, 2)
        )
        return tuple(site.name for site in self.stored), categories, kinds

    def group_numbers(self) -> Ints:
        """Return the (p,) numbers of all groups, as in `population_of`."""
        names = self.names
        place = [{name: number for number, name in enumerate(part)} for part in names]
        rows = [
            [numbers.get(name, -1) for numbers, name in zip(place, group, strict=True)]
            for group in self.groups
        ]
        spider, category, kind = np.array(rows).T
        return np.unique(group_numbers(spider, category, kind, len(names[1]), len(names[2])))


class PageShard(InFiles, Shard):
    """A shard on an engine, with what `join` and `describe` set.

    watched: its targets, without their histories
    found:   histories of the targets that have histories of fields
    fixed:   as in Gathered
    """

    watched: Watched
    found: Histories
    common: Common
    fixed: Floats


WITHOUT_LISTS = "planned without what list pages show, as in all shards. Use --engine local"


@dataclass(frozen=True, slots=True)
class Sharding:
    """Hold the engine and the number of shards of a replan; None: by the number of targets."""

    engine: Engine
    shards: int | None = None


@dataclass(frozen=True, slots=True)
class _Replan:
    """Hold a replan of pages: its place, part and request."""

    place: Place
    part: Part
    request: ReplanRequest
    say: Say

    async def make(self, db: Database, sharding: Sharding) -> ReplanReport:
        """Make and write the plan for pages; return its report."""
        part, engine, began = self.part, sharding.engine, time.perf_counter()
        if (policy := part.options.policy or OPTIMAL) != OPTIMAL:
            raise ConfigError(f"policy {policy!r} cannot be planned in shards. Use --engine local")
        parts = -(-await db.targets.estimated_document_count() // TARGETS_OF_A_SHARD)
        count = sharding.shards or max(parts, engine.workers)
        ranges = await histories.id_ranges(db, RANGES_OF_A_SHARD * max(parts, engine.workers))
        sources: list[tuple[Any, ...]] = [
            (read_targets, self.place, part.spiders, ids) for ids in ranges
        ]
        self.say(f"reading {part.kind} in {count} shards")
        shards = await asyncio.to_thread(engine.read, sources, count, PageShard)
        return await self._plan(db, shards, began)

    async def _plan(self, db: Database, shards: Shards[PageShard], began: float) -> ReplanReport:
        """Make and write the plan of shards that have read their targets. began: in seconds."""
        place, part, say, dry_run = self.place, self.part, self.say, self.request.dry_run
        config, now, hours = place.config, place.now, hours_of(place.now)
        names = await asyncio.to_thread(shards.each, join)
        counts = np.array([each.targets for each in names])
        if not counts.sum():
            raise NoTargets
        common = await _common(db, names)
        latest = {site.name: await plans.latest(db, site.name, now) for site in common.stored}
        older = sorted({plan for each in names for plan in each.plans})
        effect = Effect(latest, await plans.plans_of(db, older), part.everything)
        options = part.options.over(effect.options) if part.is_default else part.options
        described = await asyncio.to_thread(shards.each, describe, place, common, effect)
        usage = Usage.joined([own for own, _ in described])
        longest = np.concatenate([own for _, own in described])

        say(f"planning {counts.sum():,} {part.kind}")
        planning = time.perf_counter()
        await asyncio.to_thread(estimate_shards, shards)
        budget = await asyncio.to_thread(_budget, shards, counts, options, usage, effect, hours)
        tries = MAX_TRIES if budget.source == GOAL and not budget.kept else 0
        while True:
            terms = terms_within(options, budget)
            try:
                price = await asyncio.to_thread(
                    plan_shards, shards, counts, usage.minimum, terms, hours
                )
            except BudgetTooSmall as error:
                raise too_small(budget.per_day, error, longest) from None
            own = [(int(rows),) for rows in first_rows(counts, MAX_SAMPLE)]
            step = partial(shards.each, summarize, price, effect, now, own=own)
            figures = Figures.joined(await asyncio.to_thread(step))
            if not tries or options.is_reached(figures.freshness, figures.mean_age_days):
                break
            tries -= 1
            budget = replace(budget, per_day=budget.per_day * BUDGET_STEP)
        planning_seconds = time.perf_counter() - planning

        document = document_of(
            common.stored, common.reliable_dates, options, terms, budget, price, figures
        )
        document |= {"at": now, "warnings": document["warnings"] + await _list_warnings(db, part)}
        moved = figures.updated
        if not dry_run:
            say(f"writing {moved:,} of {figures.targets:,} plans")
            async with plans.staging(db, document) as staged:
                reference = {name: staged[name] for name in ("_id", "at")}
                writing = partial(shards.each, stage, place, reference, price, effect)
                moved = sum(await asyncio.to_thread(writing))
            await plans.activate_staged(db, staged, moved)
            if config.silence_false_alarms_per_week:
                say("checking for silent targets")
                silent = await asyncio.to_thread(
                    silences_of_shards, shards, counts, config.silence_false_alarms_per_week
                )
                wanted = await sites.wanted_events(
                    db, config.notify_file, {each.spider for each in silent}
                )
                await alarms.record_silences(db, part.spiders, silent, now, wanted)
        second = await runs.second_requests(db, document["spiders"], now)
        return replan_report(
            document, moved, second, round(time.perf_counter() - began, 3),
            round(planning_seconds, 3), dry_run=dry_run,
        )  # fmt: skip


async def replan_in_shards(
    db: Database, config: Config, request: ReplanRequest, sharding: Sharding, say: Say
) -> list[ReplanReport]:
    """Make and write the plans of a request, as `replan_parts` does; feeds in this process.

    Raises ConfigError if the options cannot be met, and EngineError if a process is lost.
    """
    if request.shared:
        raise ConfigError("--shared-budget needs all targets in one process. Use --engine local")
    clock = config.clock
    stored, of_feeds = await targets.spiders(db), await targets.feed_spiders(db)
    reports = []
    for part in parts_of(request, stored, of_feeds, config):
        if part.kind == FEEDS:
            reports += await replan_parts(db, config, replace(request, kind=FEEDS), say)
            continue
        if not request.dry_run:
            await plans.recover(db, clock.now(), part.spiders)
        place = Place(await asyncio.to_thread(server_uri, config), config, clock.now())
        reports.append(await _Replan(place, part, request, say).make(db, sharding))
    if not reports:
        raise NoTargets
    return reports


async def _list_warnings(db: Database, part: Part) -> list[str]:
    return [WITHOUT_LISTS] if await signals.are_stored(db, part.spiders) else []


async def _common(db: Database, names: Sequence[Names]) -> Common:
    """Return the data that all shards need, from the names in each shard."""
    spiders = tuple(sorted({spider for each in names for spider in each.spiders}))
    place = {spider: number for number, spider in enumerate(spiders)}
    dates = DateCounts(*(np.zeros(len(spiders), np.int64) for _ in DateCounts._fields))
    for each in names:
        rows = [place[spider] for spider in each.spiders]
        for total, own in zip(dates, each.dates, strict=True):
            total[rows] += own
    groups = sorted(set().union(*(each.groups for each in names)))
    return Common(await sites.of_spiders(db, spiders), dates.reliable(), tuple(groups))


def _budget(
    shards: Shards[PageShard],
    counts: Ints,
    options: PlanOptions,
    usage: Usage,
    effect: Effect,
    hours: float,
) -> Budget:
    """Return the budget that the options give, as `budget_of` does."""
    if options.budget is not None:
        return Budget(options.budget, GIVEN)
    if not options.has_goal:
        return current_budget(usage, effect)
    sample = lowest_keys(shards, counts, MAX_PRICE_SAMPLE)
    share = len(sample.population) / int(counts.sum())
    days = None if options.max_age_hours is None else options.max_age_hours / DAY_HOURS
    return goal_budget(options, lambda: budget_for(sample, share, hours, options.freshness, days))


def silences_of_shards(
    shards: Shards[PageShard], counts: Ints, false_alarms_per_week: float
) -> list[Silence]:
    """Return silent pages and fields, and sites with many of them, as `silences_of` does.

    counts: (h,) number of targets of each shard
    """
    mixtures: Mixtures = shards.one(0, attrgetter("mixtures"))
    step = silence.step_of(sum(shards.each(count_fields)))
    own = [(int(rows),) for rows in first_rows(counts, MAX_SILENCE_SAMPLE)]
    samples = shards.each(sample_of_silence, step, own=own)
    pages, of_pages, fields, of_fields = zip(*samples, strict=True)
    allowed = allowed_per_target(false_alarms_per_week, int(counts.sum()))
    model = GapModel.of(Population.joined(pages), Histories.joined(of_pages), mixtures, allowed)
    field_model = None
    if number := sum(map(len, fields)):
        allowed = allowed_per_target(false_alarms_per_week, number * step)
        field_model = GapModel.of(
            Population.joined(fields), Histories.joined(of_fields), mixtures, allowed
        )
    rated = shards.each(rate_shard, model, field_model)
    silent = silence.alarms_of(silence.joined(own for own, _ in rated))
    return silent + silence.alarms_of(silence.joined(own for _, own in rated), silent)


def read_targets(
    count: int, place: Place, spiders: Sequence[str] | None, ids: Document
) -> list[Watched]:
    """Read a range of targets, and divide them among `count` shards."""
    watched = place.run(lambda db: histories.read_range(db, place.now, spiders, ids))
    if not place.config.silence_false_alarms_per_week:
        watched = replace(watched, fields=FieldHistories.none())
    number = shard_of(watched.key, count)
    pieces = [watched.of(np.flatnonzero(number == shard)) for shard in range(count)]
    # The number of truncated histories is known only for the whole range: count it once.
    return [pieces[0], *(replace(piece, ahead=0) for piece in pieces[1:])]


def join(shard: PageShard) -> Names:
    """Join the pieces read for a shard, in the order of the keys."""
    watched = Watched.joined(list(shard.pop_pieces()))
    shard.watched = watched = watched.of(np.argsort(watched.key))
    numbers = watched.spider.tolist(), watched.category.tolist(), watched.kind.tolist()
    rows = set(zip(*numbers, strict=True))
    named = watched.spiders, watched.categories, watched.kinds
    groups = [
        tuple(
            names[number] if number >= 0 else "" for names, number in zip(named, row, strict=True)
        )
        for row in rows
    ]
    return Names(
        len(watched), watched.spiders, watched.plans, date_counts(watched), frozenset(groups)
    )


def describe(
    shard: PageShard, place: Place, common: Common, effect: Effect
) -> tuple[Usage, Floats]:
    """Describe the targets of a shard for the planner.

    Returns their usage so far, and the shortest and the longest of their longest intervals.
    """
    watched = shard.watched.renamed(*common.names)
    hours, groups = hours_of(place.now), common.group_numbers()
    gathered = place.run(
        lambda db: gather_some(
            db, watched, common.stored, common.reliable_dates, place.config, hours, groups
        )
    )
    shard.found = watched.histories.of(watched.fields.row)
    # Later steps need neither the dates nor a second copy of the other histories.
    nothing = watched.histories.of(np.zeros(0, np.int64))
    shard.watched = replace(watched, histories=nothing, stated=nothing.after)
    shard.common, shard.fixed = common, gathered.fixed
    shard.population, shard.histories = gathered.population, gathered.histories
    shard.last, shard.current = gathered.histories.until, watched.schedules
    longest = gathered.population.max_hours
    extremes = np.array([longest.min(), longest.max()]) if len(longest) else longest
    return Usage.of(gathered, effect), extremes


def summarize(shard: PageShard, price: float, effect: Effect, now: datetime, rows: int) -> Figures:
    """Return the figures of a shard's plan. rows: targets to compare with daily visits."""
    replan = _replan(shard, price, effect, now)
    assert isinstance(replan.plan, Plan)
    gathered, learning = replan.gathered, learned(replan.gathered, effect, now)
    sample = daily_sample(gathered.population.key, rows)
    sampled = int(np.count_nonzero(learning))
    return Figures.of(gathered, replan.plan, replan.now_hours, sampled, replan.updated, sample)


def stage(shard: PageShard, place: Place, plan: Document, price: float, effect: Effect) -> int:
    """Stage the new plans of a shard's targets, and return their number.

    plan: `_id` and `at` of the plan's document
    """
    # The targets of a shard are spread over the whole collection. In the order of their ids, the
    # batches of all shards reach the same part of the collection at the same time, while the server
    # has it in memory.
    batches = _replan(shard, price, effect, place.now).batches(by_id=True)
    longest = timedelta(hours=longest_interval(place.config, feeds=False))
    return place.run(lambda db: plans.stage(db, plan, batches, longest))


def count_fields(shard: PageShard) -> int:
    """Return the number of targets of a shard with changes of fields."""
    return len(shard.watched.fields)


def sample_of_silence(
    shard: PageShard, step: int, rows: int
) -> tuple[Population, Histories, Population, Histories]:
    """Return the first targets of a shard, and the fields of every `step`th target with fields."""
    watches = _watches(shard)
    first = np.arange(rows)
    pages = watches.population.of(first), watches.histories.of(first)
    return *pages, *watches.sample_of_fields(step)


def rate_shard(
    shard: PageShard, model: GapModel, of_fields: GapModel | None
) -> tuple[silence.SilentByKind, silence.SilentByKind]:
    """Return the silent targets of a shard, and those with silent fields."""
    watches = _watches(shard)
    if not len(watches.ids):
        return {}, {}
    fields = {} if of_fields is None else silence.silent_fields(watches, of_fields)
    return silence.silent_targets(watches, model), fields


def _watches(shard: PageShard) -> silence.Watches:
    watched = shard.watched
    return silence.Watches(
        watched.ids, watched.spiders, watched.spider, shard.population, shard.histories,
        watched.fields, shard.found,
    )  # fmt: skip


def _replan(shard: PageShard, price: float, effect: Effect, now: datetime) -> Replan:
    """Return the plan of a shard, without the document of the whole plan."""
    common = shard.common
    gathered = Gathered(
        shard.watched, common.stored, shard.population, shard.histories,
        common.reliable_dates, shard.fixed,
    )  # fmt: skip
    shard_plan = plan_of(shard, price)
    written = shard_plan.updated | on_other_plans(gathered, OPTIMAL, effect)
    written &= ~learned(gathered, effect, now)
    return Replan(gathered, shard_plan, OPTIMAL, {}, written, hours_of(now))
