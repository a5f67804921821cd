"""`scrapy doctor --deep`: consistency checks of the collections, and repairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pymongo
import pytest
from bson import ObjectId

from crawler.dedup.posts import id_of
from crawler.storage.health import Invariant
from tests.conftest import Databases
from tests.integration.claiming import edited, text
from tests.integration.dedup.test_duplicates_crawl import article, site
from tests.integration.feeds.test_feed_crawl import crawl, post, rss, subscribe
from tests.integration.harness import Db, Freshet, Pages, Result, Row
from tests.integration.inside import run
from tests.integration.ops.test_doctor import findings

pytestmark = pytest.mark.soak

DUPLICATES = "characters"
MINUTE = timedelta(minutes=1)


def deep(freshet: Freshet, *args: object, **env: object) -> dict[str, Row]:
    """Return the finding for each invariant."""
    words = ("doctor", "--quick", "--deep", "--json", *args)
    done = run(freshet, *words, FRESHET_CONTACT="mailto:me@example.org", **env)
    names = {str(invariant) for invariant in Invariant}
    return {finding["check"]: finding for finding in findings(done) if finding["check"] in names}


def broken(freshet: Freshet, *args: object, **env: object) -> dict[str, int]:
    """Return the violation count of each broken invariant."""
    by_invariant = deep(freshet, *args, **env)
    assert by_invariant.keys() == {str(invariant) for invariant in Invariant}
    return {
        name: finding["broken"]
        for name, finding in by_invariant.items()
        if finding["status"] != "ok"
    }


def crawled(freshet: Freshet, pages: Pages, db: Db, uri: str, **env: object) -> Path:
    """Crawl a site and a feed twice, with changes: duplicates, an error and a missing page."""
    for name, words in (("a", text(1)), ("b", edited(text(1), 3)), ("c", text(2)), ("d", text(3))):
        article(pages, name, words)
    wrapper = site(freshet, pages, "a", "b", "c", "d", "e")
    pages.file("feed.xml", rss(post("x", text(5)), post("y", edited(text(5), 2))))
    subscribe(db, uri, f"{pages.url}/feed.xml")
    freshet.crawl(wrapper, **env)
    crawl(freshet, **env)
    article(pages, "c", edited(text(3), 2))
    article(pages, "d", text(6))
    pages.file("feed.xml", rss(post("x", text(7)), post("z", text(8))))
    freshet.crawl(wrapper, hours=200, **env)
    crawl(freshet, hours=200, **env)
    return wrapper


@pytest.mark.parametrize("claims_backend", ["mongodb", "redis"])
def test_collections_are_consistent_after_crawls(
    request: pytest.FixtureRequest,
    freshet: Freshet,
    stored: tuple[Db, str],
    pages: Pages,
    claims_backend: str,
) -> None:
    env = {"REDIS_URL": request.getfixturevalue("redis")} if claims_backend == "redis" else {}
    db, uri = stored
    crawled(freshet, pages, db, uri, **env)
    assert db.clusters.count_documents({}) >= 2
    assert db.visits.count_documents({"outcome": "changed"}) >= 3
    assert broken(freshet, **env) == {}
    assert broken(freshet, "--repair", **env) == {}


def test_aggregated_visits_break_no_invariant(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    crawled(freshet, pages, db, uri)
    assert run(freshet, "prune", "--keep-days", 2, hours=220).code == 0
    assert db.days.count_documents({}) > 0
    assert broken(freshet) == {}
    words = ("prune", "--keep-days", 2)
    assert run(freshet, *words, hours=300, FRESHET_KEEP_AGGREGATES_DAYS=0.01).code == 0
    assert len(db.days.distinct("day")) == 1, "aggregates of the first crawl are deleted"
    assert broken(freshet) == {}
    assert broken(freshet, "--repair") == {}


@pytest.fixture(scope="module")
def whole(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield a crawled database that tests must not modify."""
    folder = tmp_path_factory.mktemp("whole")
    with databases() as (db, uri), Pages() as pages:
        env = {"MONGO_URI": uri, "FRESHET_DATA_DIR": folder / "d", "FRESHET_DUPLICATES": DUPLICATES}
        with Freshet(folder, **env) as freshet:
            crawled(freshet, pages, db, uri)
            yield db


def copy(source: Db, target: Db) -> None:
    for name in source.list_collection_names():
        if rows := list(source[name].find({"_id": {"$ne": "schema"}})):
            target[name].insert_many(rows)


def item(db: Db, name: str) -> Row:
    """Return the target of a page."""
    row: Row | None = db.targets.find_one({"url": {"$regex": f"item-{name}.html$"}})
    assert row is not None
    return row


