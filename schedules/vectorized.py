"""Sums, minima and exponentials of arrays, in forms that the compiler vectorizes.

Each addition of a running sum waits for the one before it. Sums of every eighth number do not wait
for each other. Calls of the C library's exponential function are not vectorized; they would take
half of the time of a plan.
"""

from __future__ import annotations

import numpy as np

from schedules.compiled import compiled
from schedules.history import Floats

LANES = 8
LOG2_E = 1.4426950408889634
# The logarithm of 2, in two parts: multiples of the first one are exact.
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
# Smaller exponents are replaced by this one: e^-700 is 1e-304.
LOWEST = -700.0
EXPONENT_BIAS, MANTISSA_BITS = 1023, 52
# Up to this x, a short series replaces exponentials and divisions.
MAX_OF_SERIES = 0.25


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
    """Return the index of the lowest number, the first of equal ones; any index if one is NaN."""
    a = b = c = d = e = f = g = h = np.inf
    whole = len(x) // LANES * LANES
    for i in range(0, whole, LANES):
        a, b, c, d = min(a, x[i]), min(b, x[i + 1]), min(c, x[i + 2]), min(d, x[i + 3])
        e, f, g, h = min(e, x[i + 4]), min(f, x[i + 5]), min(g, x[i + 6]), min(h, x[i + 7])
    least = min(a, b, c, d, e, f, g, h)
    for i in range(whole, len(x)):
        least = min(least, x[i])
    where = 0
    # With a NaN, possibly no number equals `least`: stay within the array.
    while where < len(x) - 1 and x[where] != least:
        where += 1
    return where


@compiled
def highest(x: Floats) -> float:
    """Return the highest of numbers >= 0; 0 without numbers."""
    a = b = c = d = 0.0
    whole = len(x) // 4 * 4
    for i in range(0, whole, 4):
        a, b, c, d = max(a, x[i]), max(b, x[i + 1]), max(c, x[i + 2]), max(d, x[i + 3])
    most = max(a, b, c, d)
    for i in range(whole, len(x)):
        most = max(most, x[i])
    return most


@compiled
def exponentials(x: Floats) -> None:
    """Replace each x <= 700 by e^x, with a relative error of at most 3e-16."""
    scale = _reduced(x)
    for i in range(len(x)):
        x[i] = (1.0 + x[i]) * scale[i]


@compiled
def complements(x: Floats) -> None:
    """Replace each x <= 0 by 1 - e^x, with a relative error of at most 5e-16."""
    scale = _reduced(x)
    for i in range(len(x)):
        x[i] = (1.0 - scale[i]) - scale[i] * x[i]


@compiled
def decays(x: Floats, most: float, step: Floats, fresh: Floats, late: Floats) -> None:
    """Set e^-x, and the integrals of e^(-x s) and of s e^(-x s) for s from 0 to 1.

    x:    >= 0; all arrays have the same length
    most: no x is larger
    """
    if most > MAX_OF_SERIES:
        for i in range(len(x)):
            step[i] = -x[i]
        exponentials(step)
        for i in range(len(x)):
            # Series near 0 avoid cancellation.
            fresh[i] = (1 - step[i]) / x[i] if x[i] > 1e-6 else 1 - x[i] / 2
            late[i] = (
                (fresh[i] - step[i]) / x[i] if x[i] > 1e-3 else 0.5 - x[i] / 3 + x[i] * x[i] / 8
            )
        return
    for i in range(len(x)):
        # Taylor series of (e^-x - 1 + x) / x^2; the first omitted term is below 4e-17.
        p = 1.0 / 479001600.0
        p = 1.0 / 39916800.0 - p * x[i]
        p = 1.0 / 3628800.0 - p * x[i]
        p = 1.0 / 362880.0 - p * x[i]
        p = 1.0 / 40320.0 - p * x[i]
        p = 1.0 / 5040.0 - p * x[i]
        p = 1.0 / 720.0 - p * x[i]
        p = 1.0 / 120.0 - p * x[i]
        p = 1.0 / 24.0 - p * x[i]
        p = 1.0 / 6.0 - p * x[i]
        p = 1.0 / 2.0 - p * x[i]
        fresh[i] = 1.0 - x[i] * p
        step[i] = 1.0 - x[i] * fresh[i]
        late[i] = fresh[i] - p


@compiled
def _reduced(x: Floats) -> Floats:
    """Replace each x by e^r - 1, and return 2^k, where x = r + k ln 2 and |r| <= ln(2) / 2."""
    power = np.empty(len(x), np.int64)
    for i in range(len(x)):
        limited = max(x[i], LOWEST)
        k = np.floor(limited * LOG2_E + 0.5)
        r = (limited - k * LN2_HIGH) - k * LN2_LOW
        # Taylor series; the first omitted term is below 2e-17 of the sum.
        p = 1.0 / 6227020800.0
        p = p * r + 1.0 / 479001600.0
        p = p * r + 1.0 / 39916800.0
        p = p * r + 1.0 / 3628800.0
        p = p * r + 1.0 / 362880.0
        p = p * r + 1.0 / 40320.0
        p = p * r + 1.0 / 5040.0
        p = p * r + 1.0 / 720.0
        p = p * r + 1.0 / 120.0
        p = p * r + 1.0 / 24.0
        p = p * r + 1.0 / 6.0
        p = p * r + 0.5
        x[i] = p * r * r + r
        power[i] = (np.int64(k) + EXPONENT_BIAS) << MANTISSA_BITS
    return power.view(np.float64)
