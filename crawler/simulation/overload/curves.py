"""Pictures of overload: refresh ratio and freshness of each group, a colour a policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from crawler.simulation.overload.results import Result
from crawler.simulation.pictures import GREY, LOOKS, side_by_side
from schedules.ratios import FLOOR_SHARE, equal_ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
