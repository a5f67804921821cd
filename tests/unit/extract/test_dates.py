"""Dates on pages: in the site's time zone, and never relative to the time of the visit."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from scrapy.http import JsonResponse

from crawler.extract.fields import FieldType, date, proposed_type, read_date, typed
from tests.unit.pages import page


def at(*parts: int) -> datetime:
    """Return a UTC datetime."""
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]


def json_page(text: str) -> JsonResponse:
    return JsonResponse("https://shop.example/api", body=text, encoding="utf-8")


@pytest.mark.parametrize(
    ("zone", "value", "expected"),
    [
        ("Europe/London", "2024-01-15 12:00", at(2024, 1, 15, 12)),
        ("Europe/London", "2024-07-15 12:00", at(2024, 7, 15, 11)),
        ("America/New_York", "2024-01-15 12:00", at(2024, 1, 15, 17)),
        ("America/New_York", "2024-07-15 12:00", at(2024, 7, 15, 16)),
        ("Asia/Seoul", "2024-07-15", at(2024, 7, 14, 15)),
        ("Asia/Kolkata", "15 July 2024 3pm", at(2024, 7, 15, 9, 30)),
        ("Europe/London", "March 14, 1979", at(1979, 3, 14)),
        ("Europe/London", "2024-03-31 00:59", at(2024, 3, 31, 0, 59)),
        ("Europe/London", "2024-03-31 02:00", at(2024, 3, 31, 1)),
        ("Europe/London", "2024-10-27 00:59", at(2024, 10, 26, 23, 59)),
        ("Europe/London", "2024-10-27 02:00", at(2024, 10, 27, 2)),
    ],
)
def test_date_without_an_offset_uses_the_sites_zone(
    zone: str, value: str, expected: datetime
) -> None:
    assert read_date(value, ZoneInfo(zone)) == expected


@pytest.mark.parametrize(
    "value",
    [
        "2024-07-15T12:00:00Z",
        "2024-07-15T14:00:00+02:00",
        "2024-07-15 07:00:00-05:00",
        "Mon, 15 Jul 2024 12:00:00 GMT",
        "Mon, 15 Jul 2024 14:00:00 +0200",
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "Asia/Seoul", "America/New_York"])
def test_date_with_an_offset_ignores_the_sites_zone(value: str, zone: str) -> None:
    assert read_date(value, ZoneInfo(zone)) == at(2024, 7, 15, 12)


@pytest.mark.parametrize("value", ["2024-07-15 12:00", "15 July 2024", "2024-07-15T14:00:00+02:00"])
def test_parsed_date_is_in_utc(value: str) -> None:
    read = read_date(value, ZoneInfo("Asia/Seoul"))
    assert read is not None
    assert read.tzinfo is UTC


@pytest.mark.parametrize(
    "value", ["15 juillet 2024", "15. Juli 2024", "15 июля 2024", "2024年7月15日"]
)
def test_month_names_in_other_languages_are_parsed(value: str) -> None:
    assert read_date(value, ZoneInfo("UTC")) == at(2024, 7, 15)


@pytest.mark.parametrize(
    "value",
    ["2 hours ago", "yesterday", "today", "now", "just now", "in 3 days", "vor 2 Tagen", "Monday",
     "12:30", "July", "5", "15 July"],
)  # fmt: skip
def test_relative_or_incomplete_date_is_none(value: str) -> None:
    assert read_date(value, ZoneInfo("UTC")) is None


def test_month_without_a_day_does_not_use_todays_day() -> None:
    assert read_date("July 2024", ZoneInfo("UTC")) in (None, at(2024, 7, 1))


@pytest.mark.parametrize(
    "value",
    ["1711010123", "1711010123000", "1711010123000000", "1711010123.75", "@1711010123",
     "/Date(1711010123000)/", "/Date(1711010123000+0100)/"],
)  # fmt: skip
@pytest.mark.parametrize("zone", ["UTC", "Asia/Seoul"])
def test_unix_time_in_seconds_or_smaller_units_is_a_date(value: str, zone: str) -> None:
    read = read_date(value, ZoneInfo(zone))
    assert read is not None
    assert read.replace(microsecond=0) == at(2024, 3, 21, 8, 35, 23)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("20240715", at(2024, 7, 15)), ("2024071512", None), ("202407151230", None),
        ("0711010123", None), ("9780306406157", None), ("9999999999", None), ("12345678901", None),
    ],
)  # fmt: skip
def test_other_numbers_are_not_read_as_unix_times(value: str, expected: datetime | None) -> None:
    assert read_date(value, ZoneInfo("UTC")) == expected


def test_number_of_an_item_is_not_proposed_as_a_date() -> None:
    numbers = page("<p>1711010123</p><p>1711010199</p>").css("p")
    assert proposed_type(numbers, ZoneInfo("UTC")) is FieldType.NUMBER
    days = page("<p>20240715</p><p>20240716</p>").css("p")
    assert proposed_type(days, ZoneInfo("UTC")) is FieldType.DATE


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("Mon, 15 Jan 2024 20:21:00 America/Los_Angeles", at(2024, 1, 16, 4, 21)),
        ("Mon, 15 Jul 2024 20:21:00 America/Los_Angeles", at(2024, 7, 16, 3, 21)),
        ("2024-07-15 20:21 europe/berlin", at(2024, 7, 15, 18, 21)),
        ("2024-07-15T20:21:00+02:00[Europe/Berlin]", at(2024, 7, 15, 18, 21)),
        ("2024-07-15T20:21:00-04:00[America/New_York][u-ca=gregory]", at(2024, 7, 16, 0, 21)),
        ("2024-07-15T20:21:00[Asia/Tokyo]", at(2024, 7, 15, 11, 21)),
        ("2024-07-15T20:21:00Z[UTC]", at(2024, 7, 15, 20, 21)),
        ("July 15, 2024 8:21 pm (America/Argentina/Salta)", at(2024, 7, 15, 23, 21)),
        ("July 15, 2024 8:21 pm ET", at(2024, 7, 16, 0, 21)),
        ("January 15, 2024 8:21pm ET", at(2024, 1, 16, 1, 21)),
        ("July 15, 2024, 8:21 p.m. US Central Time", at(2024, 7, 16, 1, 21)),
        ("Mon Jul 15 2024 20:21:00 GMT-0700 (Pacific Daylight Time)", at(2024, 7, 16, 3, 21)),
    ],
)
def test_date_with_the_name_of_a_zone_ignores_the_sites_zone(
    value: str, expected: datetime
) -> None:
    assert read_date(value, ZoneInfo("Asia/Seoul")) == expected


@pytest.mark.parametrize(
    "value", ["15 July 2024 12:00 Nowhere/Land", "../../etc/passwd", "America/"]
)
def test_unknown_zone_is_not_taken_for_the_sites_zone(value: str) -> None:
    assert read_date(value, ZoneInfo("UTC")) is None


@pytest.mark.parametrize("number", ["1711010123", "1711010123000", "1.711010123e9", '"1711010123"'])
def test_date_fields_read_unix_times_in_json(number: str) -> None:
    response = json_page(f'{{"at": {number}}}')
    assert date(jmespath="at").read(response, ZoneInfo("UTC")) == at(2024, 3, 21, 8, 35, 23)


@pytest.mark.parametrize("number", ["0", "-1", "true", "1e300", "17"])
def test_numbers_that_are_no_times_are_no_dates(number: str) -> None:
    response = json_page(f'{{"at": {number}}}')
    assert date(jmespath="at").read(response, ZoneInfo("UTC")) is None


@pytest.mark.parametrize("value", ["", "soon", "price 12.50 incl. tax", "-", "2024-13-45"])
def test_invalid_date_is_none(value: str) -> None:
    assert typed(value, FieldType.DATE, ZoneInfo("UTC")) is None


@pytest.mark.parametrize("value", ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00"])
def test_out_of_range_date_is_none(value: str) -> None:
    assert read_date(value, ZoneInfo("UTC")) is None


def test_date_field_uses_the_given_zone() -> None:
    response = page("<time>2024-07-15 12:00</time>")
    assert date("time").read(response, ZoneInfo("Asia/Seoul")) == at(2024, 7, 15, 3)


@pytest.mark.parametrize(
    "value", ["24/10/8", "2024-10-08", "20241008", "10/08/2024", "２０２４年１０月８日"]
)
def test_numeric_dates_may_use_any_order(value: str) -> None:
    assert read_date(value, ZoneInfo("UTC")) == at(2024, 10, 8)


@pytest.mark.parametrize(
    "value",
    ["08.10.2024", "8.10.2024 00:00", "8. 10. 2024", "08.10.24", "2024.10.08", "Di, 08.10.2024"],
)
def test_day_comes_first_in_dates_with_dots(value: str) -> None:
    assert read_date(value, ZoneInfo("UTC")) == at(2024, 10, 8)


def test_parsing_loads_only_the_required_languages() -> None:
    # Each date is read in a fork, which has loaded no language before.
    code = """
