"""Machines with wrong or changing clocks: all processes use MongoDB's clock."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from pathlib import Path

import pytest

from tests.faults.clocks import STEP_SECONDS, WrongClock, can_move, step
from tests.integration.frontier.test_workers import ended, shop, until
from tests.integration.harness import Db, Freshet, Pages, asked, visits
from tests.integration.recording import Recorder

pytestmark = [
    pytest.mark.skipif(not can_move(), reason="no C compiler, or not on Linux"),
    pytest.mark.soak,
]
ITEMS = 60
FETCHED = 1 + ITEMS // 10 + ITEMS
ROUNDS = 3
# Tolerance between two readings of the same clock, one of them over a socket.
SLACK = timedelta(milliseconds=50)


@pytest.fixture
def clock(tmp_path: Path) -> WrongClock:
    return WrongClock(tmp_path, "clock")


def check_log(database: Db, began: datetime, expected: dict[str, int]) -> None:
    """Check that times are correct, rows of each page are ordered, and no change is missing.

    expected: number of contents of each page during the visits, by path
    """
    ended = datetime.now(UTC)
    rows = defaultdict(list)
    # In insertion order.
    for row in database.visits.find().sort("$natural", 1):
        assert began - SLACK <= row["at"] <= ended + SLACK, row["at"]
        rows["/" + row["target"].split("/", 3)[3]].append(row)
    for path, page_rows in rows.items():
        assert all(one["at"] < other["at"] for one, other in pairwise(page_rows)), path
        changes = sum(row["outcome"] in ("new", "changed") for row in page_rows)
        assert changes == expected.get(path, 1), path
    for target in database.targets.find():
        newest = max(row["at"] for row in visits(database, target=target["url"]))
        assert target["visited_at"] == newest
        assert began < target["next_visit"]


def has_stored(database: Db, visits: int) -> bool:
    return database.visits.count_documents({}) >= visits


def edit_pages(pages: Pages, edit: int) -> None:
    for n in range(0, ITEMS, 2):
        pages.item(f"/item/{n}", f"Item {n}, edit {edit}")


def test_runs_with_different_clocks_log_changes_in_order(
    freshet: Freshet, database: Db, pages: Pages, clock: WrongClock
) -> None:
    wrapper = shop(freshet, pages, ITEMS)
    began = datetime.now(UTC)
    for edit, seconds in enumerate((STEP_SECONDS, -STEP_SECONDS, 0)):
        clock.set(seconds)
        if edit:
            edit_pages(pages, edit)
        freshet.crawl(wrapper, "-a", "full=1", **clock.env)
        # Visited targets are not due again.
        freshet.crawl(wrapper, **clock.env)
    assert set(asked(pages).values()) == {ROUNDS}
    check_log(database, began, {f"/item/{n}": ROUNDS for n in range(0, ITEMS, 2)})


def test_workers_with_different_clocks_visit_each_page_once(
    freshet: Freshet, database: Db, pages: Pages, redis: str, tmp_path: Path
) -> None:
    wrapper = shop(freshet, pages, ITEMS, concurrency=2, delay_seconds=0.01)
    offsets = (-STEP_SECONDS, 0.0, STEP_SECONDS)
    clocks = [WrongClock(tmp_path, f"clock-{n}", by) for n, by in enumerate(offsets)]
    began, words = datetime.now(UTC), ("crawl", "site", "-a", f"wrapper={wrapper}")
    for edit in range(ROUNDS):
        if edit:
            edit_pages(pages, edit)
        # In each round, a different machine starts the run and a different one ends it.
        order = random.Random(edit).sample(clocks, 3)
        full = ("-a", "full=1") if edit else ()
        workers = [freshet.start(*words, *full, REDIS_URL=redis, **one.env) for one in order]
        logs = ended(workers)
        assert sum("this machine's clock is 10 min" in log for log in logs) == 2
        # A worker that starts late begins its own full run.
        fetches = 1 + database.runs.count_documents({"full": True})
        assert set(asked(pages).values()) == {fetches}
        assert fetches > edit
    runs = list(database.runs.find().sort("started"))
    assert sum(run["counts"].get("visits", 0) for run in runs) == fetches * FETCHED
    check_log(database, began, {f"/item/{n}": ROUNDS for n in range(0, ITEMS, 2)})


def test_clock_steps_during_a_run_have_no_effect(
    freshet: Freshet, database: Db, pages: Pages, clock: WrongClock
) -> None:
    wrapper = shop(freshet, pages, ITEMS, concurrency=1, delay_seconds=0.05)
    began, chance, words = datetime.now(UTC), random.Random(1), ("crawl", "site", "-a")
    process = freshet.start(*words, f"wrapper={wrapper}", **clock.env)
    for stored in range(10, 60, 10):
        until(partial(has_stored, database, stored))
        step([clock], chance)
    ended([process])
    assert Counter(asked(pages).values()) == {1: FETCHED}
    check_log(database, began, {})
    (run,) = database.runs.find()
    assert timedelta(0) < run["finished"] - run["started"] < timedelta(minutes=1)


class SlowSite(Recorder):
    """A site that waits for `release` before it responds; `waiting` is set by the request."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting, self.release = threading.Event(), threading.Event()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        if handler.path == "/list":
            self.waiting.set()
            self.release.wait(20)
        super().answer(handler)


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_clock_step_does_not_end_requests_in_flight(
    freshet: Freshet, database: Db, clock: WrongClock, seconds: float
) -> None:
    with SlowSite() as site:
        site.answers |= {"/list": "<a href=/item/1>1</a>", "/item/1": "<h1>One</h1>"}
        definition = freshet.wrapper(
            "shop", start_urls=[f"{site.url}/list"], item_pages="/item/", robots=False
        )
        process = freshet.start("crawl", "site", "-a", f"wrapper={definition}", **clock.env)
        assert site.waiting.wait(30)
        clock.set(seconds)
        time.sleep(2)
        site.release.set()
        ended([process])
    assert [row["outcome"] for row in database.visits.find().sort("at", 1)] == ["new", "new"]


