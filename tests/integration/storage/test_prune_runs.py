"""Pruning deletes old runs except the last one, and replaces old visits by daily aggregates."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from crawler.storage import pruning
from tests.integration.databases import read_cells, sqlite
from tests.integration.harness import Db, Freshet
from tests.integration.known_pages import BEGIN, DAY, HOUR, on


def test_old_runs_are_deleted_except_the_last(freshet: Freshet, database: Db) -> None:
    url = sqlite(freshet.folder / "a.db", "CREATE TABLE a (b int)")
    text = f'[databases.a]\nurl = "{url}"\n[cells.b]\ndatabase = "a"\nsql = "SELECT 1 AS n"\n'
    for hours in (0, 24, 240):
        read_cells(freshet, text, hours=hours)
    counted = freshet("prune", "--keep-days", 10, "--dry-run", hours=290)
    assert counted.out == "cells: would delete 2 visits, 2 runs; 0.0 MB of versions kept\n"
    freshet("prune", "--keep-days", 1, hours=480)
    assert database.runs.count_documents({}) == 1
    assert database.runs.find_one({}, {"_id": 1, "counts": 1}) is not None
    again = freshet("prune", "--keep-days", 1, hours=480)
    assert again.out == "cells: nothing to delete; 0.0 MB of versions kept\n"


def put_visits(db: Db, *ages: timedelta) -> None:
    """Store visits of one page at these times after BEGIN, which is at midnight."""
    sizes = {"changed": 1, "get_size": 10, "update_size": 2, "diff_size": 3}
    names = {"spider": "shop", "target": "https://shop.example/", "outcome": "changed"}
    rows = [names | sizes | {"at": BEGIN + age} for age in ages]
    db.get_collection("visits").insert_many(rows, bypass_document_validation=True)


def test_visit_at_midnight_is_kept_with_its_day(stored: tuple[Db, str]) -> None:
    db, uri = stored
    put_visits(db, DAY - HOUR, DAY)
    roll_up = partial(pruning.roll_up_visits, spider="shop", before=BEGIN + DAY + HOUR, delete=True)
    assert on(uri, roll_up) == 1
    assert [row["at"] for row in db.visits.find()] == [BEGIN + DAY]
    assert [(row["day"], row["visits"]) for row in db.days.find()] == [(BEGIN, 1)]


def test_day_aggregated_before_a_crash_is_not_counted_twice(stored: tuple[Db, str]) -> None:
    db, uri = stored
    roll_up = partial(pruning.roll_up_visits, spider="shop", before=BEGIN + 2 * DAY, delete=True)
    put_visits(db, HOUR, 2 * HOUR, 3 * HOUR)
    assert on(uri, roll_up) == 3
    # As after a crash before the last of these visits was deleted.
    put_visits(db, 3 * HOUR)
    assert on(uri, roll_up) == 1
    assert db.visits.count_documents({}) == 0
    assert [(row["visits"], row["get_size"]) for row in db.days.find()] == [(3, 30)]
