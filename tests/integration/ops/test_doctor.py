"""`scrapy doctor` on real servers, healthy and broken."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from crawler.storage.client import VERSION
from crawler.storage.schema import INDEXES, prepare
from tests.integration.harness import ROOT, Db, Freshet, Pages, Result, Row
from tests.integration.inside import run
from tests.integration.known_pages import on
from tests.integration.redis_server import private_server, url_of
from tests.integration.second_mongod import second_mongod

CONTACT = {"FRESHET_CONTACT": "mailto:me@example.org"}
UNREACHABLE_MONGO = "mongodb://%2Fnowhere%2Fmongod.sock/freshet"


@pytest.fixture
def prepared(stored: tuple[Db, str]) -> Db:
    """Prepare a database as commands do."""
    db, uri = stored
    on(uri, prepare)
    return db


def quick(freshet: Freshet, *args: object, **env: object) -> Result:
    return run(freshet, "doctor", "--quick", "--json", *args, **CONTACT, **env)


def findings(done: Result) -> list[Row]:
    assert done.err == ""
    report = json.loads(done.out)
    assert done.code == (0 if report["ok"] else 1)
    return list(report["findings"])


def problems_of(done: Result) -> list[Row]:
    """Return the findings that are not ok."""
    return [finding for finding in findings(done) if finding["status"] != "ok"]


def only_problem(done: Result) -> Row:
    (finding,) = problems_of(done)
    return finding


def finding_of(done: Result, check: str) -> Row:
    (match,) = (
        finding for finding in findings(done) if finding["check"] == check and not finding["of"]
    )
    return match


def test_healthy_servers_have_no_findings(freshet: Freshet, prepared: Db, redis: str) -> None:
    done = quick(freshet, REDIS_URL=redis)
    assert [finding["check"] for finding in problems_of(done)] == ["redis persistence"]
    assert finding_of(done, "mongodb data")["found"] == f"{prepared.name}: version {VERSION}"
    assert finding_of(done, "mongodb indexes")["found"] == "complete"
    assert finding_of(done, "redis")["found"].startswith("Valkey ")
    assert list(prepared.meta.find({"_id": {"$regex": "doctor"}})) == [], "doctor left rows in meta"


def test_text_output_has_one_line_per_check(freshet: Freshet, prepared: Db) -> None:
    done = run(freshet, "doctor", "--quick", "--spider", "books", COLUMNS=500)
    assert (done.code, done.err) == (0, "")
    *rows, total = done.out.splitlines()
    assert all(row.split()[0] in ("ok", "warning") for row in rows)
    assert total == f"{len(rows)} checks: {len(rows) - 1} ok, 1 warning, 0 failed"
    assert sum(row.split()[1:3] == ["wrapper", "books"] for row in rows) == 1


@pytest.mark.empty_database
def test_empty_database_gets_no_collections(freshet: Freshet, database: Db) -> None:
    done = quick(freshet)
    assert problems_of(done) == []
    assert "no data yet" in finding_of(done, "mongodb data")["found"]
    assert database.list_collection_names() == ["meta"], "only meta, which the write check uses"


def test_missing_and_different_indexes_are_reported(freshet: Freshet, prepared: Db) -> None:
    prepared.visits.drop_index("spider_1_at_1")
    prepared.signatures.drop_index("bands_1")
    prepared.posts.drop_index("search")
    prepared.posts.create_index([("title", "text"), ("words", "text")], name="search")
    done = quick(freshet)
    by_index = {finding["found"].partition(" ")[0]: finding for finding in problems_of(done)}
    assert {name: finding["status"] for name, finding in by_index.items()} == {
        "spider_1_at_1": "warning", "bands_1": "failed", "search": "warning",
    }  # fmt: skip
    assert by_index["spider_1_at_1"]["fix"] == (
        'in mongosh: db.visits.createIndex({"spider": 1, "at": 1}, {"name": "spider_1_at_1"})'
    )
    assert 'db.posts.dropIndex("search"); db.posts.createIndex(' in by_index["search"]["fix"]


def test_every_schema_index_is_checked(freshet: Freshet, prepared: Db) -> None:
    for name in INDEXES:
        prepared.drop_collection(name)
    missing = [
        finding for finding in problems_of(quick(freshet)) if finding["check"] == "mongodb indexes"
    ]
    assert len(missing) == sum(map(len, INDEXES.values()))


def test_newer_schema_version_is_reported(freshet: Freshet, prepared: Db) -> None:
    prepared.meta.update_one({"_id": "schema"}, {"$set": {"version": VERSION + 1}})
    assert only_problem(quick(freshet))["check"] == "mongodb data"


def test_older_schema_version_is_not_migrated(freshet: Freshet, prepared: Db) -> None:
    prepared.meta.update_one({"_id": "schema"}, {"$set": {"version": VERSION - 1}})
    assert only_problem(quick(freshet))["status"] == "warning"
    assert prepared.meta.find_one({"_id": "schema"}) == {"_id": "schema", "version": VERSION - 1}


def test_unavailable_servers_are_reported_without_passwords(freshet: Freshet) -> None:
    away = {"MONGO_URI": UNREACHABLE_MONGO, "FRESHET_MONGO_TIMEOUT_SECONDS": 0.2}
    done = quick(freshet, REDIS_URL="redis://:secret@127.0.0.1:1/0", **away)
    assert {finding["check"]: finding["status"] for finding in problems_of(done)} == {
        "mongodb": "failed", "redis": "failed",
    }  # fmt: skip
    assert "secret" not in done.out
    assert all(
        finding["status"] == "ok" for finding in findings(done) if finding["check"] == "wrapper"
    )


def test_mongod_without_journal_fails(freshet: Freshet) -> None:
    with second_mongod("--nojournal") as (_, uri):
        finding = only_problem(quick(freshet, MONGO_URI=f"{uri}/freshet"))
    assert (finding["check"], finding["status"]) == ("mongodb write", "failed")
    assert "journal" in finding["found"]


def test_redis_eviction_policy_is_checked(freshet: Freshet, prepared: Db) -> None:
    settings = {"maxmemory": "100mb", "maxmemory_policy": "volatile-ttl", "appendonly": "yes"}
    with private_server(**settings) as server:
        finding = only_problem(quick(freshet, REDIS_URL=url_of(server)))
        assert finding["found"] == "100 MB, maxmemory-policy volatile-ttl"
    with private_server(maxmemory="100mb", maxmemory_policy="allkeys-lru") as server:
        finding = only_problem(quick(freshet, REDIS_URL=url_of(server)))
        assert (finding["check"], finding["status"]) == ("redis", "failed")


def test_full_redis_fails(freshet: Freshet, prepared: Db) -> None:
    with private_server(maxmemory="1") as server:
        finding = only_problem(quick(freshet, REDIS_URL=url_of(server)))
    assert (finding["check"], finding["status"]) == ("redis", "failed")
    assert "used memory" in finding["found"]


def test_invalid_site_definitions_are_reported(freshet: Freshet, prepared: Db) -> None:
    good = {"start_urls": ["https://s.example/"], "item_pages": "/item"}
    fine = freshet.wrapper("fine", **good)
    wrong = freshet.wrapper("wrong", **good, colour="red")
    secret = freshet.wrapper("secret", **good, headers={"X-Token": "${NO_SUCH_TOKEN_HERE}"})
    given = [word for path in (fine, wrong, secret) for word in ("--spider", path)]
    done = quick(freshet, *given, "--spider", "nosuch")
    by_site = {finding["of"]: finding for finding in problems_of(done)}
    assert by_site.keys() == {str(wrong), str(secret), "nosuch"}
    assert by_site[str(wrong)]["found"] == f"{wrong}: colour: unknown key"
    assert by_site[str(secret)]["fix"] == (
        f"set NO_SUCH_TOKEN_HERE in the environment or in {ROOT / '.env'}"
    )
    assert "Available: books, feeds, quotes" in by_site["nosuch"]["found"]


def test_spider_import_error_is_reported(freshet: Freshet, prepared: Db, tmp_path: Path) -> None:
    package = tmp_path / "broken_spiders"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "typo.py").write_text("nosuchname\n")
    (package / "whole.py").write_text(
        "from spiders.books import Books as Other\nclass Mine(Other):\n    name = 'mine'\n"
    )
    words = ("doctor", "--quick", "--json", "-s", "SPIDER_MODULES=broken_spiders")
    done = freshet(*words, PYTHONPATH=tmp_path, **CONTACT)
    problem = only_problem(done)
    assert (problem["of"], problem["status"]) == ("broken_spiders.typo", "failed")
    assert f"name 'nosuchname' is not defined ({package / 'typo.py'}:1)" in problem["found"]
    assert "mine" in {finding["of"] for finding in findings(done)}, "other spiders are checked"


def test_invalid_setting_is_a_finding(freshet: Freshet) -> None:
    done = freshet("doctor", "--quick", "--json", FRESHET_COMMIT_SIZE="0", **CONTACT)
    problem = only_problem(done)
    assert problem["check"] == "settings"
    assert problem["found"].startswith("FRESHET_COMMIT_SIZE: ")
    assert "wrapper" in {finding["check"] for finding in findings(done)}, "other checks run"


def test_interrupted_run_is_reported(freshet: Freshet, prepared: Db) -> None:
    long_ago = datetime.now(UTC) - timedelta(hours=20)
    prepared.runs.insert_one({"spider": "books", "started": long_ago, "finished": None})
    prepared.targets.insert_one(
        {"_id": "books x", "spider": "books", "url": "x", "kind": "item", "first_seen": long_ago,
         "next_visit": long_ago},
    )  # fmt: skip
    finding = only_problem(quick(freshet, "--spider", "books"))
    assert (finding["check"], finding["of"]) == ("last run", "books")
    assert finding["found"] == "interrupted 20 h ago; 1 target due, the oldest for 20 h"


def test_sites_that_nothing_crawls_are_reported(freshet: Freshet, prepared: Db) -> None:
    days_ago = datetime.now(UTC) - timedelta(days=3)
    ended = {"spider": "books", "started": days_ago, "finished": days_ago, "reason": "finished"}
    prepared.runs.insert_one(ended)
    finding = only_problem(quick(freshet, "--spider", "books"))
    assert (finding["check"], finding["status"]) == ("service", "warning")
    assert finding["found"] == "none runs, and the last run was 3 days ago"
    assert "scrapy web" in finding["fix"]


@pytest.mark.soak
def test_failing_pages_and_stored_definition_are_reported(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    file = freshet.wrapper("shop", start_urls=[f"{pages.url}/list.html"], item_pages="/item")
    pages.file("/list.html", "no page")
    pages.list("/list.html", [])
    freshet.crawl(file, "-s", "ROBOTSTXT_OBEY=0", code=1)
    assert only_problem(quick(freshet))["check"] == "items"
    pages.file("/list.html", "\0\1\2")
    freshet.crawl(file, "-a", "full=1", code=1)
    freshet.crawl(file, code=1)
    problem, _ = problems_of(quick(freshet))
    assert (problem["check"], problem["of"], problem["status"]) == ("last run", "shop", "warning")
    assert "; 1 of 1 page failed " in problem["found"]
    assert f"({pages.url}/list.html)" in problem["found"]
    assert problem["fix"] == "scrapy targets shop --errors lists the pages"
    file.unlink()
    by_site = {
        finding["of"]: finding["found"]
        for finding in findings(quick(freshet))
        if finding["check"] == "wrapper"
    }
    assert by_site["shop"].endswith(f"; defined by the stored copy of {file}")


def test_site_without_definition_is_reported(freshet: Freshet, prepared: Db) -> None:
    now = datetime.now(UTC)
    prepared.targets.insert_one(
        {"_id": "old x", "spider": "old", "url": "x", "kind": "item", "first_seen": now,
         "next_visit": now},
    )  # fmt: skip
    finding = only_problem(quick(freshet))
    assert (finding["check"], finding["of"], finding["status"]) == ("wrapper", "old", "warning")
    assert finding["found"] == "it has targets but no site definition"
    assert finding["fix"] == (
        "run scrapy crawl site -a wrapper=FILE.toml once, or scrapy forget old"
    )


@pytest.fixture
def without_mongo_uri(tmp_path: Path) -> Iterator[Freshet]:
    """Yield Freshet without MONGO_URI; stop the embedded server at the end if it was started."""
    data = Path(tempfile.mkdtemp(prefix="fd-"))
    with Freshet(tmp_path, FRESHET_DATA_DIR=data) as freshet:
        yield freshet
        freshet("db", "stop")
    shutil.rmtree(data)


@pytest.mark.soak
def test_robots_txt_of_sites_that_were_never_crawled_is_not_fetched(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    pages.item("item.html", "A")
    start = [f"{pages.url}/item.html"]
    freshet.crawl(freshet.wrapper("shop", start_urls=start, item_pages="/item"))
    whole = freshet("doctor", "--json", **CONTACT)
    found = [each["of"] for each in findings(whole) if each["check"] == "robots.txt"]
    assert found == ["shop"]
    named = freshet("doctor", "--json", "--spider", "books", **CONTACT)
    found = [each["of"] for each in findings(named) if each["check"] == "robots.txt"]
    assert found == ["books"]


@pytest.mark.soak
def test_quick_check_does_not_start_the_embedded_server(
    without_mongo_uri: Freshet, pages: Pages
) -> None:
    pages.file("robots.txt", "User-agent: *\nDisallow: /private/\nCrawl-delay: 90\n")
    start = {"item_pages": "/item", "delay_seconds": 1}
    shut = without_mongo_uri.wrapper("shut", start_urls=[f"{pages.url}/private/"], **start)
    slow = without_mongo_uri.wrapper(
        "slow", start_urls=[f"{pages.url}/a", "http://127.0.0.1:1/"], **start
    )
    given = ("--spider", shut, "--spider", slow)
    done = quick(without_mongo_uri, *given)
    assert problems_of(done) == []
    assert finding_of(done, "embedded server")["found"].startswith("not running")
    assert pages.requests() == []

    whole = without_mongo_uri("doctor", "--json", *given, **CONTACT)
    assert "), data in " in finding_of(whole, "embedded server")["found"]
    assert "standalone" in finding_of(whole, "mongodb")["found"]
    host = pages.url.removeprefix("http://")
    *answered, silent = [(finding["of"], finding["found"]) for finding in problems_of(whole)]
    assert answered == [
        ("shut", f"{host} returned 200 and disallows {pages.url}/private/"),
        (
            "slow",
            f"{host} returned 200 and asks for a delay of 90 s; crawls wait 30 s",
        ),
    ]
    assert silent[0] == "slow"
    assert silent[1].startswith("127.0.0.1:1 is unreachable: ")
    assert {request["path"] for request in pages.requests()} == {"/robots.txt"}
