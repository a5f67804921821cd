"""Simulate policies on pages: compute the visits of each, and score them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from rich.table import Table
from typing_extensions import TypedDict

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.items import Kind
from crawler.planning.options import PAGES, too_small
from crawler.planning.plots import GREY, draw_line, scale_by_factors, side_by_side
from crawler.planning.population import (
    MAX_INTERVAL_HOURS,
    MIN_INTERVAL_HOURS,
    Gathered,
    are,
)
from crawler.planning.simulation import (
    NOTHING,
    Outcome,
    Scenario,
    TraceSimulation,
    chosen_policies,
    finite,
    moment,
    table,
    text,
)
from crawler.planning.traces import iso, read_trace, whole_seconds
from crawler.storage.columns import keys_of_texts
from crawler.utils import time as units
from crawler.utils.process import Say
from crawler.utils.text import amount, count, precise
from schedules.evaluation.lists import Lists, simulate_lists
from schedules.evaluation.pages import daily, simulate
from schedules.evaluation.score import Figures, Totals, score
from schedules.evaluation.world import World, even_population
from schedules.history import DAY_HOURS, Ints, Times
from schedules.population import min_per_day, walls_of
from schedules.schedule import WEEK_HOURS
from schedules.terms import POLICIES, UNBOUNDED, BudgetTooSmall, Terms

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The policy of the paper, drawn next to the others.
PAPERS = "groups"
HEADS = (
    "policy",
    "budget",
    "per day",
    "fresh",
    "age\ndays",
    "delay\nhours",
    "all delays\nhours",
    "lost",
)
LOAD_HEADS = ("never\nseen", "peak\nhour", "peak\nday")
FORMS = ("{:.3f}", "{:.3f}", "{:.1f}", "{:.1f}", "{:.0%}")

PageOutcome = Outcome[Totals]


class PageMeans(TypedDict):
    """Means with equal weight for each source."""

    freshness: float | None
    """Share of time in which the copy equals the page."""
    age_days: float | None
    """Mean time since the oldest unseen change, in days."""
    delay_hours: float | None
    """Hours from a change to the visit that found it."""
    all_delays_hours: float | None
    """Hours from any change to the next visit or the end."""
    lost_share: float | None
    """Share of changes that a later change overwrote before a visit."""


class PagesResult(TypedDict):
    """Figures of a policy with a budget. Means have equal weight for each page."""

    policy: str
    """Allocation policy; `daily`: each page once a day."""
    budget: float | None
    """Requests per day that the policy was given; null for references."""
    requests_per_day: float
    """Requests per day that were made."""
    visits: int
    """Number of visits."""
    freshness: float | None
    """Share of time in which the copy equals the page."""
    age_days: float | None
    """Mean time since the oldest unseen change, in days."""
    delay_hours: float | None
    """Hours from a change to the visit that found it."""
    all_delays_hours: float | None
    """Hours from any change to the next visit or the end."""
    lost_share: float | None
    """Share of changes that a later change overwrote before a visit."""
    never_visited: int
    """Number of pages without a visit."""
    by_source: PageMeans
    """The same means with equal weight for each source."""
    lists_per_day: float
    """Requests for list pages per day, included in `requests_per_day`; 0 without `--lists`."""
    flags_per_day: float
    """Visits of pages per day that list pages have caused; 0 without `--lists`."""
    recall: float | None
    """Share of the changes that lists are believed to show at the last replan; null without."""
    hour_peak: float | None
    """Requests in the busiest hour, divided by the mean per hour."""
    busiest_hour: int
    """Maximum requests in one hour."""
    busiest_day: int
    """Maximum requests on one day."""
    visits_by_week: list[int]
    """Number of visits in each week."""


class PagesReport(TypedDict):
    """Policies on the changes of pages. Unknown values are null."""

    kind: Literal["pages"]
    """`pages`."""
    start: str
    """Start of the data."""
    split: str
    """Start of the scored period."""
    stop: str
    """End of the scored period."""
    closed_loop: bool
    """Whether policies know only what their own visits observed."""
    replan_every_days: float
    """Days between two replans."""
    daily_cap: int | None
    """Maximum requests per day; null: no cap."""
    pages: int
    """Number of pages."""
    sources: int
    """Number of sources."""
    changes: int
    """Number of changes in the scored period."""
    results: list[PagesResult]
    """Figures of each policy with each budget."""
    references: list[PagesResult]
    """Figures of daily visits, and with `--plot` of the paper's policy."""