def test_clock_that_is_hours_off_is_rejected(
    freshet: Freshet, database: Db, pages: Pages, clock: WrongClock
) -> None:
    wrapper = shop(freshet, pages, 10)
    clock.set(2.5 * 3600)
    refused = freshet("crawl", "site", "-a", f"wrapper={wrapper}", **clock.env)
    assert (refused.code, refused.complaint) == (
        1, "scrapy crawl: this machine's clock is 2.5 h ahead of MongoDB's. Set the clock "
        "(timedatectl set-ntp true), or raise FRESHET_MAX_CLOCK_SKEW_SECONDS",
    )  # fmt: skip
    assert not asked(pages)
    clock.set(-3 * 3600)
    refused = freshet("targets", **clock.env)
    assert refused.code == 1
    assert "this machine's clock is 3 h behind MongoDB's" in refused.complaint
    found = freshet("doctor", "--quick", "--spider", wrapper, COLUMNS=300, **clock.env)
    assert found.code == 1
    assert "failed   clock" in found.out
    assert "MongoDB is 1.08e+04 s ahead of this machine, more than " in found.out
    began = datetime.now(UTC)
    done = freshet.crawl(wrapper, FRESHET_MAX_CLOCK_SKEW_SECONDS=86400, **clock.env)
    assert "shop: this machine's clock is 3 h behind MongoDB's; the run uses" in done.err
    check_log(database, began, {})


def test_doctor_reports_a_wrong_clock(
    freshet: Freshet, database: Db, pages: Pages, clock: WrongClock
) -> None:
    freshet.crawl(shop(freshet, pages, 10))
    clock.set(60)
    time.sleep(0.1)
    found = freshet("doctor", "--quick", "--spider", freshet.folder / "shop.toml", COLUMNS=300,
                    **clock.env)  # fmt: skip
    assert "warning  clock" in found.out
    assert "MongoDB is 60 s behind this machine; runs use MongoDB's clock" in found.out
    assert "ended 1 min ago" not in found.out
