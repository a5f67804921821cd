"""What came of policies under overload, side by side: as tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table

from crawler.simulation.figures import number, table, text
from crawler.simulation.overload.mixes import Mix
from crawler.simulation.overload.results import Result, Share
from crawler.utils.text import amount, count
from schedules.ratios import FLOOR_SHARE, equal_ratio

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
