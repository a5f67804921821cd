"""Policies tried on pages: the visits of each, and how good they were."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
from rich.console import Console
from rich.table import Table

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.planning import simulation as asked
from crawler.planning.plots import GREY, draw_line, scale_by_factors, side_by_side
from crawler.planning.population import LONGEST_HOURS, SHORTEST_HOURS, Gathered, keys_of_texts
from crawler.planning.request import PAGES
from crawler.planning.simulation import (
    Moments,
    are_feeds,
    current_budget,
    days,
    gathered,
    number,
    span_of,
    table,
    text,
)
from crawler.planning.traces import Trace, iso, read_trace, whole_seconds, write_visits
from crawler.utils import time as units
from crawler.utils.text import amount, period, rounded_up
from schedules.allocation.plan import BudgetTooSmall, Terms, least_per_day
from schedules.evaluation.pages import daily, simulate
from schedules.evaluation.score import Figures, Totals, score
from schedules.evaluation.world import Span, World
from schedules.history import DAY_HOURS, Ints, Times
from schedules.population import Population, walls_of
from schedules.schedule import WEEK_HOURS
from schedules.terms import POLICIES, UNBOUNDED

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class Stage:
    """n targets with names, what truly happens to them, and when.

    source: (n,) index of each one's source
    """

    world: World
    names: Sequence[str]
    source: Ints
    span: Span


def stage_of_trace(trace: Trace, moments: Moments) -> Stage:
    """The pages of a trace; all clocks are UTC's. Without moments: the bounds of what is known."""
    span = span_of((trace.changes.at, trace.began, trace.ends), moments)
    return Stage(
        World(_population(trace, span), trace.changes, trace.began, trace.ends),
        trace.ids, trace.source, span,
    )  # fmt: skip


def _population(trace: Trace, span: Span) -> Population:
    n, sites, zone = len(trace), len(trace.sources), ZoneInfo("UTC")
    return Population(
        key=keys_of_texts(list(trace.ids)),
        site=trace.source,
        group=trace.source,
        parent=np.arange(sites),
        zones=(zone,) * sites,
        open_hours=np.ones((sites, WEEK_HOURS), np.bool_),
        weight=np.ones(n),
        cost=np.ones(n),
        min_hours=np.full(n, SHORTEST_HOURS),
        max_hours=np.full(n, float(LONGEST_HOURS)),
        site_day=np.full(sites, np.inf),
        site_hour=np.full(sites, np.inf),
        walls=walls_of((zone,), span.start, span.stop),
    )


def stage_of_past(gathered: Gathered, moments: Moments) -> Stage:
    """The pages of a database as its visits saw them: a change is where it was found.

    A page is there from its first look on. After its last look it counts as unchanged.
    """
    seen = ~np.isnan(gathered.histories.since)
    rows = np.flatnonzero(seen & ~are_feeds(gathered.watched))
    population, past = gathered.population.of(rows), gathered.histories.of(rows)
    span = span_of((past.since, past.until), moments)
    zones = tuple(dict.fromkeys(population.zones))
    population = replace(population, walls=walls_of(zones, span.start, span.stop))
    world = World(population, Times(past.first, past.by), past.since, np.full(len(rows), np.inf))
    names = [gathered.watched.ids[row] for row in rows.tolist()]
    return Stage(world, names, population.site, span)


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


HEADS = ("budget", "a day", "fresh", "age\ndays", "delay\nhours", "of all\nhours", "lost")


def in_json(
    stage: Stage, manner: Manner, outcomes: Sequence[Outcome], references: Sequence[Outcome]
) -> dict[str, Any]:
    """All figures under the names of JSON; null where there is none."""
    totals, span = outcomes[0].totals, stage.span
    return {
        "kind": "pages",
        "from": iso(span.start),
        "split": iso(span.split),
        "to": iso(span.stop),
        "closed_loop": manner.closed_loop,
        "replan_every_days": manner.replan_hours / DAY_HOURS,
        "daily_cap": manner.daily_cap,
        "pages": totals.pages,
        "sources": totals.sources,
        "changes": totals.changes,
        "results": [_row(outcome) for outcome in outcomes],
        "references": [_row(outcome) for outcome in references],
    }


