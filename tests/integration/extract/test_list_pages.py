"""List pages: categories follow the lists, and delisted items are marked, not deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Databases
from tests.integration.harness import Db, Freshet, Pages, asked, outcomes, target, visits
from tests.integration.once import Left, left_by, put_into


@pytest.fixture(scope="module")
def served() -> Iterator[Pages]:
    with Pages() as pages:
        yield pages


def write(pages: Pages) -> None:
    """Write a start page, two lists whose names are categories, and items."""
    pages.list("index.html", ["/red/1.html", "/blue/1.html"])
    pages.list("red/1.html", ["/item-a.html", "/item-b.html"])
    pages.list("blue/1.html", ["/item-b.html"])
    for name in ("a", "b"):
        pages.item(f"item-{name}.html", f"Item {name}")


def wrapper(freshet: Freshet, pages: Pages) -> Path:
    return freshet.wrapper(
        "lists",
        start_urls=[f"{pages.url}/index.html"],
        list_pages=r"/(?P<category>red|blue)/\d\.html$",
        item_pages=r"/item-\w+\.html$",
        fields={"title": "h1"},
    )


@pytest.fixture(scope="module")
def left(served: Pages, databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Left:
    """Return the database contents after the first crawl."""
    write(served)
    return left_by(lambda site: site.crawl(wrapper(site, served)), databases, tmp_path_factory)


@pytest.fixture
def lists(freshet: Freshet, stored: tuple[Db, str], served: Pages, left: Left) -> Lists:
    """Return the site after the first crawl."""
    write(served)
    put_into(*stored, left)
    return Lists(freshet, stored[0], served, wrapper(freshet, served))


class Lists:
    """Run crawls of the site at intervals of seven hours: lists are due, items are not."""

    def __init__(self, freshet: Freshet, db: Db, pages: Pages, wrapper: Path) -> None:
        self.freshet, self.db, self.pages, self.wrapper = freshet, db, pages, wrapper
        self.hours = 0

    def crawl(self) -> str:
        """Run the next crawl and return its log."""
        self.hours += 7
        return self.freshet.crawl(self.wrapper, hours=self.hours).err

    def item(self, name: str) -> dict[str, object]:
        """Return the target of an item."""
        return target(self.db, f"{self.pages.url}/item-{name}.html")


def test_an_item_belongs_to_every_category_that_lists_it(lists: Lists) -> None:
    assert lists.item("a")["categories"] == ["red"]
    assert sorted(lists.item("b")["categories"]) == ["blue", "red"]


def test_delisted_item_is_marked_and_kept(lists: Lists) -> None:
    lists.pages.list("red/1.html", ["/item-b.html"])
    log = lists.crawl()
    assert lists.item("a")["unlisted_at"]
    assert lists.item("a")["gone"] is False, "the page was not requested"
    assert lists.db.posts.count_documents({}) == 2
    assert "1 unlisted" in log
    assert lists.item("b").get("unlisted_at") is None


def test_relisted_item_is_no_longer_marked(lists: Lists) -> None:
    lists.pages.list("red/1.html", ["/item-b.html"])
    lists.crawl()
    lists.pages.list("red/1.html", ["/item-a.html", "/item-b.html"])
    lists.crawl()
    assert lists.item("a")["unlisted_at"] is None
    assert lists.item("a")["categories"] == ["red"]
    assert lists.db.targets.count_documents({"kind": "item"}) == 2


def test_unlisted_item_is_still_visited(lists: Lists) -> None:
    lists.pages.list("red/1.html", ["/item-b.html"])
    lists.crawl()
    lists.pages.clear_log()
    lists.hours = 24
    lists.crawl()
    assert asked(lists.pages)["/item-a.html"] == 1


def test_delisted_item_loses_category_of_that_list(lists: Lists) -> None:
    lists.pages.list("blue/1.html", [])
    lists.crawl()
    assert lists.item("b")["categories"] == ["red"]
    assert lists.item("b").get("unlisted_at") is None


def test_an_item_that_moves_to_another_list_changes_its_category(lists: Lists) -> None:
    lists.pages.list("red/1.html", ["/item-b.html"])
    lists.pages.list("blue/1.html", ["/item-a.html", "/item-b.html"])
    lists.crawl()
    assert lists.item("a")["categories"] == ["blue"]
    assert lists.item("a").get("unlisted_at") is None


def test_categories_of_stored_post_are_updated(lists: Lists) -> None:
    lists.pages.list("blue/1.html", ["/item-a.html"])
    lists.crawl()
    categories = {post["title"]: sorted(post["categories"]) for post in lists.db.posts.find()}
    assert categories == {"Item a": ["blue", "red"], "Item b": ["red"]}


def test_item_moved_to_next_page_of_list_is_not_marked(lists: Lists) -> None:
    lists.pages.item("item-c.html", "Item c")
    lists.pages.list("red/1.html", ["/item-c.html", "/item-a.html", "/red/2.html"])
    lists.pages.list("red/2.html", ["/item-b.html"])
    log = lists.crawl()
    assert "0 unlisted" in log
    assert sorted(lists.item("b")["categories"]) == ["blue", "red"]


def test_new_item_is_fetched_in_the_same_run(lists: Lists) -> None:
    lists.pages.item("item-c.html", "Item c")
    lists.pages.list("red/1.html", ["/item-a.html", "/item-b.html", "/item-c.html"])
    lists.crawl()
    assert lists.item("c")["outcome"] == "new"
    (visit,) = visits(lists.db, target=f"{lists.pages.url}/red/1.html", changed=1)
    assert visit["diff_size"] > 0, "the links of a list changed"


def test_items_are_unlisted_once_their_list_is_confirmed_gone(lists: Lists) -> None:
    lists.pages.remove("red/1.html")
    lists.crawl()
    assert lists.item("a").get("unlisted_at") is None, "one 404 may be temporary"
    lists.crawl()
    lists.crawl()
    assert lists.item("a")["unlisted_at"]
    assert lists.item("b")["categories"] == ["blue"]


def test_unreadable_list_unlists_no_items(lists: Lists) -> None:
    lists.pages.file("red/1.html", "")
    lists.crawl()
    assert outcomes(lists.db)["error"] == 1
    assert lists.item("a").get("unlisted_at") is None
    assert lists.item("a")["categories"] == ["red"]


def test_a_category_can_come_from_the_page(freshet: Freshet, database: Db, pages: Pages) -> None:
    pages.list("index.html", ["/item-a.html"], category="Rainwear")
    pages.item("item-a.html", "A")
    wrapper = freshet.wrapper(
        "page",
        start_urls=[f"{pages.url}/index.html"],
        item_pages="/item-",
        category={"css": "h2"},
        fields={"title": "h1"},
    )
    freshet.crawl(wrapper)
    assert target(database, f"{pages.url}/item-a.html")["categories"] == ["Rainwear"]


def test_items_are_unlisted_only_after_all_due_lists_are_read(lists: Lists) -> None:
    lists.pages.list("red/1.html", ["/item-b.html"])
    lists.hours += 7
    log = lists.freshet.crawl(lists.wrapper, "-a", "limit=2", hours=lists.hours).err
    assert "0 unlisted" in log
    log = lists.freshet.crawl(lists.wrapper, hours=lists.hours).err
    assert "1 unlisted" in log
    assert lists.item("a")["unlisted_at"]
