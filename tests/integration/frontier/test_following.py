"""Crawls follow the plan: its slots, its caps, and the visiting hours of a site."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.conftest import Databases
from tests.integration.harness import Db, Freshet, Pages, Row, asked
from tests.integration.once import Left, elsewhere, left_in, put_into

# A Monday at noon; each crawl sets its clock to a number of hours after it.
MONDAY = datetime(2026, 1, 5, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
NAMES = [f"item-{i}.html" for i in range(12)]
EVERYTHING = len(NAMES) + 1
Crawl = Callable[..., str]
Rows = dict[str, Row]


def offset(hours: float) -> float:
    """Return the clock offset for a number of hours after MONDAY."""
    return (MONDAY - datetime.now(UTC)) / HOUR + hours


@pytest.fixture(scope="module")
def served() -> Iterator[Pages]:
    """Serve twelve items and their list."""
    with Pages() as pages:
        pages.list("list.html", NAMES)
        for name in NAMES:
            pages.item(name, name)
        yield pages


@pytest.fixture(scope="module")
def left(served: Pages, databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Left:
    """Return the database contents after a first crawl at MONDAY."""
    with elsewhere(databases, tmp_path_factory.mktemp("first")) as (freshet, db, _):
        freshet.crawl(wrapper(freshet, served), hours=offset(0))
        return left_in(db)


@pytest.fixture
def pages(served: Pages) -> Pages:
    """Return the site with an empty request log."""
    served.clear_log()
    return served


@pytest.fixture
def crawl(freshet: Freshet, pages: Pages) -> Crawl:
    """Return a function that crawls a number of hours after MONDAY and returns the log."""

    def at(hours: float, *args: str, **keys: object) -> str:
        return freshet.crawl(wrapper(freshet, pages, **keys), *args, hours=offset(hours)).err

    return at


@pytest.fixture
def crawled(stored: tuple[Db, str], left: Left) -> Db:
    """Return the test's database, with the contents after the first crawl."""
    put_into(*stored, left)
    return stored[0]


def wrapper(freshet: Freshet, pages: Pages, name: str = "pages", **keys: object) -> Path:
    given: dict[str, object] = {
        "start_urls": [f"{pages.url}/list.html"],
        "item_pages": r"/item-\w+\.html$",
        "fields": {"title": "h1"},
        "robots": False,
    }
    return freshet.wrapper(name, **given | keys)


def plan(db: Db, *names: str, **own: object) -> None:
    """Set a plan for these pages."""
    usual = {"id": "p", "policy": "freshet", "weeks": 1, "slots": [0], "visits_per_week": 1.0}
    chosen = {"url": {"$regex": f"/({'|'.join(names)})$"}}
    db.targets.update_many(chosen, {"$set": {"plan": usual | own}})


def plan_with_three_valuable(db: Db) -> None:
    """Set a plan for all pages; visits of 9, 7 and 2 have the highest values, in this order."""
    plan(db, *NAMES, last_value=0.1)
    for i in (7, 2, 9):
        plan(db, NAMES[i], last_value=float(i))


def cap(db: Db, *spiders: str, **caps: int) -> None:
    """Store an active plan with these caps."""
    db.plans.insert_one(
        {"at": MONDAY, "state": "active", "spiders": list(spiders or ("pages",))} | caps
    )


def last_run(db: Db) -> Row:
    counts: Row = db.runs.find_one({}, sort=[("started", -1)])["counts"]
    return counts


# Plans: two runs over pages that each have their own plan.

SLOTS, LEARNED, SELDOM, BROKEN, CALM_FIRST, CALM_LATER = NAMES[:6]
# Tuesday 7:00 and Thursday 9:00 in Tokyo.
TOKYO_SLOTS = [24 + 7, 3 * 24 + 9]


