"""Vectorized reductions, compared with NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from schedules.history import Floats
from schedules.vectorized import inner, lowest, total

NUMBERS = arrays(np.float64, st.integers(1, 40), elements=st.sampled_from([-2.0, 0.1, 0.3, 1e6]))


@given(NUMBERS)
def test_sums_and_inner_products_match_numpy(x: Floats) -> None:
    assert total(x) == pytest.approx(x.sum(), abs=1e-9)
    assert inner(x, x[::-1].copy()) == pytest.approx(x @ x[::-1])


@given(NUMBERS, st.booleans())
def test_lowest_is_first_of_equal_values(x: Floats, is_closed: bool) -> None:
    x = np.where(is_closed & (x < 0), np.inf, x)
    assert lowest(x) == np.argmin(x)


@given(NUMBERS, st.data())
def test_nan_never_gives_an_index_out_of_range(x: Floats, data: st.DataObject) -> None:
    x[data.draw(st.integers(0, len(x) - 1))] = np.nan
    assert 0 <= lowest(x) < len(x)
