"""`scrapy backup` and `scrapy restore` either complete or leave everything unchanged."""

from __future__ import annotations

import hashlib
import io
import json
import random
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from bson import encode, json_util

from crawler.storage.client import VERSION
from crawler.storage.schema import INDEXES, RESTORING, prepare
from tests.conftest import Databases
from tests.integration.harness import Db, Freshet, Pages, Row, asked
from tests.integration.holding import holding
from tests.integration.inside import in_json, run
from tests.integration.known_pages import on
from tests.integration.once import left_in
from tests.integration.second_mongod import Client, second_mongod

pytestmark = pytest.mark.soak

LONG_AGO = datetime.now(UTC) - timedelta(hours=30)
VISIT = {"spider": "shop", "target": "https://s.example/", "outcome": "new", "changed": 0}
OLD = {"_id": "old", "spider": "old", "target": "https://o.example/", "at": LONG_AGO,
       "content_hash": "h", "content": {}}  # fmt: skip


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[tuple[Client, str]]:
    """Run another server; yield its client and URI."""
    with second_mongod() as made:
        yield made


@pytest.fixture
def other(elsewhere: tuple[Client, str], database: Db) -> Iterator[tuple[Db, str]]:
    """Yield an empty database on the other server, and its URI."""
    client, uri = elsewhere
    name = f"other_{database.name}"[:38]
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
    db.meta.insert_one({"_id": "duplicates", "scheme": "characters-3", "backend": "mongodb"})
    return db


@pytest.fixture
def backup(freshet: Freshet, filled: Db, tmp_path: Path) -> Path:
    """Return a backup of `filled`."""
    path = tmp_path / "backup.zip"
    done = run(freshet, "backup", path)
    assert (done.code, done.err) == (0, ""), done.err
    return path


@pytest.fixture
def empty(databases: Databases) -> Iterator[tuple[Db, str]]:
    """Yield another database, and its URI."""
    with databases() as made:
        yield made


def altered(path: Path, name: str, data: bytes) -> bytes:
    """Return a copy of a backup in which one entry has other data."""
    copy = io.BytesIO()
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(copy, "w") as target:
        for entry in source.namelist():
            target.writestr(entry, data if entry == name else source.read(entry))
    return copy.getvalue()


@contextmanager
def failing(command: str, skip: int, client: Client) -> Iterator[None]:
    """Let the server reject Freshet's commands of this name after the first `skip` commands."""
    data = {"failCommands": [command], "appName": "freshet", "errorCode": 8}
    client.admin.command(
        {"configureFailPoint": "failCommand", "mode": {"skip": skip}, "data": data}
    )
    try:
        yield
    finally:
        client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})


def shapes(db: Db) -> dict[str, Row]:
    """Return the options and indexes of each collection."""
    found: dict[str, Row] = {}
    for row in db.list_collections(filter={"type": "collection"}):
        indexes = {row["name"]: row for row in db[row["name"]].list_indexes()}
        found[row["name"]] = {"options": row["options"], "indexes": indexes}
    return found


def one_line(text: str) -> str:
    """Return a wrapped text as one line."""
    return " ".join(text.split())


def test_a_restored_database_equals_the_original(
    freshet: Freshet, filled: Db, empty: tuple[Db, str], tmp_path: Path
) -> None:
    filled.create_collection("latest", capped=True, size=4096)
    filled.latest.insert_one({"_id": 1})
    filled.posts.create_index([("fields.price", -1)], name="mine")
    rows = left_in(filled)
    filled.create_collection("seen", viewOn="visits", pipeline=[])
    path = tmp_path / "backup.zip"
    report = in_json(freshet, "backup", path)
    assert report["collections"]["visits"] == 2500
    assert (report["bytes"], report["version"]) == (path.stat().st_size, VERSION)
    assert path.stat().st_mode & 0o777 == 0o600, "other users can read password hashes"
    target_db, uri = empty
    done = run(freshet, "restore", path, MONGO_URI=uri)
    assert (done.code, done.err) == (0, ""), done.err
    assert done.out.startswith(f"{report['documents']:,} documents in "), done.out
    assert done.out.endswith(
        "note: index mine of posts is not part of Freshet and was not created\n"
    )
    filled.posts.drop_index("mine")
    here = shapes(filled)
    del here["system.views"]
    assert left_in(target_db) == rows
    assert list(target_db.meta.find().sort("_id")) == list(filled.meta.find().sort("_id"))
    assert shapes(target_db) == here
    assert [p.name for p in tmp_path.glob(".*part")] == []


