"""Write plots to files: the calendar of a plan, and curves of simulations. No display is needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from crawler.errors import ConfigError
from crawler.utils.files import atomic_replace
from crawler.utils.text import NOT_KNOWN, precise
from schedules.calendar import DAYS
from schedules.history import DAY_HOURS, Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.gridspec import GridSpec

SUFFIXES = (".png", ".svg")
INK, QUIET, GREY = "#222222", "#666666", "#606060"
CHANGES_TEXT = "expected, by the hour in which they happen; visits are best shortly afterward"
GUESSED_TEXT = f"{NOT_KNOWN}; shown for a typical page"
DOTS = 150
CALENDAR_INCHES, CURVES_INCHES = (9.5, 8.2), (10, 4.8)
HOURS = range(0, DAY_HOURS + 1, 3)
STYLE: dict[str, Any] = {
    "font.size": 10, "axes.titlesize": 10, "axes.grid": True,
    "axes.spines.top": False, "axes.spines.right": False,
    "grid.color": "#E4E4E4", "axes.axisbelow": True, "axes.edgecolor": "#A0A0A0",
    # Fixed hash salt, so that equal plots give identical files.
    "svg.hashsalt": "freshet", "svg.fonttype": "none",
}  # fmt: skip


class LineStyle(NamedTuple):
    """Define how a policy is drawn."""

    color: str
    marker: str


# Each policy looks the same in all plots. The colors are those of Okabe and Ito, which are
# distinguishable with color blindness, and three more. Policies of feeds and of overload reuse
# colors of page policies, because they never appear in the same plot.
LINE_STYLES = {
    "optimal": LineStyle("#0072B2", "o"),
    "groups": LineStyle("#D55E00", "s"),
    "groups6": LineStyle("#E69F00", "D"),
    "uniform": LineStyle("#009E73", "^"),
    "sqrt": LineStyle("#CC79A7", "v"),
    "freshness": LineStyle("#56B4E9", "P"),
    "harmonic": LineStyle("#000000", "X"),
    "age": LineStyle("#8C6D31", "p"),
    "adaptive": LineStyle("#7A3FB5", "h"),
    "min-delay": LineStyle("#CC79A7", "v"),
    "min-missing": LineStyle("#D55E00", "s"),
    "value": LineStyle("#0072B2", "o"),
    "expected-ratio": LineStyle("#D55E00", "s"),
    "starved-first": LineStyle("#CC79A7", "v"),
    "round-robin": LineStyle("#009E73", "^"),
    "earliest-deadline": LineStyle("#E69F00", "D"),
}


@dataclass(frozen=True, slots=True)
class Calendar:
    """Hold a local week of requests and of changes.

    requests, changes: (168,) in each hour of the week, 0 = Monday 00:00
    known:             whether the changes are more than a guess
    """

    title: str
    subtitle: str
    requests: Floats
    changes: Floats
    known: bool = True


class Panel(NamedTuple):
    """Describe one week of the calendar. hue: colormap, readable with color blindness."""

    what: str
    text: str
    hue: str
    known: bool = True


def check(path: Path) -> None:
    """Raise ConfigError unless a plot can be written to this path."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path}: unsupported plot format. Use .png or .svg")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: folder not found: {path.parent}")


def draw(calendar: Calendar, path: Path) -> None:
    """Write the calendar. Raises ConfigError if that is not possible."""
    from matplotlib.figure import Figure

    check(path)
    figure = Figure(figsize=CALENDAR_INCHES, layout="constrained")
    figure.suptitle(
        f"{calendar.title}\n", x=0.012, ha="left", fontsize=14, weight="bold", color=INK
    )
    # Use one grid for both weeks, so that an hour is in the same place in both.
    heights, widths = (1, 3.4, 0.55, 1, 3.4), (24, 4, 0.5)
    grid = figure.add_gridspec(5, 3, height_ratios=heights, width_ratios=widths)
    requests = Panel("Requests", calendar.subtitle, "Blues")
    text = CHANGES_TEXT if calendar.known else GUESSED_TEXT
    changes = Panel("Changes", text, "Oranges", calendar.known)
    _week(figure, grid, 0, calendar.requests, requests)
    _week(figure, grid, 3, calendar.changes, changes)
    try:
        with atomic_replace(path) as draft:
            figure.savefig(draft, dpi=DOTS, facecolor="white")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


