"""Pictures of simulations: two figures side by side, a line a policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from crawler.errors import ConfigError
from crawler.utils.files import atomic_replace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")
GREY = "#606060"
STYLE: dict[str, Any] = {
    "font.size": 10, "axes.titlesize": 10, "axes.grid": True,
    "axes.spines.top": False, "axes.spines.right": False,
    "grid.color": "#E4E4E4", "axes.axisbelow": True, "axes.edgecolor": "#A0A0A0",
    # Equal curves make equal files.
    "svg.hashsalt": "freshet", "svg.fonttype": "none",
}  # fmt: skip


class Look(NamedTuple):
    """How a policy's line is drawn."""

    colour: str
    marker: str


# Each policy looks the same in all pictures. Colours of Okabe and Ito, told apart by those who do
# not see all of them, and three more. Policies of feeds never stand beside those of pages, but for
# the two that both have, and those of overload beside neither.
LOOKS = {
    "optimal": Look("#0072B2", "o"),
    "groups": Look("#D55E00", "s"),
    "groups6": Look("#E69F00", "D"),
    "uniform": Look("#009E73", "^"),
    "sqrt": Look("#CC79A7", "v"),
    "freshness": Look("#56B4E9", "P"),
    "harmonic": Look("#000000", "X"),
    "age": Look("#8C6D31", "p"),
    "adaptive": Look("#7A3FB5", "h"),
    "min-delay": Look("#CC79A7", "v"),
    "min-missing": Look("#D55E00", "s"),
    "value": Look("#0072B2", "o"),
    "expected-ratio": Look("#D55E00", "s"),
    "starved-first": Look("#CC79A7", "v"),
    "round-robin": Look("#009E73", "^"),
    "earliest-deadline": Look("#E69F00", "D"),
}


def check_name(path: Path) -> None:
    """ConfigError where a picture has no name that can be drawn to."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--plot {path}: the name has to end in {' or '.join(SUFFIXES)}")


@contextmanager
def side_by_side(path: Path, title: str) -> Iterator[tuple[Axes, Axes]]:
    """Two axes to draw on, and then written with a legend of what is on the left one.

    The file is there entirely or not at all. Raises ConfigError.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(cast(Any, STYLE)):
        figure = Figure(figsize=(10, 4.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        yield left, right
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        figure.legend(
            *left.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False
        )
        _save(figure, path)


def draw_line(axes: Axes, policy: str, points: Iterable[tuple[float, float]]) -> None:
    """A policy's points (x, y) from left to right; a single one without a line."""
    points = sorted(set(points))
    look = LOOKS[policy]
    axes.plot(
        *zip(*points, strict=True), label=policy, linewidth=1.8, markersize=6,
        color=look.colour, marker=look.marker, linestyle="-" if len(points) > 1 else "none",
    )  # fmt: skip


def scale_by_factors(axes: Axes, of_what: str) -> None:
    """Make the x axis one of amounts, from few to many."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(of_what)


def _save(figure: Figure, path: Path) -> None:
    # A date in the file would make equal curves different files.
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_replace(path) as draft:
            figure.savefig(draft, dpi=150, metadata=metadata)
    except OSError as error:
        raise ConfigError(f"--plot {path}: {error.strerror or error}") from None
