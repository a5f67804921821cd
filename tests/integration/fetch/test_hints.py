"""A list that changes its text about an item makes it due, as long as such hints prove right."""

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


def test_an_item_whose_price_in_the_list_changed_is_visited_at_once(
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
    assert asked(pages) == {"/list.html": 1}, "what is said is known now"


def test_a_list_that_says_the_same_in_another_order_hurries_nobody(
    freshet: Freshet, pages: Pages
) -> None:
    wrapper = begin(freshet, pages)
    shelf(pages, {"jug": "£5", "cup": "£5"})
    freshet.crawl(wrapper, hours=2)
    assert asked(pages) == {"/list.html": 1}


def test_a_new_item_changes_nobody_else_s_card(freshet: Freshet, pages: Pages) -> None:
    wrapper = begin(freshet, pages)
    pages.item("item-pot.html", "pot at £9")
    shelf(pages, {"pot": "£9", "cup": "£5", "jug": "£5"})
    freshet.crawl(wrapper, hours=2)
    assert asked(pages) == {"/list.html": 1, "/item-pot.html": 1}


def test_lists_that_cry_wolf_are_not_believed_any_more(
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


def test_an_edited_list_page_is_no_change_of_its_own(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    """Compare list pages only by the items they link to."""
    wrapper = begin(freshet, pages)
    shelf(pages, {"cup": "£5", "jug": "£4"})
    freshet.crawl(wrapper, hours=2)
    rows = visits(database, target=f"{pages.url}/list.html")
    assert [row["outcome"] for row in rows] == ["new", "unchanged"]
