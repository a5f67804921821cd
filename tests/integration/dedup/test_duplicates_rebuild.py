"""`scrapy duplicates rebuild`: compare all posts from scratch, independent of stored results."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from crawler.config import Config
from crawler.errors import StorageError
from crawler.storage.client import Database
from crawler.storage.dedup import index
from crawler.storage.store import opened
from tests.integration.claiming import HOUR, NOW, edited, text
from tests.integration.harness import Db, Freshet, Pages, Result, Row
from tests.integration.holding import holding
from tests.integration.inside import in_json, run

pytestmark = pytest.mark.soak

DUPLICATES = "characters"

DAY = timedelta(days=1)
PATIENCE_SECONDS = 40.0
NO_TEXT: Row = {"title": None, "text": None}


def rebuild(freshet: Freshet, *args: object, **env: object) -> Result:
    return run(freshet, "duplicates", "rebuild", *args, **env)


def post(name: str, words: str, **more: Any) -> Row:
    """Return a post as stored by a crawl with duplicates off."""
    return {
        "_id": f"shop https://shop.example/{name}", "spider": "shop",
        "url": f"https://shop.example/{name}", "title": "T", "text": words, "fields": {},
        "first_seen": NOW, "changed_at": NOW, "content_hash": "x", "original": True,
    } | more  # fmt: skip


@pytest.fixture
def posts(freshet: Freshet, database: Db) -> Db:
    """Store forty posts: ten originals with three copies each."""
    assert run(freshet, "duplicates").code == 0
    put(database, (post(f"{n}-{c}", edited(text(n), c), published=NOW - n * DAY + c * HOUR)
                   for n in range(10) for c in range(4)))  # fmt: skip
    return database


def put(db: Db, rows: Iterable[Row]) -> None:
    db.posts.insert_many(list(rows))


def groups(db: Db) -> dict[str, set[str]]:
    """Return the copies of each original from the posts, by the last part of their URLs."""
    copies: dict[str, set[str]] = {}
    for row in db.posts.find({"duplicate_of": {"$exists": True}}):
        assert not row["original"]
        assert 0.6 < row["similarity"] <= 1
        copies.setdefault(row["duplicate_of"].rpartition("/")[2], set()).add(
            row["_id"].rpartition("/")[2]
        )
    return copies


TEN = {f"{n}-0": {f"{n}-{c}" for c in (1, 2, 3)} for n in range(10)}


def test_existing_posts_are_compared(freshet: Freshet, posts: Db) -> None:
    put(posts, [post("empty", "", **NO_TEXT), post("empty too", "", **NO_TEXT)])
    done = in_json(freshet, "duplicates", "rebuild")
    assert done.pop("seconds") > 0
    assert done == {
        "scheme": "characters-3", "posts": 42, "compared": 40, "clusters": 10, "copies": 30
    }  # fmt: skip
    assert groups(posts) == TEN
    assert posts.posts.count_documents({"original": True}) == 12
    assert posts.clusters.count_documents({"unsettled": True}) == 0
    assert not any(row.get("changes") for row in posts.clusters.find()), "in order of creation"
    assert posts.meta.find_one({"_id": "duplicates"}) == {
        "_id": "duplicates", "scheme": "characters-3",
    }  # fmt: skip


def test_output_as_text(freshet: Freshet, posts: Db) -> None:
    put(posts, [post("empty", "", **NO_TEXT)])
    done = rebuild(freshet)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(
        "41 posts compared by characters-3, 1 without text: 30 copies in 10 clusters ("
    )


def test_rebuild_restores_lost_results(freshet: Freshet, posts: Db) -> None:
    rebuild(freshet)
    posts.posts.update_many({}, {"$set": {"original": True}, "$unset": {"duplicate_of": ""}})
    some = posts.posts.find_one({"url": {"$regex": "3-0"}})
    assert some is not None
    posts.posts.update_one(
        {"_id": some["_id"]}, {"$set": {"original": False, "duplicate_of": "gone", "similarity": 1}}
    )
    posts.clusters.delete_many({})
    posts.signatures.delete_many({"post": {"$regex": "-[02]$"}})
    for _ in range(2):
        assert rebuild(freshet).code == 0
        assert groups(posts) == TEN
        assert posts.signatures.count_documents({}) == 40
        assert posts.clusters.count_documents({}) == 10


def test_dates_decide_the_original(freshet: Freshet, posts: Db) -> None:
    words = text(99)
    put(posts, [
        post("seen", words, first_seen=NOW - HOUR),
        post("stated", words, published=NOW - 2 * HOUR),
        post("field", words, fields={"published": NOW - 3 * HOUR}),
        post("wrong", words, published=NOW - 36_500 * DAY),
        post("page", words, page={"at": NOW, "fields": {"published": NOW - 2.5 * HOUR}}),
    ])  # fmt: skip
    rebuild(freshet)
    assert groups(posts)["field"] == {"seen", "stated", "wrong", "page"}


def test_fields_and_pages_are_compared_as_in_crawls(freshet: Freshet, posts: Db) -> None:
    plot = text(77)
    record = {"title": None, "text": None}
    put(posts, [
        post("plot 1", text(1), fields={"plot": plot}, compare=["plot"]),
        post("plot 2", text(2), fields={"plot": plot}, compare=["plot"], first_seen=NOW + HOUR),
        post("never", text(3), compare=[]),
        post("record 1", "", fields={"name": "It", "price": 3}, **record),
        post("record 2", "", fields={"name": "It", "price": 4}, **record),
        post("page 1", plot, page={"at": NOW + DAY, "fields": {"title": "X"}}, title="A " * 200),
        post("page 2", plot, page={"at": NOW + DAY, "fields": {"title": "Y"}}, title="B " * 200,
             first_seen=NOW + 2 * HOUR),
    ])  # fmt: skip
    rebuild(freshet)
    copies = groups(posts)
    # The page's title counts, not the feed's; the plots named by the site definition are equal.
    assert {name: copies[name] for name in copies.keys() - TEN.keys()} == {
        "page 1": {"plot 1", "plot 2", "page 2"}
    }
    assert posts.posts.find_one({"url": {"$regex": "never"}}, {"original": 1, "_id": 0}) == {
        "original": True
    }


def test_post_deleted_during_rebuild_is_in_no_cluster(posts: Db, freshet: Freshet) -> None:
    gone, stays = post("gone", text(55)), post("stays", text(55), first_seen=NOW + HOUR)
    put(posts, [stays])

    async def compared() -> None:
        config = Config.load(mongo_uri=freshet.env["MONGO_URI"])
        async with opened(config) as db, index.as_stored(db, config) as registry:
            assert await index.compare_again(db, registry, [gone, stays], NOW) == 2
            await index.end_rebuild(db, registry, NOW)

    asyncio.run(compared())
    found = posts.posts.find_one({"_id": stays["_id"]})
    assert found is not None
    assert (found["original"], found.get("duplicate_of")) == (True, None)
    assert posts.signatures.distinct("post") == [stays["_id"]]


async def open_as_a_crawl(freshet: Freshet, **more: Any) -> str:
    """Open the index like a crawl; return the error message, or "" on success."""

    async def there(db: Database, config: Config) -> None:
        async with index.opened(db, config):
            pass

    config = Config.load(mongo_uri=freshet.env["MONGO_URI"], **more)
    try:
        async with opened(config) as db:
            await there(db, config)
    except StorageError as error:
        return str(error)
    return ""


def refusal(freshet: Freshet, **more: Any) -> str:
    return asyncio.run(open_as_a_crawl(freshet, **more))


def test_crawls_reject_new_scheme_until_rebuild(freshet: Freshet, posts: Db, pages: Pages) -> None:
    rebuild(freshet)
    assert refusal(freshet) == ""
    assert refusal(freshet, duplicates="words") == (
        "the index of near-duplicates has scheme characters-3, but the settings require words-3: "
        "run scrapy duplicates rebuild to compare all posts again"
    )
    done = in_json(freshet, "duplicates", "rebuild", "-s", "FRESHET_DUPLICATES=words")
    assert (done["scheme"], done["clusters"]) == ("words-3", 10)
    assert set(posts.signatures.distinct("signature_scheme")) == {"words-3"}
    assert refusal(freshet, duplicates="words") == ""
    assert "has scheme words-3" in refusal(freshet)
    pages.item("/item.html", "An item")
    wrapper = freshet.wrapper("other", start_urls=[f"{pages.url}/item.html"], item_pages="item")
    crawl = freshet("crawl", "site", "-a", f"wrapper={wrapper}")
    assert crawl.code == 1
    assert "has scheme words-3" in crawl.err


def test_off_makes_all_posts_originals(freshet: Freshet, posts: Db) -> None:
    rebuild(freshet)
    done = rebuild(freshet, FRESHET_DUPLICATES="off")
    assert done.out == "near-duplicate detection is off; 40 posts marked as originals\n"
    assert posts.posts.count_documents({"original": True}) == 40
    assert groups(posts) == {}
    assert posts.posts.find_one({"cluster": {"$exists": True}}) is None
    assert posts.signatures.find_one() is posts.clusters.find_one() is None
    assert refusal(freshet, duplicates="words") == ""


def wait_for(db: Db, collection: str, query: Row) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while db[collection].find_one(query) is None:
        assert time.monotonic() < deadline, f"no {query} in {collection}"
        time.sleep(0.01)


def test_crawls_are_rejected_after_crash_until_next_rebuild(freshet: Freshet, posts: Db) -> None:
    put(posts, (post(f"more {n}", text(n + 100)) for n in range(3000)))
    process = freshet.start("duplicates", "rebuild")
    wait_for(posts, "signatures", {})
    process.kill()
    process.communicate()
    assert refusal(freshet) == (
        "a rebuild of near-duplicates is in progress or was interrupted: "
        "run scrapy duplicates rebuild to compare all posts again"
    )
    assert in_json(freshet, "duplicates")["rebuilding"]
    assert "a rebuild is running or was interrupted" in run(freshet, "duplicates").out
    assert rebuild(freshet).code == 0
    assert groups(posts) == TEN
    assert refusal(freshet) == ""


def test_ctrl_c_prints_next_step(freshet: Freshet, posts: Db) -> None:
    put(posts, (post(f"more {n}", text(n + 100)) for n in range(3000)))
    process = freshet.start("duplicates", "rebuild")
    wait_for(posts, "signatures", {})
    process.terminate()
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out, err) == (
        130, "", "scrapy duplicates: interrupted; crawls cannot run until scrapy duplicates "
        "rebuild has finished\n",
    )  # fmt: skip
    assert refusal(freshet)


@pytest.mark.parametrize(
    ("lease", "message"),
    [
        ("crawl shop", "a crawl of shop is running on far (process 7) since "),
        (
            "duplicates rebuild",
            "another scrapy duplicates rebuild is running on far (process 7) since ",
        ),
    ],
)
def test_rebuild_is_rejected_during_crawl_or_rebuild(
    freshet: Freshet, posts: Db, lease: str, message: str
) -> None:
    rebuild(freshet)
    before = posts.meta.find_one({"_id": "duplicates"})
    with holding(freshet.env["MONGO_URI"], lease, elsewhere=True):
        refused = rebuild(freshet)
    assert refused.code == 1
    assert refused.complaint.startswith(f"scrapy duplicates: {message}")
    assert posts.meta.find_one({"_id": "duplicates"}) == before
    assert rebuild(freshet).code == 0


def sketches(db: Db) -> dict[str, tuple[bytes, Any]]:
    return {row["post"]: (row["sketch"], row["created"]) for row in db.signatures.find()}


PLOT, NAME = {"css": "p"}, {"css": "h1"}


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"fields": {"title": NAME, "plot": PLOT, "published": {"css": "time", "type": "date"}}},
        {"fields": {"plot": PLOT, "name": NAME}, "duplicates": ["plot"]},
        {"fields": {"name": NAME, "hint": {"css": "i"}}},
    ],
    ids=["main text", "fields", "named fields", "records"],
)
def test_rebuild_compares_posts_as_the_crawl_did(
    freshet: Freshet, database: Db, pages: Pages, keys: Row
) -> None:
    words = text(1)
    # Shorter records are not compared.
    hint = "a kettle of polished copper with an oak handle that holds two liters"
    for name, shown in (("a", words), ("b", edited(words, 3)), ("c", text(2))):
        body = f"<h1>{name}</h1><i>Of {name}: {hint}</i><time>2026-03-02</time><p>{shown}</p>"
        pages.file(f"{name}.html", f"<html><body><main>{body}</main></body></html>")
    pages.list("list", [f"{name}.html" for name in "abc"])
    start, urls = f"{pages.url}/list", [f"{pages.url}/{name}.html" for name in "abc"]
    freshet.crawl(freshet.wrapper("shop", start_urls=[start], item_pages=r"\.html$", **keys))
    before, shown_before = sketches(database), groups(database)
    assert len(before) == 3
    assert rebuild(freshet).code == 0
    assert sketches(database) == before
    assert groups(database) == shown_before
    explained = in_json(freshet, "duplicates", "explain", urls[0], urls[1])
    assert not explained["a"]["changed_since"]
    assert explained["duplicates"] == bool(shown_before)
