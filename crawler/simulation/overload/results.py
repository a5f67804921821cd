"""What came of a policy under overload, for each group of cells and for all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crawler.simulation.overload.mixes import Mix
from schedules.history import Floats, Ints
from schedules.overload import HOUR_SECONDS, Course, Played, play
from schedules.ratios import jain


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
