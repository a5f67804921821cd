"""Compute exponentials of arrays in a form that the compiler vectorizes.

Calls of the C library's functions are not vectorized. They would take half of the time of a plan.
"""

from __future__ import annotations

import numpy as np

from schedules.compiled import compiled
from schedules.history import Floats

LOG2_E = 1.4426950408889634
# The logarithm of 2, in two parts: multiples of the first one are exact.
LN2_HIGH, LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
# Exponents below this one count as this one: e^-700 is 1e-304.
LOWEST = -700.0
EXPONENT_BIAS, MANTISSA_BITS = 1023, 52
# Up to this x, a short series replaces exponentials and divisions.
MAX_OF_SERIES = 0.25


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
