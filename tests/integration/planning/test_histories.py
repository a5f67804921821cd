"""Histories: updates during crawls, and loading targets as arrays."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np
import pytest
from bson import ObjectId
from pymongo import AsyncMongoClient

from crawler.dedup.schemes import scheme_of
from crawler.items import Kind
from crawler.storage import histories, pruning, schema
from crawler.storage.client import Database
from crawler.storage.dedup.signatures import Registry
from crawler.storage.targets import new_document
from schedules.history import CHANGE
from tests.integration.harness import Db, Freshet, Pages, Row, target

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BEGIN = datetime(2026, 1, 5, 12, tzinfo=UTC)
NOW = BEGIN + timedelta(days=10)
HOUR = timedelta(hours=1)


def minutes(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(minutes=1)


def changes_of(row: Row) -> list[tuple[datetime, datetime]]:
    """Return each change as the observations before and after it."""
    packed = np.frombuffer(row["history"]["changes"], CHANGE)
    return [(_moment(change["after"]), _moment(change["by"])) for change in packed]


def _moment(minute: Any) -> datetime:
    return EPOCH + timedelta(minutes=int(minute))


def shown(row: Row) -> tuple[float, float, list[tuple[float, float]]]:
    """Return the last observation and the changes, in hours since the history began."""
    since = row["history"]["since"]
    changes = [((a - since) / HOUR, (b - since) / HOUR) for a, b in changes_of(row)]
    return 0, (row["history"]["until"] - since) / HOUR, changes


# Updates during crawls.


@pytest.fixture
def wrapper(freshet: Freshet, pages: Pages) -> Any:
    def make(**keys: object) -> Any:
        given: dict[str, object] = {
            "start_urls": [f"{pages.url}/list.html"],
            "item_pages": r"/item-\w+\.html$",
            "fields": {"title": "h1"},
            "item_interval_hours": 1,
        }
        return freshet.wrapper("pages", **given | keys)

    return make


def test_history_stores_changes_and_observation_period(
    freshet: Freshet, database: Db, pages: Pages, wrapper: Any
) -> None:
    pages.list("list.html", ["item-a.html"])
    texts = ["one", "one", "two", "two", "three"]
    for hour, text in enumerate(texts):
        pages.item("item-a.html", text)
        freshet.crawl(wrapper(), hours=hour * 2)
    row = target(database, f"{pages.url}/item-a.html")
    since, until, changes = shown(row)
    assert (since, until) == (0, pytest.approx(8, abs=0.1))
    assert changes == [
        (pytest.approx(2, abs=0.1), pytest.approx(4, abs=0.1)),
        (pytest.approx(6, abs=0.1), pytest.approx(8, abs=0.1)),
    ]
    assert row["history"]["false_dates"] == 0
    log = list(database.visits.find({"target": row["url"], "changed": 1}).sort("at"))
    assert [minutes(visit["at"]) for visit in log] == [minutes(b) for _, b in changes_of(row)]


def test_errors_and_missing_pages_are_not_observations(
    freshet: Freshet, database: Db, pages: Pages, wrapper: Any
) -> None:
    pages.list("list.html", ["item-a.html"])
    pages.item("item-a.html", "one")
    freshet.crawl(wrapper())
    before = target(database, f"{pages.url}/item-a.html")["history"]
    pages.remove("item-a.html")
    freshet.crawl(wrapper(), hours=2)
    pages.file("item-a.html", "")
    freshet.crawl(wrapper(), hours=4, code=1)
    assert target(database, f"{pages.url}/item-a.html")["history"] == before
    pages.item("item-a.html", "two")
    freshet.crawl(wrapper(), hours=6)
    _, _, changes = shown(target(database, f"{pages.url}/item-a.html"))
    assert changes == [(0, pytest.approx(6, abs=0.1))]


def test_site_definition_edit_is_not_a_change(
    freshet: Freshet, database: Db, pages: Pages, wrapper: Any
) -> None:
    pages.list("list.html", ["item-a.html"])
    pages.item("item-a.html", "one")
    freshet.crawl(wrapper())
    freshet.crawl(wrapper(fields={"heading": "h1"}), hours=2)
    row = target(database, f"{pages.url}/item-a.html")
    assert shown(row) == (0, pytest.approx(2, abs=0.1), [])


def test_alias_has_no_history(freshet: Freshet, database: Db, pages: Pages, wrapper: Any) -> None:
    pages.list("list.html", ["/item/a", "/item/a/"])
    pages.item("item/a/index.html", "A")
    path = wrapper(item_pages=r"/item/a/?$")
    freshet.crawl(path)
    alias, owner = f"{pages.url}/item/a", f"{pages.url}/item/a/"
    assert "history" not in target(database, alias)
    past = target(database, owner)["history"]
    plan = {"id": "p", "weeks": 1, "slots": [3]}
    database.targets.update_many({}, {"$set": {"history": past, "plan": plan}})
    freshet.crawl(path, hours=24 * 28 + 1)
    assert target(database, alias)["alias_of"] == owner
    assert not {"history", "plan"} & set(target(database, alias))
    assert {"history", "plan"} <= set(target(database, owner))


def test_pruning_visits_keeps_the_history(
    freshet: Freshet, database: Db, pages: Pages, wrapper: Any
) -> None:
    pages.list("list.html", ["item-a.html"])
    for days, text in enumerate(["one", "two", "three"]):
        pages.item("item-a.html", text)
        freshet.crawl(wrapper(), hours=days * 24)
    before = target(database, f"{pages.url}/item-a.html")
    freshet("prune", "--keep-days", "1", "--keep-versions", "1", hours=96)
    assert database.visits.count_documents({}) < 6
    after = target(database, f"{pages.url}/item-a.html")
    assert after["kept_bytes"] < before["kept_bytes"]
    assert after | {"kept_bytes": before["kept_bytes"]} == before


# Loading targets as arrays.


def on(uri: str, call: Any) -> Any:
    async def connect_and_call() -> Any:
        client: AsyncMongoClient[Row]
        async with AsyncMongoClient(uri, tz_aware=True) as client:
            db: Database = client.get_default_database()
            await schema.prepare(db)
            return await call(db)

    return asyncio.run(connect_and_call())


def hours(moment: datetime) -> float:
    return moment.timestamp() / 3600


def watched_row(name: str, spider: str = "x", **more: object) -> Row:
    row = new_document(spider, f"http://{spider}.test/{name}", Kind.ITEM, NOW + HOUR, BEGIN)
    return row | {"visited_at": NOW - HOUR, "requested": 3, "refreshed": 3} | more


def history(until: datetime, *changes: tuple[int, int, int], false_dates: int = 0) -> Row:
    """Build a history from BEGIN; changes are (after, by, stated) in hours, 0: no stated time."""
    start = minutes(BEGIN)
    packed = [
        (start + a * 60, start + b * 60, stated and start + stated * 60) for a, b, stated in changes
    ]
    return {
        "since": BEGIN, "until": until, "false_dates": false_dates,
        "changes": np.array(packed, CHANGE).tobytes(),
    }  # fmt: skip


def test_targets_are_read_as_arrays(stored: tuple[Db, str]) -> None:
    db, uri = stored
    past = history(NOW - HOUR, (1, 2, 0), (5, 9, 7), false_dates=3)
    plan = {
        "id": ObjectId(),
        "weeks": 2,
        "slots": [3, 200],
        "every_hours": 0.0,
        "visits_per_week": 1.0,
    }
    adaptive = {"id": ObjectId(), "weeks": 1, "slots": [], "every_hours": 36, "phase_hours": 2.5}
    db.targets.insert_many(
        [
            watched_row("a", history=past, plan=plan, categories=["tea", "new"]),
            watched_row("ü", "y", history=history(NOW - 2 * HOUR), plan=adaptive, kind="list"),
            watched_row("new", visited_at=None, refreshed=0, requested=0),
            watched_row("bad", consecutive_errors=2),
            watched_row("gone", gone=True),
            watched_row("other name", alias_of="http://x.test/a"),
            watched_row("dead link", refreshed=0, consecutive_gone=1),
        ]
    )
    arrays = on(uri, lambda db: histories.read(db, NOW))

    assert list(arrays.ids) == [
        "x http://x.test/a",
        "y http://y.test/ü",
        "x http://x.test/new",
        "x http://x.test/bad",
    ]
    assert [arrays.spiders[i] for i in arrays.spider] == ["x", "y", "x", "x"]
    assert [arrays.kinds[i] for i in arrays.kind] == ["item", "list", "item", "item"]
    assert (arrays.categories, arrays.category.tolist()) == (("tea",), [0, -1, -1, -1])
    assert (arrays.plans, arrays.plan.tolist()) == (
        (str(plan["id"]), str(adaptive["id"])),
        [0, 1, -1, -1],
    )
    assert arrays.next_visit == pytest.approx([hours(NOW + HOUR)] * 4)
    assert arrays.visited == pytest.approx(
        [hours(NOW - HOUR)] * 2 + [np.nan, hours(NOW - HOUR)], nan_ok=True
    )
    assert arrays.refreshed.tolist() == [3, 3, 0, 3]
    assert (arrays.false_dates.tolist(), arrays.ahead) == ([3, 0, 0, 0], 0)
    pasts, start = arrays.histories, hours(BEGIN)
    assert pasts.since == pytest.approx([start, start, np.nan, np.nan], nan_ok=True)
    assert pasts.until[:2] == pytest.approx([hours(NOW - HOUR), hours(NOW - 2 * HOUR)])
    assert pasts.first.tolist() == [0, 2, 2, 2, 2]
    assert pasts.after == pytest.approx([start + 1, start + 5])
    assert pasts.by == pytest.approx([start + 2, start + 9])
    assert arrays.stated == pytest.approx([np.nan, start + 7], nan_ok=True)
    assert arrays.schedules[0].slots == (3, 200)
    assert (arrays.schedules[1].every_hours, arrays.schedules[1].phase_hours) == (36, 2.5)
    assert arrays.schedules.visits_per_week == pytest.approx([1, 168 / 36, 0, 0])


def test_reads_targets_of_selected_spiders(stored: tuple[Db, str]) -> None:
    db, uri = stored
    db.targets.insert_many([watched_row(str(i), f"s{i % 9}") for i in range(90)])
    for names in (["s1"], ["s1", "s2", "s3"], [], ["nosuch"]):
        arrays = on(uri, lambda db, names=names: histories.read(db, NOW, names))
        assert len(arrays) == 10 * len(set(names) - {"nosuch"})
        assert {arrays.spiders[i] for i in arrays.spider} == set(names) - {"nosuch"}


def test_an_empty_database_gives_empty_arrays(stored: tuple[Db, str]) -> None:
    arrays = on(stored[1], lambda db: histories.read(db, NOW))
    assert (len(arrays), len(arrays.histories), len(arrays.schedules), len(arrays.stated)) == (
        0,
        0,
        0,
        0,
    )
    assert arrays.histories.first.tolist() == [0]


def test_future_observations_are_cut_and_counted(stored: tuple[Db, str]) -> None:
    db, uri = stored
    later = NOW + 100 * HOUR
    now = (NOW - BEGIN) // HOUR
    future = history(later) | {"since": NOW + HOUR}
    db.targets.insert_many(
        [
            watched_row("a", history=history(NOW - HOUR, (1, 2, 0))),
            watched_row("b", history=history(later, (1, 2, 0), (now - 5, now + 3, 0))),
            watched_row("c", history=history(later, (1, 2, 0), (now + 5, now + 9, 0))),
            watched_row("d", history=future),
        ]
    )
    arrays = on(uri, lambda db: histories.read(db, NOW))
    assert arrays.ahead == 3
    assert arrays.histories.until == pytest.approx(
        [hours(NOW - HOUR), hours(NOW - 5 * HOUR), hours(NOW), np.nan], nan_ok=True
    )
    assert np.isnan(arrays.histories.since).tolist() == [False, False, False, True]
    assert arrays.histories.first.tolist() == [0, 1, 2, 3, 3]
    assert arrays.histories.by == pytest.approx([hours(BEGIN + 2 * HOUR)] * 3)


def test_forgetting_a_page_deletes_its_history(stored: tuple[Db, str]) -> None:
    db, uri = stored
    db.targets.insert_many([watched_row("a", history=history(NOW - HOUR)), watched_row("b")])
    index = partial(Registry.of, scheme=scheme_of("characters", 0.7))
    gone = "http://x.test/a"
    on(uri, lambda db: pruning.forget_url(db, index(db), gone, NOW, delete=True))
    assert list(on(uri, lambda db: histories.read(db, NOW)).ids) == ["x http://x.test/b"]
