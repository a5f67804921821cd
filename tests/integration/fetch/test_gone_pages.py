"""Pages with status 404 or 410 are gone after confirmation, and restored when they return."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Databases
from tests.integration.harness import Db, Freshet, Pages, asked, target, visits
from tests.integration.once import Left, left_by, put_into
from tests.site.running import RunningSite

DAY = 25  # hours; longer than a day so that items are due again


@pytest.fixture(scope="module")
def served() -> Iterator[Pages]:
    with Pages() as pages:
        yield pages


def write(pages: Pages) -> None:
    pages.list("list.html", ["item-a.html", "item-b.html"])
    pages.item("item-a.html", "A")
    pages.item("item-b.html", "B")


@pytest.fixture
def pages(served: Pages) -> Pages:
    """Return the site with both items."""
    write(served)
    return served


@pytest.fixture(scope="module")
def left(served: Pages, databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Left:
    """Return the database contents after a first crawl."""
    write(served)
    return left_by(lambda shop: shop.crawl(definition(shop, served)), databases, tmp_path_factory)


@pytest.fixture
def wrapper(freshet: Freshet, pages: Pages) -> Path:
    return definition(freshet, pages)


@pytest.fixture
def crawled(left: Left, stored: tuple[Db, str]) -> Db:
    """Return the test's database, with the contents after a first crawl."""
    put_into(*stored, left)
    return stored[0]


def definition(freshet: Freshet, pages: Pages) -> Path:
    return freshet.wrapper(
        "gone",
        start_urls=[f"{pages.url}/list.html"],
        item_pages="/item-",
        fields={"title": "h1"},
    )


def test_page_is_gone_after_configured_confirmations(
    freshet: Freshet, crawled: Db, pages: Pages, wrapper: Path
) -> None:
    url = f"{pages.url}/item-a.html"
    pages.remove("item-a.html")

    freshet.crawl(wrapper, hours=DAY, FRESHET_GONE_CONFIRMATIONS=2)
    first = target(crawled, url)
    assert (first["gone"], first["consecutive_gone"]) == (False, 1)
    assert (first["next_visit"] - first["visited_at"]).total_seconds() == 24 * 3600

    freshet.crawl(wrapper, hours=2 * DAY, FRESHET_GONE_CONFIRMATIONS=2)
    second = target(crawled, url)
    assert (second["gone"], second["consecutive_gone"]) == (True, 2)
    assert (second["next_visit"] - second["visited_at"]).days == 28, "visited rarely from now on"

    rows = visits(crawled, target=url)
    assert [(v["outcome"], v["status"], v.get("reason")) for v in rows] == [
        ("new", 200, None),
        ("gone", 404, "1 of 2 confirmations"),
        ("gone", 404, None),
    ]
    assert crawled.versions.count_documents({"target": url}) == 1, "its content is kept"


def test_restored_page_with_same_content_is_unchanged(
    freshet: Freshet, crawled: Db, pages: Pages, wrapper: Path
) -> None:
    url = f"{pages.url}/item-a.html"
    pages.remove("item-a.html")
    freshet.crawl(wrapper, hours=DAY, FRESHET_GONE_CONFIRMATIONS=1)
    assert target(crawled, url)["gone"] is True
    pages.item("item-a.html", "A")
    freshet.crawl(wrapper, hours=DAY + 24 * 28 + 1)
    back = target(crawled, url)
    assert (back["gone"], back["consecutive_gone"]) == (False, 0)
    assert visits(crawled, target=url)[-1]["outcome"] in ("unchanged", "not_modified")
    assert crawled.versions.count_documents({"target": url}) == 1


def test_restored_page_with_new_content_is_changed(
    freshet: Freshet, crawled: Db, pages: Pages, wrapper: Path
) -> None:
    url = f"{pages.url}/item-a.html"
    pages.remove("item-a.html")
    freshet.crawl(wrapper, hours=DAY)
    pages.item("item-a.html", "A, mended")
    freshet.crawl(wrapper, hours=2 * DAY)
    assert [v["outcome"] for v in visits(crawled, target=url)] == ["new", "gone", "changed"]
    assert target(crawled, url)["gone"] is False
    assert crawled.posts.find_one({"url": url}, {"title": 1, "_id": 0}) == {"title": "A, mended"}


def test_relisted_item_is_visited_immediately(
    freshet: Freshet, crawled: Db, pages: Pages, wrapper: Path
) -> None:
    pages.remove("item-a.html")
    pages.list("list.html", ["item-b.html"])
    freshet.crawl(wrapper, hours=DAY, FRESHET_GONE_CONFIRMATIONS=1)
    pages.item("item-a.html", "A")
    pages.list("list.html", ["item-a.html", "item-b.html"])
    freshet.crawl(wrapper, hours=DAY + 7)
    back = target(crawled, f"{pages.url}/item-a.html")
    assert (back["gone"], back["unlisted_at"]) == (False, None)


def test_dead_link_is_not_an_item(
    freshet: Freshet, database: Db, pages: Pages, wrapper: Path
) -> None:
    pages.remove("item-a.html")
    result = freshet.crawl(wrapper)
    assert database.posts.count_documents({}) == 1
    assert visits(database, outcome="gone")[0]["status"] == 404
    assert "3 visited: 2 new" in result.err
    assert "'freshet/targets': 2," in result.err, "a dead link is not a target"


def test_404_is_not_retried_in_the_same_run(
    freshet: Freshet, database: Db, site: RunningSite
) -> None:
    wrapper = freshet.wrapper(
        "edge", start_urls=[f"{site.url}/edge/"], item_pages="/gone-after$", fields={"title": "h1"}
    )
    freshet.crawl(wrapper)
    site.edit("/edge/item/gone-after")
    site.clear_log()
    freshet.crawl(wrapper, hours=DAY)
    assert asked(site)["/edge/item/gone-after"] == 1, "a 404 is not retried"
    assert visits(database)[-1]["outcome"] == "gone" or visits(database)[-2]["outcome"] == "gone"