def _row(outcome: Outcome) -> dict[str, Any]:
    totals, load = outcome.totals, outcome.totals.load
    return {
        "policy": outcome.policy,
        "budget": number(outcome.budget),
        "requests_per_day": load.per_day,
        "visits": totals.visits,
        **_means(totals.by_page),
        "never_visited": totals.never_visited,
        "by_source": _means(totals.by_source),
        "hour_peak": number(load.hour_peak),
        "busiest_hour": load.busiest_hour,
        "busiest_day": load.busiest_day,
        "visits_by_week": list(outcome.weeks),
    }


def _means(figures: Figures) -> dict[str, float | None]:
    return {name: number(value) for name, value in asdict(figures).items()}


def by_page(outcomes: Sequence[Outcome]) -> Table:
    """Load and figures, a row for each outcome; every page counts the same."""
    loads = "never\nseen", "peak\nhour", "peak\nday"
    made = table("every page counts the same", "policy", *HEADS, *loads)
    for one in outcomes:
        load = one.totals.load
        made.add_row(
            *_begin(one), *_in_words(one.totals.by_page), f"{one.totals.never_visited:,}",
            text(load.hour_peak, "{:.1f}x"), f"{load.busiest_day:,}",
        )  # fmt: skip
    return made


def by_source(outcomes: Sequence[Outcome]) -> Table:
    """Figures, a row for each outcome; every source counts the same."""
    made = table("every source counts the same", "policy", *HEADS)
    for one in outcomes:
        made.add_row(*_begin(one), *_in_words(one.totals.by_source))
    return made


def _begin(outcome: Outcome) -> tuple[str, str, str]:
    budget = text(outcome.budget, "{:.6g}")
    return outcome.policy, budget, f"{outcome.totals.load.per_day:,.1f}"


def _in_words(figures: Figures) -> tuple[str, ...]:
    return (
        text(figures.freshness, "{:.3f}"),
        text(figures.age_days, "{:.3f}"),
        text(figures.delay_h, "{:.1f}"),
        text(figures.delay_all_h, "{:.1f}"),
        text(figures.lost_share, "{:.0%}"),
    )


def in_words(stage: Stage, outcome: Outcome) -> str:
    """What was played on, in a line."""
    totals = outcome.totals
    return (
        f"{totals.pages:,} pages of {totals.sources:,} sources, {totals.changes:,} changes, "
        f"{days(stage.span)}"
    )


def notes(outcomes: Sequence[Outcome]) -> list[str]:
    """What has to be known to read the tables."""
    heedless = [name for name in UNBOUNDED if any(one.policy == name for one in outcomes)]
    return [f"{', '.join(heedless)}: whatever the budget is"] if heedless else []


def draw(
    path: Path, outcomes: Sequence[Outcome], references: Sequence[Outcome], title: str
) -> None:
    """Write the picture; the file is there entirely or not at all. Raises ConfigError."""
    with side_by_side(path, title) as (fresh, age):
        _draw(fresh, outcomes, references, "freshness")
        _draw(age, outcomes, references, "age_days")
        fresh.set_title("freshness: share of time that copy and page agree", loc="left")
        age.set_title("age: days since the oldest change not yet seen", loc="left")
        age.set_ylim(bottom=0)


