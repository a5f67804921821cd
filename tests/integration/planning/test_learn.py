"""Sampling phase: some pages are polled at a fixed interval while all other visits continue."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from crawler.storage import sampling_phases
from tests.conftest import Databases
from tests.integration.harness import Db, Freshet, Pages, Result, Row
from tests.integration.inside import in_json, run
from tests.integration.known_pages import on
from tests.integration.once import Left, elsewhere, left_in, put_into

pytestmark = pytest.mark.soak

# A Monday at noon: tests set Freshet's clock to offsets in hours from MONDAY.
MONDAY = datetime(2026, 1, 5, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
POLL_HOURS = 1 / 3
ITEMS = 12
SPIDER = "pages"


class SampledSite:
    """Crawl and sample a small site at given offsets in hours from MONDAY."""

    def __init__(self, freshet: Freshet, pages: Pages, db: Db) -> None:
        self.freshet, self.pages, self.db = freshet, pages, db

    def wrapper(self) -> Path:
        given: dict[str, object] = {
            "start_urls": [f"{self.pages.url}/{part}/list.html" for part in ("toys", "books")],
            "list_pages": r"/(?P<category>\w+)/list\.html$",
            "item_pages": r"/item-\w+\.html$",
            "fields": {"title": "h1"},
            "robots": False,
        }
        return self.freshet.wrapper(SPIDER, **given)

    def crawl(self, *hours: float, args: tuple[str, ...] = (), **env: object) -> None:
        for hour in hours:
            self.freshet.crawl(self.wrapper(), *args, hours=offset(hour), **env)

    def learn(self, hours: float, *args: object) -> Result:
        return run(self.freshet, "learn", SPIDER, *args, hours=offset(hours))

    def learned(self, hours: float, *args: object) -> Row:
        return in_json(self.freshet, "learn", SPIDER, *args, hours=offset(hours))

    def learning(self) -> set[str]:
        targets = self.db.targets.find({"plan.policy": "learn"})
        return {target["url"] for target in targets}

    def polls(self, url: str, since: float, until: float) -> list[datetime]:
        at = {"$gte": MONDAY + since * HOUR, "$lt": MONDAY + until * HOUR}
        return [row["at"] for row in self.db.visits.find({"target": url, "at": at}).sort("at")]


def offset(hours: float) -> float:
    """Return the clock offset for a number of hours after MONDAY."""
    return (MONDAY - datetime.now(UTC)) / HOUR + hours


@pytest.fixture(scope="module")
def served() -> Iterator[Pages]:
    with Pages() as pages:
        yield pages


@pytest.fixture
def pages(served: Pages) -> Pages:
    """Reset the two lists and their items to their state at MONDAY."""
    return reset_pages(served)


def reset_pages(pages: Pages) -> Pages:
    names = [f"item-{i}.html" for i in range(ITEMS)]
    pages.list("toys/list.html", [f"../{name}" for name in names[:8]])
    pages.list("books/list.html", [f"../{name}" for name in names[8:]])
    for name in names:
        pages.item(name, name)
    return pages


@pytest.fixture(scope="module")
def left(served: Pages, databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Left:
    """Return the database contents after the first crawl."""
    with elsewhere(databases, tmp_path_factory.mktemp("first")) as (freshet, db, _):
        SampledSite(freshet, reset_pages(served), db).crawl(0)
        return left_in(db)


@pytest.fixture
def sampled(freshet: Freshet, pages: Pages, stored: tuple[Db, str], left: Left) -> SampledSite:
    """Return the site after the first crawl."""
    put_into(*stored, left)
    return SampledSite(freshet, pages, stored[0])


def test_sampled_pages_are_polled_and_others_keep_schedule(sampled: SampledSite) -> None:
    begun = sampled.learned(1, "--budget", "288/day", "--weeks", "1")
    learning = sampled.learning()
    assert len(learning) == begun["pages"] == 4
    assert {(row["kind"], *row["categories"]) for row in begun["urls"]} == {
        ("list",), ("item", "toys"), ("item", "books"),
    }  # fmt: skip
    before = {row["url"]: row["next_visit"] for row in sampled.db.targets.find()}

    for poll in (1, 2):
        sampled.pages.item("item-1.html", f"{poll}")
        sampled.crawl(1 + poll * POLL_HOURS)

    for target in sampled.db.targets.find():
        at = sampled.polls(target["url"], 1, 3)
        assert len(at) == (2 if target["url"] in learning else 0)
        if target["url"] in learning:
            gaps = {target["next_visit"] - max(at), *(b - a for a, b in pairwise(at))}
            assert max(gaps) <= POLL_HOURS * HOUR + timedelta(seconds=5)
        else:
            assert target["next_visit"] == before[target["url"]]
    planned = sampled.db.targets.find({"plan.policy": "learn"}).sort("plan.phase_hours")
    phases = [target["plan"]["phase_hours"] for target in planned]
    assert phases == pytest.approx([POLL_HOURS * i / 4 for i in range(4)])


def test_second_call_reports_progress_and_changes_nothing(sampled: SampledSite) -> None:
    sampled.learned(1, "--budget", "144", "--every", "20m")
    before = list(sampled.db.targets.find().sort("_id")), list(sampled.db.plans.find())
    changing = min(sampled.learning()).rpartition("/")[2]
    sampled.crawl(1 + POLL_HOURS)
    sampled.pages.item(changing, "changed")
    sampled.crawl(1 + 2 * POLL_HOURS)
    assert list(sampled.db.plans.find()) == before[1]
    before = list(sampled.db.targets.find().sort("_id")), before[1]

    shown = sampled.freshet("learn", SPIDER, hours=offset(1.7))
    status = sampled.learned(1.7, "--budget", "144/day", "--weeks", "3")

    assert (status["polls"], status["polls_due"], status["changes"]) == (4, 4, 1)
    assert status["days_left"] == pytest.approx(21 - 0.7 / 24, abs=0.01)
    assert (shown.code, shown.err) == (0, "")
    assert "4 polls of 4 due so far, 1 change found" in shown.out
    assert "2 pages, polled every 20 minutes, at most 144 requests a day" in shown.out
    assert (list(sampled.db.targets.find().sort("_id")), list(sampled.db.plans.find())) == before


def test_other_options_restart_the_phase(sampled: SampledSite) -> None:
    sampled.learned(1, "--budget", "288")
    first = sampled.learning()
    done = sampled.learned(2, "--budget", "144")
    assert done["begun"]
    assert done["every_hours"] == pytest.approx(POLL_HOURS)
    assert len(sampled.learning()) == 2
    assert sampled.learning() < first, "the smaller sample is a subset"
    assert sampled.db.plans.count_documents({"ended": None}) == 1
    assert sampled.db.targets.count_documents({"learning": {"$exists": True}}) == 2


def test_stop_restores_former_plans(sampled: SampledSite) -> None:
    former = {"id": "p", "policy": "freshet", "weeks": 1, "slots": [5], "visits_per_week": 1.0}
    half = sampled.db.targets.find({"kind": "item"})[:6]
    sampled.db.targets.update_many(
        {"_id": {"$in": [row["_id"] for row in half]}}, {"$set": {"plan": former}}
    )
    plans = {row["_id"]: row.get("plan") for row in sampled.db.targets.find()}
    sampled.learned(1, "--budget", 72 * 14)
    assert len(sampled.learning()) == 14
    sampled.crawl(1 + POLL_HOURS)

    done = sampled.learned(1.5, "--stop")

    assert done["polls"] == 14
    assert {row["_id"]: row.get("plan") for row in sampled.db.targets.find()} == plans
    assert sampled.db.targets.count_documents({"learning": {"$exists": True}}) == 0
    assert (
        sampled.learn(1.6, "--stop").complaint == "scrapy learn: pages is not in a sampling phase"
    )
    assert "14 polls, 0 changes found" in sampled.learn(1.6).out


def test_phase_ends_on_schedule(sampled: SampledSite) -> None:
    sampled.learned(1, "--budget", "72", "--weeks", "0.01")
    (url,) = sampled.learning()
    sampled.crawl(1 + POLL_HOURS, 1 + 0.01 * 168 + POLL_HOURS)
    assert sampled.learning() == set()
    row = sampled.db.targets.find_one({"url": url})
    assert row is not None
    assert "plan" not in row
    assert row["next_visit"] - row["visited_at"] in (24 * HOUR, 6 * HOUR)
    last = sampled.learned(9)
    assert (last["learning"], last["polls"]) == (False, 1)


def test_pages_over_budget_are_polled_in_rotation(sampled: SampledSite) -> None:
    # Each rotation polls two pages for two and a third days.
    begun = sampled.learned(0, "--budget", "48", "--every", "1h", "--weeks", "1", "--sample", "6")
    assert (begun["pages"], begun["rotations"], begun["rotation"]) == (6, 3, 0)
    assert begun["polls_due"] == 0
    rotations = [
        {row["url"] for row in begun["urls"] if row["rotation"] == rotation}
        for rotation in range(3)
    ]
    seen = [sampled.learning()]
    for hours in (57, 113):
        sampled.crawl(hours)
        seen.append(sampled.learning())
    assert seen == rotations
    assert "2 at a time (rotation 3 of 3)" in sampled.learn(113.1).out
    assert "note: each page is polled for 2.3 days" in sampled.learn(114, "--weeks", "0.99").out


def test_daily_polls_never_exceed_the_budget(sampled: SampledSite) -> None:
    sampled.learned(1, "--budget", "4", "--every", "12h")
    learning = sorted(sampled.learning())
    assert len(learning) == 2
    for hours in (2, 11.9):
        due = {"$set": {"next_visit": MONDAY + hours * HOUR}}
        sampled.db.targets.update_many({}, due)
        sampled.crawl(hours)
    # The first crawl was on the same day, so the budget left two polls.
    assert sum(len(sampled.polls(url, -12, 12)) for url in learning) == 4
    others = sampled.db.visits.count_documents({"target": {"$nin": learning}})
    assert others == 3 * (ITEMS + 2 - 2), "the other pages are visited in each run"
    sampled.crawl(24.1)
    assert sum(len(sampled.polls(url, 12, 36)) for url in learning) == 2


def test_next_run_restores_overwritten_sampling_plans(sampled: SampledSite) -> None:
    sampled.learned(1, "--budget", "144")
    learning = sampled.learning()
    other = {"id": "new", "policy": "freshet", "weeks": 1, "slots": [5], "visits_per_week": 1.0}
    far = MONDAY + 300 * HOUR
    sampled.db.targets.update_many({}, {"$set": {"plan": other, "next_visit": far}})
    sampled.crawl(1.1, 1.1 + POLL_HOURS)
    assert sampled.learning() == learning
    assert all(len(sampled.polls(url, 1, 2)) == 1 for url in learning)
    sampled.learned(1.5, "--stop")
    assert sampled.db.targets.distinct("plan.id") == ["new"]


def test_polls_do_not_count_against_the_plan_s_cap(sampled: SampledSite) -> None:
    sampled.db.plans.insert_one(
        {"at": MONDAY, "state": "active", "spiders": [SPIDER], "daily_cap": ITEMS + 2}
    )
    assert sampled.db.visits.count_documents({}) == ITEMS + 2, "the first crawl was on this day"
    sampled.learned(1, "--budget", "72")
    (url,) = sampled.learning()
    sampled.crawl(1 + POLL_HOURS)
    assert len(sampled.polls(url, 0.5, 2)) == 1


def test_site_limits_reduce_the_sample(sampled: SampledSite) -> None:
    hours = {"requests_per_hour": 7, "visiting_hours": ["08:00-20:00"]}
    sampled.db.sites.update_one({"_id": SPIDER}, {"$set": hours})
    done = sampled.learned(1, "--budget", "720")
    assert done["pages"] == 2
    assert done["notes"][0].startswith("the site's requests_per_hour 7 allows only 2 concurr")
    assert "no polls in 84 hours a week" in done["notes"][-1]
    sampled.db.sites.update_one({"_id": SPIDER}, {"$set": {"requests_per_hour": 2}})
    refused = sampled.learn(2, "--budget", "719")
    assert refused.complaint == (
        "scrapy learn: the site's requests_per_hour 2 leaves no room for a poll every 20 minutes"
    )


def test_slow_site_gets_a_smaller_sample(sampled: SampledSite) -> None:
    half_an_hour = {"started": MONDAY, "finished": MONDAY + HOUR / 2, "spider": SPIDER}
    sampled.db.runs.insert_one(half_an_hour | {"counts": {"visits": 20}})
    done = sampled.learned(1, "--budget", "14400")
    assert done["pages"] == 6
    assert done["notes"][0].startswith("politeness (runs took 90 s per page) allows only 6 con")


def test_gone_page_is_not_polled(sampled: SampledSite) -> None:
    sampled.learned(1, "--budget", 72 * 14)
    sampled.pages.remove("item-3.html")
    url = f"{sampled.pages.url}/item-3.html"
    sampled.crawl(1.4, args=("-a", "full=1"), FRESHET_GONE_CONFIRMATIONS=1)
    row = sampled.db.targets.find_one({"url": url})
    assert row is not None
    assert row["gone"]
    sampled.crawl(3)
    again = sampled.db.targets.find_one({"url": url})
    assert again is not None
    assert again["next_visit"] == row["next_visit"]


def test_a_failing_page_waits_for_its_retry(sampled: SampledSite, stored: tuple[Db, str]) -> None:
    sampled.learned(1, "--budget", "144")
    fails, waits = sorted(sampled.learning())
    retry = MONDAY + 9 * HOUR
    sampled.db.targets.update_many(
        {"url": {"$in": [fails, waits]}}, {"$set": {"next_visit": retry}}
    )
    sampled.db.targets.update_one({"url": fails}, {"$set": {"consecutive_errors": 1}})
    on(stored[1], lambda db: sampling_phases.follow(db, SPIDER, MONDAY + 2 * HOUR))
    due = {row["url"]: row["next_visit"] for row in sampled.db.targets.find()}
    assert due[fails] == retry
    assert due[waits] <= MONDAY + (2 + POLL_HOURS) * HOUR


def test_forget_deletes_the_phase(sampled: SampledSite) -> None:
    sampled.learned(1, "--budget", "72")
    assert run(sampled.freshet, "forget", SPIDER, "--yes").code == 0
    assert sampled.db.plans.count_documents({}) == 0


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        ((), "--budget is required. Polling one page every 20 minutes takes 72/day"),
        (
            ("--budget", "50/day"),
            "budget 50/day is too small to poll one page: every 20 minutes takes 72/day. "
            "Use --budget 72/day or more, or --every 29m",
        ),
        (
            ("--budget", "0.5"),
            "budget 0.5/day is too small to poll one page: every 20 minutes takes 72/day. "
            "Use --budget 72/day or more",
        ),
        (
            ("--budget", "72", "--sample", "10", "--weeks", "1"),
            "--sample 10 is too large: each page's rotation would be shorter than a day. "
            "Use --sample 7 or less, or longer --weeks",
        ),
        (("--stop",), "pages is not in a sampling phase"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_invalid_options_are_one_line_errors(
    freshet: Freshet, seen: Db, args: Any, complaint: str
) -> None:
    refused = run(freshet, "learn", SPIDER, *args)
    assert (refused.code, refused.complaint) == (1, f"scrapy learn: {complaint}")
    assert seen.plans.count_documents({}) == 0


@pytest.fixture
def seen(freshet: Freshet, database: Db) -> Db:
    """Fill a database with ten visited pages, without a crawl."""
    run(freshet, "targets")
    rows = [
        {
            "_id": f"{SPIDER} http://a.test/{i}", "spider": SPIDER, "url": f"http://a.test/{i}",
            "kind": "item", "categories": [], "first_seen": MONDAY, "next_visit": MONDAY,
            "visited_at": MONDAY, "requested": 1, "refreshed": 1, "consecutive_errors": 0,
            "consecutive_gone": 0,
        }
        for i in range(10)
    ]  # fmt: skip
    database.targets.insert_many(rows)
    return database


def test_missing_targets_are_one_line_errors(freshet: Freshet, database: Db) -> None:
    nothing = run(freshet, "learn", SPIDER, "--budget", "72")
    assert nothing.complaint == (
        "scrapy learn: no site has targets yet. Run scrapy crawl NAME first"
    )
    row = {"first_seen": MONDAY, "next_visit": MONDAY, "refreshed": 0, "kind": "item", "url": "u"}
    database.targets.insert_one(row | {"_id": "pages u", "spider": SPIDER})
    unseen = run(freshet, "learn", SPIDER, "--budget", "72")
    assert unseen.complaint == (
        "scrapy learn: no page of 'pages' has been visited yet. Run scrapy crawl first"
    )
    other = run(freshet, "learn", "other", "--budget", "72")
    assert other.complaint == ("scrapy learn: no targets of 'other'. Spiders with targets: pages")


def test_help_states_the_cost(freshet: Freshet) -> None:
    help_text = run(freshet, "learn", "--help").out
    assert "Example: scrapy learn shop --weeks 3 --every 20m --budget 720/day" in help_text
    assert "costs 72 requests a day" in help_text
    assert "at most 0.001 of" in help_text
