"""Dates of posts: parsed in many formats, accepted only if plausible."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from crawler.items import FeedDocument
from tests.unit.feeding import NOW, atom, item, json_feed, only, reading, rss


def dated(*dates: str, built: str = "") -> FeedDocument:
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
    ],
)
def test_dates_are_read_in_many_forms(text: str, hour: int, minute: int) -> None:
    (date,) = dates_of(dated(text))
    assert date is not None
    assert date.replace(second=0, microsecond=0) == datetime(2024, 4, 1, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    "text", ["soon", "2 hours ago", "12:30", "1711965600", "31 Feb 2024", "2024-13-01", "x" * 5000]
)
def test_what_nobody_can_read_is_no_date_and_that_is_told(text: str) -> None:
    parsed = dated(text)
    assert dates_of(parsed) == [None]
    assert [p for p in parsed.problems if p.startswith("1 date not understood")]


def test_no_date_is_no_problem() -> None:
    assert only(rss(item("<pubDate></pubDate>"))).published is None


@pytest.mark.parametrize(
    "text", ["Thu, 01 Jan 1970 00:00:00 GMT", "2024-05-01T14:00:00Z", "9999-12-31"]
)
def test_a_date_that_cannot_be_true_is_not_believed_and_that_is_told(text: str) -> None:
    parsed = dated(text)
    assert dates_of(parsed) == [None]
    assert parsed.problems[0].startswith("1 date before 1995 or in the future: ignored")


def test_a_clock_that_is_a_little_fast_is_forgiven() -> None:
    assert dates_of(dated("2024-05-01T12:40:00Z")) == [NOW]


def test_a_post_of_this_minute_is_believed() -> None:
    assert dates_of(dated("2024-05-01T11:59:50Z", "2024-04-01T10:00:00Z")) == [
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
def test_dates_made_with_the_document_are_not_believed_and_that_is_told(
    dates: list[str], built: str, problem: str
) -> None:
    parsed = dated(*dates, built=built)
    assert dates_of(parsed) == [None] * 3
    assert problem in parsed.problems


@pytest.mark.parametrize("dates", [["2024-04-01"] * 2, ["2024-04-01"] * 3 + ["2024-04-02"]])
def test_a_few_posts_of_one_moment_are_believed(dates: list[str]) -> None:
    assert None not in dates_of(dated(*dates))


def test_the_newest_post_may_be_as_old_as_the_document() -> None:
    dates = ["2024-04-30T08:00:00Z", "2024-04-29T08:00:00Z", "2024-04-28T08:00:00Z"]
    assert None not in dates_of(dated(*dates, built="2024-04-30T08:00:00Z"))


def test_the_day_of_publishing_counts_before_that_of_an_update() -> None:
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


def test_dates_that_nobody_can_read_are_asked_after_a_few_times_only() -> None:
    parsed = dated(*(f"{n} nonsense" for n in range(2000)))
    assert parsed.problems == ("2,000 dates could not be parsed, such as '0 nonsense'",)
