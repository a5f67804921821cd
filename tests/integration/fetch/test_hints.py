"""A changed entry of a list makes its item due, as long as such hints are reliable."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from tests.integration.harness import Db, Freshet, Pages, asked, target, visits

LIST_HOURS, ITEM_HOURS = 1, 48


def shelf(pages: Pages, offers: Mapping[str, str]) -> None:
    lines = (
        f'<li><a href="item-{name}.html">{name}</a> {text}</li>' for name, text in offers.items()
    )
    pages.file("list.html", f"<ul>{''.join(lines)}</ul>")


def wrapper_of(freshet: Freshet, pages: Pages) -> object:
    return freshet.wrapper(
        "pages", start_urls=[f"{pages.url}/list.html"], item_pages=r"/item-\w+\.html$",
        fields={"title": "h1"}, list_interval_hours=LIST_HOURS, item_interval_hours=ITEM_HOURS,
    )  # fmt: skip


def begin(freshet: Freshet, pages: Pages) -> object:
    """Crawl two items at £5 for the first time."""
    for name in ("cup", "jug"):
        pages.item(f"item-{name}.html", f"{name} at £5")
    shelf(pages, {"cup": "£5", "jug": "£5"})
    wrapper = wrapper_of(freshet, pages)
    freshet.crawl(wrapper)
    pages.clear_log()
    return wrapper


def test_item_is_visited_if_its_price_in_the_list_changes(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    wrapper = begin(freshet, pages)
    pages.item("item-jug.html", "jug at £4")
    shelf(pages, {"cup": "£5", "jug": "£4"})

    freshet.crawl(wrapper, hours=2)

    assert asked(pages) == {"/list.html": 1, "/item-jug.html": 1}
    (last,) = visits(database, target=f"{pages.url}/item-jug.html", hint="list")
    assert last["outcome"] == "changed"
    assert not target(database, f"{pages.url}/item-jug.html")["hinted"]

    pages.clear_log()
    freshet.crawl(wrapper, hours=4)
    assert asked(pages) == {"/list.html": 1}, "the hint was used"


def test_reordered_list_makes_no_item_due(freshet: Freshet, pages: Pages) -> None:
    wrapper = begin(freshet, pages)
    shelf(pages, {"jug": "£5", "cup": "£5"})
    freshet.crawl(wrapper, hours=2)
    assert asked(pages) == {"/list.html": 1}


def test_new_item_makes_no_other_item_due(freshet: Freshet, pages: Pages) -> None:
    wrapper = begin(freshet, pages)
    pages.item("item-pot.html", "pot at £9")
    shelf(pages, {"pot": "£9", "cup": "£5", "jug": "£5"})
    freshet.crawl(wrapper, hours=2)
    assert asked(pages) == {"/list.html": 1, "/item-pot.html": 1}


def test_hints_of_unreliable_lists_are_ignored(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    """Ignore hints of lists that change without cause, such as those with live viewer counts."""
    wrapper = begin(freshet, pages)
    row = {"spider": "pages", "target": f"{pages.url}/item-cup.html", "outcome": "unchanged"}
    seen = {"at": datetime(2026, 1, 1, tzinfo=UTC), "changed": 0, "hint": "list"}
    database.visits.insert_many([row | seen for _ in range(20)])
    shelf(pages, {"cup": "£5, 7 look at it", "jug": "£5, 3 look at it"})
    freshet.crawl(wrapper, hours=2)
    assert asked(pages) == {"/list.html": 1}


def test_edited_text_of_list_is_not_a_change_of_the_list(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    """Compare list pages only by the items they link to."""
    wrapper = begin(freshet, pages)
    shelf(pages, {"cup": "£5", "jug": "£4"})
    freshet.crawl(wrapper, hours=2)
    rows = visits(database, target=f"{pages.url}/list.html")
    assert [row["outcome"] for row in rows] == ["new", "unchanged"]