def test_crawls_continue_on_another_server(
    freshet: Freshet, database: Db, other: tuple[Db, str], pages: Pages, tmp_path: Path
) -> None:
    pages.list("list.html", ["/item-a.html"])
    pages.item("item-a.html", "A")
    wrapper = freshet.wrapper("shop", start_urls=[f"{pages.url}/list.html"], item_pages="/item-")
    freshet.crawl(wrapper)
    target_db, uri = other
    # Another command has created the collections.
    assert run(freshet, "targets", MONGO_URI=uri).code == 0
    assert run(freshet, "backup", tmp_path / "backup.zip").code == 0
    assert run(freshet, "restore", tmp_path / "backup.zip", MONGO_URI=uri).code == 0
    assert left_in(target_db) == left_in(database)
    assert shapes(target_db) == shapes(database)
    pages.clear_log()
    freshet.crawl(wrapper, MONGO_URI=uri)
    assert not asked(pages), "only targets due in the original are due on the other server"


def test_restore_replaces_existing_data_only_on_request(
    freshet: Freshet, backup: Path, empty: tuple[Db, str], filled: Db
) -> None:
    target_db, uri = empty
    target_db.versions.insert_one(dict(OLD))
    target_db.notes.insert_one({"mine": True})
    done = run(freshet, "restore", backup, MONGO_URI=uri)
    assert done.code == 1
    assert "is not empty: it has documents in notes. Add --replace" in done.complaint
    done = run(freshet, "restore", backup, "--replace", MONGO_URI=uri)
    assert "this deletes all current data of this database. Re-run with --yes" in done.complaint
    assert target_db.versions.count_documents({}) == 1
    report = in_json(freshet, "restore", backup, "--replace", "--yes", MONGO_URI=uri)
    assert report["collections"]["versions"] == 1
    assert left_in(target_db) == left_in(filled), "collection notes was not deleted"


def test_damaged_backups_restore_nothing(
    freshet: Freshet, backup: Path, empty: tuple[Db, str], tmp_path: Path
) -> None:
    target_db, uri = empty
    data = backup.read_bytes()
    manifest = zipfile.ZipFile(backup).read("manifest.json").decode()
    newer = json.dumps(json.loads(manifest) | {"version": {"$numberInt": str(VERSION + 1)}})
    flipped = bytearray(data)
    flipped[data.index(b"visits.bson") + 500] ^= 1
    one = encode({"_id": 1})
    files = [
        (b"", "not a backup of Freshet. Give a file that scrapy backup wrote"),
        (b"PK\3\4" + bytes(200), "not a backup of Freshet"),
        (data[:-1], "incomplete: the end of the file is missing"),
        (data[:5000], "incomplete: the end of the file is missing"),
        (data[:100] + data[200:], "damaged: "),
        (bytes(flipped), "damaged: the documents of visits cannot be read. Use another backup"),
        (altered(backup, "manifest.json", newer.encode()), f"has data version {VERSION + 1}, this"),
        (altered(backup, "manifest.json", b"{}"), "damaged: its manifest is invalid"),
        (altered(backup, "collections/visits.bson", one), "are not those that were written"),
        (altered(backup, "collections/visits.bson", one[:-1]), "visits cannot be read"),
        (altered(backup, "collections/visits.bson", b"\xff\xff\xff\x7f"), "visits cannot be read"),
    ]
    for number, (content, problem) in enumerate(files):
        path = tmp_path / f"broken{number}.zip"
        path.write_bytes(content)
        done = run(freshet, "restore", path, MONGO_URI=uri)
        assert done.code == 1, problem
        assert problem in done.complaint, done.err
    assert left_in(target_db) == {}
    assert "No such file" in run(freshet, "restore", tmp_path / "none.zip").complaint


