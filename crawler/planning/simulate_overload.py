"""Mixes of cells to simulate: the paper's, or those of a TOML file."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.console import Console
from rich.table import Table

from crawler.errors import ConfigError, WrapperError, first_problem
from crawler.extract.wrapper import read_toml
from crawler.planning import simulation as asked
from crawler.planning.plots import GREY, LOOKS, side_by_side
from crawler.planning.simulation import number, table, text
from crawler.utils.text import amount, count
from schedules.dispatch.dispatch import FLOOR_SHARE, POLICIES, equal_ratio, jain
from schedules.evaluation.overload import HOUR_SECONDS, Cells, Course, Played, play
from schedules.history import Floats, Ints

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_CELLS, MOST_EVENTS = 10_000, 2_000_000
Positive = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Cell(_Model):
    """Some cells of a file.

    period, changes_every: in seconds; changes come as often as requests where nothing is said
    cost: seconds of execution, or relative where a load is given
    """

    period: Positive
    cost: Positive = 1.0
    group: Annotated[str, Field(min_length=1, max_length=40)] = "cells"
    count: Annotated[int, Field(ge=1, le=MOST_CELLS)] = 1
    changes_every: Positive | None = None


class File(_Model):
    """A mix as a file has it.

    load: seconds of work that are asked for in a second; costs are scaled to it
    """

    cells: Annotated[tuple[Cell, ...], Field(min_length=1)]
    load: Positive | None = None
    hours: Annotated[float, Field(gt=0, le=24 * 366)] = 24.0
    seed: Annotated[int, Field(ge=0)] = 0


# 17 dynamic, 33 semi-dynamic and 50 static cells (Ha et al. 2002, section 5). The paper gives
# neither periods nor costs nor a load: these are ours.
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
    """n cells in groups. groups: their names   group: (n,) number of each cell's group."""

    cells: Cells
    groups: tuple[str, ...]
    group: Ints
    hours: float
    seed: int


def read(path: Path | None, load: float | None, *, equal_costs: bool) -> Mix:
    """The mix of a file, of the paper without one; ConfigError names file and key.

    load: in place of the file's
    """
    file = PAPER if path is None else _file(path)
    mix = _mix(file)
    _check_size(mix, path)
    wanted = load or file.load or mix.cells.load
    cells = replace(mix.cells, cost=np.ones(len(mix.cells))) if equal_costs else mix.cells
    return replace(mix, cells=replace(cells, cost=cells.cost * (wanted / cells.load)))


def _check_size(mix: Mix, path: Path | None) -> None:
    """ConfigError where a simulation would have no end that anybody waits for."""
    seconds, cells = mix.hours * HOUR_SECONDS, mix.cells
    for what, every in (("requests", cells.period), ("changes", cells.change_every)):
        if (count := (seconds / every).sum()) > MOST_EVENTS:
            raise ConfigError(f"{path}: {count:,.0f} {what} are more than {MOST_EVENTS:,}")


def _file(path: Path) -> File:
    try:
        found: dict[str, Any] = read_toml(path)
    except WrapperError as error:
        raise ConfigError(str(error)) from None
    try:
        file = File.model_validate(found)
    except ValidationError as error:
        raise ConfigError(f"{path}: {': '.join(filter(None, first_problem(error)))}") from None
    if (count := sum(cell.count for cell in file.cells)) > MOST_CELLS:
        raise ConfigError(f"{path}: {count:,} cells are more than {MOST_CELLS:,}")
    return file


def _mix(file: File) -> Mix:
    groups = tuple(dict.fromkeys(cell.group for cell in file.cells))
    rows = [cell for cell in file.cells for _ in range(cell.count)]
    period = np.array([cell.period for cell in rows])
    change = np.array([cell.changes_every or cell.period for cell in rows])
    cells = Cells(period, np.array([cell.cost for cell in rows]), change)
    group = np.array([groups.index(cell.group) for cell in rows], np.int64)
    return Mix(cells, groups, group, file.hours, file.seed)


@dataclass(frozen=True, slots=True)
class Share:
    """A group's figures: means over its cells.

    ratio, expected: refresh ratio, and the paper's expectation   by_hour: (h,) NaN without requests
    worst: the lowest ratio of a cell   missed: requests that came to nothing
    """

    cells: int
    ratio: float
    expected: float
    freshness: float
    worst: float
    requested: int
    missed: int
    by_hour: Floats


