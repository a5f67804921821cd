"""Pictures of pages simulated: freshness and age over requests a day, a line a policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from crawler.simulation.pages.runs import Outcome
from crawler.simulation.pictures import GREY, draw_line, scale_by_factors, side_by_side

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
