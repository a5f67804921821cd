"""`scrapy reread` gives new fields a history back to the first archived visit."""

from __future__ import annotations

from pathlib import Path

import pytest
from bson import Binary

from crawler.storage.client import Database
from crawler.storage.rereads import Writes, recover
from tests.integration.archived_shop import Shop, definition, warcs
from tests.integration.harness import Db, Freshet, Row, target, visits
from tests.integration.inside import in_json, run
from tests.integration.known_pages import on

pytestmark = pytest.mark.soak

PRICE = {"title": "h1", "price": {"css": "p.price", "type": "number"}}
LENGTH = {"length": {"css": "p.price", "type": "number"}}


def crawl_days(freshet: Freshet, wrapper: Path, *titles: str) -> None:
    """Crawl once a day, with the next title of the item each time."""
    for day, title in enumerate(titles):
        Shop.titles["/item/a"] = title
        freshet.crawl(wrapper, hours=25 * day)


def prices(db: Db, url: str) -> list[object]:
    rows = db.versions.find({"target": url}).sort("at")
    return [row["content"].get("price") for row in rows]


def crawl_changing_item(freshet: Freshet, db: Db, shop: str) -> str:
    """Crawl an item whose title changes; the price, the length of the title, changes less often."""
    crawl_days(freshet, definition(freshet, shop), "Tea", "Tea", "Cup", "Plate", "Plate")
    assert [row["outcome"] for row in visits(db, target=f"{shop}/item/a")] == [
        "new", "not_modified", "changed", "changed", "not_modified",
    ]  # fmt: skip
    return f"{shop}/item/a"


def test_new_field_gets_history_from_archive(freshet: Freshet, database: Db, shop: str) -> None:
    url = crawl_changing_item(freshet, database, shop)
    definition(freshet, shop, fields=PRICE)
    requests = len(Shop.asked)
    report = in_json(freshet, "reread", "shop", hours=120)
    assert len(Shop.asked) == requests
    assert (report["pages"], report["responses"], report["restated"]) == (1, 3, 1)
    assert prices(database, url) == [3, 3, 5]
    rows = visits(database, target=url)
    assert [row["outcome"] for row in rows].count("changed") == 2
    assert not any(row.get("reread") for row in rows)
    stored = target(database, url)
    assert stored["content_hash"] == rows[-1]["content_hash"]
    post = database.posts.find_one({"url": url})
    assert post is not None
    assert (post["fields"], post["content_hash"]) == (
        {"title": "Plate", "price": 5}, stored["content_hash"],
    )  # fmt: skip
    again = in_json(freshet, "reread", "shop", hours=120)
    assert (again["restated"], prices(database, url)) == (0, [3, 3, 5])


def test_changes_of_the_new_field_are_marked(freshet: Freshet, database: Db, shop: str) -> None:
    crawl_days(freshet, definition(freshet, shop, fields=LENGTH), "Tea", "Cup", "Plate")
    url = f"{shop}/item/a"
    assert [row["outcome"] for row in visits(database, target=url)] == [
        "new", "unchanged", "changed",
    ]  # fmt: skip
    definition(freshet, shop, fields=LENGTH | {"title": "h1"})
    report = in_json(freshet, "reread", "shop", hours=100)
    assert (report["changes_added"], report["changes_removed"]) == (1, 0)
    first, second, third = visits(database, target=url)
    assert (second["outcome"], second["changed"], second["reread"]) == ("changed", 1, True)
    assert second["event"] is True
    assert second["diff_size"] > 0
    assert "reread" not in first
    assert "reread" not in third
    assert len(target(database, url)["history"]["changes"]) == 2 * 12
    definition(freshet, shop, fields=LENGTH)
    report = in_json(freshet, "reread", "shop", hours=100)
    assert (report["changes_added"], report["changes_removed"]) == (0, 1)
    second = visits(database, target=url)[1]
    assert (second["outcome"], second["changed"], second["reread"]) == ("unchanged", 0, True)
    assert len(target(database, url)["history"]["changes"]) == 12
    assert database.versions.count_documents({"target": url}) == 2


