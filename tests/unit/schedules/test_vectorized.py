"""Accuracy of exponentials, compared with the C library."""

from __future__ import annotations

import numpy as np

from schedules.vectorized import MAX_OF_SERIES, complements, decays, exponentials, highest

X = np.concatenate([-np.geomspace(1e-300, 690, 10_000), [0.0], np.linspace(-40, 40, 5001)])


def test_exponentials_are_accurate() -> None:
    values = X.copy()
    exponentials(values)
    np.testing.assert_allclose(values, np.exp(X), rtol=3e-16)


def test_complements_of_small_numbers_are_accurate() -> None:
    x = X[X <= 0]
    values = x.copy()
    complements(values)
    np.testing.assert_allclose(values, -np.expm1(x), rtol=5e-16)


def test_decays_agree_with_and_without_series() -> None:
    x = np.concatenate([[0.0], np.geomspace(1e-12, MAX_OF_SERIES, 2000)])
    short, long = (np.empty((3, len(x))) for _ in range(2))
    decays(x, MAX_OF_SERIES, short[0], short[1], short[2])
    decays(x, 1.0, long[0], long[1], long[2])
    np.testing.assert_allclose(short[0], np.exp(-x), rtol=3e-16)
    np.testing.assert_allclose(short, long, rtol=1e-9)


def test_very_low_numbers_do_not_overflow() -> None:
    x = np.array([-1e9, -750.0, -700.0])
    values, rest = x.copy(), x.copy()
    exponentials(values)
    complements(rest)
    assert (values <= 1e-300).all()
    assert (values >= 0).all()
    np.testing.assert_array_equal(rest, 1.0)


def test_highest_finds_the_highest_number_anywhere() -> None:
    for n in range(1, 14):
        for place in range(n):
            x = np.full(n, 0.25)
            x[place] = 2.0
            assert highest(x) == 2.0
    assert highest(np.empty(0)) == 0.0
