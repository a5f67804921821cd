"""A replan: what is asked and what is known become a plan, not yet in effect."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np

from crawler.planning.budget import (
    DAY_HOURS,
    GOAL,
    Budget,
    Effect,
    terms_of,
    terms_within,
    too_small,
)
from crawler.planning.population import Gathered
from crawler.planning.reasons import in_words
from crawler.planning.report import document_of, limits_of, spending_of
from crawler.planning.request import Wish
from crawler.storage import plans
from crawler.storage import plans as timetables
from crawler.storage.client import Database, Document
from crawler.storage.histories import Watched
from crawler.storage.plans import Moved
from crawler.storage.targets import ADAPTIVE, EPOCH
from crawler.utils.text import amount, is_known
from schedules import calendar
from schedules.allocation import policies as groups
from schedules.allocation.plan import BOUNDS, BudgetTooSmall, Plan, Terms, plan
from schedules.feeds.plan import FeedsPlan, plan_feeds
from schedules.first_look import USUAL_WINDOW
from schedules.history import Flags, Floats, Ints
from schedules.schedule import Schedules
from schedules.terms import WEEK_DAYS, least_per_day

HOUR_MILLISECONDS = 3_600_000
MILLISECOND = timedelta(milliseconds=1)
ROWS_DIGITS = 5


def next_visits(gathered: Gathered, schedules: Schedules, rows: Ints, now_hours: float) -> Floats:
    """(m,) hours since 1970 (UTC) of the next visits of some targets under new schedules.

    Never later than the longest interval after the last visit; what is due stays due.
    """
    watched, population = gathered.watched, gathered.population
    when = np.empty(len(rows))
    zone = np.array([str(one) for one in population.zones])[population.site[rows]]
    for name in np.unique(zone):
        here = np.flatnonzero(zone == name)
        own = population.zones[population.site[rows[here[0]]]]
        when[here] = calendar.next_visits(schedules.of(rows[here]), own, now_hours)
    latest = watched.visited[rows] + population.max_hours[rows]
    when = np.maximum(np.fmin(when, latest), now_hours)
    due: Floats = watched.next_visit[rows]
    result: Floats = np.where(due <= now_hours, due, when)
    return result


def batch(
    gathered: Gathered, made: Plan | FeedsPlan, policy: str, rows: Ints, when: Floats
) -> list[Moved]:
    """`_id`, plan and next visit of some targets. when: (m,) hours since 1970 (UTC)."""
    ids = gathered.watched.ids
    columns = {"policy": [policy] * len(rows), **_columns(made, rows)}
    if policy == ADAPTIVE:
        population = gathered.population
        columns["min_hours"] = population.min_hours[rows].tolist()
        columns["max_hours"] = population.max_hours[rows].tolist()
    times = np.rint(when * HOUR_MILLISECONDS).astype(np.int64).tolist()
    values = zip(*columns.values(), strict=True)
    return [
        (ids[row], dict(zip(columns, part, strict=True)), EPOCH + at * MILLISECOND)
        for row, at, part in zip(rows.tolist(), times, values, strict=True)
    ]


def _columns(made: Plan | FeedsPlan, rows: Ints) -> dict[str, list[Any]]:
    """What is written of some targets, column by column."""
    some = made.schedules.of(rows)
    slots, codes = some.slots.tolist(), groups.nearest_group(some.visits_per_week).tolist()
    return {
        "group": [groups.NAMES[code] for code in codes],
        "windows": in_words(some),
        "visits_per_week": _numbers(some.visits_per_week),
        "weeks": some.weeks.tolist(),
        "slots": [slots[begin:end] for begin, end in pairwise(some.first.tolist())],
        "every_hours": some.every_hours.tolist(),
        "phase_hours": some.phase_hours.tolist(),
        **{name: _numbers(column) for name, column in made.figures(rows).items()},
        "value": _numbers(made.value[rows]),
        "worth": _numbers(made.worth[rows]),
        "bound": [BOUNDS[code] for code in made.bound[rows].tolist()],
    }


def _numbers(column: Floats) -> list[float | None]:
    """Rounded; what cannot be known is null, as JSON knows no NaN."""
    values: list[float | None] = np.round(column, ROWS_DIGITS).tolist()
    for unknown in np.flatnonzero(~np.isfinite(column)).tolist():
        values[unknown] = None
    return values


BATCH = 2000
TRIES, MORE = 4, 1.02


@dataclass(frozen=True, slots=True)
class Replan:
    """A new plan, not yet in effect.

    document: as it will stand in `plans`, without what `plans.adopt` adds
    written:  (n,) which targets it is written to
    """

    gathered: Gathered
    plan: Plan | FeedsPlan
    terms: Terms
    document: Document
    written: Flags
    now_hours: float

    @property
    def moved(self) -> int:
        """How many targets it is written to."""
        return int(np.count_nonzero(self.written))

    def rows(self) -> Iterator[list[Moved]]:
        """Batches of `_id`, plan and next visit of the targets that it is written to."""
        rows = np.flatnonzero(self.written)
        when = next_visits(self.gathered, self.plan.schedules, rows, self.now_hours)
        for begin in range(0, len(rows), BATCH):
            some = slice(begin, begin + BATCH)
            yield batch(self.gathered, self.plan, self.terms.policy, rows[some], when[some])


def hours_of(moment: datetime) -> float:
    """Hours since 1970 (UTC)."""
    return (moment - EPOCH) / timedelta(hours=1)


async def effect_of(db: Database, watched: Watched, now: datetime, *, everything: bool) -> Effect:
    """What is in effect for these targets. everything: whether they are all there are."""
    latest = {name: await plans.latest(db, name, now) for name in watched.spiders}
    return Effect(latest, await timetables.plans_of(db, watched.plans), everything)


def replanned(gathered: Gathered, wish: Wish, effect: Effect, now: datetime) -> Replan:
    """The plan that is asked for; ConfigError if it cannot be made."""
    hours = hours_of(now)
    terms, budget = terms_of(gathered, wish, effect, hours)
    made = _made(gathered, terms, budget, hours)
    # A goal's budget is found without caps, and without love of the present schedules.
    for _ in range(TRIES if budget.source == GOAL and not budget.kept else 0):
        if _reaches(made, wish):
            break
        budget = replace(budget, per_day=budget.per_day * MORE)
        terms = terms_within(wish, budget)
        made = _made(gathered, terms, budget, hours)
    learning = learned(gathered, effect, now)
    written = (made.moved | followed_otherwise(gathered, terms.policy, effect)) & ~learning
    count = int(np.count_nonzero(learning))
    document = document_of(gathered, wish, terms, budget, made, count) | {"at": now}
    return Replan(gathered, made, terms, document, written, hours)


def _made(gathered: Gathered, terms: Terms, budget: Budget, now_hours: float) -> Plan:
    present = gathered.watched.schedules
    try:
        return plan(gathered.population, gathered.histories, terms, now_hours, present)
    except BudgetTooSmall as error:
        raise too_small(budget.per_day, error, gathered.population) from None


def _reaches(made: Plan, wish: Wish) -> bool:
    """Whether a plan is expected to reach the goal."""
    if wish.freshness is not None:
        return float(1 - made.stale.mean()) >= wish.freshness
    return float(made.age_days.mean()) * DAY_HOURS <= (wish.max_age_hours or 0.0)


def followed_otherwise(gathered: Gathered, policy: str, effect: Effect) -> Flags:
    """(n,) targets that follow a plan of another policy, or adapt within other limits.

    Otherwise only moved targets are written. The figures of the others stay those of the plan that
    moved them: a million rows a day would be written to tell that a rate is 2.1 instead of 2.0.
    """
    watched, limits = gathered.watched, limits_of(gathered) if policy == ADAPTIVE else None
    other = [
        one is None or one.get("policy") != policy or one.get("limits") != limits
        for one in map(effect.older.get, watched.plans)
    ]
    return np.array([*other, True])[watched.plan]


def learned(gathered: Gathered, effect: Effect, now: datetime) -> Flags:
    """(n,) targets that follow a plan which ends by itself, and has not ended."""
    plans = map(effect.older.get, gathered.watched.plans)
    goes_on = [one is not None and one.get("until", now) > now for one in plans]
    return np.array([*goes_on, False])[gathered.watched.plan]


DIGITS = 5


def replanned_feeds(gathered: Gathered, wish: Wish, effect: Effect, now: datetime) -> Replan:
    """The plan that is asked for; ConfigError if it cannot be made."""
    hours = hours_of(now)
    terms, budget = terms_of(gathered, wish, effect, hours)
    made = _made_feeds(gathered, terms, hours)
    written = made.moved | followed_otherwise(gathered, terms.policy, effect)
    document = _document_of(gathered, terms, budget, made) | {"at": now}
    return Replan(gathered, made, terms, document, written, hours)


def _made_feeds(gathered: Gathered, terms: Terms, now_hours: float) -> FeedsPlan:
    watched = gathered.watched
    try:
        return plan_feeds(
            gathered.population, gathered.histories, windows_of(gathered), terms, now_hours,
            watched.schedules,
        )  # fmt: skip
    except BudgetTooSmall as error:
        raise too_small(terms.budget_per_day, error, gathered.population) from None


def windows_of(gathered: Gathered) -> Ints:
    """(n,) posts that the documents hold; the usual where that was never seen."""
    window = gathered.watched.window
    return np.where(window > 0, window, USUAL_WINDOW)


def _document_of(gathered: Gathered, terms: Terms, budget: Budget, made: FeedsPlan) -> Document:
    """The document of a plan, as it will stand in `plans`."""
    watched = gathered.watched
    return {
        "kind": "feeds",
        "spiders": sorted(watched.spiders),
        "policy": terms.policy,
        **spending_of(terms, budget),
        "price": _number(made.price),
        "targets": len(watched),
        "unplanned": int(np.count_nonzero(watched.plan < 0)),
        "totals": _totals(gathered, made),
        "bounds": {BOUNDS[code]: n for code, n in sorted(Counter(made.bound.tolist()).items())},
        "ignored": {"future": watched.ahead},
        "warnings": list(_warnings(gathered, terms, made)),
    }


def _totals(gathered: Gathered, made: FeedsPlan) -> Document:
    posts, missed = made.believed.per_week, made.missed
    figures = made.figures(np.arange(len(posts)))
    got = posts - missed
    collected = np.isfinite(made.delay_hours) & (got > 0)
    waited = float((made.delay_hours[collected] * got[collected]).sum())
    all_got = float(got[collected].sum())
    return {
        "requests_per_day": round(made.requests_per_day, DIGITS),
        "least_per_day": round(least_per_day(gathered.population), DIGITS),
        "known": is_known(figures["rate_low"].sum(), figures["rate_high"].sum()),
        "posts_per_day": _number(float(posts.sum()) / WEEK_DAYS),
        "missed_share": _number(float(missed.sum()) / float(posts.sum())),
        "delay_hours": _number(waited / all_got if all_got else math.nan),
    }


def _number(value: float) -> float | None:
    return round(float(value), DIGITS) if math.isfinite(value) else None


def _warnings(gathered: Gathered, terms: Terms, made: FeedsPlan) -> Iterator[str]:
    """What the user should know about this plan, a sentence each."""
    watched = gathered.watched
    if unseen := int(np.isnan(gathered.histories.until).sum()):
        yield f"{unseen:,} of the feeds were never read: they are planned like the others"
    if watched.ahead:
        yield f"{watched.ahead:,} feeds had visits in the future, which were ignored"
    spends = made.requests_per_day
    if terms.daily_cap and spends > terms.daily_cap:
        yield (
            f"the plan wants {amount(spends)} requests a day, over the daily cap "
            f"{terms.daily_cap:,.0f}: the crawl will fall behind"
        )