def delete_last_visit(db: Db) -> None:
    db.visits.delete_one({"_id": item(db, "a")["last_visit"]["_id"]})


def insert_later_visit(db: Db) -> None:
    row = db.visits.find_one({"_id": item(db, "a")["last_visit"]["_id"]})
    assert row is not None
    later = {"_id": ObjectId(), "at": row["at"] + MINUTE, "fence": row["fence"] + 1000}
    db.visits.insert_one(row | later)


def change_content_hash(db: Db) -> None:
    db.targets.update_one({"_id": item(db, "a")["_id"]}, {"$set": {"content_hash": "other"}})


def increment_requested(db: Db) -> None:
    db.targets.update_one({"_id": item(db, "a")["_id"]}, {"$inc": {"requested": 1}})


def insert_extra_version(db: Db) -> None:
    row = db.versions.find_one({"target": item(db, "a")["url"]})
    assert row is not None
    other = {"_id": f"{row['_id']}x", "content_hash": "x", "visit": ObjectId()}
    db.versions.insert_one(row | other)


def change_version_time(db: Db) -> None:
    db.versions.update_one({"target": item(db, "a")["url"]}, {"$set": {"at": datetime.now(UTC)}})


def delete_version(db: Db) -> None:
    row = item(db, "a")
    db.versions.delete_one({"_id": f"{row['_id']} {row['content_hash']}"})


def change_post_content(db: Db) -> None:
    db.posts.update_one({"_id": item(db, "a")["_id"]}, {"$set": {"content_hash": "other"}})


def change_post_visit(db: Db) -> None:
    db.posts.update_one({"_id": item(db, "a")["_id"]}, {"$set": {"visit": ObjectId()}})


def delete_target(db: Db) -> None:
    db.targets.delete_one({"_id": item(db, "d")["_id"]})


def delete_post(db: Db) -> None:
    db.posts.delete_one({"_id": item(db, "d")["_id"]})


def decrement_signature_fence(db: Db) -> None:
    query = {"_id": id_of(item(db, "d")["_id"])}
    db.signatures.update_one(query, {"$inc": {"fence": -1}})


def copy_of_two(db: Db) -> Row:
    """Return the copy among items a and b; the item claimed first is the original."""
    ids = [item(db, name)["_id"] for name in ("a", "b")]
    row: Row | None = db.posts.find_one({"_id": {"$in": ids}, "duplicate_of": {"$exists": True}})
    assert row is not None
    return row


def delete_signature(db: Db) -> None:
    db.signatures.delete_one({"_id": id_of(copy_of_two(db)["_id"])})


def delete_cluster(db: Db) -> None:
    db.clusters.delete_one({"_id": copy_of_two(db)["cluster"]})


def change_cluster_original(db: Db) -> None:
    db.clusters.update_one(
        {"_id": copy_of_two(db)["cluster"]}, {"$set": {"original": 1, "post": "no"}}
    )


def remove_post_from_cluster(db: Db) -> None:
    query = {"_id": copy_of_two(db)["_id"]}
    db.posts.update_one(query, {"$unset": {"cluster": "", "duplicate_of": ""}})


def change_duplicate_of(db: Db) -> None:
    db.posts.update_one({"_id": copy_of_two(db)["_id"]}, {"$set": {"duplicate_of": "another"}})


def mark_copy_as_original(db: Db) -> None:
    query = {"_id": copy_of_two(db)["_id"]}
    db.posts.update_one(query, {"$set": {"original": True}, "$unset": {"duplicate_of": ""}})


BREAKS: list[tuple[Callable[[Db], None], set[Invariant]]] = [
    (delete_last_visit, {Invariant.LAST_LOGGED, Invariant.REQUESTED}),
    (insert_later_visit, {Invariant.NEWEST, Invariant.REQUESTED}),
    (change_content_hash, {Invariant.NEWEST, Invariant.HAS_VERSION, Invariant.POST_TARGET}),
    (increment_requested, {Invariant.REQUESTED}),
    (insert_extra_version, {Invariant.VERSION_LOGGED}),
    (change_version_time, {Invariant.VERSION_LOGGED}),
    (delete_version, {Invariant.HAS_VERSION}),
    (change_post_content, {Invariant.POST_TARGET}),
    (change_post_visit, {Invariant.POST_LOGGED}),
    (delete_target, {Invariant.POST_TARGET}),
    (delete_post, {Invariant.SIGNATURE_POST}),
    (decrement_signature_fence, {Invariant.SIGNATURE_CURRENT}),
    (delete_signature, {Invariant.POST_SIGNATURE, Invariant.CLUSTER_MEMBERS}),
    (delete_cluster, {Invariant.CLUSTER_ORIGINAL}),
    (change_cluster_original, {Invariant.CLUSTER_ORIGINAL}),
    (remove_post_from_cluster, {Invariant.CLUSTER_MEMBERS}),
    (change_duplicate_of, {Invariant.CLUSTER_MEMBERS}),
    (mark_copy_as_original, {Invariant.ONE_ORIGINAL}),
]


