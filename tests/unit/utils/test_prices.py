"""Prices in texts for people."""

from __future__ import annotations

import math

import pytest

from crawler.utils.text import is_price, price


@pytest.mark.parametrize(
    ("amount", "currency", "text"),
    [
        (69.6, "£", "£69.60"), (69.6, "GBP", "69.60 GBP"), (9.5, None, "9.50"),
        (1999.0, "¥", "¥1,999"), (1234567.89, "EUR", "1,234,567.89 EUR"), (0.0, "€", "€0"),
        (1.0832, "USD", "1.0832 USD"), (-5.5, "$", "-$5.50"), (1e9, "€", "€1,000,000,000"),
        (12, "EUR", "12 EUR"), (None, "EUR", "EUR"), (math.inf, "€", "inf €"),
    ],
)  # fmt: skip
def test_price_is_shown_as_people_write_it(
    amount: float | None, currency: str | None, text: str
) -> None:
    value = {"amount": amount, "currency": currency}
    assert is_price(value)
    assert price(value) == text


@pytest.mark.parametrize("value", [None, 9.5, "9.50 EUR", {"amount": 9.5}, {"low": 1, "high": 2}])
def test_other_values_are_not_prices(value: object) -> None:
    assert not is_price(value)
