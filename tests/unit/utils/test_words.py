"""Wording of periods, ages, and visit rates."""

from __future__ import annotations

from datetime import date

import pytest

from crawler.utils.text import (
    amount,
    count,
    day,
    documents,
    is_known,
    period,
    precise,
    probability,
    relative,
    span,
    visit_frequency,
)

MINUTE, HOUR, DAY = 60, 3600, 86_400


@pytest.mark.parametrize(
    ("hours", "words"),
    [
        (1 / 120, "30 seconds"), (1 / 60, "minute"), (1 / 12, "5 minutes"), (1 / 3, "20 minutes"),
        (1, "hour"), (1.5, "1.5 hours"), (33.333, "33.3 hours"), (36, "36 hours"), (48, "2 days"),
        (60, "2.5 days"), (168, "7 days"), (672, "28 days"), (0.9999, "hour"),
    ],
)  # fmt: skip
def test_period_wording(hours: float, words: str) -> None:
    assert period(hours) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"), (45, "45 s"), (39 * MINUTE, "39 min"), (10.7 * HOUR, "10.7 h"),
        (2 * HOUR, "2 h"), (3 * DAY, "3 days"), (3.25 * DAY, "3.2 days"), (11.6 * DAY, "12 days"),
    ],
)  # fmt: skip
def test_age_wording(seconds: float, words: str) -> None:
    assert span(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (45.4, "45 s"), (39 * MINUTE, "39 min"), (10.7 * HOUR, "11 h"), (47.9 * HOUR, "48 h"),
        (2 * DAY, "2 days"), (3.25 * DAY, "3 days"),
    ],
)  # fmt: skip
def test_age_without_decimals(seconds: float, words: str) -> None:
    assert span(seconds, is_exact=False) == words


def test_a_day_is_written_as_people_do() -> None:
    assert day(date(2026, 3, 2)) == "2 Mar 2026"


@pytest.mark.parametrize(
    ("per_week", "words"),
    [
        (1 / 24, "a visit every 24 weeks"), (0.25, "a visit every 4 weeks"),
        (1, "a visit a week"), (0.98, "a visit a week"), (1.04, "a visit a week"),
        (3, "3 visits a week"),
        (28, "4 visits a day"), (2016, "288 visits a day"),
    ],
)  # fmt: skip
def test_visit_rate_wording(per_week: float, words: str) -> None:
    assert visit_frequency(per_week) == words


@pytest.mark.parametrize(
    ("low", "high", "known"),
    [
        (0.0078, 86.4, False), (1.0, 10.0, True), (1.0, 10.1, False), (0.0, 0.0, False),
        (0.0, 1.0, False), (None, 1.0, False), (1.0, None, False), (2.0, 2.0, True),
    ],
)  # fmt: skip
def test_estimate_is_known_within_a_factor_of_ten(
    low: float | None, high: float | None, known: bool
) -> None:
    assert is_known(low, high) is known


@pytest.mark.parametrize(
    ("n", "noun", "words"),
    [
        (0, "page", "0 pages"), (1, "page", "1 page"), (1.0, "hour", "1 hour"),
        (0.9999, "hour", "1 hour"), (0.5, "hour", "0.5 hours"), (1200, "target", "1,200 targets"),
        (2, "copy", "2 copies"), (2, "day", "2 days"), (3, "watch", "3 watches"),
        (2, "missed post", "2 missed posts"), (1_500_000, "request", "1,500,000 requests"),
    ],
)  # fmt: skip
def test_counted_nouns(n: float, noun: str, words: str) -> None:
    assert count(n, noun) == words


@pytest.mark.parametrize(
    ("number", "short", "long"),
    [
        (1_000_000, "1,000,000", "1,000,000"), (1_234_567.8, "1,234,568", "1,234,568"),
        (12_345.67, "12,346", "12,345.7"), (33, "33", "33"), (26.54321, "26.5", "26.5432"),
        (1.23456e-5, "0.0000123", "0.0000123456"), (0, "0", "0"),
    ],
)  # fmt: skip
def test_numbers_have_no_exponent(number: float, short: str, long: str) -> None:
    assert (amount(number), precise(number)) == (short, long)


@pytest.mark.parametrize(
    ("ratio", "words"), [(0.46, "46.0% of it"), (1.5, "150.0% of it"), (24, "24 times it")]
)
def test_large_ratios_are_not_in_percent(ratio: float, words: str) -> None:
    assert relative(ratio, "it") == words


@pytest.mark.parametrize(
    ("p", "words"),
    [
        (1, "100%"),
        (0.123, "12%"),
        (0.0412, "4.1%"),
        (0.00154, "0.15%"),
        (0.0001, "0.01%"),
        (0.000099, "less than 0.01%"),
        (0, "less than 0.01%"),
    ],
)
def test_small_probabilities_have_a_lower_limit(p: float, words: str) -> None:
    assert probability(p) == words


def test_documents_are_counted_by_collection() -> None:
    counts = {"targets": 2, "visits": 0, "days": 1, "dead_letters": 3}
    assert documents(counts) == "2 targets, 1 daily aggregate, 3 dead letters"
