"""Retry-After: the time before which a host must not be requested again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from scrapy.http import Response

from crawler.fetch.downloader import retry_after

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
MAX_DELAY = timedelta(hours=6)


def parsed(value: bytes) -> datetime | None:
    """Parse the Retry-After header of a response received at noon."""
    return retry_after(Response("http://a.example", headers={"Retry-After": value}), NOON)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(b"0", 0), (b"120", 120), (b" 7 ", 7), (b"0030", 30)],
)
def test_seconds_are_relative_to_now(value: bytes, seconds: int) -> None:
    assert parsed(value) == NOON + timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "value",
    [
        b"Wed, 01 May 2024 12:01:00 GMT",
        b"Wednesday, 01-May-24 12:01:00 GMT",
        b"Wed May  1 12:01:00 2024",
        b"Wed, 01 May 2024 14:01:00 +0200",
    ],
    ids=["RFC 1123", "RFC 850", "asctime", "with an offset"],
)
def test_date_is_parsed_in_any_http_format(value: bytes) -> None:
    assert parsed(value) == NOON + timedelta(minutes=1)


@pytest.mark.parametrize(
    "value",
    [b"Wed, 01 May 2024 11:59:59 GMT", b"Thu, 01 Jan 1970 00:00:00 GMT"],
)
def test_past_date_is_ignored(value: bytes) -> None:
    assert parsed(value) is None


@pytest.mark.parametrize(
    "value",
    [
        b"", b"soon", b"-5", b"1.5", b"0x10", b"Wed, 99 May 2024 12:00:00 GMT", b"\xff\xfe",
        "٣".encode(), b"\xb2", b"\0", b"Wed, 01 May 2024 12:00:00 +99999999999999",
        b"Wed, 01 May 99999999999999999999 12:00:00 GMT",
    ],
)  # fmt: skip
def test_invalid_value_is_ignored(value: bytes) -> None:
    assert parsed(value) is None


def test_missing_header_is_none() -> None:
    assert retry_after(Response("http://a.example"), NOON) is None


@pytest.mark.parametrize(
    "value",
    [b"99999999999", b"9" * 5000, b"Fri, 31 Dec 9999 23:59:59 GMT"],
    ids=["many seconds", "more digits than int() accepts", "last valid date"],
)
def test_delay_is_limited_to_hours(value: bytes) -> None:
    assert parsed(value) == NOON + MAX_DELAY
