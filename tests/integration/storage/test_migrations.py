"""Opening a database migrates data of an older version and rejects data of a newer one."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta

import pytest
from bson.int64 import Int64

from crawler.config import Config
from crawler.errors import NewerDatabase
from crawler.items import Kind
from crawler.storage import client, readers, schema
from crawler.storage.client import Database
from crawler.storage.readers import Reader, item_number
from crawler.storage.store import Store
from crawler.storage.targets import new_document
from crawler.storage.users import posts_reader
from tests.integration.harness import Db
from tests.integration.known_pages import on

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


def test_read_marks_of_posts_become_those_of_a_reader(stored: tuple[Db, str]) -> None:
    db, uri = stored
    db.meta.insert_one({"_id": "schema", "version": 3})  # type: ignore[dict-item]
    feeds = ("feeds https://a.test/", "feeds https://b.test/")
    hours = [NOW - timedelta(hours=n) for n in range(5)]
    db.posts.insert_many(
        {"_id": f"feeds {n}", "spider": "feeds", "feed": "https://b.test/", "first_seen": at}
        for n, at in enumerate(hours)
    )
    db.reading.insert_many(
        {"_id": f"anna {feed}", "reader": "anna", "feed": feed, "until": until, "read": read}
        for feed, until, read in (
            ("", hours[4], []), (feeds[0], hours[1], []), (feeds[1], hours[3], ["feeds 1"]),
        )
    )  # fmt: skip
    number = item_number("shop", "https://x.test/")
    db.readers.insert_one(
        {"_id": "anna", "revision": 7, "sites": [{"site": "shop", "until": hours[3]}],
         "ranges": [], "pages": [{"page": Int64(number), "until": hours[1]}], "mutes": ["/a/"]}
    )  # fmt: skip
    open_store(uri)

    async def load(adb: Database) -> tuple[Reader, Reader]:
        return await readers.load(adb, "anna"), await readers.load(adb, posts_reader("anna"))

    changes, posts = on(uri, load)
    assert (changes.revision, changes.mutes, changes.sources) == (7, ("/a/",), {"shop": hours[3]})
    assert changes.has_read("shop", "https://x.test/", hours[1])
    assert not changes.has_read("shop", "https://x.test/", hours[0])
    assert [posts.until_of(feed) for feed in ("other", *feeds)] == [hours[4], hours[1], hours[3]]
    read = [posts.has_read(feeds[1], f"feeds {n}", at) for n, at in enumerate(hours)]
    assert read == [False, True, False, True, True]
    assert "reading" not in db.list_collection_names()


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