@pytest.fixture(scope="module")
def runs(
    served: Pages, left: Left, databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> list[Rows]:
    """Return the pages by name after runs 30 and 101 hours after MONDAY."""
    with elsewhere(databases, tmp_path_factory.mktemp("passes")) as (freshet, db, uri):
        put_into(db, uri, left)
        _plan_each(db)
        served.file(BROKEN, "")
        try:
            return [
                _after(freshet, served, db, 30, changed=CALM_LATER),
                _after(freshet, served, db, 101, changed=CALM_FIRST),
            ]
        finally:
            for name in (BROKEN, CALM_FIRST, CALM_LATER):
                served.item(name, name)


def _plan_each(db: Db) -> None:
    plan(db, SLOTS, slots=TOKYO_SLOTS)
    plan(db, LEARNED, slots=[], every_hours=5.0, until=MONDAY + 100 * HOUR)
    plan(db, SELDOM, slots=[], every_hours=9999.0)
    plan(db, BROKEN)
    adaptive = {"policy": "adaptive", "slots": [], "min_hours": 4.0, "max_hours": 11.0}
    plan(db, CALM_FIRST, every_hours=10.0, **adaptive)
    plan(db, CALM_LATER, every_hours=5.0, **adaptive)


def _after(freshet: Freshet, pages: Pages, db: Db, hours: float, *, changed: str) -> Rows:
    pages.item(changed, "changed")
    freshet.crawl(wrapper(freshet, pages, timezone="Asia/Tokyo"), hours=offset(hours))
    return {row["url"].rpartition("/")[2]: row for row in db.targets.find()}


def hours_to_next(target: Row) -> float:
    return (target["next_visit"] - target["visited_at"]) / HOUR


def test_next_visit_is_next_slot_in_time_zone_of_site(runs: list[Rows]) -> None:
    thursday = datetime(2026, 1, 8, 9, tzinfo=ZoneInfo("Asia/Tokyo"))
    assert runs[0][SLOTS]["next_visit"] == thursday


def test_expired_sampling_phase_is_ignored(runs: list[Rows]) -> None:
    assert 0 < hours_to_next(runs[0][LEARNED]) <= 5
    assert hours_to_next(runs[1][LEARNED]) == 24


def test_interval_of_plan_is_limited(runs: list[Rows]) -> None:
    assert hours_to_next(runs[0][SELDOM]) == 672


def test_error_is_retried_regardless_of_plan(runs: list[Rows]) -> None:
    # Due in the next run, and there is only one.
    assert [rows[BROKEN]["consecutive_errors"] for rows in runs] == [1, 2]
    assert all(0 < hours_to_next(rows[BROKEN]) < 0.001 for rows in runs)


def test_adaptive_interval_depends_on_changes(runs: list[Rows]) -> None:
    # Half as long after a change, a fifth longer without a change, within the limits.
    expected = {CALM_FIRST: [11, 5.5], CALM_LATER: [4, 4.8]}
    for name, intervals in expected.items():
        versions = [rows[name] for rows in runs]
        assert [row["plan"]["every_hours"] for row in versions] == intervals
        assert [hours_to_next(row) for row in versions] == pytest.approx(intervals)
    assert runs[1][CALM_LATER]["plan"]["visits_per_week"] == 168 / 4.8


# Caps.


def test_daily_cap_covers_all_runs_and_prefers_valuable_pages(
    crawl: Crawl, crawled: Db, pages: Pages
) -> None:
    plan_with_three_valuable(crawled)
    cap(crawled, daily_cap=3)

    log = crawl(25.5)

    assert set(asked(pages)) == {"/item-9.html", "/item-7.html", "/item-2.html"}
    assert "13 targets due, 3 can be fetched; chosen by value" in log
    left = EVERYTHING - 3
    way_out = r"to raise it: scrapy replan --daily-cap N; to ignore it once: -a full=1"
    reached = rf"the plan's cap of 3 requests a day is reached \({way_out}\)"
    assert len(re.findall(rf"{reached}; {left} targets remain due", log)) == 1
    assert len(re.findall(rf"3 visited: .*; {left} still due because {reached}", log)) == 1
    assert (last_run(crawled)["over_cap"], last_run(crawled)["due"]) == (left, left)
    log = crawl(26)
    assert len(asked(pages)) == 3, "the day's requests are used up"
    assert re.search(rf"nothing visited: {left} targets are still due because {reached}", log)
    crawl(37)
    assert sum(asked(pages).values()) == 6, "the next day begins at midnight UTC"


def test_pages_of_a_paused_host_do_not_use_up_the_choice(
    crawl: Crawl, crawled: Db, pages: Pages
) -> None:
    plan_with_three_valuable(crawled)
    plan(crawled, *NAMES[3:6], last_value=99.0)
    at_host = {"url": {"$regex": f"/({'|'.join(NAMES[3:6])})$"}}
    crawled.targets.update_many(at_host, {"$set": {"host": "paused.test"}})
    crawled.hosts.insert_one({"_id": "paused.test", "hold_until": MONDAY + 99 * HOUR})
    cap(crawled, daily_cap=2)
    crawl(25.5)
    assert set(asked(pages)) == {"/item-9.html", "/item-7.html"}


def test_neglected_page_precedes_most_valuable_pages(
    crawl: Crawl, crawled: Db, pages: Pages
) -> None:
    plan(crawled, *NAMES, last_value=1.0)
    plan(crawled, NAMES[2], last_value=0.1)
    had = {"$set": {"requested": 20, "missed_visits": 80}}
    crawled.targets.update_one({"url": {"$regex": f"{NAMES[2]}$"}}, had)
    cap(crawled, daily_cap=1)
    crawl(25.5)
    assert set(asked(pages)) == {f"/{NAMES[2]}"}


def test_dispatch_policy_can_be_chosen(crawl: Crawl, crawled: Db, pages: Pages) -> None:
    plan(crawled, *NAMES, last_value=1.0)
    long_ago = {"$set": {"visited_at": MONDAY - 9 * HOUR}}
    crawled.targets.update_one({"url": {"$regex": f"{NAMES[4]}$"}}, long_ago)
    cap(crawled, daily_cap=1)
    assert "1 can be fetched; chosen by round-robin" in crawl(
        25.5, "-s", "FRESHET_DISPATCH=round-robin"
    )
    assert set(asked(pages)) == {f"/{NAMES[4]}"}


def test_host_cap_prefers_valuable_pages(crawl: Crawl, crawled: Db, pages: Pages) -> None:
    plan_with_three_valuable(crawled)
    crawl(25.5, host_requests=3)
    assert set(asked(pages)) == {"/item-9.html", "/item-7.html", "/item-2.html"}


def test_run_with_page_limit_starts_with_most_valuable_page(
    crawl: Crawl, crawled: Db, pages: Pages
) -> None:
    plan(crawled, *NAMES, last_value=0.1)
    plan(crawled, NAMES[8], last_value=8.0)
    one_by_one = ("-s", "CONCURRENT_REQUESTS=1", "-s", "FRESHET_IN_FLIGHT=1")
    crawl(25.5, "-s", "CLOSESPIDER_PAGECOUNT=1", *one_by_one)
    assert next(iter(asked(pages))) == "/item-8.html"
    assert sum(asked(pages).values()) < 4


def test_missed_visits_are_counted(crawl: Crawl, crawled: Db) -> None:
    plan(crawled, NAMES[0], slots=[], every_hours=24.0, visits_per_week=7.0)
    crawled.targets.update_many({}, {"$set": {"next_visit": MONDAY + 24 * HOUR}})
    log = crawl(24 * 4.5)
    assert "; 3 planned visits missed" in log
    assert last_run(crawled)["missed_visits"] == 3
    assert [
        row["missed_visits"] for row in crawled.targets.find({"missed_visits": {"$exists": True}})
    ] == [3]
    crawl(24 * 6.2)
    (target,) = crawled.targets.find({"missed_visits": {"$exists": True}})
    assert (target["missed_visits"], target["requested"]) == (3, 3), "the next visit was on time"


def test_daily_cap_includes_earlier_runs_of_the_day(
    crawl: Crawl, crawled: Db, pages: Pages
) -> None:
    cap(crawled, daily_cap=EVERYTHING + 3)
    crawled.targets.update_many({}, {"$set": {"next_visit": MONDAY + 6 * HOUR}})
    crawl(6.1)
    assert len(asked(pages)) == 3


@pytest.mark.parametrize("caps", [{"daily_cap": 3}, {"daily_cap": 100, "hourly_cap": 2}])
def test_a_full_run_ignores_the_caps_and_logs_it(
    crawl: Crawl, crawled: Db, pages: Pages, caps: dict[str, int]
) -> None:
    cap(crawled, **caps)
    log = crawl(6, "-a", "full=1")
    assert len(asked(pages)) == EVERYTHING
    ignored = f"full run: the plan's cap of {caps['daily_cap']} requests a day"
    assert f"{EVERYTHING} visited: " in log
    assert ignored in log
    assert " was ignored" in log
    assert "cap is reached" not in log
    assert last_run(crawled)["due"] == 0
    # The requests of a full run count towards the caps of the run after it.
    crawled.targets.update_many({}, {"$set": {"next_visit": MONDAY + 6 * HOUR}})
    assert "is reached" in crawl(6.1)


def test_the_hourly_cap_is_kept(crawl: Crawl, crawled: Db, pages: Pages) -> None:
    cap(crawled, daily_cap=8, hourly_cap=5)
    for hours, expected in [(25.1, 5), (25.2, 5), (26.1, 8)]:
        log = crawl(hours)
        assert sum(asked(pages).values()) == expected
        named = "8 requests a day" if expected == 8 else "5 requests an hour"
        assert f"because the plan's cap of {named} is reached (to raise it: scrapy replan --" in log


SITE_CAP = (
    "the site's cap of 5 requests an hour is reached (requests_per_hour in the site definition; "
    "later runs continue)"
)


def test_the_hourly_cap_of_a_site_is_kept(crawl: Crawl, crawled: Db, pages: Pages) -> None:
    for hours, visits, left in [(25.1, 5, 8), (25.2, 0, 8), (26.1, 5, 3), (27.1, 3, 0)]:
        log = crawl(hours, requests_per_hour=5)
        assert sum(asked(pages).values()) == EVERYTHING - left
        (line,) = [line for line in log.splitlines() if " visited" in line]
        assert (f"{visits} visited: " if visits else f"nothing visited: {left} targets") in line
        assert (SITE_CAP in line) == bool(left)
        assert last_run(crawled).get("over_cap", 0) == left
    assert set(asked(pages).values()) == {1}


def test_a_full_run_keeps_the_hourly_cap_of_the_site(
    crawl: Crawl, crawled: Db, pages: Pages
) -> None:
    cap(crawled, daily_cap=2)
    log = crawl(25.1, "-a", "full=1", requests_per_hour=5)
    assert sum(asked(pages).values()) == 5
    assert f"still due because {SITE_CAP}; full run: the plan's cap of 2 requests a day was" in log


def test_tightest_of_the_caps_of_plan_and_site_is_kept(
    crawl: Crawl, crawled: Db, pages: Pages
) -> None:
    cap(crawled, hourly_cap=3)
    assert "the plan's cap of 3 requests an hour is reached" in crawl(25.1, requests_per_hour=5)
    assert sum(asked(pages).values()) == 3
    crawled.plans.update_one({}, {"$set": {"hourly_cap": 7}})
    assert f"because {SITE_CAP}" in crawl(25.2, requests_per_hour=5)
    assert sum(asked(pages).values()) == 5


def test_everything_due_is_fetched_without_cap(crawl: Crawl, crawled: Db, pages: Pages) -> None:
    cap(crawled, daily_cap=0)
    log = crawl(25.5)
    assert len(asked(pages)) == EVERYTHING
    assert "cap is reached" not in log
    assert "over_cap" not in last_run(crawled)


def test_spiders_of_one_plan_share_its_caps(
    freshet: Freshet, crawled: Db, pages: Pages, crawl: Crawl
) -> None:
    cap(crawled, "pages", "others", daily_cap=EVERYTHING + 5)
    crawl(25.5)
    freshet.crawl(wrapper(freshet, pages, "others"), hours=offset(26))
    assert sum(asked(pages).values()) == EVERYTHING + 5
    assert crawled.visits.count_documents({"spider": "others"}) == 5


# Visiting hours.


def test_run_outside_visiting_hours_fetches_nothing(
    crawl: Crawl, database: Db, pages: Pages
) -> None:
    hours = {"visiting_hours": ["Mon-Fri 22:00-06:00"], "blackout": ["Tue 03:00-04:00"]}
    log = crawl(15.5, **hours)
    assert asked(pages) == {}
    assert "outside the site's visiting hours" in log
    assert last_run(database)["closed"] == 1
    log = crawl(16.5, **hours)
    assert len(asked(pages)) == EVERYTHING
    assert "visiting hours" not in log
    log = crawl(49, **hours)
    assert "outside the site's visiting hours" in log
    assert sum(asked(pages).values()) == EVERYTHING, "all are due, but outside the visiting hours"