def test_backup_with_reserved_collection_names_is_rejected(backup: Path, freshet: Freshet) -> None:
    """Collection names that are reserved or outside the archive are refused."""
    values = json_util.loads(zipfile.ZipFile(backup).read("manifest.json"))
    for name in ("system.users", "restored_visits", "../visits", ""):
        values["collections"][0]["name"] = name
        changed = backup.with_name("changed.zip")
        changed.write_bytes(altered(backup, "manifest.json", json_util.dumps(values).encode()))
        done = run(freshet, "restore", changed, "--replace", "--yes")
        assert "damaged: its manifest is invalid" in done.complaint


def test_failed_backup_leaves_no_file(
    freshet: Freshet, filled: Db, tmp_path: Path, other: tuple[Db, str]
) -> None:
    target_db, uri = other
    on(uri, prepare)
    taken = tmp_path / "taken.zip"
    taken.write_text("mine")
    assert "the file exists. Name another file" in run(freshet, "backup", taken).complaint
    assert taken.read_text() == "mine"
    path = tmp_path / "backup.zip"
    assert "is empty. Crawl a site first" in run(freshet, "backup", path, MONGO_URI=uri).err
    target_db.visits.insert_many(VISIT | {"_id": n, "at": LONG_AGO} for n in range(2500))
    with failing("getMore", 1, target_db.client):
        done = run(freshet, "backup", path, MONGO_URI=uri)
    assert "MongoDB: visits: " in done.complaint
    link = tmp_path / ".backup.zip.part"
    link.symlink_to(taken)
    assert "Too many levels of symbolic links" in run(freshet, "backup", path).complaint
    assert taken.read_text() == "mine"
    link.unlink()
    missing = tmp_path / "none" / "backup.zip"
    assert "No such file or directory" in run(freshet, "backup", missing).complaint
    filled.runs.insert_one({"spider": "shop", "started": LONG_AGO})
    running = {"crawl shop": "shop is being crawled"} | {
        name: f"{name} is running" for name in ("replan", "duplicates rebuild", "feeds push")
    }
    for lease, problem in running.items():
        with holding(freshet.env["MONGO_URI"], lease, elsewhere=True):
            done = run(freshet, "backup", path)
        assert f"{problem} on far (process 7) since " in done.complaint
        assert done.complaint.endswith("Wait until it has finished, or stop it")
    assert [file.name for file in tmp_path.iterdir() if "backup" in file.name] == []


def test_restore_that_fails_while_loading_changes_nothing(
    freshet: Freshet, backup: Path, other: tuple[Db, str]
) -> None:
    target_db, uri = other
    on(uri, prepare)
    target_db.versions.insert_one(dict(OLD))
    before = left_in(target_db)
    restore = ("restore", backup, "--replace", "--yes")
    with failing("insert", 4, target_db.client):
        done = run(freshet, *restore, MONGO_URI=uri)
    assert done.code == 1
    assert done.complaint.endswith("; the database is unchanged")
    assert left_in(target_db) == before
    # As after SIGKILL: the next restore first removes leftover collections.
    target_db.restored_visits.insert_one({"_id": "half"})
    target_db.restored_other.insert_one({"_id": "half"})
    assert run(freshet, *restore, MONGO_URI=uri).code == 0
    assert not [name for name in target_db.list_collection_names() if name.startswith("restored_")]
    assert target_db.visits.count_documents({}) == 2500


@pytest.mark.parametrize("renamed", [0, 1, 20])
def test_next_command_completes_an_interrupted_restore(
    freshet: Freshet, backup: Path, other: tuple[Db, str], filled: Db, renamed: int
) -> None:
    target_db, uri = other
    on(uri, prepare)
    target_db.versions.insert_one(dict(OLD))
    target_db.notes.insert_one({"mine": True})
    with failing("renameCollection", renamed, target_db.client):
        done = run(freshet, "restore", backup, "--replace", "--yes", MONGO_URI=uri)
    assert done.code == 1
    assert "the restore is incomplete. The next command that opens the database" in done.complaint
    health = run(freshet, "doctor", "--quick", MONGO_URI=uri)
    assert "the restore of backup.zip was interrupted. Run scrapy targets" in " ".join(
        health.out.split()
    )
    on(uri, prepare)
    assert left_in(target_db) == left_in(filled)
    assert shapes(target_db) == shapes(filled)
    assert target_db.meta.find_one({"_id": "schema"}) == {"_id": "schema", "version": VERSION}