def test_next_run_continues_restated_history(freshet: Freshet, database: Db, shop: str) -> None:
    url = crawl_changing_item(freshet, database, shop)
    wrapper = definition(freshet, shop, fields=PRICE)
    assert run(freshet, "reread", "shop", hours=120).code == 0
    Shop.titles["/item/a"] = "Saucer"
    freshet.crawl(wrapper, hours=150)
    assert visits(database, target=url)[-1]["outcome"] == "changed"
    assert prices(database, url) == [3, 3, 5, 6]
    done = run(freshet, "doctor", "--quick", "--deep", hours=151)
    assert "violated" not in done.out


def test_reread_skips_earlier_and_unarchived_visits(
    freshet: Freshet, database: Db, shop: str
) -> None:
    crawl_days(freshet, definition(freshet, shop, archive=False), "Tea")
    wrapper = definition(freshet, shop)
    for day, title in ((1, "Cup"), (2, "Plate"), (3, "Saucer")):
        Shop.titles["/item/a"] = title
        freshet.crawl(wrapper, hours=25 * day)
    url = f"{shop}/item/a"
    before = visits(database, target=url)
    since = before[2]["at"].strftime("%Y-%m-%dT%H:%M:%S")
    definition(freshet, shop, fields=PRICE)
    assert run(freshet, "reread", "shop", "--since", since, hours=120).code == 0
    assert visits(database, target=url)[:2] == before[:2]
    assert prices(database, url) == [None, None, 5, 6]
    assert run(freshet, "reread", "shop", hours=120).code == 0
    assert visits(database, target=url)[0] == before[0]
    assert prices(database, url) == [None, 3, 5, 6]


def test_reread_reports_why_nothing_changed(freshet: Freshet, database: Db, shop: str) -> None:
    Shop.titles["/item/a"] = "Tea"
    wrapper = definition(freshet, shop, archive=False)
    freshet.crawl(wrapper)
    done = run(freshet, "reread", "shop", hours=1)
    assert done.code == 1
    assert "has no archive" in done.complaint
    wrapper = definition(freshet, shop)
    freshet.crawl(wrapper, hours=25)
    done = run(freshet, "reread", "shop", hours=26)
    assert (done.code, "nothing changed" in done.out) == (0, True)
    for file in warcs(freshet):
        file.path.write_bytes(b"not a record" * 1000)
    definition(freshet, shop, fields=PRICE)
    done = run(freshet, "reread", "shop", hours=26)
    assert done.code == 1
    assert "no history rewritten" in done.out
    assert "1 response could not be read" in done.out
    assert "no response in the archive" in done.out
    assert prices(database, f"{shop}/item/a") == [None]


def parts(key: str, title: str, stored: int) -> list[Row]:
    """Return the first `stored` of the two log entries that a reread of a target writes."""
    writes = Writes(key)
    writes.updates["posts"].append(({"_id": key}, {"$set": {"title": title}}))
    encoded = writes.encoded()
    return [
        {
            "_id": f"{key} {number}", "spider": "shop", "target": key, "part": number, "parts": 2,
            "writes": [Binary(encoded[number - 1])],
        }
        for number in range(1, stored + 1)
    ]  # fmt: skip


def test_an_interrupted_reread_leaves_old_or_new_pages(
    freshet: Freshet, stored: tuple[Db, str], shop: str
) -> None:
    db, uri = stored
    Shop.titles |= {"/item/a": "Tea", "/item/b": "Cup"}
    wrapper = definition(freshet, shop, fields={"title": "h1"})
    freshet.crawl(wrapper)
    keys = [f"shop {shop}/item/{name}" for name in "ab"]

    async def recovered(opened: Database) -> int:
        return await recover(opened, "shop")

    db.rereads.insert_many([*parts(keys[0], "New A", 2), *parts(keys[1], "New B", 1)])
    assert on(uri, recovered) == 1
    titles = {row["_id"]: row["title"] for row in db.posts.find()}
    assert titles == {keys[0]: "New A", keys[1]: "Cup"}
    assert db.rereads.count_documents({}) == 0
    # The next run recovers interrupted rereads before it starts.
    db.rereads.insert_many(parts(keys[1], "New B", 2))
    freshet.crawl(wrapper, hours=1)
    titles = {row["_id"]: row["title"] for row in db.posts.find()}
    assert titles == {keys[0]: "New A", keys[1]: "New B"}
