"""A replan: what is asked and what is known become a plan, not yet in effect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from crawler.replanning.budgets import (
    DAY_HOURS,
    GOAL,
    Budget,
    Effect,
    terms_of,
    terms_within,
    too_small,
)
from crawler.replanning.population import Gathered
from crawler.replanning.rows import batch, next_visits
from crawler.replanning.summary import document_of, limits_of
from crawler.replanning.wishes import Wish
from crawler.storage import plans, timetables
from crawler.storage.client import Database, Document
from crawler.storage.histories import Watched
from crawler.storage.parts import ADAPTIVE, EPOCH
from crawler.storage.plans import Moved
from schedules.feedplan import FeedsPlan
from schedules.history import Flags
from schedules.plan import BudgetTooSmall, Plan, Terms, plan

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
        raise too_small(budget.per_day, error, gathered) from None


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
