"""A chart of resource usage over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.faults.samples import Held, Sample

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE_INCHES = (9.5, 7.5)
MINUTE_SECONDS = 60
QUIET = "#666666"


def draw(samples: Sequence[Sample], path: Path) -> None:
    """Write the chart: memory at the top, descriptors and threads below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    memory, open_things = figure.subplots(2, 1, sharex=True)
    minutes = [one.seconds / MINUTE_SECONDS for one in samples]
    memory.plot(minutes, [one.mongo_mb for one in samples], color=QUIET, label="MongoDB")
    if any(one.redis_mb for one in samples):
        memory.plot(minutes, [one.redis_mb for one in samples], ":", color=QUIET, label="Redis")
    for number in sorted({number for one in samples for number in one.held}):
        name = f"worker {number}"
        _line(memory, samples, number, lambda held: held.memory_mb, name)
        _line(memory, samples, number, lambda held: held.children_mb or None, f"{name}'s replans")
        _line(open_things, samples, number, lambda held: held.descriptors, f"{name}, descriptors")
        _line(open_things, samples, number, lambda held: held.threads, f"{name}, threads")
    memory.set_ylabel("resident memory, MB")
    open_things.set_ylabel("open descriptors, threads")
    open_things.set_xlabel("minutes")
    for axes in (memory, open_things):
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left", fontsize="small")
    figure.savefig(path, dpi=110)


def _line(
    axes: Axes,
    samples: Sequence[Sample],
    number: int,
    figure: Callable[[Held], float | None],
    name: str,
) -> None:
    own = [
        (one.seconds / MINUTE_SECONDS, one.held[number]) for one in samples if number in one.held
    ]
    heights = [figure(held) for _, held in own]
    shown = [float("nan") if height is None else height for height in heights]
    axes.plot([at for at, _ in own], shown, label=name)
