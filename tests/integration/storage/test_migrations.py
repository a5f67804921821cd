"""Opening a database migrates data of an older version and rejects data of a newer one.

All released versions use the current data format, so the migration here is an example.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime

import pytest

from crawler.config import Config
from crawler.errors import NewerDatabase
from crawler.items import Kind
from crawler.storage import client, schema
from crawler.storage.client import Database
from crawler.storage.store import Store
from crawler.storage.targets import new_document
from tests.integration.harness import Db

pytestmark = pytest.mark.empty_database
NOW = datetime(2026, 5, 1, tzinfo=UTC)


class PowerCut(Exception):
    """Interrupts a migration."""


class AddTitles:
    """Example migration that sets missing titles to URLs; can crash halfway."""

    def __init__(self) -> None:
        self.calls = self.crash_after = 0

    async def __call__(self, db: Database) -> None:
        self.calls += 1
        done = 0
        async for row in db.targets.find({"title": {"$exists": False}}):
            if done == self.crash_after and self.calls == 1:
                raise PowerCut
            await db.targets.update_one({"_id": row["_id"]}, {"$set": {"title": row["url"]}})
            done += 1


@pytest.fixture
def migration(monkeypatch: pytest.MonkeyPatch) -> AddTitles:
    """Register the example as the migration to the next data version, without a crash."""
    example = AddTitles()
    example.crash_after = 100
    monkeypatch.setattr(client, "VERSION", client.VERSION + 1)
    monkeypatch.setitem(schema.MIGRATIONS, client.VERSION, example)
    return example


def put_targets(db: Db, n: int) -> None:
    """Store n targets in the format before the example."""
    db.meta.insert_one({"_id": "schema", "version": client.VERSION - 1})  # type: ignore[dict-item]
    urls = [f"http://x.test/{i}" for i in range(n)]
    db.targets.insert_many([new_document("x", url, Kind.ITEM, NOW, NOW) for url in urls])


def open_store(uri: str) -> None:
    async def open_and_close() -> None:
        await (await Store.open(Config.load(mongo_uri=uri))).close()

    asyncio.run(open_and_close())


def titles(db: Db) -> list[object]:
    return [row.get("title") for row in db.targets.find().sort("_id")]


def test_older_database_is_migrated_once(
    stored: tuple[Db, str], migration: AddTitles, caplog: pytest.LogCaptureFixture
) -> None:
    db, uri = stored
    put_targets(db, 3)
    with caplog.at_level(logging.INFO):
        open_store(uri)
        open_store(uri)
    assert titles(db) == [f"http://x.test/{i}" for i in range(3)]
    assert migration.calls == 1
    message = f"Migrating database {db.name!r} to data version {client.VERSION}"
    assert [record.getMessage() for record in caplog.records].count(message) == 1
    assert db.meta.find_one({"_id": "schema"})["version"] == client.VERSION
    assert "plans" in db.list_collection_names(), "collections of the new version are missing"


def test_crashed_migration_is_repeated(stored: tuple[Db, str], migration: AddTitles) -> None:
    db, uri = stored
    put_targets(db, 4)
    migration.crash_after = 2
    with pytest.raises(PowerCut):
        open_store(uri)
    assert titles(db).count(None) == 2
    assert db.meta.find_one({"_id": "schema"})["version"] == client.VERSION - 1
    open_store(uri)
    assert None not in titles(db)
    assert db.meta.find_one({"_id": "schema"})["version"] == client.VERSION


def test_a_new_database_is_not_migrated(stored: tuple[Db, str], migration: AddTitles) -> None:
    db, uri = stored
    open_store(uri)
    assert migration.calls == 0
    assert db.meta.find_one({"_id": "schema"})["version"] == client.VERSION


def test_newer_database_is_refused_and_unchanged(
    stored: tuple[Db, str],
) -> None:
    db, uri = stored
    later = {"_id": "schema", "version": client.VERSION + 1}
    db.meta.insert_one(later)  # type: ignore[arg-type]
    with pytest.raises(NewerDatabase, match=f"data version {client.VERSION + 1}"):
        open_store(uri)
    assert db.list_collection_names() == ["meta"]
    assert db.meta.find_one() == later
