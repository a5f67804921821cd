"""Conditional requests are sent only if a "not modified" response would be correct."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Databases
from tests.integration.harness import Db, Freshet, Pages, outcomes, visits
from tests.integration.once import Left, left_by, put_into

TITLE = {"title": "h1"}
TITLE_AND_TEXT = {"title": "h1", "text": "p.text"}


@pytest.fixture(scope="module")
def served() -> Iterator[Pages]:
    with Pages() as pages:
        yield pages


def write(pages: Pages) -> None:
    """Write a list and an item."""
    pages.list("list.html", ["item-a.html"])
    pages.file("item-a.html", '<h1>A</h1><p class="text">Text of A</p>')


@pytest.fixture(scope="module")
def left(served: Pages, databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Left:
    """Return the database contents after a crawl of the titles."""
    write(served)
    return left_by(lambda shop: shop.crawl(wrapper(shop, served)), databases, tmp_path_factory)


@pytest.fixture
def pages_once(served: Pages, left: Left, stored: tuple[Db, str]) -> Pages:
    """Return a site that was crawled once for its titles."""
    write(served)
    put_into(*stored, left)
    served.clear_log()
    return served


def wrapper(freshet: Freshet, pages: Pages, **keys: object) -> Path:
    given: dict[str, object] = {
        "start_urls": [f"{pages.url}/list.html"],
        "item_pages": "/item-",
        "fields": TITLE,
    }
    return freshet.wrapper("pages", **given | keys)


def conditional(pages: Pages) -> set[str]:
    """Return the paths that were requested with validators."""
    return {request["path"] for request in pages.requests() if request["conditional"]}


def test_a_first_request_has_no_validators(freshet: Freshet, pages: Pages) -> None:
    pages.list("list.html", ["item-a.html"])
    pages.item("item-a.html", "A")
    freshet.crawl(wrapper(freshet, pages))
    assert not conditional(pages)


def test_later_requests_have_validators_of_previous_visit(
    freshet: Freshet, database: Db, pages_once: Pages
) -> None:
    pages_once.item("item-a.html", "A2")
    freshet.crawl(wrapper(freshet, pages_once), "-a", "full=1")
    freshet.crawl(wrapper(freshet, pages_once), "-a", "full=1", hours=1)
    assert conditional(pages_once) == {"/list.html", "/item-a.html"}
    item = visits(database, target=f"{pages_once.url}/item-a.html")
    assert [visit["outcome"] for visit in item] == ["new", "changed", "not_modified"]


def test_edit_of_other_keys_keeps_validators(freshet: Freshet, pages_once: Pages) -> None:
    freshet.crawl(wrapper(freshet, pages_once, concurrency=2, headers={"X-A": "b"}), "-a", "full=1")
    assert conditional(pages_once) == {"/list.html", "/item-a.html"}


def test_edit_of_fields_rereads_page_without_logging_change(
    freshet: Freshet, database: Db, pages_once: Pages
) -> None:
    freshet.crawl(wrapper(freshet, pages_once, fields=TITLE_AND_TEXT), "-a", "full=1")
    assert conditional(pages_once) == {"/list.html"}, "lists are read as before"
    assert outcomes(database) == {"new": 2, "unchanged": 1, "not_modified": 1}
    item = visits(database, target=f"{pages_once.url}/item-a.html")[-1]
    assert (item["status"], item["changed"], item["reason"]) == (
        200,
        0,
        "the site definition was edited",
    )


def test_added_field_is_stored(freshet: Freshet, database: Db, pages_once: Pages) -> None:
    freshet.crawl(wrapper(freshet, pages_once, fields=TITLE_AND_TEXT), "-a", "full=1")
    (post,) = database.posts.find()
    assert post["fields"] == {"title": "A", "text": "Text of A"}


def test_change_after_edit_of_fields_has_diff_size(
    freshet: Freshet, database: Db, pages_once: Pages
) -> None:
    edited = wrapper(freshet, pages_once, fields=TITLE_AND_TEXT)
    freshet.crawl(edited, "-a", "full=1")
    pages_once.file("item-a.html", '<h1>A</h1><p class="text">Text of B</p>')
    freshet.crawl(edited, "-a", "full=1", hours=1)
    (changed,) = visits(database, changed=1)
    assert changed["diff_size"] == 2, "A was replaced by B"


def test_change_at_the_time_of_an_edit_is_logged(
    freshet: Freshet, database: Db, pages_once: Pages
) -> None:
    pages_once.file("item-a.html", '<h1>B</h1><p class="text">Text of B</p>')
    freshet.crawl(wrapper(freshet, pages_once, fields=TITLE_AND_TEXT), "-a", "full=1")
    (changed,) = visits(database, changed=1)
    assert changed["target"] == f"{pages_once.url}/item-a.html"
    assert database.posts.distinct("title") == ["B"]


def test_second_run_after_edit_sends_validators_again(freshet: Freshet, pages_once: Pages) -> None:
    edited = wrapper(freshet, pages_once, fields=TITLE_AND_TEXT)
    freshet.crawl(edited, "-a", "full=1")
    pages_once.clear_log()
    freshet.crawl(edited, "-a", "full=1", hours=1)
    assert conditional(pages_once) == {"/list.html", "/item-a.html"}


def test_edited_patterns_apply_to_unchanged_lists(
    freshet: Freshet, database: Db, pages_once: Pages
) -> None:
    pages_once.list("list.html", ["item-a.html", "post-b.html"])
    pages_once.item("post-b.html", "B")
    freshet.crawl(wrapper(freshet, pages_once), hours=7)
    wider = wrapper(freshet, pages_once, item_pages="/(item|post)-")
    freshet.crawl(wider, "-a", "full=1", hours=8)
    assert database.posts.distinct("title") == ["A", "B"]
