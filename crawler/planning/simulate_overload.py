"""Simulate policies on cells that one server cannot refresh in time, as in the paper or a file."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.table import Table
from typing_extensions import TypedDict

from crawler.config import Config
from crawler.errors import ConfigError, WrapperError, first_problem
from crawler.extract.stored_definition import read_toml
from crawler.planning.plots import GREY, LINE_STYLES, side_by_side
from crawler.planning.simulation import Outcome, Simulation, chosen_policies, finite, table, text
from crawler.utils.shapes import copied
from crawler.utils.text import amount, count
from schedules.dispatch import FLOOR_SHARE, POLICIES, equal_ratio, jain
from schedules.evaluation.overload import HOUR_SECONDS, Cells, Course, Played, play
from schedules.history import Ints

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_CELLS, MAX_EVENTS, MAX_LOAD = 10_000, 2_000_000, 1000.0
GROUP_HEADS = ("policy", "group", "cells", "ratio", "expected", "worst\ncell", "fresh", "missed",
               "requested")  # fmt: skip
POLICY_HEADS = ("policy", "worst\nratio", "Jain", "fresh", "missed", "requested")
# Number of hours per line; tables of hourly ratios are stacked.
HOURS_A_LINE = 12
# Total width of the bars of a group.
BARS_WIDTH = 0.8

Positive = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Cell(_Model):
    """Describe some cells of a file.

    period, changes_every: in seconds; without changes_every, changes come as often as requests
    cost:                  seconds of execution, or relative if a load is given
    """

    period: Positive
    cost: Positive = 1.0
    group: Annotated[str, Field(min_length=1, max_length=40)] = "cells"
    count: Annotated[int, Field(ge=1, le=MAX_CELLS)] = 1
    changes_every: Positive | None = None


class File(_Model):
    """Describe a mix of cells in a file.

    load: seconds of work requested per second; costs are scaled to it
    """

    cells: Annotated[tuple[Cell, ...], Field(min_length=1)]
    load: Positive | None = None
    hours: Annotated[float, Field(gt=0, le=24 * 366)] = 24.0
    seed: Annotated[int, Field(ge=0)] = 0


# 17 dynamic, 33 semi-dynamic and 50 static cells (Ha et al. 2002, section 5). The paper gives
# neither periods nor costs nor a load; these are our own.
PAPER = File(
    cells=(
        Cell(group="dynamic", count=17, period=300, cost=1),
        Cell(group="semi-dynamic", count=33, period=1800, cost=2),
        Cell(group="static", count=50, period=7200, cost=4),
    ),
    load=2.0,
)


@dataclass(frozen=True, slots=True)
class Mix:
    """Hold n cells in groups, and their course of events, which is the same for all policies.

    groups: their names
    group:  (n,) number of each cell's group
    """

    cells: Cells
    groups: tuple[str, ...]
    group: Ints
    hours: float
    seed: int
    course: Course

    @property
    def floor(self) -> float:
        """Return the refresh ratio that the policy `value` guarantees to every cell."""
        return FLOOR_SHARE * equal_ratio(self.cells.load)


class GroupResult(TypedDict):
    """Figures of a group of cells."""

    cells: int
    """Number of cells."""
    ratio: float
    """Mean refresh ratio: served requests as a share of all."""
    expected: float
    """Refresh ratio by the paper's equations."""
    worst_ratio: float
    """Lowest refresh ratio of a cell."""
    freshness: float
    """Mean share of time in which a cell is current."""
    requested: int
    """Number of requests."""
    missed: int
    """Number of requests that were not served."""
    by_hour: list[float | None]
    """Served share of the requests of each hour; null without requests."""


@dataclass(frozen=True, slots=True)
class Ratios:
    """Hold the figures of a policy. jain: Jain's index of all cells' ratios."""

    groups: dict[str, GroupResult]
    all: GroupResult
    jain: float


class OverloadResult(TypedDict):
    """Figures of a policy."""

    groups: dict[str, GroupResult]
    """Figures of each group of cells."""
    worst_ratio: float
    """Lowest refresh ratio of a cell."""
    jain: float | None
    """Jain's index: fairness of the refresh ratios."""
    freshness: float
    """Mean share of time in which a cell is current."""
    requested: int
    """Number of requests."""
    missed: int
    """Number of requests that were not served."""