@dataclass(frozen=True, slots=True)
class Result:
    """A policy's figures. jain: Jain's index of all cells' ratios."""

    policy: str
    groups: dict[str, Share]
    all: Share
    jain: float


def course_of(mix: Mix) -> Course:
    """What happens to a mix, the same for all policies."""
    rng = np.random.default_rng(mix.seed)
    return Course.drawn(mix.cells, mix.hours * HOUR_SECONDS, rng)


def tried(mix: Mix, course: Course, policy: str) -> Result:
    """What a policy makes of it."""
    played = play(mix.cells, course, policy)
    groups = {
        name: _share(mix, played, np.flatnonzero(mix.group == number))
        for number, name in enumerate(mix.groups)
    }
    everyone = _share(mix, played, np.arange(len(mix.cells)))
    return Result(policy, groups, everyone, jain(played.ratio))


def _share(mix: Mix, played: Played, rows: Ints) -> Share:
    requested, refreshed = played.requested[rows], played.refreshed[rows]
    in_hour = requested.sum(0)
    by_hour = np.full(len(in_hour), np.nan)
    np.divide(refreshed.sum(0), in_hour, where=in_hour > 0, out=by_hour)
    return Share(
        cells=len(rows),
        ratio=float(played.ratio[rows].mean()),
        expected=float(mix.cells.expected[rows].mean()),
        freshness=float(played.fresh[rows].mean()),
        worst=float(played.ratio[rows].min()),
        requested=int(requested.sum()),
        missed=int((requested - refreshed).sum()),
        by_hour=by_hour,
    )


HEADS = ("cells", "ratio", "expected", "worst\ncell", "fresh", "missed", "asked")
# Groups by hour stand one below the other, so many hours a line.
HOURS_A_LINE = 12


def in_json(mix: Mix, results: Sequence[Result]) -> dict[str, Any]:
    """All figures under the names of JSON; null where there is none."""
    return {
        "kind": "overload",
        "load": round(mix.cells.load, 9),
        "hours": mix.hours,
        "seed": mix.seed,
        "cells": len(mix.cells),
        "floor": FLOOR_SHARE * equal_ratio(mix.cells.load),
        "policies": {
            one.policy: {
                "groups": {name: _group(share) for name, share in one.groups.items()},
                "worst_ratio": one.all.worst,
                "jain": number(one.jain),
                "freshness": one.all.freshness,
                "requested": one.all.requested,
                "missed": one.all.missed,
            }
            for one in results
        },
    }


def _group(share: Share) -> dict[str, Any]:
    return {
        "cells": share.cells,
        "ratio": share.ratio,
        "expected": share.expected,
        "worst_ratio": share.worst,
        "freshness": share.freshness,
        "requested": share.requested,
        "missed": share.missed,
        "by_hour": [number(ratio) for ratio in share.by_hour.tolist()],
    }


def of_policies(results: Sequence[Result]) -> Table:
    """A row a policy."""
    made = table("all cells", "policy", "worst\nratio", "Jain", "fresh", "missed", "asked")
    for one in results:
        made.add_row(
            one.policy, f"{one.all.worst:.3f}", text(one.jain, "{:.3f}"),
            f"{one.all.freshness:.3f}", f"{one.all.missed:,}", f"{one.all.requested:,}",
        )  # fmt: skip
    return made


def of_groups(results: Sequence[Result]) -> Table:
    """A row for each group of each policy."""
    made = table("by group", "policy", "group", *HEADS)
    for one in results:
        for name, share in one.groups.items():
            made.add_row(one.policy, name, *_cells(share))
        made.add_section()
    return made


def _cells(share: Share) -> Iterator[str]:
    yield f"{share.cells:,}"
    for figure in (share.ratio, share.expected, share.worst, share.freshness):
        yield f"{figure:.3f}"
    yield from (f"{share.missed:,}", f"{share.requested:,}")


