"""People are told of what changes after the first crawl of a site, not of what was there."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.harness import Db, Freshet, Pages, outcomes, urls

ITEMS = [f"/item-{n}.html" for n in range(12)]
HOURS = 200


@pytest.fixture
def pages() -> Iterator[Pages]:
    with Pages() as site:
        for item in ITEMS:
            site.item(item, item)
        yield site


@pytest.fixture
def shop(freshet: Freshet, pages: Pages) -> Path:
    return freshet.wrapper("shop", start_urls=[f"{pages.url}/list.html"], item_pages="/item-")


def paths_of_news(database: Db) -> set[str]:
    return {url.rpartition("/")[2] for url in urls(database.visits.find({"news": True}), "target")}


def test_pages_of_the_first_crawl_are_no_news(
    freshet: Freshet, pages: Pages, database: Db, shop: Path
) -> None:
    pages.list("/list.html", ITEMS[:4])
    freshet.crawl(shop)
    assert outcomes(database, event=True) == {"new": 5}
    assert paths_of_news(database) == set()
    pages.list("/list.html", ITEMS[:6])
    pages.item(ITEMS[0], "other")
    pages.remove(ITEMS[1])
    freshet.crawl(shop, hours=HOURS)
    assert paths_of_news(database) == {
        "item-0.html", "item-1.html", "item-4.html", "item-5.html",
    }  # fmt: skip


def test_first_crawl_may_take_several_runs(
    freshet: Freshet, pages: Pages, database: Db, shop: Path
) -> None:
    pages.list("/list.html", ITEMS)
    freshet.crawl(shop, "-s", "CLOSESPIDER_PAGECOUNT=4")
    assert 0 < outcomes(database)["new"] < 13
    freshet.crawl(shop, hours=1)
    assert outcomes(database)["new"] == 13
    assert paths_of_news(database) == set()


def test_pages_that_stay_due_forever_do_not_hide_news_for_longer_than_a_week(
    freshet: Freshet, pages: Pages, database: Db, shop: Path
) -> None:
    pages.list("/list.html", ITEMS[:1])
    freshet.crawl(shop)
    database.runs.update_many({}, {"$set": {"counts.due": 5}})
    pages.list("/list.html", ITEMS[:2])
    freshet.crawl(shop, hours=100)
    assert paths_of_news(database) == set()
    database.runs.update_many({}, {"$set": {"counts.due": 5}})
    pages.list("/list.html", ITEMS[:3])
    freshet.crawl(shop, hours=300)
    assert paths_of_news(database) == {"item-2.html"}


def test_random_and_moved_links_are_no_change_of_a_list(
    freshet: Freshet, pages: Pages, database: Db, shop: Path
) -> None:
    rng = random.Random(1)

    def write(listed: list[str]) -> None:
        """Write two pages of a list, each with a box of random items."""
        for number, part in enumerate((listed[:4], listed[4:])):
            path = f"/list{number or ''}.html"
            more = ["/list1.html"] if number == 0 else []
            pages.list(path, [*part, *rng.sample(ITEMS[:8], 3), *more])

    shop = freshet.wrapper(
        "shop", start_urls=[f"{pages.url}/list.html"], list_pages="/list", item_pages="/item-"
    )
    write(ITEMS[:8])
    freshet.crawl(shop)
    for number in range(1, 4):
        write(ITEMS[:8])
        freshet.crawl(shop, hours=number * HOURS)
    assert outcomes(database, changed=1) == {}
    rows = database.visits.find({"reason": "no new link"})
    assert {"list.html", "list1.html"} == {row["target"].rpartition("/")[2] for row in rows}
    # A new item moves another to the second page.
    write([ITEMS[8], *ITEMS[:8]])
    freshet.crawl(shop, hours=5 * HOURS)
    changed = urls(database.visits.find({"changed": 1}), "target")
    assert changed == {f"{pages.url}/list.html"}
    assert paths_of_news(database) == {"item-8.html"}
    shown = database.listings.find({"list": f"{pages.url}/list1.html", "shown": True})
    assert f"{pages.url}{ITEMS[3]}" in urls(shown, "item"), "moved items are stored all the same"


def test_moved_items_change_a_list_that_is_usually_the_same(
    freshet: Freshet, pages: Pages, database: Db
) -> None:
    shop = freshet.wrapper(
        "shop", start_urls=[f"{pages.url}/list.html"], list_pages="/list", item_pages="/item-"
    )

    def write(listed: list[str]) -> None:
        pages.list("/list.html", [*listed[:4], "/list1.html"])
        pages.list("/list1.html", listed[4:])

    write(ITEMS[:8])
    for number in range(3):
        freshet.crawl(shop, hours=number * HOURS)
    write([ITEMS[8], *ITEMS[:8]])
    freshet.crawl(shop, hours=3 * HOURS)
    changed = urls(database.visits.find({"changed": 1}), "target")
    assert changed == {f"{pages.url}/list.html", f"{pages.url}/list1.html"}


def test_list_beyond_the_caps_changes_as_its_links_do(
    freshet: Freshet, pages: Pages, database: Db
) -> None:
    shop = freshet.wrapper(
        "shop", start_urls=[f"{pages.url}/list.html"], item_pages="/item-", max_pattern_items=3
    )
    pages.list("/list.html", ITEMS[:6])
    freshet.crawl(shop)
    pages.list("/list.html", ITEMS[1:7])
    freshet.crawl(shop, hours=HOURS)
    assert outcomes(database, changed=1) == {"changed": 1}
