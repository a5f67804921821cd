"""`scrapy db copy`: copy a database to another server, completely or not at all."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from crawler.storage.client import VERSION
from crawler.storage.embedded import EmbeddedServer
from crawler.storage.schema import INDEXES, prepare
from tests.conftest import Databases
from tests.integration.harness import Db, Freshet, Pages, Row, asked
from tests.integration.holding import holding
from tests.integration.inside import run
from tests.integration.known_pages import on
from tests.integration.once import left_in
from tests.integration.second_mongod import Client, second_mongod

pytestmark = pytest.mark.soak

LONG_AGO = datetime.now(UTC) - timedelta(hours=30)
VISIT = {"spider": "shop", "target": "https://s.example/", "outcome": "new", "changed": 0}


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[tuple[Client, str]]:
    """Run another server; yield its client and URI."""
    with second_mongod() as made:
        yield made


@pytest.fixture
def other(elsewhere: tuple[Client, str], database: Db) -> Iterator[tuple[Db, str]]:
    """Yield an empty database on the other server, and its URI."""
    client, uri = elsewhere
    name = f"copy_of_{database.name}"[:38]
    try:
        yield client[name], f"{uri}/{name}"
    finally:
        client.drop_database(name)


@pytest.fixture
def filled(stored: tuple[Db, str]) -> Db:
    """Return a database with documents of many kinds."""
    db, uri = stored
    on(uri, prepare)
    db.visits.insert_many(VISIT | {"_id": n, "at": LONG_AGO} for n in range(2500))
    db.versions.insert_one(
        {"_id": "v", "spider": "shop", "target": "t", "content_hash": "h", "at": LONG_AGO,
         "content": {"title": "é" * 1000, "n": 1.5}},
    )  # fmt: skip
    db.runs.insert_one({"spider": "shop", "started": LONG_AGO, "finished": None})
    db.meta.insert_one({"_id": "duplicates", "scheme": "characters-3"})
    return db


@contextmanager
def halting_after(inserts: int, server: Client) -> Iterator[None]:
    """Let the server execute `inserts` inserts of Freshet and block all later ones."""
    data = {"failCommands": ["insert"], "appName": "freshet", "blockConnection": True,
            "blockTimeMS": 600_000}  # fmt: skip
    order = {"configureFailPoint": "failCommand", "mode": {"skip": inserts}, "data": data}
    server.admin.command(order)
    try:
        yield
    finally:
        # Turning the fail point off waits for the blocked operations, so end them first.
        halted = [{"$currentOp": {}}, {"$match": {"appName": "freshet"}}]
        for operation in server.admin.aggregate(halted):
            server.admin.command("killOp", op=operation["opid"])
        server.admin.command({"configureFailPoint": "failCommand", "mode": "off"})


def shapes(db: Db) -> dict[str, Row]:
    """Return the options and indexes of each collection."""
    found: dict[str, Row] = {}
    for row in db.list_collections(filter={"type": "collection"}):
        indexes = {row["name"]: row for row in db[row["name"]].list_indexes()}
        found[row["name"]] = {"options": row["options"], "indexes": indexes}
    return found


def test_crawls_continue_on_the_copy(
    freshet: Freshet, database: Db, other: tuple[Db, str], pages: Pages
) -> None:
    pages.list("list.html", ["/item-a.html"])
    pages.item("item-a.html", "A")
    wrapper = freshet.wrapper("shop", start_urls=[f"{pages.url}/list.html"], item_pages="/item-")
    freshet.crawl(wrapper)
    target_db, uri = other
    done = freshet("db", "copy", uri)
    assert (done.code, done.err) == (0, ""), done.err
    n = sum(len(rows) for rows in left_in(database).values())
    # All collections except the leases.
    collections = len(database.list_collection_names()) - 1
    assert done.out == (
        f"copied {n} documents in {collections} collections to {uri}. "
        "Set MONGO_URI to this server; the source is unchanged\n"
    )
    assert left_in(target_db) == left_in(database)
    assert shapes(target_db) == shapes(database)
    pages.clear_log()
    freshet.crawl(wrapper, MONGO_URI=uri)
    assert not asked(pages), "only targets due in the source are due in the copy"


def test_round_trip_restores_all_data(
    freshet: Freshet, filled: Db, other: tuple[Db, str], databases: Databases
) -> None:
    target_db, uri = other
    with databases() as (back, back_uri):
        for source, target in ((freshet.env["MONGO_URI"], uri), (uri, back_uri)):
            done = run(freshet, "db", "copy", target, "--json", MONGO_URI=source)
            assert done.code == 0, done.err
            assert json.loads(done.out)["collections"]["visits"] == 2500
        assert left_in(back) == left_in(filled)
        assert list(back.meta.find().sort("_id")) == list(filled.meta.find().sort("_id"))
        assert shapes(back) == shapes(filled)
    assert target_db.visits.count_documents({}) == 2500, "the source is unchanged"


def test_collections_outside_the_schema_are_copied(
    freshet: Freshet, filled: Db, other: tuple[Db, str]
) -> None:
    filled.check_mine_signatures.insert_one({"bands": [1]})
    filled.check_mine_signatures.create_index("bands", unique=True, sparse=True)
    filled.create_collection("latest", capped=True, size=4096)
    filled.posts.create_index([("fields.price", -1)], name="mine")
    filled.create_collection("seen", viewOn="visits", pipeline=[])
    assert run(freshet, "db", "copy", other[1]).code == 0
    here = shapes(filled)
    del here["system.views"]
    assert shapes(other[0]) == here
    assert left_in(other[0])["check_mine_signatures"][0]["bands"] == [1]


def test_non_empty_target_is_refused(freshet: Freshet, filled: Db, other: tuple[Db, str]) -> None:
    other[0].notes.insert_one({"mine": True})
    done = run(freshet, "db", "copy", other[1])
    assert done.code == 1
    assert "is not empty: it has documents in notes. Name another" in done.complaint
    assert other[0].list_collection_names() == ["notes"]
    assert "is not empty" in run(freshet, "db", "copy", freshet.env["MONGO_URI"]).complaint


def test_database_with_empty_collections_is_accepted(
    freshet: Freshet, filled: Db, other: tuple[Db, str]
) -> None:
    assert run(freshet, "targets", MONGO_URI=other[1]).code == 0
    assert set(INDEXES) < set(other[0].list_collection_names())
    assert run(freshet, "db", "copy", other[1]).code == 0
    assert left_in(other[0]) == left_in(filled)


def test_interrupted_copy_is_unusable_until_it_is_repeated(
    freshet: Freshet, filled: Db, elsewhere: tuple[Client, str], other: tuple[Db, str]
) -> None:
    target_db, uri = other
    # The documents of meta, runs and versions, and one batch of visits.
    with halting_after(4, elsewhere[0]):
        copying = freshet.start("db", "copy", uri)
        deadline = time.monotonic() + 60
        while not target_db.visits.estimated_document_count():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        copying.kill()
        copying.communicate()
    assert 0 < target_db.visits.count_documents({}) < 2500
    refused = run(freshet, "targets", MONGO_URI=uri)
    assert refused.code == 1
    assert "is an unfinished copy of mongodb://" in refused.complaint
    assert refused.complaint.endswith("if it was interrupted, run scrapy db copy again")
    examined = run(freshet, "doctor", "--quick", MONGO_URI=uri).out
    assert "is an unfinished copy of" in " ".join(examined.split())

    filled.visits.delete_many({"_id": {"$gte": 1000}})
    assert run(freshet, "db", "copy", uri).code == 0
    assert left_in(target_db) == left_in(filled), "documents of the first copy remain"
    assert target_db.meta.find_one({"_id": "schema"}) == {"_id": "schema", "version": VERSION}


def test_error_names_the_rejected_document(
    freshet: Freshet, filled: Db, other: tuple[Db, str]
) -> None:
    filled.command("insert", "visits", documents=[{"_id": "bad"}], bypassDocumentValidation=True)
    done = run(freshet, "db", "copy", other[1])
    assert done.code == 1
    assert "document 'bad' was rejected: Document failed validation" in done.complaint
    assert done.complaint.endswith("Run the same command again to start over")
    filled.visits.delete_one({"_id": "bad"})
    assert run(freshet, "db", "copy", other[1]).code == 0


def test_copy_is_refused_during_a_run(freshet: Freshet, filled: Db, other: tuple[Db, str]) -> None:
    for name in ("crawl shop", "replan", "duplicates rebuild", "feeds push"):
        with holding(freshet.env["MONGO_URI"], name, elsewhere=True):
            done = run(freshet, "db", "copy", other[1])
        assert done.code == 1
        assert done.complaint.startswith(
            "scrapy db: shop is being crawled on far (process 7) since "
            if name == "crawl shop"
            else f"scrapy db: {name} is running on far (process 7) since "
        )
        assert done.complaint.endswith("Wait until it has finished, or stop it")
    assert other[0].list_collection_names() == []
    assert run(freshet, "db", "copy", other[1]).code == 0
    assert other[0].leases.count_documents({}) == 0, "leases are not copied"


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("localhost", "TO_URI: Invalid URI scheme"),
        ("mongodb://me:secret@%2Fnowhere%2Fm.sock/x", "no response within 0.2 s. Check TO_URI"),
    ],
)
def test_unreachable_target_is_a_one_line_error(
    freshet: Freshet, database: Db, uri: str, message: str
) -> None:
    done = run(freshet, "db", "copy", uri, FRESHET_MONGO_TIMEOUT_SECONDS=0.2)
    assert done.code == 1
    assert message in done.complaint
    assert "secret" not in done.err


def test_target_uri_is_required(freshet: Freshet, mongo: EmbeddedServer) -> None:
    assert "TO_URI is missing" in run(freshet, "db", "copy").err
    assert "unexpected argument" in run(freshet, "db", "uri", "mongodb://x").err
