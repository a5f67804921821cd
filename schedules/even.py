"""Policies that visit each target at an even interval: how many visits a week each of them gets.

All follow one rule: visits = curve(price), the price chosen so that the budget is spent. Uniform;
square root of the rate; optimal freshness (Cho and Garcia-Molina 2003, their equation for even
visits inverted); harmonic (Kolobov et al. 2019); optimal age (Cho and Garcia-Molina 2003).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from schedules.history import Floats

Rule = Callable[[Floats, Floats, float], Floats]
HALVINGS = 200
LEAST_RATE = 1e-6
TABLE = 4_000


def _uniform(rate: Floats, weight: Floats, price: float) -> Floats:
    return np.full(len(rate), 1 / price)


def _square_root(rate: Floats, weight: Floats, price: float) -> Floats:
    result: Floats = np.sqrt(weight * rate) / price
    return result


def _harmonic(rate: Floats, weight: Floats, price: float) -> Floats:
    result: Floats = (np.sqrt(rate**2 + 4 * weight * rate / price) - rate) / 2
    return result


def _freshness(rate: Floats, weight: Floats, price: float) -> Floats:
    """g(r) = price * rate / weight for r = rate / visits; nothing where it is 1 or more."""
    ratio, gain, _ = _tables()
    wanted = price * rate / weight
    r = np.interp(wanted, gain, ratio, right=np.inf)
    result: Floats = rate / np.maximum(r, ratio[0])
    return result


def _age(rate: Floats, weight: Floats, price: float) -> Floats:
    """(r^2 / 2 - g(r)) / rate^2 = price / weight."""
    ratio, _, gain = _tables()
    result: Floats = rate / np.interp(price * rate**2 / weight, gain, ratio)
    return result


@cache
def _tables() -> tuple[Floats, Floats, Floats]:
    """r, g(r) = 1 - (1 + r) e^-r and r^2 / 2 - g(r), all ascending."""
    r = np.geomspace(1e-5, 1e5, TABLE)
    gain = np.where(r < 1e-3, r**2 / 2 - r**3 / 3, -np.expm1(-r) - r * np.exp(-r))
    aged = np.where(r < 1e-3, r**3 / 3, r**2 / 2 - gain)
    return r, gain, aged


RULES: dict[str, Rule] = {
    "uniform": _uniform,
    "sqrt": _square_root,
    "freshness": _freshness,
    "harmonic": _harmonic,
    "age": _age,
}


def visits_per_week(
    rule: str, rate: Floats, weight: Floats, budget: float, least: Floats, most: Floats
) -> Floats:
    """(n,) visits a week that spend `budget` visits a week in all, or as near below as limits let.

    rule: one of RULES   rate: (n,) changes a week   weight: (n,) importance over cost
    least, most: (n,) visits a week
    """
    curve, known = RULES[rule], np.maximum(rate, LEAST_RATE)

    def within(log_price: float) -> Floats:
        return np.clip(curve(known, weight, float(np.exp(log_price))), least, most)

    low, high = -60.0, 60.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if within(middle).sum() > budget:
            low = middle
        else:
            high = middle
        if high - low < 1e-12:
            break
    return within(high)
