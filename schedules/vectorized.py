"""Reduce arrays to one number faster than one number after the other.

Each addition of a running sum waits for the one before it. Sums of every eighth number do not wait
for each other, and the compiler vectorizes them.
"""

from __future__ import annotations

import numpy as np

from schedules.compiled import compiled
from schedules.history import Floats

LANES = 8


@compiled
def total(x: Floats) -> float:
    """Return the sum of some numbers."""
    a = b = c = d = e = f = g = h = 0.0
    whole = len(x) // LANES * LANES
    for i in range(0, whole, LANES):
        a, b, c, d = a + x[i], b + x[i + 1], c + x[i + 2], d + x[i + 3]
        e, f, g, h = e + x[i + 4], f + x[i + 5], g + x[i + 6], h + x[i + 7]
    result = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for i in range(whole, len(x)):
        result += x[i]
    return result


@compiled
def inner(x: Floats, y: Floats) -> float:
    """Return the inner product of two arrays of the same length."""
    a = b = c = d = e = f = g = h = 0.0
    whole = len(x) // LANES * LANES
    for i in range(0, whole, LANES):
        a, b = a + x[i] * y[i], b + x[i + 1] * y[i + 1]
        c, d = c + x[i + 2] * y[i + 2], d + x[i + 3] * y[i + 3]
        e, f = e + x[i + 4] * y[i + 4], f + x[i + 5] * y[i + 5]
        g, h = g + x[i + 6] * y[i + 6], h + x[i + 7] * y[i + 7]
    result = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for i in range(whole, len(x)):
        result += x[i] * y[i]
    return result


@compiled
def lowest(x: Floats) -> int:
    """Return the place of the lowest number, the first of equal ones; any place if one is NaN."""
    a = b = c = d = e = f = g = h = np.inf
    whole = len(x) // LANES * LANES
    for i in range(0, whole, LANES):
        a, b, c, d = min(a, x[i]), min(b, x[i + 1]), min(c, x[i + 2]), min(d, x[i + 3])
        e, f, g, h = min(e, x[i + 4]), min(f, x[i + 5]), min(g, x[i + 6]), min(h, x[i + 7])
    least = min(a, b, c, d, e, f, g, h)
    for i in range(whole, len(x)):
        least = min(least, x[i])
    where = 0
    # With a NaN, no number may be the lowest: stay within the array.
    while where < len(x) - 1 and x[where] != least:
        where += 1
    return where
