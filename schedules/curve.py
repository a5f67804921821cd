"""Interpolate between the points of a curve, without NumPy.

The web app evaluates budgets while a slider moves, and its process does not load NumPy.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple


class Place(NamedTuple):
    """Hold a place between two points of a curve.

    before: number of the point before the place, or of the last but one
    share: distance from that point as a share of the distance to the next one, 0 to 1
    """

    before: int
    share: float


def place_of(points: Sequence[float], x: float) -> Place:
    """Return the place of x among ascending points; the first or last one if x is outside."""
    if len(points) < 2:
        return Place(0, 0.0)
    before = min(max(bisect_right(points, x) - 1, 0), len(points) - 2)
    length = points[before + 1] - points[before]
    share = (x - points[before]) / length if length > 0 else 1.0
    return Place(before, min(max(share, 0.0), 1.0))


def value_at(values: Sequence[float], place: Place) -> float:
    """Return the value at a place, linear between the two points. values: one for each point."""
    here = values[place.before]
    if not place.share:
        return here
    there = values[place.before + 1]
    return here + (there - here) * place.share
