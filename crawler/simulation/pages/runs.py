"""Policies tried on pages: the visits of each, and how good they were."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from crawler.errors import ConfigError
from crawler.simulation.pages.stages import Stage
from crawler.traces.visits import whole_seconds
from crawler.utils.text import amount, period, rounded_up
from schedules.history import Times
from schedules.plan import BudgetTooSmall, Terms, least_per_day
from schedules.population import Population
from schedules.schedule import WEEK_HOURS
from schedules.score import Totals, score
from schedules.simulate import daily, simulate
from schedules.terms import UNBOUNDED

Pair = tuple[str, float]


@dataclass(frozen=True, slots=True)
class Manner:
    """How to simulate: hours between replans, requests at most on a UTC day."""

    replan_hours: float = WEEK_HOURS
    daily_cap: int | None = None
    closed_loop: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy did. weeks: visits in each week from the first visit on."""

    policy: str
    budget: float
    totals: Totals
    visits: Times
    weeks: tuple[int, ...]

    @property
    def file(self) -> str:
        """The name of its file of visits."""
        return f"{self.policy}_{self.budget:.12g}.csv.gz"


def check_budgets(stage: Stage, manner: Manner, pairs: Sequence[Pair]) -> None:
    """ConfigError where a budget does not cover the longest intervals, or a cap not the budget."""
    budgets = [budget for policy, budget in pairs if policy not in UNBOUNDED]
    cap = manner.daily_cap
    if budgets and cap is not None and cap < max(budgets) * (1 - 1e-9):
        raise ConfigError(
            f"the daily cap {cap:,} is too low for {amount(max(budgets))} requests a day "
            f"(--daily-cap {math.ceil(max(budgets)):,} or more)"
        )
    population = stage.world.population.of(stage.world.there(stage.span.split))
    least = least_per_day(population)
    if budgets and min(budgets) < least * (1 - 1e-9):
        raise _too_small(min(budgets), BudgetTooSmall(least, len(population)), population)


def _too_small(budget: float, error: BudgetTooSmall, population: Population) -> ConfigError:
    longest, least = population.max_hours, rounded_up(error.least_per_day)
    even = np.ptp(longest) == 0
    how = f"every {period(float(longest[0]))}" if even else "at their longest intervals"
    return ConfigError(
        f"budget {amount(budget)}/day is below the least possible: {error.targets:,} targets "
        f"{how} need {least}/day (--budget {least}/day or more)"
    )


def run(stage: Stage, manner: Manner, policy: str, budget: float) -> Outcome:
    """One policy with one budget; ConfigError where pages that come later need more."""
    terms, world = Terms(policy, budget, manner.daily_cap), stage.world
    every, closed = manner.replan_hours, manner.closed_loop
    try:
        visits = simulate(world, terms, stage.span, replan_hours=every, closed_loop=closed)
    except BudgetTooSmall as error:
        raise _too_small(budget, error, world.population) from None
    return _outcome(stage, policy, budget, visits)


def run_all(
    stage: Stage, manner: Manner, pairs: Sequence[Pair], say: Callable[[str], None]
) -> list[Outcome]:
    """Each pair of policy and budget; what no budget can change is worked out once."""
    outcomes: list[Outcome] = []
    for at, (policy, budget) in enumerate(pairs, 1):
        say(f"{policy}, {budget:g} requests a day ({at} of {len(pairs)})")
        same = [one for one in outcomes if one.policy == policy and policy in UNBOUNDED]
        outcomes.append(
            replace(same[0], budget=budget) if same else run(stage, manner, policy, budget)
        )
    return outcomes


def run_daily(stage: Stage) -> Outcome:
    """Every target daily: what there is to compare with."""
    return _outcome(stage, "daily", math.nan, daily(stage.world, stage.span.split, stage.span.stop))


def _outcome(stage: Stage, policy: str, budget: float, visits: Times) -> Outcome:
    # The moments that a file of visits tells are those that count.
    visits = Times(visits.first, whole_seconds(visits.at))
    world, span = stage.world, stage.span
    scored = score(world.changes, visits, stage.source, world.ends, span.split, span.stop)
    began = span.start if len(visits.at) and visits.at.min() < span.split else span.split
    weeks = np.bincount(((visits.at - began) // WEEK_HOURS).astype(np.int64))
    return Outcome(policy, budget, scored.totals(), visits, tuple(weeks.tolist()))
