"""The web app's queries for lists, boards and counts read few documents of large collections."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crawler.reports.feeds import feeds_page
from crawler.reports.site_history import ChangeCounts, HourVisits, VisitCounts
from crawler.storage import change_events, site_queries, users
from crawler.storage.paging import Key, Order, read_page
from crawler.storage.sites import Site
from crawler.utils.time import NEVER
from crawler.web.dependencies import WebDatabase
from crawler.web.metrics import DatabaseMetrics
from crawler.web.site_views import Figures
from tests.integration.harness import Db, Row
from tests.integration.known_pages import on
from tests.integration.web.browser import Browser

NOW = datetime(2026, 11, 1, tzinfo=UTC)
SHOP = Site("shop")
HOUR = timedelta(hours=1)


def target(spider: str, number: int, **more: Any) -> Row:
    url = f"https://{spider}.example/{number:04}"
    return {
        "_id": f"{spider} {url}", "spider": spider, "url": url, "kind": "item", "categories": [],
        "first_seen": NOW, "next_visit": NOW + number * HOUR,
    } | more  # fmt: skip


def visit(number: int, **more: Any) -> Row:
    return {
        "spider": "shop", "target": "https://shop.example/0000", "at": NOW + number * HOUR,
        "outcome": "changed", "changed": 1, "event": True, "news": True,
    } | more  # fmt: skip


@contextmanager
def examined(db: Db) -> Iterator[list[Row]]:
    """Collect the profiler rows of the queries inside the block."""
    found: list[Row] = []
    db.command("profile", 2)
    try:
        yield found
    finally:
        db.command("profile", 0)
        query = {
            "op": {"$in": ["query", "command", "getmore"]},
            "ns": {"$not": {"$regex": "profile"}},
        }
        found += db.system.profile.find(query)
        db.system.profile.drop()


def pages(uri: str, name: str, order: Order, limit: int, query: Row) -> list[list[Row]]:
    """Return all pages of a list."""

    async def read(db: Any) -> list[list[Row]]:
        found, after = [], None
        while True:
            page = await read_page(db[name], query, order, limit, after)
            found.append(page.rows)
            if page.last is None:
                return found
            after = page.last

    rows: list[list[Row]] = on(uri, read)
    return rows


@pytest.mark.parametrize("direction", [1, -1])
def test_pagination_handles_missing_values(stored: tuple[Db, str], direction: int) -> None:
    db, uri = stored
    chance = random.Random(3)
    values = [None, None, 1, 2, 2, 2, 3]
    db.listing.insert_many(
        [
            {"_id": n, "v": value} if (value := chance.choice(values)) is not None else {"_id": n}
            for n in range(40)
        ]
    )
    expected = [row["_id"] for row in db.listing.find().sort([("v", direction), ("_id", 1)])]
    found = pages(uri, "listing", (("v", direction), ("_id", 1)), 3, {})
    assert [row["_id"] for page in found for row in page] == expected


def test_a_late_page_reads_only_its_rows(stored: tuple[Db, str]) -> None:
    db, uri = stored
    db.audit.insert_many(
        [{"at": NOW - n // 3 * HOUR, "user": "anna", "action": "POST /x"} for n in range(900)]
    )
    late: Key = (NOW - 250 * HOUR, db.audit.find_one()["_id"])
    with examined(db) as queries:
        rows = on(uri, lambda database: users.audit_entries(database, 10, late)).rows
    assert all(row["at"] <= late[0] for row in rows)
    assert len(rows) == 10
    assert max(each["docsExamined"] for each in queries) <= 20


def test_site_states_examine_few_index_keys(stored: tuple[Db, str]) -> None:
    db, uri = stored
    db.targets.insert_many(
        [target("shop", n) for n in range(1, 300)]
        + [target("feeds", n, kind="feed" if n == 7 else "item") for n in range(1, 200)]
        + [target("off", n, next_visit=NEVER) for n in range(100)]
    )
    db.runs.insert_many(
        [
            {"spider": "shop", "started": NOW - n * HOUR, "finished": NOW, "counts": {"visits": n}}
            for n in range(1, 200)
        ]
    )
    names = ["shop", "feeds", "off", "none"]
    with examined(db) as queries:
        shop, feeds, off, none = on(uri, lambda database: site_queries.states_of(database, names))
    assert (shop.kind, shop.next_visit, shop.started, shop.counts) == (
        "item", NOW + HOUR, NOW - HOUR, {"visits": 1},
    )  # fmt: skip
    assert (feeds.kind, feeds.next_visit, feeds.started) == ("feed", NOW + HOUR, None)
    assert (off.kind, off.next_visit) == ("item", None)
    assert (none.kind, none.next_visit, none.started, none.counts) == (None, None, None, {})
    of_lists = [each for each in queries if each["ns"].endswith((".targets", ".runs"))]
    assert len(of_lists) == 3
    assert {each["planSummary"].partition(" ")[0] for each in of_lists} == {"DISTINCT_SCAN"}
    assert max(each["keysExamined"] for each in of_lists) <= 3 * len(names)


def test_unread_changes_are_counted_by_an_index_only(stored: tuple[Db, str]) -> None:
    db, uri = stored
    db.visits.insert_many([visit(n) for n in range(60)] + [visit(n, event=False) for n in range(9)])
    for since, spider, expected in (
        (None, None, 50), (None, "shop", 50), (NOW + 49 * HOUR, None, 10), (None, "none", 0),
    ):  # fmt: skip
        with examined(db) as queries:
            n = on(uri, lambda database: change_events.count(database, since, 50, spider))  # noqa: B023
        assert n == expected
        (query,) = (each for each in queries if each["ns"].endswith(".visits"))
        assert query["docsExamined"] == 0


def test_feed_lists_do_not_read_targets_of_sites(stored: tuple[Db, str]) -> None:
    db, uri = stored
    # Spiders before and after `feeds` in every index.
    db.targets.insert_many(
        [target(name, n) for name in ("after", "zebra") for n in range(400)]
        + [target("feeds", n, kind="feed") for n in range(5)]
    )
    with examined(db) as queries:
        first, last = on(uri, lambda database: feeds_page(database, "", 3, None, attention=False))
        rest, end = on(uri, lambda database: feeds_page(database, "", 3, last, attention=False))
    urls = [f"https://feeds.example/{n:04}" for n in range(5)]
    assert [feed["url"] for feed in (*first, *rest)] == urls
    assert end is None
    assert max(each.get("docsExamined", 0) for each in queries) <= 10
    db.targets.delete_many({"kind": "feed"})
    assert on(uri, lambda database: feeds_page(database, "", 3, None, attention=False)) == (
        [],
        None,
    )


def test_feed_removal_is_counted_by_an_index(local: Browser, database: Db) -> None:
    feed = target("feeds", 1, kind="feed")
    database.targets.insert_one(feed)
    database.posts.insert_many(
        [
            {"_id": f"p{n}", "spider": "feeds", "feed": feed["url"] if n < 4 else "https://other",
             "guid": str(n), "url": None, "first_seen": NOW, "content_hash": "x"}
            for n in range(300)
        ]
    )  # fmt: skip
    with examined(database) as queries:
        page = local.get("/feeds/remove", params={"id": feed["_id"]})
    assert "4 posts" in page.text or ">4<" in page.text
    of_posts = [each for each in queries if each["ns"].endswith(".posts")]
    assert of_posts
    assert max(each["docsExamined"] for each in of_posts) <= 8


def test_slow_figures_are_shown_without_waiting() -> None:
    async def work() -> tuple[list[int | None], int]:
        made = 0

        async def compute() -> int:
            nonlocal made
            made += 1
            await asyncio.sleep(0.05)
            return made

        figures = Figures(patience_seconds=0.01)
        first = await figures.get("key", compute)
        await asyncio.sleep(0.2)
        second = await figures.get("key", compute)
        await asyncio.sleep(1.1)
        # Computing takes longer than patience_seconds, so the old figure is returned immediately.
        began = asyncio.get_running_loop().time()
        third = await figures.get("key", compute)
        waited = asyncio.get_running_loop().time() - began
        await asyncio.sleep(0.2)
        fourth = await figures.get("key", compute)
        await figures.close()
        return [first, second, third, fourth], round(waited / figures.patience_seconds)

    values, waits = asyncio.run(work())
    assert values == [None, 1, 1, 2]
    assert waits == 0


def test_slow_figures_are_reused_after_a_run() -> None:
    async def work() -> list[int | None]:
        values = iter(range(9))

        async def compute() -> int:
            await asyncio.sleep(0.02)
            return next(values)

        figures = Figures(patience_seconds=0.01)
        found = []
        for version in (1, 2):
            found.append(await figures.get("key", compute, version=version))
            await asyncio.sleep(0.1)
            found.append(await figures.get("key", compute, version=version))
        # Figures are reused for 20 times their computation time, which the machine may prolong.
        for _ in range(600):
            if (last := await figures.get("key", compute, version=2)) != 0:
                break
            await asyncio.sleep(0.05)
        found.append(last)
        await figures.close()
        return found

    assert asyncio.run(work()) == [None, 0, 0, 0, 1]


def test_past_hours_are_counted_once(stored: tuple[Db, str]) -> None:
    database, uri = stored
    now = NOW + timedelta(days=9, minutes=30)
    # Outcomes and numbers of visits vary by hour.
    outcomes = ("new", "changed", "gone", "error", "unchanged")
    for number in range(9 * 24):
        outcome = outcomes[number % len(outcomes)]
        one = visit(number, outcome=outcome, event=outcome in outcomes[:3])
        database.visits.insert_many([one | {"n": n} for n in range(1 + number % 4)])
    database.visits.insert_one(visit(8 * 24 + 20, outcome="new", pushed=True))
    counts, since = VisitCounts(), now - timedelta(days=8)

    def by_hour(now: datetime) -> tuple[dict[datetime, HourVisits], int]:
        with examined(database) as found:
            hours = on(uri, lambda db: counts.by_hour(db, SHOP, now - timedelta(days=8), now))
        return hours, sum(each.get("docsExamined", 0) for each in found)

    first, n_first = by_hour(now)
    assert len(first) == 8 * 24
    assert sum(each.visits for each in first.values()) == n_first
    assert n_first == database.visits.count_documents({"at": {"$gte": since.replace(minute=0)}})
    for name in ("new", "changed", "gone"):
        n = sum(getattr(each, name) for each in first.values())
        assert n == database.visits.count_documents(
            {"at": {"$gte": since.replace(minute=0)}, "outcome": name}
        ), name
    assert sum(each.requests for each in first.values()) == n_first - 1
    late = visit(9 * 24 - 1, outcome="error")
    database.visits.insert_many([late, visit(9 * 24, outcome="new")])
    later = now + timedelta(hours=2)
    second, n_second = by_hour(later)
    assert n_second <= 12, "past hours were counted again"
    assert second == on(
        uri, lambda db: VisitCounts().by_hour(db, SHOP, later - timedelta(days=8), later)
    )


def test_changes_of_past_days_are_counted_once(
    stored: tuple[Db, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database, uri = stored
    monkeypatch.setattr("crawler.reports.site_history.PART", 20)
    site = Site("shop", timezone="Asia/Kolkata")
    database.visits.insert_many([visit(number) for number in range(9 * 24)])
    now, counts = NOW + timedelta(days=9, minutes=-30), ChangeCounts()

    def by_hour(now: datetime, counts: ChangeCounts) -> tuple[Any, int]:
        with examined(database) as found:
            week = on(uri, lambda db: counts.by_hour_of_week(db, site, NOW, now))
        return week, sum(each["docsExamined"] for each in found if "docsExamined" in each)

    first, n_first = by_hour(now, counts)
    assert first.sum() == n_first == 9 * 24
    # The zone's offset is 5:30 hours: the first visit is on a Sunday at 05:30.
    assert first[6 * 24 + 5] == 2, "two Sundays"
    assert set(first) == {1, 2}
    database.visits.insert_one(visit(9 * 24))
    later = now + timedelta(hours=2)
    second, n_second = by_hour(later, counts)
    assert n_second == 24 + 1, "counts more or less than the last day again"
    assert second.tolist() == by_hour(later, ChangeCounts())[0].tolist()
    monkeypatch.setattr("crawler.reports.site_history.PART", 1000)
    whole, _ = by_hour(later, ChangeCounts())
    assert whole.tolist() == second.tolist(), "a single query gives other counts"


def test_figures_of_many_keys_are_reused_longer() -> None:
    async def age(keys: int) -> float:
        async def compute() -> int:
            await asyncio.sleep(0.02)
            return 1

        figures = Figures(patience_seconds=5.0)
        for key in range(keys):
            await figures.get(key, compute)
        entry = figures._entries[keys - 1]
        ages = entry.until - asyncio.get_running_loop().time(), entry.seconds
        await figures.close()
        return ages[0] / ages[1]

    # One key: 20 times its own time. Ten keys: 5 times the time of all ten.
    assert 15 < asyncio.run(age(1)) <= 20
    assert asyncio.run(age(10)) > 30


def test_slow_metrics_are_returned_without_waiting() -> None:
    texts = iter([b"first", b"second"])

    class Quick(DatabaseMetrics):
        async def _read(self) -> None:
            self._reading = None
            self._text = next(texts)

    class Available(WebDatabase):
        def __init__(self) -> None:
            pass

        async def problem(self) -> None:
            return None

    async def work() -> list[bytes | None]:
        metrics = Quick(Available())
        found = [await metrics.exposition()]
        metrics._seconds = 3.0
        found.append(await metrics.exposition())
        await asyncio.sleep(0.01)
        await metrics.close()
        return [*found, metrics._text]

    assert asyncio.run(work()) == [b"first", b"first", b"second"]
