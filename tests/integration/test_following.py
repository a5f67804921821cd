"""Crawls follow the plan: its slots, its caps, and the hours in which a site may be asked."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.integration.harness import Db, Freshet, Pages, Row, asked, target

# A Monday at noon; every crawl here is so many hours later, by its own clock.
MONDAY = datetime(2026, 1, 5, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
ITEMS = 12
Crawl = Callable[..., str]


def offset(hours: float) -> float:
    """What moves the clock to so many hours after MONDAY."""
    return (MONDAY - datetime.now(UTC)) / HOUR + hours


@pytest.fixture
def crawl(freshet: Freshet, pages: Pages) -> Crawl:
    """Crawls the items so many hours after MONDAY; what the crawl said."""

    def at(hours: float, *args: str, **keys: object) -> str:
        return freshet.crawl(wrapper(freshet, pages, **keys), *args, hours=offset(hours)).err

    names = [f"item-{i}.html" for i in range(ITEMS)]
    pages.list("list.html", names)
    for name in names:
        pages.item(name, name)
    return at


def wrapper(freshet: Freshet, pages: Pages, name: str = "pages", **keys: object) -> Path:
    given: dict[str, object] = {
        "start_urls": [f"{pages.url}/list.html"],
        "item_pages": r"/item-\w+\.html$",
        "fields": {"title": "h1"},
        "robots": False,
    }
    return freshet.wrapper(name, **given | keys)


def plan_all(db: Db, **plan: object) -> None:
    """Every target gets a plan."""
    usual = {"plan": "p", "policy": "freshet", "weeks": 1, "slots": [0], "visits_per_week": 1.0}
    db.targets.update_many({}, {"$set": {"plan": usual | plan}})


def cap(db: Db, *spiders: str, **caps: int) -> None:
    """A plan in effect with these caps."""
    db.plans.insert_one(
        {"at": MONDAY, "state": "adopted", "spiders": list(spiders or ("pages",))} | caps
    )


def hours_to_next(db: Db, url: str) -> float:
    found = target(db, url)
    return (found["next_visit"] - found["visited_at"]) / HOUR


def last_run(db: Db) -> Row:
    counts: Row = db.runs.find_one({}, sort=[("started", -1)])["counts"]
    return counts


def test_the_next_visit_is_the_next_slot_on_the_site_s_clock(
    crawl: Crawl, database: Db, pages: Pages
) -> None:
    crawl(0, timezone="Asia/Tokyo")
    # Tuesday 7:00 and Thursday 9:00 in Tokyo.
    plan_all(database, slots=[24 + 7, 3 * 24 + 9])
    crawl(25, timezone="Asia/Tokyo")
    found = target(database, f"{pages.url}/item-3.html")
    assert found["next_visit"] == datetime(2026, 1, 8, 9, tzinfo=ZoneInfo("Asia/Tokyo"))


def test_a_learning_phase_that_is_over_no_longer_counts(
    crawl: Crawl, database: Db, pages: Pages
) -> None:
    crawl(0)
    plan_all(database, slots=[], every_hours=5.0, until=MONDAY + 100 * HOUR)
    crawl(30)
    assert 0 < hours_to_next(database, f"{pages.url}/item-3.html") <= 5
    crawl(101)
    assert hours_to_next(database, f"{pages.url}/item-3.html") == 24


def test_no_plan_waits_longer_than_the_longest_interval(
    crawl: Crawl, database: Db, pages: Pages
) -> None:
    crawl(0)
    plan_all(database, slots=[], every_hours=9999.0)
    crawl(30)
    assert hours_to_next(database, f"{pages.url}/item-3.html") == 672


def test_an_error_is_repeated_whatever_the_plan_says(
    crawl: Crawl, database: Db, pages: Pages
) -> None:
    crawl(0)
    plan_all(database)
    pages.file("item-3.html", "")
    crawl(30)
    assert hours_to_next(database, f"{pages.url}/item-3.html") == 1


def test_an_adaptive_interval_follows_the_page(crawl: Crawl, database: Db, pages: Pages) -> None:
    crawl(0)
    url = f"{pages.url}/item-3.html"
    plan_all(database, policy="adaptive", slots=[], every_hours=10.0, min_hours=4.0, max_hours=11.0)
    intervals = []
    for hours, text in [(30, "item-3.html"), (60, "two"), (90, "three"), (120, "three")]:
        pages.item("item-3.html", text)
        crawl(hours)
        intervals.append(target(database, url)["plan"]["every_hours"])
        assert hours_to_next(database, url) == pytest.approx(intervals[-1])
    assert intervals == [11, 5.5, 4, 4.8]
    assert target(database, url)["plan"]["visits_per_week"] == 168 / 4.8


def test_the_daily_cap_is_kept_over_passes_and_days(
    crawl: Crawl, database: Db, pages: Pages
) -> None:
    crawl(0)
    cap(database, daily_cap=5)
    pages.clear_log()

    said = crawl(25.5)

    assert len(asked(pages)) == 5
    assert said.count("the plan's cap is reached") == 1
    left = ITEMS + 1 - 5
    assert re.search(rf"cap is reached \(5 requests a day\); {left} stay due", said)
    assert (last_run(database)["over_cap"], last_run(database)["due"]) == (left, left)
    crawl(25.5)
    crawl(26, "-a", "full=1")
    assert len(asked(pages)) == 5, "the day's requests are spent"
    crawl(37)
    assert sum(asked(pages).values()) == 10, "the next day begins at midnight UTC"


def test_the_cap_bears_on_a_pass_that_is_not_the_first_of_the_day(
    crawl: Crawl, database: Db, pages: Pages
) -> None:
    crawl(0)
    cap(database, daily_cap=ITEMS + 1 + 3)
    pages.clear_log()
    crawl(6, "-a", "full=1")
    assert len(asked(pages)) == 3


def test_the_hourly_cap_is_kept(crawl: Crawl, database: Db, pages: Pages) -> None:
    crawl(0)
    cap(database, daily_cap=8, hourly_cap=3)
    pages.clear_log()
    for hours, expected in [(25.1, 3), (25.2, 3), (26.1, 6), (27.1, 8), (28.1, 8)]:
        crawl(hours)
        assert sum(asked(pages).values()) == expected


def test_without_a_cap_everything_due_is_asked_for(
    crawl: Crawl, database: Db, pages: Pages
) -> None:
    crawl(0)
    cap(database, daily_cap=0)
    pages.clear_log()
    said = crawl(25.5)
    assert len(asked(pages)) == ITEMS + 1
    assert "cap is reached" not in said
    assert "over_cap" not in last_run(database)


def test_the_most_valuable_go_first(crawl: Crawl, database: Db, pages: Pages) -> None:
    crawl(0)
    plan_all(database, worth=0.1)
    for i in (7, 2, 9):
        worth = {"$set": {"plan.worth": float(i)}}
        database.targets.update_one({"url": f"{pages.url}/item-{i}.html"}, worth)
    cap(database, daily_cap=3)
    pages.clear_log()
    said = crawl(25.5)
    assert set(asked(pages)) == {"/item-9.html", "/item-7.html", "/item-2.html"}
    assert "13 due, 3 may be asked for: the most valuable first" in said


def test_spiders_of_one_plan_share_its_caps(
    freshet: Freshet, database: Db, pages: Pages, crawl: Crawl
) -> None:
    crawl(0)
    cap(database, "pages", "others", daily_cap=ITEMS + 6)
    pages.clear_log()
    crawl(25.5)
    freshet.crawl(wrapper(freshet, pages, "others"), hours=offset(26))
    assert sum(asked(pages).values()) == ITEMS + 6
    assert database.visits.count_documents({"spider": "others"}) == 5


def test_a_pass_in_closed_hours_hands_out_nothing_and_says_so(
    crawl: Crawl, database: Db, pages: Pages
) -> None:
    hours = {"windows": ["Mon-Fri 22:00-06:00"], "blackout": ["Tue 03:00-04:00"]}
    said = crawl(0, **hours)
    assert asked(pages) == {}
    assert "closed at this hour" in said
    assert last_run(database)["closed"] == 1
    crawl(15.5, **hours)
    assert asked(pages) == {}
    said = crawl(16.5, **hours)
    assert len(asked(pages)) == ITEMS + 1
    assert "closed at" not in said
    said = crawl(25, **hours)
    assert "closed at" in said
    assert sum(asked(pages).values()) == ITEMS + 1