def _draw(
    axes: Axes, outcomes: Sequence[Outcome], references: Sequence[Outcome], figure: str
) -> None:
    """One figure over requests a day: policies as lines, references as points."""
    for policy in dict.fromkeys(one.policy for one in outcomes):
        draw_line(axes, policy, (_point(one, figure) for one in outcomes if one.policy == policy))
    for at, one in enumerate(references):
        x, y = _point(one, figure)
        axes.axhline(y, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        axes.plot([x], [y], "*s"[at], color=GREY, markersize=9, label=_name(one))
    scale_by_factors(axes, "requests a day")


def _point(outcome: Outcome, figure: str) -> tuple[float, float]:
    value: float = getattr(outcome.totals.by_page, figure)
    return outcome.totals.load.per_day, value


def _name(reference: Outcome) -> str:
    what = "every page daily" if reference.policy == "daily" else f"the paper's {reference.policy}"
    return f"{what} ({reference.totals.load.per_day:,.0f} a day)"


LONGEST_DAYS = 365.0


@dataclass(frozen=True, slots=True)
class Asked:
    """Policies and budgets, how to try them, from when to when, and what to write.

    budgets: requests a day; none: the budget of the current plan
    """

    policies: tuple[str, ...]
    budgets: tuple[float, ...]
    manner: Manner
    moments: Moments
    visits_out: Path | None
    plot: Path | None

    @classmethod
    def of(cls, opts: argparse.Namespace) -> Asked:
        """The options; ConfigError names the one that is wrong."""
        return cls(
            asked.policies(opts.policy, POLICIES),
            tuple(dict.fromkeys(_amount("--budget", text) for text in opts.budget or ())),
            Manner(
                asked.period(opts.replan_every, WEEK_HOURS), _cap(opts.daily_cap), opts.closed_loop
            ),
            asked.moments(opts.start, opts.split, opts.stop),
            asked.folder("--visits-out", opts.visits_out),
            asked.picture(opts.plot),
        )


def _amount(option: str, text: str) -> float:
    """Requests a day, more than none."""
    try:
        amount = units.per_day(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None
    if not amount:
        raise ConfigError(f"{option} {text}: a policy without requests sees nothing")
    return amount


def _cap(text: str | None) -> int | None:
    """Requests at most on a day."""
    return None if text is None else max(1, math.floor(_amount("--daily-cap", text)))


PAPERS = "groups"


@dataclass(frozen=True, slots=True)
class PageSimulation:
    """What came of each pair of policy and budget, and what there is to compare with."""

    asked: Asked
    stage: Stage
    outcomes: list[Outcome]
    references: list[Outcome]

    @classmethod
    def of(
        cls, config: Config, opts: argparse.Namespace, say: Callable[[str], None]
    ) -> PageSimulation:
        """Simulate what is asked; raises FreshetError."""
        asked = Asked.of(opts)
        stage = _stage(config, opts, asked)
        budgets = asked.budgets or (current_budget(config, opts.history, PAGES),)
        pairs = tuple(product(asked.policies, budgets))
        check_budgets(stage, asked.manner, pairs)
        outcomes = run_all(stage, asked.manner, pairs, say)
        references = [run_daily(stage)]
        if asked.plot and PAPERS not in asked.policies:
            references.append(run(stage, asked.manner, PAPERS, inf))
        return cls(asked, stage, outcomes, references)

    def write(self) -> None:
        """Write the files that are asked for; raises FreshetError."""
        if folder := self.asked.visits_out:
            for outcome in self.outcomes:
                write_visits(folder / outcome.file, self.stage.names, outcome.visits)
        if self.asked.plot:
            draw(self.asked.plot, self.outcomes, self.references, self._title)

    def in_json(self) -> dict[str, Any]:
        """All figures."""
        manner = self.asked.manner
        return in_json(self.stage, manner, self.outcomes, self.references)

    def show(self, console: Console) -> None:
        """Print the tables."""
        everything = [*self.outcomes, *self.references]
        console.print(self._title, soft_wrap=True)
        console.print(by_page(everything), by_source(everything))
        for note in notes(self.outcomes):
            console.print(note, soft_wrap=True)
        if not self.asked.budgets:
            budget = amount(self.outcomes[0].budget)
            console.print(f"The budget is the current one, {budget} requests a day (--budget).")

    @property
    def _title(self) -> str:
        return in_words(self.stage, self.outcomes[0])


def _stage(config: Config, opts: argparse.Namespace, asked: Asked) -> Stage:
    """The trace of the files, or the database's own past."""
    if opts.history is None:
        pages = Path(opts.pages) if opts.pages else None
        return stage_of_trace(read_trace(Path(opts.changes), pages), asked.moments)
    return stage_of_past(gathered(config, opts.history), asked.moments)