class OverloadReport(TypedDict):
    """Policies under overload."""

    kind: Literal["overload"]
    """`overload`."""
    load: float
    """Seconds of work requested per second."""
    hours: float
    """Simulated hours."""
    seed: int
    """Seed of the random numbers."""
    cells: int
    """Number of cells."""
    min_ratio: float
    """Minimum refresh ratio that the policy `value` guarantees to each cell."""
    policies: dict[str, OverloadResult]
    """Figures of each policy."""


class OverloadSimulation(Simulation[Mix, Ratios, OverloadReport]):
    """Simulate policies that choose what to refresh when time is short."""

    kind = "overload"

    def __init__(self, config: Config, opts: argparse.Namespace) -> None:
        self.policies = chosen_policies(opts.policy or list(POLICIES), POLICIES)
        super().__init__(config, opts)
        self.file = None if opts.file is None else Path(opts.file)
        self.equal_costs = opts.equal_costs
        self.load = None
        if opts.load is not None:
            try:
                self.load = float(opts.load)
            except ValueError:
                self.load = math.nan
            if not 0 < self.load <= MAX_LOAD:
                raise ConfigError(
                    f"--load: invalid load {opts.load!r}. Use seconds of work per second, such as "
                    f"1.05 or 2 (more than 0, at most {MAX_LOAD:g})"
                )

    def read_scenario(self) -> Mix:
        """Return the mix of the file, or of the paper. Raises ConfigError with file and key."""
        file = PAPER
        if self.file is not None:
            try:
                file = File.model_validate(read_toml(self.file))
            except WrapperError as error:
                raise ConfigError(str(error)) from None
            except ValidationError as error:
                problem = ": ".join(filter(None, first_problem(error)))
                raise ConfigError(f"{self.file}: {problem}") from None
            if (total := sum(cell.count for cell in file.cells)) > MAX_CELLS:
                raise ConfigError(f"{self.file}: too many cells: {total:,} (maximum {MAX_CELLS:,})")
        rows = [cell for cell in file.cells for _ in range(cell.count)]
        period, cost = np.array([(cell.period, cell.cost) for cell in rows]).T
        change_every = np.array([cell.changes_every or cell.period for cell in rows])
        cells = Cells(period, cost, change_every)
        for events, every in (("requests", period), ("changes", change_every)):
            if (total := (file.hours * HOUR_SECONDS / every).sum()) > MAX_EVENTS:
                raise ConfigError(
                    f"{self.file}: too many {events}: {total:,.0f} (maximum {MAX_EVENTS:,})"
                )
        load = self.load or file.load or cells.load
        if self.equal_costs:
            cells = Cells(period, np.ones(len(rows)), change_every)
        cells = Cells(period, cells.cost * (load / cells.load), change_every)
        names = tuple(dict.fromkeys(cell.group for cell in rows))
        group = np.array([names.index(cell.group) for cell in rows], np.int64)
        rng = np.random.default_rng(file.seed)
        course = Course.drawn(cells, file.hours * HOUR_SECONDS, rng)
        return Mix(cells, names, group, file.hours, file.seed, course)

    def amounts(self) -> tuple[float, ...]:
        """Return the load, the only amount."""
        return (self.scenario.cells.load,)

    def run(self, policy: str, amount: float) -> Outcome[Ratios]:
        """Simulate one policy."""
        mix = self.scenario
        played = play(mix.cells, mix.course, policy)
        groups = {
            name: _share(mix, played, np.flatnonzero(mix.group == number))
            for number, name in enumerate(mix.groups)
        }
        all_cells = _share(mix, played, np.arange(len(mix.cells)))
        return Outcome(policy, amount, Ratios(groups, all_cells, jain(played.ratio)))

    def description(self) -> str:
        """Return a one-line description of the scenario."""
        mix = self.scenario
        return (
            f"{count(len(mix.cells), 'cell')} for {amount(mix.hours)} hours at load "
            f"{amount(mix.cells.load)} (seed {mix.seed}); minimum ratio of `value`: {mix.floor:.3f}"
        )

    def tables(self) -> Iterator[Table]:
        """Yield tables by policy, by group, and by hour as in table 1 of the paper."""
        by_policy, by_group = [], list[tuple[str, ...]]()
        for outcome in self.outcomes:
            ratios, shares = outcome.figures, outcome.figures.all
            by_policy.append(
                (outcome.policy, f"{shares['worst_ratio']:.3f}", text(ratios.jain, "{:.3f}"),
                 f"{shares['freshness']:.3f}", f"{shares['missed']:,}", f"{shares['requested']:,}")
            )  # fmt: skip
            for name, share in ratios.groups.items():
                means = share["ratio"], share["expected"], share["worst_ratio"], share["freshness"]
                by_group.append(
                    (outcome.policy, name, f"{share['cells']:,}",
                     *(f"{mean:.3f}" for mean in means), f"{share['missed']:,}",
                     f"{share['requested']:,}")
                )  # fmt: skip
            by_group.append(())
        yield table("all cells", POLICY_HEADS, by_policy)
        yield table("by group", GROUP_HEADS, by_group)
        for outcome in self.outcomes:
            hours = len(outcome.figures.all["by_hour"])
            for first in range(0, hours, HOURS_A_LINE):
                shown = range(first, min(first + HOURS_A_LINE, hours))
                yield table(
                    f"{outcome.policy}: refresh ratio by hour" if first == 0 else "",
                    ("hour", *(str(hour + 1) for hour in shown)),
                    [
                        (name, *(text(share["by_hour"][hour], "{:.2f}") for hour in shown))
                        for name, share in outcome.figures.groups.items()
                    ],
                )

    def report(self) -> OverloadReport:
        """Return all figures."""
        mix = self.scenario
        return {
            "kind": "overload",
            "load": round(mix.cells.load, 9),
            "hours": mix.hours,
            "seed": mix.seed,
            "cells": len(mix.cells),
            "min_ratio": mix.floor,
            "policies": {
                outcome.policy: {
                    **copied(OverloadResult, outcome.figures.all),
                    "groups": outcome.figures.groups,
                    "jain": finite(outcome.figures.jain),
                }
                for outcome in self.outcomes
            },
        }

    def plot(self, path: Path) -> None:
        """Draw ratio and freshness of each group as bars."""
        with side_by_side(path, self.description()) as (ratio, fresh):
            self._draw(ratio, "ratio")
            self._draw(fresh, "freshness")
            ratio.set_title("refresh ratio; dots: worst cell, line: minimum of `value`", loc="left")
            ratio.axhline(self.scenario.floor, color=GREY, linewidth=0.9, linestyle="--")
            fresh.set_title("freshness: share of time in which the cell is current", loc="left")

    def _draw(self, axes: Axes, figure: Literal["ratio", "freshness"]) -> None:
        names = self.scenario.groups
        middle, width = np.arange(len(names)), BARS_WIDTH / len(self.outcomes)
        for place, outcome in enumerate(self.outcomes):
            at = middle + (place - (len(self.outcomes) - 1) / 2) * width
            shares, color = outcome.figures.groups.values(), LINE_STYLES[outcome.policy].color
            heights = [share[figure] for share in shares]
            axes.bar(at, heights, width * 0.92, label=outcome.policy, color=color)
            if figure == "ratio":
                axes.plot(
                    at, [share["worst_ratio"] for share in shares], "o", color=GREY, markersize=3
                )
        axes.set_xticks(middle, names)
        axes.set_ylim(0, 1.02)


def _share(mix: Mix, played: Played, rows: Ints) -> GroupResult:
    """Return the figures of some cells, as means over them."""
    requested, refreshed = played.requested[rows], played.refreshed[rows]
    in_hour = requested.sum(0)
    by_hour = np.full(len(in_hour), np.nan)
    np.divide(refreshed.sum(0), in_hour, where=in_hour > 0, out=by_hour)
    return {
        "cells": len(rows),
        "ratio": float(played.ratio[rows].mean()),
        "expected": float(mix.cells.expected[rows].mean()),
        "worst_ratio": float(played.ratio[rows].min()),
        "freshness": float(played.fresh[rows].mean()),
        "requested": int(requested.sum()),
        "missed": int((requested - refreshed).sum()),
        "by_hour": [finite(ratio) for ratio in by_hour.tolist()],
    }