def test_breaks_cover_every_invariant() -> None:
    assert set(Invariant) == set[Invariant]().union(*(invariants for _, invariants in BREAKS))


@pytest.mark.parametrize(
    ("break_data", "invariants"), BREAKS, ids=[breaks.__name__ for breaks, _ in BREAKS]
)
def test_each_break_is_found(
    freshet: Freshet,
    database: Db,
    whole: Db,
    break_data: Callable[[Db], None],
    invariants: set[Invariant],
) -> None:
    copy(whole, database)
    break_data(database)
    failed = {
        name: finding for name, finding in deep(freshet).items() if finding["status"] == "failed"
    }
    assert failed.keys() == {str(invariant) for invariant in invariants}
    for finding in failed.values():
        assert finding["broken"] >= 1
        assert finding["examples"]
        assert "scrapy" in finding["fix"]


def test_repair_and_a_run_restore_consistency(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    wrapper = crawled(freshet, pages, db, uri)
    for break_data in (
        insert_extra_version,
        change_version_time,
        change_post_content,
        delete_last_visit,
    ):
        break_data(db)
    assert broken(freshet).keys() >= {str(Invariant.LAST_LOGGED), str(Invariant.POST_TARGET)}
    assert broken(freshet, "--repair").keys() == {
        str(Invariant.POST_TARGET),
        str(Invariant.VERSION_LOGGED),
    }
    freshet.crawl(wrapper, hours=201)
    assert broken(freshet).keys() <= {str(Invariant.VERSION_LOGGED)}


def test_repair_fails_while_a_run_is_in_progress(freshet: Freshet, stored: tuple[Db, str]) -> None:
    db, uri = stored
    subscribe(db, uri)
    db.runs.insert_one({"spider": "site", "started": datetime.now(UTC), "finished": None})
    done = run(freshet, "doctor", "--quick", "--deep", "--repair", "--json")
    (failed,) = (finding for finding in findings(done) if finding["status"] == "failed")
    assert "in progress" in failed["found"]


def test_repair_requires_deep(freshet: Freshet) -> None:
    done: Result = run(freshet, "doctor", "--repair")
    assert done.code == 1
    assert "--deep --repair" in done.err


def test_unavailable_server_fails_the_check(freshet: Freshet) -> None:
    away = "mongodb://%2Fnowhere%2Fmongod.sock/freshet"
    done = run(
        freshet, "doctor", "--quick", "--deep", "--json", MONGO_URI=away,
        FRESHET_MONGO_TIMEOUT_SECONDS=1,
    )  # fmt: skip
    assert done.code == 1


@pytest.mark.empty_database
def test_memory_does_not_grow_with_the_database(stored: tuple[Db, str]) -> None:
    import asyncio
    import tracemalloc

    from pymongo import AsyncMongoClient

    from crawler.storage.health import check

    db, uri = stored
    now = datetime(2026, 3, 2, tzinfo=UTC)
    peaks = []
    for n in (2000, 20_000):
        first = db.targets.count_documents({})
        ids = [ObjectId() for _ in range(first, n)]
        names = [f"http://x.example/{i:06}" for i in range(first, n)]
        common = {"spider": "s", "outcome": "new", "content_hash": "h", "fence": 0}
        both = list(zip(ids, names, strict=True))
        db.visits.insert_many([common | {"_id": i, "target": u, "at": now} for i, u in both])
        rows = {"kind": "item", "requested": 1, "visited_at": now, "first_seen": now}
        db.targets.insert_many([
            common | rows | {"_id": f"s {u}", "url": u, "last_visit": {"_id": i, "at": now}}
            for i, u in both
        ])  # fmt: skip
        db.versions.insert_many([
            {"_id": f"s {u} h", "spider": "s", "target": u, "content_hash": "h", "at": now}
            | {"visit": i}
            for i, u in both
        ])  # fmt: skip
        for name, key in (("targets", "url"), ("visits", "target")):
            db[name].create_index([(key, pymongo.ASCENDING), ("at", pymongo.ASCENDING)])

        async def checked() -> int:
            client: AsyncMongoClient[Row]
            async with AsyncMongoClient(uri, tz_aware=True) as client:
                report = await check(client.get_default_database())
                return sum(broken.count for broken in report.broken.values())

        tracemalloc.start()
        assert asyncio.run(checked()) == 0
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] * 2, peaks
