"""Mixes of cells to simulate: the paper's, or those of a TOML file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from crawler.errors import ConfigError, WrapperError, first_problem
from crawler.extract.wrapper import read_toml
from schedules.history import Ints
from schedules.overload import HOUR_SECONDS, Cells

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