@dataclass(frozen=True, slots=True)
class PageScenario(Scenario):
    """Hold n pages and their true changes. source: (n,) index of each page's source."""

    world: World
    source: Ints


@dataclass(frozen=True, slots=True)
class ListOptions:
    """What the options of the command say about list pages.

    entries:    of a list; 0: no lists
    recall:     share of the changes that lists show
    false:      share of entries that differ although the page is unchanged
    fails:      time from which lists show nothing; inf: never
    seed:       of the changes that are shown
    """

    entries: int = 0
    recall: float = 1.0
    false: float = 0.0
    fails: float = inf
    seed: int = 0

    @classmethod
    def of(cls, opts: argparse.Namespace) -> ListOptions:
        """Return the options; raises ConfigError."""
        others = ("recall", "false_flags", "lists_fail", "seed")
        if opts.lists is None:
            given = next((name for name in others if getattr(opts, name) is not None), None)
            if given is not None:
                raise ConfigError(f"--{given.replace('_', '-')} needs --lists")
            return cls()
        fails = moment("--lists-fail", opts.lists_fail)
        return cls(
            _whole("--lists", opts.lists, least=1),
            _share("--recall", opts.recall, 1.0), _share("--false-flags", opts.false_flags, 0.0),
            inf if fails is None else fails, _whole("--seed", opts.seed or "0", least=0),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Listed:
    """Figures of a crawl with lists, as in PagesResult."""

    lists_per_day: float = 0.0
    flags_per_day: float = 0.0
    recall: float | None = None


class PageSimulation(TraceSimulation[PageScenario, Totals, PagesReport]):
    """Simulate policies with request budgets, and daily visits to all pages as a reference.

    budgets: requests a day; empty: the budget of the current plan
    """

    kind = PAGES
    amount_text = ", {} requests a day"
    default_replan_hours = float(WEEK_HOURS)

    def __init__(self, config: Config, opts: argparse.Namespace) -> None:
        self.policies = chosen_policies(opts.policy, POLICIES)
        self.budgets = tuple(
            dict.fromkeys(_requests("--budget", each) for each in opts.budget or ())
        )
        cap = opts.daily_cap
        self.daily_cap = None if cap is None else max(1, math.floor(_requests("--daily-cap", cap)))
        super().__init__(config, opts)
        self.changes, self.pages = opts.changes, opts.pages
        self.lists = ListOptions.of(opts)
        if self.lists.entries and (self.policies != POLICIES[:1] or self.daily_cap):
            raise ConfigError("--lists is for the policy optimal without --daily-cap")
        self.references: list[PageOutcome] = []
        # Of the policy `optimal`, by budget.
        self.listed: dict[float, Listed] = {}

    def from_trace(self) -> PageScenario:
        """Return the pages of a trace; all clocks are UTC."""
        trace = read_trace(Path(self.changes), Path(self.pages) if self.pages else None)
        span = self.span_of((trace.changes.at, trace.began, trace.ends))
        population = even_population(
            keys_of_texts(list(trace.ids)), trace.source, np.ones(len(trace)),
            (MIN_INTERVAL_HOURS, float(MAX_INTERVAL_HOURS)), span.start, span.stop,
        )  # fmt: skip
        world = World(population, trace.changes, trace.began, trace.ends)
        return PageScenario(trace.ids, span, world, trace.source)

    def from_database(self, gathered: Gathered) -> PageScenario:
        """Return the pages of a database as its visits saw them.

        Changes count from the visit that found them. A page exists from its first observation, and
        counts as unchanged after its last one.
        """
        seen = ~np.isnan(gathered.histories.since)
        rows = np.flatnonzero(seen & ~are(gathered.watched, Kind.FEED))
        population, past = gathered.population.of(rows), gathered.histories.of(rows)
        span = self.span_of((past.since, past.until))
        if span.stop - span.split < DAY_HOURS:
            raise ConfigError(
                "less than a day of visits to simulate. Run scrapy simulate after a week of visits"
            )
        zones = tuple(dict.fromkeys(population.zones))
        population = replace(population, walls=walls_of(zones, span.start, span.stop))
        changes, ends = Times(past.first, past.by), np.full(len(rows), np.inf)
        names = [gathered.watched.ids[row] for row in rows.tolist()]
        return PageScenario(
            names, span, World(population, changes, past.since, ends), population.site
        )

    def amounts(self) -> Sequence[float]:
        """Return the budgets, checked against the longest intervals and the daily cap."""
        budgets = self.budgets or (self.current_budget(),)
        if set(self.policies) <= set(UNBOUNDED):
            return budgets
        cap = self.daily_cap
        if cap is not None and cap < max(budgets) * (1 - 1e-9):
            raise ConfigError(
                f"the daily cap {cap:,} is too low for {amount(max(budgets))} requests a day. "
                f"Use --daily-cap {math.ceil(max(budgets)):,} or more"
            )
        world = self.scenario.world
        population = world.population.of(world.there(self.scenario.span.split))
        min_budget = min_per_day(population)
        if min(budgets) < min_budget * (1 - 1e-9):
            raise too_small(
                min(budgets), BudgetTooSmall(min_budget, len(population)), population.max_hours
            )
        return budgets

    def play(self, say: Say) -> None:
        """Simulate each policy, then the references."""
        super().play(say)
        world, (_, split, stop) = self.scenario.world, self.scenario.span
        self.references.append(self.scored("daily", math.nan, daily(world, split, stop)))
        if self.plot_path and PAPERS not in self.policies:
            self.references.append(self.run(PAPERS, inf))

    def run(self, policy: str, amount: float) -> PageOutcome:
        """Simulate a policy with a budget. Raises ConfigError if pages added later need more."""
        if policy in UNBOUNDED:
            # The budget makes no difference to these policies.
            for outcome in self.outcomes:
                if outcome.policy == policy:
                    return replace(outcome, amount=amount)
        world, terms = self.scenario.world, Terms(policy, amount, self.daily_cap)
        try:
            if self.lists.entries:
                return self._with_lists(terms)
            visits = simulate(
                world, terms, self.scenario.span, replan_hours=self.replan_hours,
                closed_loop=self.closed_loop,
            )  # fmt: skip
        except BudgetTooSmall as error:
            raise too_small(amount, error, world.population.max_hours) from None
        return self.scored(policy, amount, visits)

    def _with_lists(self, terms: Terms) -> PageOutcome:
        """Simulate the policy with lists that show changes."""
        world, span, options = self.scenario.world, self.scenario.span, self.lists
        rng = np.random.default_rng(options.seed)
        drawn = Lists.drawn(world, self.scenario.source, options.entries, options.recall, rng)
        lists = replace(drawn, false=options.false, fails=options.fails)
        crawled = simulate_lists(
            world, lists, terms, span, rng, replan_hours=self.replan_hours,
            closed_loop=self.closed_loop,
        )  # fmt: skip
        outcome = self.scored(terms.policy, terms.budget_per_day, crawled.visits)
        days = (span.stop - span.split) / DAY_HOURS
        recall = crawled.recall[-1].mean() if len(lists) else math.nan
        self.listed[terms.budget_per_day] = Listed(
            float((crawled.list_visits.at >= span.split).sum()) / days,
            float((crawled.followed >= span.split).sum()) / days, finite(float(recall)),
        )  # fmt: skip
        return outcome

    def scored(self, policy: str, budget: float, visits: Times) -> PageOutcome:
        """Return the score of visits."""
        # Score the visits at the resolution of visit files.
        visits = Times(visits.first, whole_seconds(visits.at))
        world, (_, split, stop) = self.scenario.world, self.scenario.span
        totals = score(
            world.changes, visits, self.scenario.source, world.ends, split, stop
        ).totals()
        return Outcome(policy, budget, totals, visits)

    def description(self) -> str:
        """Return a one-line description of the scenario."""
        totals = self.outcomes[0].figures
        return (
            f"{count(totals.pages, 'page')} of {count(totals.sources, 'source')}, "
            f"{count(totals.changes, 'change')}, {self.days()}"
        )

    def tables(self) -> Iterator[Table | str]:
        """Yield a table by page and one by source, and notes on the budget."""
        by_page, by_source = [], []
        for outcome in (*self.outcomes, *self.references):
            totals, load = outcome.figures, outcome.figures.load
            listed = self.listed.get(outcome.amount, Listed())
            begin = (
                outcome.policy,
                precise(outcome.amount) if math.isfinite(outcome.amount) else NOTHING,
                f"{load.per_day + listed.lists_per_day:,.1f}",
            )
            peaks = text(load.hour_peak, "{:.1f}x"), f"{load.busiest_day:,}"
            means = _in_texts(totals.by_page)
            by_page.append((*begin, *means, f"{totals.never_visited:,}", *peaks))
            by_source.append((*begin, *_in_texts(totals.by_source)))
        yield table("all pages weighted equally", (*HEADS, *LOAD_HEADS), by_page)
        yield table("all sources weighted equally", HEADS, by_source)
        if unbounded := [policy for policy in UNBOUNDED if policy in self.policies]:
            yield f"{', '.join(unbounded)}: independent of the budget"
        for budget, listed in self.listed.items():
            yield (
                f"{precise(budget)} a day: {listed.lists_per_day:,.1f} requests for lists, "
                f"{listed.flags_per_day:,.1f} visits that they have caused, recall "
                f"{text(listed.recall, '{:.2f}')} at the end"
            )
        if not self.budgets:
            current = amount(self.outcomes[0].amount)
            yield f"The budget is the current one, {current} requests a day. Set it with --budget."

    def report(self) -> PagesReport:
        """Return all figures."""
        totals, span = self.outcomes[0].figures, self.scenario.span
        return {
            "kind": "pages",
            "start": iso(span.start),
            "split": iso(span.split),
            "stop": iso(span.stop),
            "closed_loop": self.closed_loop,
            "replan_every_days": self.replan_hours / DAY_HOURS,
            "daily_cap": self.daily_cap,
            "pages": totals.pages,
            "sources": totals.sources,
            "changes": totals.changes,
            "results": [self._row(outcome) for outcome in self.outcomes],
            "references": [self._row(outcome) for outcome in self.references],
        }

    def _row(self, outcome: PageOutcome) -> PagesResult:
        totals, load, (start, split, _) = outcome.figures, outcome.figures.load, self.scenario.span
        listed = self.listed.get(outcome.amount, Listed())
        at = outcome.visits.at
        began = start if len(at) and at.min() < split else split
        return {
            "policy": outcome.policy,
            "budget": finite(outcome.amount),
            "requests_per_day": load.per_day + listed.lists_per_day,
            "visits": totals.visits,
            **_means_of(totals.by_page),
            "never_visited": totals.never_visited,
            "by_source": _means_of(totals.by_source),
            "lists_per_day": listed.lists_per_day,
            "flags_per_day": listed.flags_per_day,
            "recall": listed.recall,
            "hour_peak": finite(load.hour_peak),
            "busiest_hour": load.busiest_hour,
            "busiest_day": load.busiest_day,
            "visits_by_week": np.bincount(((at - began) // WEEK_HOURS).astype(np.int64)).tolist(),
        }

    def plot(self, path: Path) -> None:
        """Draw freshness and age by requests a day: policies as lines, references as points."""
        with side_by_side(path, self.description()) as (fresh, age):
            self._draw(fresh, "freshness")
            self._draw(age, "age_days")
            fresh.set_title("freshness: share of time in which the copy is current", loc="left")
            age.set_title("age: days since the oldest unseen change", loc="left")
            age.set_ylim(bottom=0)

    def _draw(self, axes: Axes, figure: str) -> None:
        def point(outcome: PageOutcome) -> tuple[float, float]:
            value: float = getattr(outcome.figures.by_page, figure)
            return outcome.figures.load.per_day, value

        for policy in self.policies:
            draw_line(
                axes, policy, [point(each) for each in self.outcomes if each.policy == policy]
            )
        for at, reference in enumerate(self.references):
            x, y = point(reference)
            name = "every page daily" if at == 0 else f"the paper's {reference.policy}"
            axes.axhline(y, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
            axes.plot(
                [x], [y], "*s"[at], color=GREY, markersize=9, label=f"{name} ({x:,.0f} a day)"
            )
        scale_by_factors(axes, "requests a day")


def _whole(option: str, text: str, least: int) -> int:
    """Parse a whole number."""
    if not text.isascii() or not text.isdigit() or not least <= int(text[:9]) or len(text) > 9:
        raise ConfigError(f"{option}: not a whole number from {least}: {text!r}")
    return int(text)


def _share(option: str, text: str | None, usual: float) -> float:
    """Parse a share of 0 to 1."""
    try:
        share = usual if text is None else float(text)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise ConfigError(f"{option}: not a share of 0 to 1: {text!r}")
    return share


def _requests(option: str, text: str) -> float:
    """Parse a positive number of requests a day."""
    try:
        amount = units.per_day(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None
    if not amount:
        raise ConfigError(f"{option} {text}: must be greater than 0")
    return amount


def _means_of(figures: Figures) -> PageMeans:
    return {
        "freshness": finite(figures.freshness),
        "age_days": finite(figures.age_days),
        "delay_hours": finite(figures.delay_h),
        "all_delays_hours": finite(figures.delay_all_h),
        "lost_share": finite(figures.lost_share),
    }


def _in_texts(figures: Figures) -> Iterator[str]:
    """Yield the figures as table cells."""
    return (text(value, form) for value, form in zip(asdict(figures).values(), FORMS, strict=True))