def test_older_backup_is_migrated(
    freshet: Freshet, filled: Db, empty: tuple[Db, str], tmp_path: Path
) -> None:
    path = tmp_path / "backup.zip"
    assert run(freshet, "backup", path).code == 0
    values = json_util.loads(zipfile.ZipFile(path).read("manifest.json"))
    meta = next(each for each in values["collections"] if each["name"] == "meta")
    rows = [{"_id": "schema", "version": VERSION - 1}]
    data = b"".join(map(encode, rows))
    meta |= {"documents": len(rows), "sha256": hashlib.sha256(data).hexdigest()}
    values["version"] = VERSION - 1
    values["collections"] = [each for each in values["collections"] if each["name"] != "rereads"]
    old = tmp_path / "old.zip"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(old, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "manifest.json":
                content = json_util.dumps(values).encode()
            elif name == "collections/meta.bson":
                content = data
            if name != "collections/rereads.bson":
                target.writestr(name, content)
    target_db, uri = empty
    assert run(freshet, "restore", old, MONGO_URI=uri).code == 0
    assert target_db.meta.find_one({"_id": "schema"}) == {"_id": "schema", "version": VERSION}
    assert len(list(target_db.rereads.list_indexes())) == len(INDEXES["rereads"]) + 1


def rewritten(
    path: Path, name: str, documents: list[Row], *, version: object = VERSION, **row: object
) -> Path:
    """Return a copy of a backup with other documents in a collection, and a fitting manifest."""
    values = json_util.loads(zipfile.ZipFile(path).read("manifest.json"))
    data = b"".join(map(encode, documents))
    entry = next(each for each in values["collections"] if each["name"] == name)
    entry |= {"documents": len(documents), "sha256": hashlib.sha256(data).hexdigest()} | row
    values["version"] = version
    manifest = json_util.dumps(values).encode()
    changed, whole = path.with_name("changed.zip"), path.with_name("whole.zip")
    changed.write_bytes(altered(path, "manifest.json", manifest))
    whole.write_bytes(altered(changed, f"collections/{name}.bson", data))
    return whole


@pytest.mark.parametrize(
    ("meta", "version"),
    [
        ([], VERSION),
        ([{"_id": "schema"}], VERSION),
        ([{"_id": "schema", "version": VERSION + 1}], VERSION),
        ([{"_id": "schema", "version": 10**12}], 10**12),
        ([{"_id": "schema", "version": "3"}], "3"),
        ([{"_id": "schema", "version": True}], True),
        ([{"_id": "schema", "version": 0}], 0),
        ([{"_id": "schema", "version": -4}], -4),
        ([{"_id": "schema", "version": 1.5}], 1.5),
        ([{"_id": "schema", "version": None}], None),
        ([{"_id": "schema", "version": VERSION}, {"_id": "duplicates", "scheme": 3}], VERSION),
    ],
)
def test_backup_without_a_valid_version_leaves_the_old_data(
    freshet: Freshet, backup: Path, filled: Db, meta: list[Row], version: object
) -> None:
    before = left_in(filled)
    bad = rewritten(backup, "meta", meta, version=version)
    done = run(freshet, "restore", bad, "--replace", "--yes")
    assert done.code == 1
    assert len(done.err.strip().splitlines()) == 1
    assert left_in(filled) == before
    assert run(freshet, "targets").code == 0


def test_documents_that_do_not_fit_leave_the_old_data(
    freshet: Freshet, backup: Path, filled: Db
) -> None:
    before = left_in(filled)
    rows = [{"_id": 1, "spider": "shop", "url": 3}]
    done = run(freshet, "restore", rewritten(backup, "targets", rows), "--replace", "--yes")
    assert done.code == 1
    assert "failed validation; the database is unchanged" in done.complaint
    assert left_in(filled) == before


def test_indexes_and_marks_of_a_backup_are_ignored(
    freshet: Freshet, backup: Path, filled: Db
) -> None:
    index = {"key": {"at": 1}, "name": "old", "expireAfterSeconds": 1}
    marks = {"restoring": {"from": 3}}
    meta = list(filled.meta.find({"_id": {"$ne": "schema"}}))
    meta.append({"_id": "schema", "version": VERSION} | marks)
    here = shapes(filled)
    bad = rewritten(backup, "meta", meta, indexes=[index])
    values = json_util.loads(zipfile.ZipFile(bad).read("manifest.json"))
    visits = next(each for each in values["collections"] if each["name"] == "visits")
    visits |= {"indexes": [index], "options": {"capped": True, "size": 4096}}
    bad.write_bytes(altered(bad, "manifest.json", json_util.dumps(values).encode()))
    done = run(freshet, "restore", bad, "--replace", "--yes")
    assert done.code == 0, done.err
    assert shapes(filled) == here
    assert filled.visits.count_documents({}) == 2500
    assert filled.meta.find_one({"_id": "schema"}) == {"_id": "schema", "version": VERSION}


@pytest.mark.parametrize(
    "meta",
    [{}, {"version": "three"}, {"version": -1}, {"version": 10**12}, {"restoring": {"from": 1}}],
)
def test_database_with_a_broken_meta_can_be_restored_over(
    freshet: Freshet, backup: Path, empty: tuple[Db, str], filled: Db, meta: Row
) -> None:
    target_db, uri = empty
    on(uri, prepare)
    target_db.versions.insert_one(dict(OLD))
    target_db.meta.replace_one({"_id": "schema"}, meta)
    for command in (("targets",), ("changes",), ("backup", backup.with_name("other.zip"))):
        done = run(freshet, *command, MONGO_URI=uri)
        assert done.code == 1
        assert len(done.err.strip().splitlines()) == 1, done.err
        assert "data version" in done.complaint
    health = run(freshet, "doctor", "--quick", MONGO_URI=uri)
    assert (health.code, health.err) == (1, "")
    done = run(freshet, "restore", backup, "--replace", "--yes", MONGO_URI=uri)
    assert done.code == 0, done.err
    assert left_in(target_db) == left_in(filled)
    assert shapes(target_db) == shapes(filled)
    assert run(freshet, "targets", MONGO_URI=uri).code == 0


@pytest.mark.parametrize("renamed", [0, 1, 20])
def test_interrupted_restore_can_be_restored_over(
    freshet: Freshet, backup: Path, other: tuple[Db, str], filled: Db, renamed: int
) -> None:
    target_db, uri = other
    on(uri, prepare)
    target_db.versions.insert_one(dict(OLD))
    restore = ("restore", backup, "--replace", "--yes")
    with failing("renameCollection", renamed, target_db.client):
        assert run(freshet, *restore, MONGO_URI=uri).code == 1
    # The next one fails while it loads: the data are those of the interrupted one.
    with failing("insert", 4, target_db.client):
        assert run(freshet, *restore, MONGO_URI=uri).code == 1
    assert left_in(target_db) == left_in(filled)
    assert run(freshet, *restore, MONGO_URI=uri).code == 0
    assert left_in(target_db) == left_in(filled)
    assert shapes(target_db) == shapes(filled)


def test_kill_during_restore_leaves_old_or_new_data(
    freshet: Freshet, backup: Path, empty: tuple[Db, str], filled: Db
) -> None:
    target_db, uri = empty
    new = left_in(filled)
    rng = random.Random(7)
    began = time.monotonic()
    assert freshet("restore", backup, MONGO_URI=uri).code == 0
    longest = time.monotonic() - began
    for number in range(4):
        for name in target_db.list_collection_names():
            target_db.drop_collection(name)
        on(uri, prepare)
        target_db.versions.insert_one(dict(OLD))
        old = left_in(target_db)
        process = freshet.start("restore", backup, "--replace", "--yes", MONGO_URI=uri)
        is_switching = number == 3
        if is_switching:
            # Once the marker is set, the next command completes the restore.
            while process.poll() is None and not target_db.meta.find_one(
                {RESTORING: {"$exists": True}}
            ):
                pass
        else:
            time.sleep(rng.uniform(0.3, 1.0) * longest)
        process.kill()
        process.communicate()
        on(uri, prepare)
        found = left_in(target_db)
        found = {name: rows for name, rows in found.items() if not name.startswith("restored_")}
        assert found in ([new] if is_switching else [old, new])
        again = run(freshet, "restore", backup, "--replace", "--yes", MONGO_URI=uri)
        assert again.code == 0, again.err
        assert left_in(target_db) == new
