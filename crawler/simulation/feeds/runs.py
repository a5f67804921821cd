"""Policies tried on feeds: the visits of each, and how many posts they missed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from crawler.simulation.feeds.stages import Stage
from crawler.traces.visits import whole_seconds
from schedules.collected import CollectedTotals, collected
from schedules.feedplans import PAPER_POLICIES, paper_visits
from schedules.feedstanding import standing
from schedules.history import Times
from schedules.world import Span

FIGURES = ("missed_pct", "uncollected_pct", "lost_pct", "delay_h")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy did with a number of visits. is_standing: by the plans of replans."""

    policy: str
    asked: int
    totals: CollectedTotals
    visits: Times
    is_standing: bool

    @property
    def file(self) -> str:
        """The name of its file of visits."""
        return f"{self.policy}_{self.asked}.csv.gz"


def run_all(
    stage: Stage,
    policies: Sequence[str],
    amounts: Sequence[int],
    say: Callable[[str], None],
    replan_hours: float,
    *,
    closed_loop: bool,
) -> list[Outcome]:
    """Simulate each policy with each number of visits; see `run`."""
    pairs = [(policy, amount) for policy in policies for amount in amounts]
    outcomes = []
    for at, (policy, amount) in enumerate(pairs, 1):
        say(f"{policy}, {amount:,} visits ({at} of {len(pairs)})")
        outcomes.append(run(stage, policy, amount, replan_hours, closed_loop=closed_loop))
    return outcomes


def run(
    stage: Stage, policy: str, asked: int, replan_hours: float, *, closed_loop: bool
) -> Outcome:
    """Simulate one policy with one number of visits.

    `optimal`, and in a closed loop every policy, follows the plans that a replan makes every
    `replan_hours` from what was seen until then. Else the paper's policies are as the paper has
    them: planned once, for the period that counts.
    """
    span = stage.span
    is_standing = closed_loop or policy not in PAPER_POLICIES
    if not is_standing:
        planned = paper_visits(policy, stage.feeds, stage.known, asked, span)
    else:
        of = stage.feeds, stage.posts, asked, span
        planned = standing(policy, *of, replan_hours, closed_loop=closed_loop)
    # The moments that a file of visits tells are those that count.
    visits = Times(planned.first, whole_seconds(planned.at))
    check(policy, asked, visits, span)
    found = collected(stage.posts, visits, stage.feeds.window, span.split, span.stop)
    return Outcome(policy, asked, found.totals(), visits, is_standing)


def check(policy: str, asked: int, visits: Times, span: Span) -> None:
    """RuntimeError where a policy takes more than it is given, which no user can mend."""
    if len(visits.at) > asked:
        raise RuntimeError(f"{policy} spends {len(visits.at):,} of {asked:,} visits")
    outside = np.count_nonzero((visits.at < span.split) | (visits.at > span.stop))
    if outside:
        raise RuntimeError(f"{policy} makes {outside:,} visits before or after the period")


def means(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """FIGURES of each policy as means over its numbers of visits; NaN where there is none."""
    return {
        policy: {
            figure: _mean([getattr(one.totals, figure) for one in outcomes if one.policy == policy])
            for figure in FIGURES
        }
        for policy in dict.fromkeys(one.policy for one in outcomes)
    }


def _mean(values: Sequence[float]) -> float:
    there = [value for value in values if math.isfinite(value)]
    return sum(there) / len(there) if there else math.nan
