"""Pictures of a simulation: freshness and age over requests a day, a line a policy."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from crawler.errors import ConfigError
from crawler.simulation.runs import Outcome
from schedules.terms import POLICIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
# Each policy looks the same in all pictures. Colours of Okabe and Ito, told apart by those who do
# not see all of them, and a ninth.
COLOURS = (
    "#0072B2", "#D55E00", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#000000", "#8C6D31",
    "#7A3FB5",
)  # fmt: skip
MARKERS = "osD^vPXph"
GREY = "#606060"
STYLE: dict[str, Any] = {
    "font.size": 10, "axes.titlesize": 10, "axes.grid": True,
    "axes.spines.top": False, "axes.spines.right": False,
    "grid.color": "#E4E4E4", "axes.axisbelow": True, "axes.edgecolor": "#A0A0A0",
    # Equal curves make equal files.
    "svg.hashsalt": "freshet", "svg.fonttype": "none",
}  # fmt: skip


def check_name(path: Path) -> None:
    """ConfigError where a picture has no name that can be drawn to."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--plot {path}: the name has to end in {' or '.join(SUFFIXES)}")


def draw(
    path: Path, outcomes: Sequence[Outcome], references: Sequence[Outcome], title: str
) -> None:
    """Write the picture; the file is there entirely or not at all. Raises ConfigError."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(cast(Any, STYLE)):
        figure = Figure(figsize=(10, 4.8), layout="constrained")
        fresh, age = figure.subplots(1, 2)
        _draw(fresh, outcomes, references, "freshness")
        _draw(age, outcomes, references, "age_days")
        fresh.set_title("freshness: share of time that copy and page agree", loc="left")
        age.set_title("age: days since the oldest change not yet seen", loc="left")
        age.set_ylim(bottom=0)
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        figure.legend(
            *fresh.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False
        )
        _save(figure, path)


def _draw(
    axes: Axes, outcomes: Sequence[Outcome], references: Sequence[Outcome], figure: str
) -> None:
    """One figure over requests a day: policies as lines, references as points."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    for policy in dict.fromkeys(one.policy for one in outcomes):
        points = {_point(one, figure) for one in outcomes if one.policy == policy}
        place = POLICIES.index(policy)
        axes.plot(
            *zip(*sorted(points), strict=True), label=policy, linewidth=1.8, markersize=6,
            color=COLOURS[place], marker=MARKERS[place],
            linestyle="-" if len(points) > 1 else "none",
        )  # fmt: skip
    for number, one in enumerate(references):
        x, y = _point(one, figure)
        axes.axhline(y, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        axes.plot([x], [y], "*s"[number], color=GREY, markersize=9, label=_name(one))
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("requests a day")


def _point(outcome: Outcome, figure: str) -> tuple[float, float]:
    value: float = getattr(outcome.totals.by_page, figure)
    return outcome.totals.load.per_day, value


def _name(reference: Outcome) -> str:
    what = "every page daily" if reference.policy == "daily" else f"the paper's {reference.policy}"
    return f"{what} ({reference.totals.load.per_day:,.0f} a day)"


def _save(figure: Figure, path: Path) -> None:
    unfinished = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    # A date in the file would make equal curves different files.
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            figure.savefig(unfinished, dpi=150, metadata=metadata)
            unfinished.replace(path)
        finally:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"--plot {path}: {error.strerror or error}") from None
