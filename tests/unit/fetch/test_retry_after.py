"""Retry-After: the time before which a host must not be requested again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from scrapy.http import Response

from crawler.fetch.downloader import retry_after

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
LONGEST = timedelta(days=30)


def read(value: bytes) -> datetime | None:
    """Parse the Retry-After header of a response received at noon."""
    return retry_after(Response("http://a.example", headers={"Retry-After": value}), NOON)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(b"0", 0), (b"120", 120), (b" 7 ", 7), (b"0030", 30)],
)
def test_seconds_count_from_now(value: bytes, seconds: int) -> None:
    assert read(value) == NOON + timedelta(seconds=seconds)


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
def test_a_date_is_taken_as_it_is(value: bytes) -> None:
    assert read(value) == NOON + timedelta(minutes=1)


@pytest.mark.parametrize(
    "value",
    [b"Wed, 01 May 2024 11:59:59 GMT", b"Thu, 01 Jan 1970 00:00:00 GMT"],
)
def test_a_date_in_the_past_is_no_wish(value: bytes) -> None:
    assert read(value) is None


@pytest.mark.parametrize(
    "value",
    [
        b"", b"soon", b"-5", b"1.5", b"0x10", b"Wed, 99 May 2024 12:00:00 GMT", b"\xff\xfe",
        "٣".encode(), b"\xb2", b"\0",
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_no_wish(value: bytes) -> None:
    assert read(value) is None


def test_without_the_header_there_is_no_wish() -> None:
    assert retry_after(Response("http://a.example"), NOON) is None


@pytest.mark.parametrize(
    "value",
    [b"99999999999", b"9" * 5000, b"Fri, 31 Dec 9999 23:59:59 GMT"],
    ids=["many seconds", "more digits than int() takes", "the last date there is"],
)
def test_an_absurd_wish_is_cut_to_a_month(value: bytes) -> None:
    assert read(value) == NOON + LONGEST
