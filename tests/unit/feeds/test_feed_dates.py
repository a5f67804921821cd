"""Dates of posts: parsed in many formats, accepted only if plausible."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from crawler.feeds.parser import read
from crawler.items import FeedDocument
from tests.unit.feeding import NOW, atom, item, json_feed, only, reading, rss


def feed_with_dates(*dates: str, built: str = "") -> FeedDocument:
    posts = (item(f"<pubDate>{date}</pubDate>", n=n) for n, date in enumerate(dates))
    return reading(rss(*posts, channel=f"<lastBuildDate>{built}</lastBuildDate>" if built else ""))


def dates_of(document: FeedDocument) -> list[datetime | None]:
    return [entry.published for entry in document.entries]


@pytest.mark.parametrize(
    ("text", "hour", "minute"),
    [
        ("Mon, 01 Apr 2024 10:00:00 GMT", 10, 0),
        ("Mon, 1 Apr 24 10:00 +0200", 8, 0),
        ("1 Apr 2024 10:00:00", 10, 0),
        ("Mon, 01 Apr 2024 10:00:00 EST", 15, 0),
        ("Mon, 01 Apr 2024 10:00:00 CEST", 8, 0),
        ("Mon, 01 Apr 2024 10:00:00 GMT+0530", 4, 30),
        ("Mon, 01 Apr 2024 10:00:00 +02:00", 8, 0),
        ("Mon, 01 Apr 2024 10:00 -5", 15, 0),
        ("Mon, 01 Apr 2024 10:00:00 UTC+2 (CEST)", 8, 0),
        ("Mon, 1 Apr 2024 8:19 pm CEST", 18, 19),
        ("Mon, 1 Apr 2024 12:10:00 a.m. GMT", 0, 10),
        ("1 Apr 2024 12:10PM", 12, 10),
        ("1-Apr-24", 0, 0),
        ("Montag, 01 Apr 2024 10:00:00 +0200", 8, 0),
        ("Mon Apr  1 10:00:00 2024", 10, 0),
        ("2024-04-01T10:00:00Z", 10, 0),
        ("2024-04-01T10:00:00.123456+05:30", 4, 30),
        ("2024-04-01T10:00:00+0530", 4, 30),
        ("2024-04-01 10:00", 10, 0),
        ("2024/04/01 10:00", 10, 0),
        ("2024-4-1 10:00:00", 10, 0),
        ("2024-04-01T23:59:60Z", 23, 59),
        ("01.04.2024 10:00", 10, 0),
        ("2024-04-01 10:00:00 PM", 22, 0),
        ("1 avril 2024 10:00", 10, 0),
        ("2024年4月1日 10:00", 10, 0),
        ("2024-04-01", 0, 0),
        ("Mon, 01 Apr 2024 03:00:00 America/Los_Angeles", 10, 0),
        ("2024-04-01 06:00:00 America/New_York", 10, 0),
        ("2024-04-01T12:00:00+02:00[Europe/Berlin]", 10, 0),
        ("1 Apr 2024 6:00 am ET", 10, 0),
        ("1711965600", 10, 0),
        ("1711965600000", 10, 0),
    ],
)
def test_dates_are_parsed_in_many_formats(text: str, hour: int, minute: int) -> None:
    (date,) = dates_of(feed_with_dates(text))
    assert date is not None
    assert date.replace(second=0, microsecond=0) == datetime(2024, 4, 1, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    "text", ["soon", "2 hours ago", "12:30", "12345", "31 Feb 2024", "2024-13-01", "x" * 5000]
)
def test_unparsable_date_is_none_and_reported(text: str) -> None:
    parsed = feed_with_dates(text)
    assert dates_of(parsed) == [None]
    assert [p for p in parsed.problems if p.startswith("1 date could not be parsed")]


def test_missing_date_is_not_a_problem() -> None:
    assert only(rss(item("<pubDate></pubDate>"))).published is None


@pytest.mark.parametrize("text", ["Thu, 01 Jan 1970 00:00:00 GMT", "9999-12-31"])
def test_implausible_date_is_ignored_and_reported(text: str) -> None:
    parsed = feed_with_dates(text)
    assert (dates_of(parsed), parsed.entries[0].stated) == ([None], None)
    assert parsed.problems[0].startswith("1 date before 1995 or more than a year ahead: ignored")


@pytest.mark.parametrize("text", ["2024-05-01T14:00:00Z", "2024-07-01T20:00:00+09:00"])
def test_date_in_the_future_is_kept_for_later(text: str) -> None:
    parsed = feed_with_dates(text, "2024-04-01T10:00:00Z")
    entry = parsed.entries[0]
    assert (entry.published, entry.stated) == (None, datetime.fromisoformat(text))
    assert parsed.problems[0].startswith("1 date in the future, such as 2024-")


@pytest.mark.parametrize(
    ("newest", "offset"),
    [("2024-05-01 20:00:00", 8), ("2024-05-01 17:20:00", 5.5), ("2 May 2024 01:30:00", 14),
     ("2024-05-01 11:00:00", 0)],
)  # fmt: skip
def test_dates_that_would_be_in_the_future_show_the_offset(newest: str, offset: float) -> None:
    parsed = feed_with_dates(newest, "2024-04-30 10:00:00", "2024-04-01T10:00:00Z")
    assert parsed.utc_offset_hours == offset
    older = datetime(2024, 4, 30, 10, tzinfo=UTC) - timedelta(hours=offset)
    assert dates_of(parsed)[1:] == [older, datetime(2024, 4, 1, 10, tzinfo=UTC)]
    assert [entry.has_offset for entry in parsed.entries] == [False, False, True]
    assert len([p for p in parsed.problems if f"UTC+{offset:g}." in p]) == (offset > 0)


def test_dates_without_offset_are_in_the_time_zone_of_the_site() -> None:
    body = rss(item("<pubDate>2024-04-01 06:00:00</pubDate>"))
    zone = ZoneInfo("America/New_York")
    (entry,) = read(body.encode(), "https://blog.test/feed", None, NOW, zone=zone).entries
    assert (entry.published, entry.has_offset) == (datetime(2024, 4, 1, 10, tzinfo=UTC), True)


def test_slightly_future_date_is_capped_at_now() -> None:
    assert dates_of(feed_with_dates("2024-05-01T12:40:00Z")) == [NOW]


def test_date_within_the_last_minute_is_accepted() -> None:
    assert dates_of(feed_with_dates("2024-05-01T11:59:50Z", "2024-04-01T10:00:00Z")) == [
        NOW - timedelta(seconds=10),
        datetime(2024, 4, 1, 10, tzinfo=UTC),
    ]


@pytest.mark.parametrize(
    ("dates", "built", "problem"),
    [
        (["2024-04-01"] * 3, "", "all 3 dates are identical: ignored"),
        (
            ["2024-05-01T11:59:58Z", "2024-05-01T11:59:59Z", "2024-05-01T12:00:00Z"],
            "",
            "all 3 dates equal the time of the fetch: ignored",
        ),
        (
            ["2024-04-30T08:00:00Z", "2024-04-30T08:00:01Z", "2024-04-30T08:00:01Z"],
            "2024-04-30T08:00:02Z",
            "all 3 dates equal the time of the document: ignored",
        ),
    ],
)
def test_generated_dates_are_ignored_and_reported(
    dates: list[str], built: str, problem: str
) -> None:
    parsed = feed_with_dates(*dates, built=built)
    assert dates_of(parsed) == [None] * 3
    assert problem in parsed.problems


@pytest.mark.parametrize("dates", [["2024-04-01"] * 2, ["2024-04-01"] * 3 + ["2024-04-02"]])
def test_few_identical_dates_are_accepted(dates: list[str]) -> None:
    assert None not in dates_of(feed_with_dates(*dates))


def test_newest_date_may_equal_the_document_date() -> None:
    dates = ["2024-04-30T08:00:00Z", "2024-04-29T08:00:00Z", "2024-04-28T08:00:00Z"]
    assert None not in dates_of(feed_with_dates(*dates, built="2024-04-30T08:00:00Z"))


def test_published_takes_precedence_over_updated() -> None:
    one = "<updated>2024-04-02T10:00:00Z</updated>"
    both = f"{one}<published>2024-04-01T10:00:00Z</published>"
    assert only(atom(f"<entry><id>1</id>{one}</entry>")).published == datetime(
        2024, 4, 2, 10, tzinfo=UTC
    )
    assert only(atom(f"<entry><id>1</id>{both}</entry>")).published == datetime(
        2024, 4, 1, 10, tzinfo=UTC
    )
    modified = {"id": "1", "date_modified": "2024-04-02T10:00:00Z"}
    assert only(json_feed(modified)).published == datetime(2024, 4, 2, 10, tzinfo=UTC)


def test_unparsable_dates_share_one_problem_message() -> None:
    parsed = feed_with_dates(*(f"{n} nonsense" for n in range(2000)))
    assert parsed.problems == ("2,000 dates could not be parsed, such as '0 nonsense'",)
