"""The name of an item comes from its fields, else from its URL; long texts are no values."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pytest

from crawler.extract.item_names import name_of
from crawler.extract.item_values import Value, change_of, number_of, values_of


@pytest.mark.parametrize(
    ("content", "url", "name"),
    [
        ({"title": " Walnut\n lamp "}, "http://a/p/1", "Walnut lamp"),
        ({"title": "", "name": "Walnut lamp"}, "http://a/p/1", "Walnut lamp"),
        ({"title": ["Walnut"]}, "http://a/walnut-lamp_23.html", "Walnut lamp 23"),
        (None, "http://a/p/caf%C3%A9/", "Café"),
        (None, "http://a/p?id=7", "P (id=7)"),
        (None, "http://a/", "a"),
        (None, "cell:top", "Top"),
        (None, "http://[", "http://["),
        ({"title": "x" * 5000}, "http://a/", "x" * 200),
    ],
)
def test_name_of_an_item(content: dict[str, Any] | None, url: str, name: str) -> None:
    assert name_of(content, url) == name


def test_values_are_the_short_fields_without_the_name() -> None:
    content = {
        "title": "Walnut lamp", "price": {"amount": 289.9, "currency": "£"}, "stock": "9 left",
        "sizes": ["S", "M"], "color": None, "seen": datetime(2026, 3, 2, tzinfo=UTC),
        "main_text": "A lamp.", "about": "word " * 40, "lines": "one\ntwo",
    }  # fmt: skip
    assert values_of(content) == [
        {"name": "price", "text": "£289.90", "number": 289.9, "unit": "£"},
        {"name": "stock", "text": "9 left", "number": 9.0, "unit": None},
        {"name": "sizes", "text": "S, M", "number": None, "unit": None},
        {"name": "seen", "text": "2026-03-02T00:00:00Z", "number": None, "unit": None},
    ]


def test_numbers_are_read_from_texts_with_little_else() -> None:
    assert number_of("1.234,50 €") == (1234.5, "€")
    assert number_of("no. 5 of 7") is None
    assert number_of(True) is None
    assert number_of(math.nan) is None
    assert number_of({"amount": math.inf, "currency": "£"}) is None


def value(content: Any) -> Value | None:
    return next(iter(values_of({"field": content})), None)


@pytest.mark.parametrize(
    ("before", "after", "direction", "ratio", "is_price"),
    [
        ({"amount": 10, "currency": "£"}, {"amount": 9, "currency": "£"}, "lower", -0.1, True),
        ({"amount": 10, "currency": "£"}, {"amount": 9, "currency": "$"}, None, None, True),
        (4, 5, "higher", 0.25, False),
        (-4, -2, "higher", 0.5, False),
        (0, 3, "higher", None, False),
        (1e-300, 1e300, "higher", None, False),
        (4, "sold out", None, None, False),
        (None, 4, None, None, False),
        (4, None, None, None, False),
        ("oak", "walnut", None, None, False),
    ],
)
def test_a_change_compares_numbers_of_one_unit(
    before: Any, after: Any, direction: str | None, ratio: float | None, is_price: bool
) -> None:
    change = change_of("field", value(before), value(after))
    assert (change["direction"], change["is_price"]) == (direction, is_price)
    assert change["ratio"] == (None if ratio is None else pytest.approx(ratio))


def test_a_value_whose_name_says_so_is_a_price() -> None:
    assert change_of("Unit_Price", value("9.50"), value("9")).items() >= {
        "is_price": True, "number_before": 9.5, "number_after": 9.0, "before": "9.50",
    }.items()  # fmt: skip