import os, sys
from zoneinfo import ZoneInfo
from crawler.extract.fields import read_date

for value in sys.argv[1:]:
    if os.fork() == 0:
        read_date(value, ZoneInfo("UTC"))
        print(*(name for name in sys.modules if ".date_translation_data." in name), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, value
"""
    languages = {"15 July 2024": ["en"], "15 июля 2024": ["ru"], "soon": []}
    done = subprocess.run(
        [sys.executable, "-c", code, *languages], capture_output=True, text=True, check=True
    )
    loaded = [line.split() for line in done.stdout.splitlines()]
    found = [[name.rpartition(".")[2] for name in names] for names in loaded]
    assert dict(zip(languages, found, strict=True)) == languages


@pytest.mark.parametrize(
    ("value", "month_first", "day_first"),
    [
        ("05/01/2024", at(2024, 5, 1), at(2024, 1, 5)),
        ("5-1-2024 17:30", at(2024, 5, 1, 17, 30), at(2024, 1, 5, 17, 30)),
        ("05/01/24", at(2024, 5, 1), at(2024, 1, 5)),
        ("05/25/2024", at(2024, 5, 25), at(2024, 5, 25)),
        ("25/05/2024", at(2024, 5, 25), at(2024, 5, 25)),
        ("2024/05/01", at(2024, 5, 1), at(2024, 5, 1)),
        ("24/10/8", at(2024, 10, 8), at(2024, 10, 8)),
        ("May 1, 2024", at(2024, 5, 1), at(2024, 5, 1)),
        ("2024-05-01T00:00:00Z", at(2024, 5, 1), at(2024, 5, 1)),
    ],
)
def test_order_matters_only_in_ambiguous_dates(
    value: str, month_first: datetime, day_first: datetime
) -> None:
    assert read_date(value, ZoneInfo("UTC")) == month_first
    assert read_date(value, ZoneInfo("UTC"), day_first=True) == day_first


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("fr", at(2024, 1, 5)), ("de-AT", at(2024, 1, 5)), ("en-GB", at(2024, 1, 5)),
        ("EN_gb", at(2024, 1, 5)), ("en", at(2024, 5, 1)), ("en-US", at(2024, 5, 1)),
        ("es-US", at(2024, 5, 1)), ("ja", at(2024, 5, 1)), ("", at(2024, 5, 1)),
    ],
)  # fmt: skip
def test_language_of_the_page_decides_the_order(language: str, expected: datetime) -> None:
    response = page(f"<html lang='{language}'><time>05/01/2024</time></html>")
    assert date("time").read(response, ZoneInfo("UTC")) == expected
    for day_first, always in ((True, at(2024, 1, 5)), (False, at(2024, 5, 1))):
        assert date("time").read(response, ZoneInfo("UTC"), day_first=day_first) == always
