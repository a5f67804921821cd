"""Size limits of versions per target and per site: the oldest versions are deleted first."""

from __future__ import annotations

import json
import random
import string
from pathlib import Path

import bson
import pytest

from tests.integration.feeds.test_feed_crawl import crawl, post, rss, subscribe
from tests.integration.harness import Db, Freshet, Pages, Row, target, visits

pytestmark = pytest.mark.soak
MEGABYTE = 1024**2
CHARACTERS = 300_000


def text(seed: int, characters: int = CHARACTERS) -> str:
    return "".join(random.Random(seed).choices(string.ascii_letters, k=characters))


def shop(freshet: Freshet, pages: Pages, items: int) -> Path:
    pages.list("/list.html", [f"/item-{i}.html" for i in range(items)])
    return freshet.wrapper(
        "shop",
        start_urls=[f"{pages.url}/list.html"],
        item_pages=r"/item-\d+\.html$",
        fields={"title": "h1"},
        robots=False,
    )


def sizes(db: Db, **query: object) -> dict[str, int]:
    """Return the sizes of versions in bytes by `_id`, oldest first."""
    rows: list[Row] = list(db.versions.find(query).sort("at"))
    return {row["_id"]: len(bson.encode(row["content"])) for row in rows}


def change(pages: Pages, items: int, seed: int) -> None:
    for i in range(items):
        pages.item(f"/item-{i}.html", text(1000 * seed + i))


def check_current_contents_are_stored(db: Db) -> None:
    stored = set(sizes(db))
    for row in db.targets.find({"content_hash": {"$ne": None}, "kind": {"$ne": "feed"}}):
        assert f"{row['_id']} {row['content_hash']}" in stored
    for row in db.posts.find():
        assert f"{row['_id']} {row['content_hash']}" in stored


def test_versions_of_a_changing_page_are_bounded(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    wrapper, url = shop(freshet, pages, 1), f"{pages.url}/item-0.html"
    hashes: list[str] = []
    for run in range(8):
        change(pages, 1, run)
        freshet.crawl(wrapper, "-a", "full=1", hours=run, FRESHET_MAX_TARGET_MB=1)
        kept, found = sizes(database, target=url), target(database, url)
        assert sum(kept.values()) <= MEGABYTE
        assert found["kept_bytes"] == sum(kept.values())
        hashes.append(found["content_hash"])
        newest = [f"shop {url} {one}" for one in hashes[-len(kept) :]]
        assert list(kept) == newest, "newer versions were deleted"
        check_current_contents_are_stored(database)
    assert len(kept) > 1
    assert len(visits(database, target=url)) == 8, "visits are missing in the log"
    result = freshet("history", url, "--diff", hours=9)
    assert result.code == 0, result.err
    counts = json.loads(freshet("targets", "--json").out)
    assert counts["kept_bytes"] == sum(sizes(database).values())
    assert f"{counts['kept_bytes'] / MEGABYTE:.1f} MB of versions" in freshet("targets").out


def test_recurring_content_is_kept_while_current(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    wrapper, url = shop(freshet, pages, 1), f"{pages.url}/item-0.html"
    for run, seed in enumerate((1, 2, 3, 1, 4, 1, 5, 1)):
        change(pages, 1, seed)
        freshet.crawl(wrapper, "-a", "full=1", hours=run, FRESHET_MAX_TARGET_MB=1)
        assert sum(sizes(database, target=url).values()) <= MEGABYTE
        check_current_contents_are_stored(database)


def test_posts_of_a_feed_share_the_limit(
    freshet: Freshet, stored: tuple[Db, str], pages: Pages
) -> None:
    db, uri = stored
    url = f"{pages.url}/feed.xml"
    for run in range(8):
        pages.file("/feed.xml", rss(post("same"), post("edited", text(run))))
        if not run:
            subscribe(db, uri, url)
        crawl(freshet, "-a", "full=1", hours=run * 30, FRESHET_MAX_TARGET_MB=1)
        kept = sum(sizes(db).values())
        assert kept <= target(db, url)["kept_bytes"] <= MEGABYTE
        check_current_contents_are_stored(db)
    assert db.versions.count_documents({}) > 2
    assert len(visits(db)) == 8


def test_site_limit_deletes_the_oldest_versions(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    wrapper = shop(freshet, pages, 3)
    for run in range(5):
        change(pages, 3, run)
        freshet.crawl(wrapper, "-a", "full=1", hours=run, FRESHET_MAX_SITE_MB=2)
        kept = sizes(database)
        assert sum(kept.values()) <= 2 * MEGABYTE
        check_current_contents_are_stored(database)
        (site,) = database.sites.find()
        assert site["kept_bytes"] >= sum(kept.values())
        for one in database.targets.find():
            assert one["kept_bytes"] >= sum(sizes(database, target=one["url"]).values())
    assert len(kept) > 4
    assert len(visits(database)) == 5 * 4
    findings = json.loads(freshet("doctor", "--json", FRESHET_MAX_SITE_MB=2).out)["findings"]
    (message,) = [row["found"] for row in findings if row["check"] == "versions"]
    assert message == f"{site['kept_bytes'] / MEGABYTE:.1f} MB stored, limit 2.0 MB"


def test_current_contents_are_kept_over_the_limit(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    wrapper = shop(freshet, pages, 5)
    for run in range(2):
        change(pages, 5, run)
        words = ("-a", "full=1")
        limits = {"FRESHET_MAX_SITE_MB": 1, "FRESHET_COMMIT_SIZE": 1}
        result = freshet.crawl(wrapper, *words, hours=run, **limits)
        check_current_contents_are_stored(database)
        assert database.posts.count_documents({}) == 5
    assert "the current contents take 1 MB, more than FRESHET_MAX_SITE_MB (1)" in result.err
    assert result.err.count("the current contents take") <= 3, "logged for each batch"


def test_prune_applies_the_limits_and_recounts(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    wrapper = shop(freshet, pages, 2)
    for run in range(6):
        change(pages, 2, run)
        freshet.crawl(wrapper, "-a", "full=1", hours=run)
    before = sizes(database)
    limits = {"FRESHET_MAX_TARGET_MB": 1, "FRESHET_MAX_SITE_MB": 1.5}
    database.sites.update_one({}, {"$set": {"kept_bytes": 5}})
    # Each of the three limits deletes versions that the others would delete, too.
    words = ("prune", "--keep-versions", 5, "--json")
    dry = json.loads(freshet(*words, "--dry-run", **limits).out)
    assert sizes(database) == before

    done = json.loads(freshet(*words, **limits).out)
    kept = sizes(database)
    assert done["spiders"]["shop"]["versions"] == len(before) - len(kept)
    assert dry["spiders"] == done["spiders"]
    assert sum(kept.values()) <= 1.5 * MEGABYTE
    assert [row["kept_bytes"] for row in database.sites.find()] == [sum(kept.values())]
    check_current_contents_are_stored(database)

    freshet("prune", "--keep-versions", 1)
    check_current_contents_are_stored(database)
    for one in database.targets.find():
        assert one["kept_bytes"] == sum(sizes(database, target=one["url"]).values())
