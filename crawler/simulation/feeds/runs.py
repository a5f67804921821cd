"""Policies tried on feeds: the visits of each, and how many posts they missed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from crawler.simulation.feeds.stages import Stage
from crawler.traces.visits import whole_seconds
from schedules.collected import CollectedTotals, collected
from schedules.feedplans import feed_visits
from schedules.feedstanding import standing
from schedules.score import Times
from schedules.world import Span

FIGURES = ("missed_pct", "uncollected_pct", "lost_pct", "delay_h")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy did with a number of visits."""

    policy: str
    asked: int
    totals: CollectedTotals
    visits: Times

    @property
    def file(self) -> str:
        """The name of its file of visits."""
        return f"{self.policy}_{self.asked}.csv.gz"


def run_all(
    stage: Stage,
    policies: Sequence[str],
    amounts: Sequence[int],
    say: Callable[[str], None],
    replan_hours: float | None = None,
) -> list[Outcome]:
    """Each policy with each number of visits; replan_hours: of a closed loop."""
    pairs = [(policy, amount) for policy in policies for amount in amounts]
    outcomes = []
    for number, (policy, amount) in enumerate(pairs, 1):
        say(f"{policy}, {amount:,} visits ({number} of {len(pairs)})")
        outcomes.append(run(stage, policy, amount, replan_hours))
    return outcomes


def run(stage: Stage, policy: str, asked: int, replan_hours: float | None = None) -> Outcome:
    """One policy with one number of visits; `optimal` learns from what its visits see."""
    span = stage.span
    if replan_hours is None:
        planned = feed_visits(policy, stage.feeds, stage.known, asked, *span, posts=stage.posts)
    else:
        of = stage.feeds, stage.posts, asked, span.split, span.stop
        planned = standing(policy, *of, replan_hours)
    # The moments that a file of visits tells are those that count.
    visits = Times(planned.first, whole_seconds(planned.at))
    check(policy, asked, visits, span)
    found = collected(stage.posts, visits, stage.feeds.window, span.split, span.stop)
    return Outcome(policy, asked, found.totals(), visits)


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
