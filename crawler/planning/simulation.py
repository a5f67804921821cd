"""Compare policies in simulation: run each policy with each amount on one scenario.

`PageSimulation`, `FeedSimulation` and `OverloadSimulation` add the scenario, how a policy runs on
it, and its figures.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from crawler.config import Config
from crawler.errors import ConfigError, no_targets
from crawler.planning import plots
from crawler.planning.options import FEEDS, PlanOptions, budget_of
from crawler.planning.population import Gathered, gather
from crawler.planning.replan import effect_of, hours_of
from crawler.planning.traces import HOUR_SECONDS, iso, write_visits
from crawler.storage import histories, targets
from crawler.storage.store import opened
from crawler.utils.process import Say
from crawler.utils.text import precise
from schedules.evaluation.world import Span
from schedules.history import DAY_HOURS, Floats, Times

DATE_LENGTH = len("2024-01-31")
MAX_REPLAN_DAYS = 365.0
# By default, the first third of the span is used for learning.
LEARNING_SHARE = 1 / 3
NOTHING = "-"
NO_VISITS = Times(np.zeros(1, np.int64), np.empty(0))

FiguresT = TypeVar("FiguresT")
ReportT = TypeVar("ReportT")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[FiguresT]):
    """Hold the result of a policy with an amount. visits: empty under overload."""

    policy: str
    amount: float
    figures: FiguresT
    visits: Times = NO_VISITS


@dataclass(frozen=True, slots=True)
class Scenario:
    """Hold named targets that are visited over a span of time."""

    names: Sequence[str]
    span: Span


ScenarioT = TypeVar("ScenarioT")
TracedT = TypeVar("TracedT", bound=Scenario)


class Simulation(ABC, Generic[ScenarioT, FiguresT, ReportT]):
    """Run policies on one scenario, each with each amount. Methods raise FreshetError.

    kind:        name on the command line
    amount_text: format of the amount in progress lines
    """

    kind: ClassVar[str]
    amount_text: ClassVar[str] = ""
    policies: tuple[str, ...]
    scenario: ScenarioT

    def __init__(self, config: Config, opts: argparse.Namespace) -> None:
        self.config = config
        self.plot_path: Path | None = opts.plot
        if opts.plot is not None:
            if opts.plot.suffix.lower() not in plots.SUFFIXES:
                suffixes = " or ".join(plots.SUFFIXES)
                raise ConfigError(f"--plot {opts.plot}: unsupported format. Use {suffixes}")
            if opts.plot.is_dir():
                raise ConfigError(f"--plot {opts.plot}: is a folder, not a file")
            _check_folder("--plot", opts.plot.parent)
        self.outcomes: list[Outcome[FiguresT]] = []

    @abstractmethod
    def read_scenario(self) -> ScenarioT:
        """Return the scenario."""

    @abstractmethod
    def amounts(self) -> Sequence[float]:
        """Return the amounts for each policy, checked against the scenario."""

    @abstractmethod
    def run(self, policy: str, amount: float) -> Outcome[FiguresT]:
        """Simulate one policy with one amount."""

    @abstractmethod
    def description(self) -> str:
        """Return a one-line description of the scenario."""

    @abstractmethod
    def tables(self) -> Iterator[Table | str]:
        """Yield the tables, and the notes needed to read them."""

    @abstractmethod
    def report(self) -> ReportT:
        """Return all figures."""

    @abstractmethod
    def plot(self, path: Path) -> None:
        """Draw the figures; the file is written atomically."""

    def play(self, say: Say) -> None:
        """Simulate each policy with each amount."""
        self.scenario = self.read_scenario()
        pairs = tuple(product(self.policies, self.amounts()))
        for at, (policy, amount) in enumerate(pairs, 1):
            say(f"{policy}{self.amount_text.format(precise(amount))} ({at} of {len(pairs)})")
            self.outcomes.append(self.run(policy, amount))

    def write(self) -> None:
        """Write the requested files."""
        if self.plot_path is not None:
            self.plot(self.plot_path)

    def show(self, console: Console) -> None:
        """Print the tables."""
        console.print(self.description(), soft_wrap=True)
        for part in self.tables():
            console.print(part, soft_wrap=isinstance(part, str))


class TraceSimulation(Simulation[TracedT, FiguresT, ReportT]):
    """Simulate on a trace of files or on the history of a database, and write visits.

    replan_hours: interval between two replans
    closed_loop:  whether policies know only what their own visits observed
    """

    default_replan_hours: ClassVar[float]

    def __init__(self, config: Config, opts: argparse.Namespace) -> None:
        super().__init__(config, opts)
        self.history: str | None = opts.history
        self.closed_loop: bool = opts.closed_loop
        self.replan_hours = self.default_replan_hours
        if opts.replan_every is not None:
            try:
                days = float(opts.replan_every)
            except ValueError:
                days = 0.0
            if not 1 / DAY_HOURS <= days <= MAX_REPLAN_DAYS:
                raise ConfigError(
                    f"--replan-every: invalid number of days: {opts.replan_every!r}. "
                    f"Use 0.042 (one hour) to {MAX_REPLAN_DAYS:g}"
                )
            self.replan_hours = days * DAY_HOURS
        self.start = moment("--from", opts.start)
        self.split, self.stop = moment("--split", opts.split), moment("--to", opts.stop)
        self.visits_out: Path | None = opts.visits_out
        if opts.visits_out is not None:
            _check_folder("--visits-out", opts.visits_out)

    @abstractmethod
    def from_trace(self) -> TracedT:
        """Return the scenario of the files."""

    @abstractmethod
    def from_database(self, gathered: Gathered) -> TracedT:
        """Return the scenario of a database: what its visits observed."""

    def read_scenario(self) -> TracedT:
        """Return the scenario of the files, or of the history in the database."""
        if self.history is None:
            return self.from_trace()
        return self.from_database(asyncio.run(self._gathered(self.history)))

    async def _gathered(self, spider: str) -> Gathered:
        async with opened(self.config) as db:
            now = self.config.clock.now()
            stored = await targets.spiders(db)
            if spider and spider not in stored:
                raise no_targets(spider, stored)
            watched = await histories.read(db, now, [spider] if spider else None)
            return await gather(db, watched, self.config, hours_of(now))

    def current_budget(self) -> float:
        """Return the budget that `scrapy replan --kind KIND` without a budget would use."""
        return asyncio.run(self._current_budget(self.history or ""))

    async def _current_budget(self, spider: str) -> float:
        async with opened(self.config) as db:
            now, feeds = self.config.clock.now(), self.kind == FEEDS
            stored, of_feeds = await targets.spiders(db), await targets.feed_spiders(db)
            of_kind = [name for name in stored if (name in of_feeds) == feeds]
            names = [spider] if spider else of_kind
            watched = await histories.read(db, now, names)
            gathered = await gather(db, watched, self.config, hours_of(now))
            effect = await effect_of(db, watched, now, everything=set(names) >= set(of_kind))
            options = PlanOptions.of_config(self.config, feeds=feeds)
            return budget_of(gathered, options, effect, hours_of(now)).per_day

    def span_of(self, moments: Sequence[Floats]) -> Span:
        """Return the requested span, by default that of `moments`. Raises ConfigError if empty."""
        at = np.concatenate([part[np.isfinite(part)] for part in moments])
        if not len(at):
            raise ConfigError("no observations to simulate. Run scrapy crawl first")
        start = float(at.min()) if self.start is None else self.start
        stop = float(at.max()) if self.stop is None else self.stop
        if start == stop:
            raise ConfigError(
                f"nothing to simulate yet: all visits were at about {iso(start)}. "
                "Crawl for a few days first"
            )
        split = start + (stop - start) * LEARNING_SHARE if self.split is None else self.split
        if not start < split:
            raise ConfigError(f"--from {iso(start)} must be before --split {iso(split)}")
        if not split < stop:
            raise ConfigError(f"--split {iso(split)} must be before --to {iso(stop)}")
        return Span(start, split, stop)

    def days(self) -> str:
        """Return the scored days as text."""
        span = self.scenario.span
        return f"{iso(span.split)[:10]} to {iso(span.stop)[:10]}"

    def write(self) -> None:
        """Write the visits of each outcome, and the plot."""
        for outcome in self.outcomes:
            if self.visits_out is not None:
                file = self.visits_out / f"{outcome.policy}_{outcome.amount:.12g}.csv.gz"
                write_visits(file, self.scenario.names, outcome.visits)
        super().write()


def moment(option: str, text: str | None) -> float | None:
    """Parse a time to hours since 1970; a date without a time means midnight UTC."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(
            f"{option}: invalid time {text!r}. Use a format such as 2024-01-31T08:00:00Z"
        ) from None
    if moment.tzinfo is None and len(text.strip()) > DATE_LENGTH:
        raise ConfigError(f"{option}: time without a time zone: {text!r}. Append Z for UTC")
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() / HOUR_SECONDS


def chosen_policies(
    named: list[str] | None, policies: tuple[str, ...], kind: str = ""
) -> tuple[str, ...]:
    """Return each policy once, by default the first. Raises ConfigError for unknown names."""
    for policy in named or ():
        if policy not in policies:
            raise ConfigError(
                f"--policy: policy not found{kind}: {policy!r}. Available: {', '.join(policies)}"
            )
    return tuple(dict.fromkeys(named or policies[:1]))


def _check_folder(option: str, path: Path) -> None:
    """Raise ConfigError unless a folder is writable or can be created. Creates nothing."""
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise ConfigError(f"{option} {path}: not a writable folder: {existing}")


def finite(value: float) -> float | None:
    """Return a value, or None for NaN and inf, because JSON supports neither."""
    return value if math.isfinite(value) else None


def text(value: float | None, form: str) -> str:
    """Format a table cell; form: as of `str.format`."""
    return NOTHING if value is None or not math.isfinite(value) else form.format(value)


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table: a column of names, then columns of figures. An empty row ends a section."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    for place, head in enumerate(heads):
        made.add_column(head, justify="right" if place else "left", no_wrap=True)
    for row in rows:
        if row:
            made.add_row(*row)
        else:
            made.add_section()
    return made
