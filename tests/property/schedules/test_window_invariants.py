"""Invariants of visiting hours: parsing reverses formatting."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from schedules.calendar import describe, open_hours

HOURS = arrays(bool, 168)
WHOLE_DAYS = arrays(bool, 7).map(lambda days: np.repeat(days, 24))
EVERY_DAY = arrays(bool, 24).map(lambda hours: np.tile(hours, 7))
WEEKS = st.one_of(HOURS, WHOLE_DAYS, EVERY_DAY).filter(np.any)


@given(WEEKS)
def test_description_parses_to_same_hours(hours: NDArray[np.bool_]) -> None:
    assert (open_hours(describe(hours)) == hours).all()


@given(WEEKS, WEEKS)
def test_windows_add_hours_and_blackouts_remove_them(
    some: NDArray[np.bool_], others: NDArray[np.bool_]
) -> None:
    windows = [*describe(some), *describe(others)]
    if describe(some) and describe(others):
        assert (open_hours(windows) == some | others).all()
    if (some & ~others).any() and describe(others):
        assert (open_hours(describe(some), describe(others)) == some & ~others).all()
