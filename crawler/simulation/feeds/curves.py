"""Pictures of feeds simulated: posts missed and delay over fetches, a line a policy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from crawler.simulation.feeds.runs import Outcome
from crawler.simulation.pictures import draw_line, scale_by_factors, side_by_side

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(path: Path, outcomes: Sequence[Outcome], title: str) -> None:
    """Write the picture; the file is there entirely or not at all. Raises ConfigError.

    Figures 13 and 14 of Han and Lee (2008).
    """
    with side_by_side(path, title) as (missed, delay):
        _draw(missed, outcomes, "missed_pct")
        _draw(delay, outcomes, "delay_h")
        missed.set_title("posts missed: % that left their feed before a fetch", loc="left")
        delay.set_title("delay: hours from a collected post to its fetch", loc="left")


def _draw(axes: Axes, outcomes: Sequence[Outcome], figure: str) -> None:
    for policy in dict.fromkeys(one.policy for one in outcomes):
        points = [
            (float(one.asked), float(getattr(one.totals, figure)))
            for one in outcomes
            if one.policy == policy
        ]
        draw_line(axes, policy, [point for point in points if math.isfinite(point[1])])
    scale_by_factors(axes, "fetches of all feeds together")
    axes.set_ylim(bottom=0)