def by_hour(result: Result) -> Iterator[Table]:
    """A policy's ratios in each hour: the paper's table 1, for each group."""
    hours = len(result.all.by_hour)
    for first in range(0, hours, HOURS_A_LINE):
        shown = range(first, min(first + HOURS_A_LINE, hours))
        title = f"{result.policy}: refresh ratio by hour" if first == 0 else ""
        made = table(title, "hour", *(str(hour + 1) for hour in shown))
        for name, share in result.groups.items():
            made.add_row(name, *(text(share.by_hour[hour], "{:.2f}") for hour in shown))
        yield made


def in_words(mix: Mix) -> str:
    """What was played, in a line."""
    floor = FLOOR_SHARE * equal_ratio(mix.cells.load)
    return (
        f"{count(len(mix.cells), 'cell')} for {amount(mix.hours)} hours at load "
        f"{mix.cells.load:.3g} (seed {mix.seed}); the floor of `value`: {floor:.3f}"
    )


WIDTH = 0.8


def draw(path: Path, results: Sequence[Result], load: float, title: str) -> None:
    """Write the picture; the file is there entirely or not at all. Raises ConfigError."""
    with side_by_side(path, title) as (ratio, fresh):
        _bars(ratio, results, "ratio")
        _bars(fresh, results, "freshness")
        ratio.set_title("refresh ratio; dots: the worst cell, line: the floor", loc="left")
        ratio.axhline(FLOOR_SHARE * equal_ratio(load), color=GREY, linewidth=0.9, linestyle="--")
        fresh.set_title("freshness: share of time that cell and source agree", loc="left")


def _bars(axes: Axes, results: Sequence[Result], figure: str) -> None:
    names = list(results[0].groups)
    middle, width = np.arange(len(names)), WIDTH / len(results)
    for place, one in enumerate(results):
        at = middle + (place - (len(results) - 1) / 2) * width
        heights = [getattr(share, figure) for share in one.groups.values()]
        axes.bar(at, heights, width * 0.92, label=one.policy, color=LOOKS[one.policy].colour)
        if figure == "ratio":
            worst = [share.worst for share in one.groups.values()]
            axes.plot(at, worst, "o", color=GREY, markersize=3)
    axes.set_xticks(middle, names)
    axes.set_ylim(0, 1.02)


MOST_LOAD = 1000.0


@dataclass(frozen=True, slots=True)
class Asked:
    """A mix of cells, the policies to try on it, a picture to draw."""

    mix: Mix
    policies: tuple[str, ...]
    plot: Path | None

    @classmethod
    def of(cls, file: str | None, opts: argparse.Namespace) -> Asked:
        """The options; ConfigError names the one that is wrong."""
        policies = asked.policies(opts.policy or list(POLICIES), POLICIES)
        plot, load = asked.picture(opts.plot), _load(opts.load)
        path = None if file is None else Path(file)
        return cls(read(path, load, equal_costs=opts.equal_costs), policies, plot)


def _load(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        load = float(text)
    except ValueError:
        load = math.nan
    if not 0 < load <= MOST_LOAD:
        raise ConfigError(
            f"--load {text}: give seconds of work a second, such as 1.05 or 2 "
            f"(more than 0, {MOST_LOAD:g} at most)"
        )
    return load


@dataclass(frozen=True, slots=True)
class OverloadSimulation:
    """What came of each policy."""

    asked: Asked
    results: list[Result]

    @classmethod
    def of(
        cls, file: str | None, opts: argparse.Namespace, say: Callable[[str], None]
    ) -> OverloadSimulation:
        """Simulate what is asked; raises FreshetError."""
        asked = Asked.of(file, opts)
        course, results = course_of(asked.mix), list[Result]()
        for at, policy in enumerate(asked.policies, 1):
            say(f"{policy} ({at} of {len(asked.policies)})")
            results.append(tried(asked.mix, course, policy))
        return cls(asked, results)

    def write(self) -> None:
        """Write the picture that is asked for; raises FreshetError."""
        if self.asked.plot:
            title = in_words(self.asked.mix)
            draw(self.asked.plot, self.results, self.asked.mix.cells.load, title)

    def in_json(self) -> dict[str, Any]:
        """All figures."""
        return in_json(self.asked.mix, self.results)

    def show(self, console: Console) -> None:
        """Print the tables."""
        console.print(in_words(self.asked.mix), soft_wrap=True)
        console.print(of_policies(self.results), of_groups(self.results))
        for one in self.results:
            console.print(*by_hour(one))