def _week(figure: Figure, grid: GridSpec, row: int, values: Floats, panel: Panel) -> None:
    """Draw a week as a heat map, with totals by hour above it and by day next to it."""
    table = values.reshape(len(DAYS), DAY_HOURS)
    main = figure.add_subplot(grid[row + 1, 0])
    top, side = figure.add_subplot(grid[row, 0]), figure.add_subplot(grid[row + 1, 1])
    image = main.imshow(table, aspect="auto", cmap=panel.hue, vmin=0, interpolation="nearest")
    top.bar(range(DAY_HOURS), table.sum(0), width=0.85, color=image.cmap(0.7))
    side.barh(range(len(DAYS)), table.sum(1), height=0.75, color=image.cmap(0.7))
    main.set_xticks([hour - 0.5 for hour in HOURS], [f"{hour:02}:00" for hour in HOURS])
    main.set_yticks(range(len(DAYS)), DAYS)
    main.tick_params(labelsize=9, colors=INK, length=2)
    for day in range(1, len(DAYS)):
        main.axhline(day - 0.5, color="white", linewidth=1.5)
    for edge in main.spines.values():
        edge.set_color("#bbbbbb")
    for axes in (top, side):
        axes.set_xticks([])
        axes.set_yticks([])
        for edge in axes.spines.values():
            edge.set_visible(False)
    top.set_xlim(main.get_xlim())
    side.set_ylim(main.get_ylim())
    if panel.known:
        # Label each bar with its number.
        sums = table.sum(1)
        highest = sums.max(initial=0.0) or 1.0
        side.set_xlim(0, 1.8 * highest)
        for day, total in enumerate(sums.tolist()):
            text = f"{total:,.0f}" if highest >= 20 else f"{total:.2g}"
            side.text(total + 0.07 * highest, day, text, va="center", fontsize=8, color=INK)
    top.set_title(panel.what, loc="left", fontsize=12, weight="bold", color=INK, pad=18)
    top.text(0, 1.1, panel.text, transform=top.transAxes, fontsize=9, color=QUIET)
    bar = figure.colorbar(image, cax=figure.add_subplot(grid[row + 1, 2]))
    bar.set_label(f"{panel.what.lower()} per hour", color=QUIET, fontsize=8)
    bar.ax.tick_params(labelsize=8, colors=QUIET, length=2)
    bar.outline.set_visible(False)


@contextmanager
def side_by_side(path: Path, title: str) -> Iterator[tuple[Axes, Axes]]:
    """Yield two axes to draw on, then write them with the legend of the left one.

    The file is written atomically. Raises ConfigError if that is not possible.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(cast(Any, STYLE)):
        figure = Figure(figsize=CURVES_INCHES, layout="constrained")
        left, right = figure.subplots(1, 2)
        yield left, right
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        figure.legend(
            *left.get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False
        )
        # Leave out the date, so that equal plots give identical files.
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_replace(path) as draft:
                figure.savefig(draft, dpi=DOTS, metadata=metadata)
        except OSError as error:
            raise ConfigError(f"--plot {path}: {error.strerror or error}") from None


def draw_line(axes: Axes, policy: str, points: Iterable[tuple[float, float]]) -> None:
    """Draw a policy's points (x, y) from left to right; a single point without a line."""
    points = sorted(set(points))
    style = LINE_STYLES[policy]
    axes.plot(
        *zip(*points, strict=True), label=policy, linewidth=1.8, markersize=6,
        color=style.color, marker=style.marker, linestyle="-" if len(points) > 1 else "none",
    )  # fmt: skip


def scale_by_factors(axes: Axes, of_what: str) -> None:
    """Make the x axis logarithmic, with round numbers as labels."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: precise(x)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(of_what)
