"""Amounts in user input."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from crawler.utils import time as units


@pytest.mark.parametrize(
    ("unit", "text", "amount"),
    [
        (units.per_day, "265", 265), (units.per_day, "265/day", 265), (units.per_day, "0.5", 0.5),
        (units.per_day, " 33 / Day", 33), (units.per_day, "0", 0),
        (units.hours, "6h", 6), (units.hours, "90m", 1.5), (units.hours, "2d", 48),
        (units.hours, "1.5w", 252), (units.share, "0.95", 0.95), (units.share, "95%", 0.95),
    ],
)  # fmt: skip
def test_amounts_are_read(unit: Callable[[str], float], text: str, amount: float) -> None:
    assert unit(text) == pytest.approx(amount)


@pytest.mark.parametrize(
    ("unit", "text"),
    [
        (units.per_day, "-1"), (units.per_day, "1e3"), (units.per_day, "265/week"),
        (units.per_day, "nan"), (units.per_day, ""), (units.hours, "6"), (units.hours, "0h"),
        (units.hours, "h"), (units.share, "1"), (units.share, "0"), (units.share, "101%"),
        (units.share, "inf"),
    ],
)  # fmt: skip
def test_rejects_invalid_amounts(unit: Callable[[str], float], text: str) -> None:
    with pytest.raises(ValueError, match="invalid ") as caught:
        unit(text)
    assert repr(text) in str(caught.value)
