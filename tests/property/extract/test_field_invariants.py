"""Invariants of parsing fields."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler.extract.fields import FieldType, read_date, read_number, squeeze, typed

ANYTHING = st.text(st.characters(), max_size=40)
SEOUL = ZoneInfo("Asia/Seoul")
ZONES = st.sampled_from(["UTC", "Europe/London", "America/New_York", "Asia/Kolkata"]).map(ZoneInfo)
WORDS = st.sampled_from(["item", "in stock:", "about", "€", "No."])


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers_round_trip(number: int) -> None:
    assert read_number(str(number)) == number


@given(WORDS, st.integers(0, 10**6), st.sampled_from(["%", " pieces", " (new)", "", "."]))
def test_number_is_found_between_words(before: str, number: int, after: str) -> None:
    assert read_number(f"{before} {number}{after}") == number


@given(
    st.decimals(0, 10**7, places=2).map(float),
    st.sampled_from([(",", "."), (".", ","), (" ", ","), ("'", "."), ("\u00a0", ",")]),
)
def test_amounts_are_read_in_each_notation(amount: float, marks: tuple[str, str]) -> None:
    thousands, point = marks
    written = f"{amount:,.2f}".translate({ord(","): thousands, ord("."): point})
    assert read_number(written) == amount


@given(ANYTHING)
@pytest.mark.parametrize("kind", [FieldType.TEXT, FieldType.NUMBER, FieldType.PRICE])
def test_parsing_any_text_raises_no_error(kind: FieldType, text: str) -> None:
    typed(text, kind, SEOUL)


@given(ANYTHING | st.from_regex(r"[0-9]{1,4}[-/. ][0-9]{1,2}[-/. ][0-9]{1,4}", fullmatch=True))
def test_parsing_any_text_as_date_raises_no_error(text: str) -> None:
    read = typed(text, FieldType.DATE, SEOUL)
    assert read is None or read.tzinfo is UTC


@given(ANYTHING)
def test_a_number_is_finite_or_none(text: str) -> None:
    number = read_number(text)
    assert number is None or math.isfinite(number)


@given(
    st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)),
    st.integers(-12 * 60, 14 * 60),
    ZONES,
)
def test_date_with_offset_does_not_depend_on_zone(
    local: datetime, minutes: int, zone: ZoneInfo
) -> None:
    moment = local.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    assert read_date(moment.isoformat(), zone) == moment


@given(st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)), ZONES)
def test_a_date_without_an_offset_is_local(local: datetime, zone: ZoneInfo) -> None:
    first = local.replace(tzinfo=zone, fold=0)  # the earlier time when clocks go back
    assert read_date(local.isoformat(), zone) == first.astimezone(UTC)


@given(ANYTHING)
def test_squeeze_is_idempotent(text: str) -> None:
    once = squeeze(text)
    assert squeeze(once) == once
    assert "  " not in once
