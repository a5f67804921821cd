"""Redirects: a page is one target, regardless of its aliases."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.integration.harness import Db, Freshet, Pages, asked, target, urls, visits
from tests.integration.inside import in_json
from tests.integration.raw_server import RawServer, page
from tests.site.running import RunningSite

# A folder URL without a trailing slash redirects to the URL with one.
ITEMS = r"/item/\w+/?$"


def folder_wrapper(freshet: Freshet, pages: Pages, **keys: object) -> Path:
    given: dict[str, object] = {
        "start_urls": [f"{pages.url}/list.html"],
        "list_pages": r"/more\.html$",
        "item_pages": ITEMS,
        "fields": {"title": "h1"},
    }
    return freshet.wrapper("folders", **given | keys)


def edge_wrapper(freshet: Freshet, site: RunningSite, items: str) -> Path:
    return freshet.wrapper(
        "edge", start_urls=[f"{site.url}/edge/"], item_pages=items, fields={"title": "h1"}
    )


def test_final_url_is_an_alias_of_redirected_target(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    pages.list("list.html", ["/item/a"])
    pages.item("item/a/index.html", "A")
    wrapper = folder_wrapper(freshet, pages)
    freshet.crawl(wrapper)
    item = target(database, f"{pages.url}/item/a")
    assert item["aliases"] == [f"{pages.url}/item/a/"]
    assert "alias_of" not in item
    (post,) = database.posts.find()
    assert post["url"] == item["url"]
    (visit,) = visits(database, target=item["url"])
    assert (visit["outcome"], visit["final_url"]) == ("new", f"{pages.url}/item/a/")

    pages.clear_log()
    freshet.crawl(wrapper, "-a", "full=1", hours=1)
    answers = {r["path"]: (r["status"], r["conditional"]) for r in pages.requests()}
    assert answers["/item/a/"] == (304, True), "validators are sent to the final URL"
    assert visits(database, target=item["url"])[-1]["outcome"] == "not_modified"

    pages.list("list.html", ["/item/a/"])
    freshet.crawl(wrapper, hours=8)
    assert urls(database.targets.find({"kind": "item"})) == {item["url"]}, "a link to the alias"
    assert target(database, item["url"]).get("unlisted_at") is None
    assert database.posts.count_documents({}) == 1


def test_two_urls_of_one_page_are_one_post(freshet: Freshet, database: Db, pages: Pages) -> None:
    pages.list("list.html", ["/item/a", "/item/a/"])
    pages.item("item/a/index.html", "A")
    wrapper = folder_wrapper(freshet, pages)
    freshet.crawl(wrapper)
    alias = target(database, f"{pages.url}/item/a")
    assert alias["alias_of"] == f"{pages.url}/item/a/"
    assert urls(database.posts.find()) == {f"{pages.url}/item/a/"}

    pages.clear_log()
    freshet.crawl(wrapper, "-a", "full=1", hours=1)
    freshet.crawl(wrapper, hours=25)
    assert asked(pages) == {"/list.html": 2, "/item/a/": 2}, "the alias is not requested"
    assert database.visits.count_documents({"outcome": "not_modified"}) == 4

    (pages.home / "item/a/index.html").unlink()
    (pages.home / "item/a").rmdir()
    pages.item("item/a", "Now a page")  # without a type, it is read but not shown as HTML
    freshet.crawl(wrapper, hours=24 * 28 + 1)  # an alias is checked again after 28 days
    own = target(database, alias["url"])
    assert "alias_of" not in own
    assert database.posts.find_one({"url": own["url"]}, {"title": 1})


def test_alias_found_in_later_run_adds_no_post(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    pages.list("list.html", ["/item/a", "/more.html"])
    pages.list("more.html", [])
    pages.item("item/a/index.html", "A")
    wrapper = folder_wrapper(freshet, pages)
    freshet.crawl(wrapper)
    pages.list("more.html", ["/item/a/"])
    freshet.crawl(wrapper, hours=7)
    freshet.crawl(wrapper, "-a", "full=1", hours=8)
    assert database.posts.count_documents({}) == 1
    assert database.targets.count_documents({"kind": "item", "alias_of": {"$exists": False}}) == 1


def test_alias_adds_its_categories_to_its_page(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    pages.list("list.html", ["/red.html", "/blue.html"])
    pages.list("red.html", ["/item/a"])
    pages.list("blue.html", ["/item/a/"])
    pages.item("item/a/index.html", "A")
    lists = r"/(?P<category>red|blue)\.html$"
    freshet.crawl(folder_wrapper(freshet, pages, list_pages=lists))
    owner = target(database, f"{pages.url}/item/a/")
    (post,) = database.posts.find()
    assert sorted(owner["categories"]) == sorted(post["categories"]) == ["blue", "red"]


def test_an_item_that_redirects_to_a_list_page_is_gone(
    freshet: Freshet, database: Db, site: RunningSite
) -> None:
    freshet.crawl(moved_wrapper(freshet, site), code=1)
    (visit,) = visits(database, outcome="gone")
    assert visit["target"].endswith("/edge/item/redirect/302/edge/item/plain")
    assert f"redirects to {site.url}/edge/item/plain" in visit["reason"]
    assert database.posts.count_documents({}) == 0


def moved_wrapper(freshet: Freshet, site: RunningSite) -> Path:
    """Define a site with an item that redirects to a list page."""
    return freshet.wrapper(
        "edge",
        start_urls=[f"{site.url}/edge/"],
        list_pages=r":\d+/edge/item/plain$",
        item_pages="/edge/item/redirect/302/edge/item/plain$",
        fields={"title": "h1"},
    )


def test_permanent_and_temporary_redirects_are_both_aliases(
    freshet: Freshet, database: Db, site: RunningSite
) -> None:
    freshet.crawl(edge_wrapper(freshet, site, "/edge/item/(plain|redirect/30[12]/.*)$"))
    plain = f"{site.url}/edge/item/plain"
    assert urls(database.posts.find()) == {plain}
    assert len(target(database, plain)["aliases"]) == 2


def test_two_redirects_to_unlisted_page_are_one_post(
    freshet: Freshet, database: Db, site: RunningSite
) -> None:
    freshet.crawl(edge_wrapper(freshet, site, "/edge/item/redirect/30[12]/.*$"))
    assert database.posts.count_documents({}) == 1


def test_redirect_to_held_host_is_not_followed(
    freshet: Freshet, database: Db, site: RunningSite
) -> None:
    wrapper = edge_wrapper(freshet, site, "/edge/item/redirect-offsite$")
    freshet.crawl(wrapper, "-a", "limit=1")  # only the list
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    database.hosts.insert_one({"_id": "offsite.invalid", "hold_until": tomorrow})
    site.clear_log()
    freshet.crawl(wrapper)
    assert [request["path"] for request in site.requests()].count(
        "/edge/item/redirect-offsite"
    ) == 1
    item = target(database, f"{site.url}/edge/item/redirect-offsite")
    assert item["visited_at"] is None, "the redirect was not followed, so no visit"
    assert item["requested"] == 0


# Pages that have moved permanently: after three visits, they are fetched at their new URL.

ONE = page("<h1>One</h1>")
LIST = page("<a href=/item-1>1</a>")


def redirect(status: int, to: str) -> bytes:
    return page("", f"Location: {to}", status=f"{status} Redirect")


@pytest.fixture
def server() -> Iterator[RawServer]:
    """Serve an item that has moved permanently."""
    with RawServer() as server:
        server.answers = {"/list": LIST, "/item-1": redirect(301, "/new-1"), "/new-1": ONE}
        yield server


def paths_of(freshet: Freshet, server: RawServer, hours: float) -> list[str]:
    """Crawl, and return the requested paths of items."""
    definition = freshet.wrapper(
        "moved", start_urls=[f"{server.url}/list"], item_pages="/(item|new)-", robots=False,
        fields={"title": "h1"}, item_interval_hours=1,
    )  # fmt: skip
    server.asked.clear()
    freshet.crawl(definition, hours=hours)
    return [path for path in server.asked if path != "/list"]


def test_moved_page_is_fetched_at_its_new_url(
    freshet: Freshet, database: Db, server: RawServer
) -> None:
    server.answers["/new-1"] = [ONE, ONE, page("<h1>Won</h1>")]
    asked = [paths_of(freshet, server, hours) for hours in (0, 2, 4, 6)]
    server.answers["/list"] = page("<a href=/item-1>1</a><a href=/new-1>1</a>")
    asked.append(paths_of(freshet, server, 8))
    assert asked == [["/item-1", "/new-1"]] * 3 + [["/new-1"]] * 2
    item = target(database, f"{server.url}/item-1")
    assert [visit["outcome"] for visit in visits(database, target=item["url"])] == [
        "new", "unchanged", "changed", "unchanged", "unchanged",
    ]  # fmt: skip
    assert urls(database.posts.find()) == {item["url"]}
    assert database.targets.count_documents({"kind": "item"}) == 1


@pytest.mark.parametrize(
    ("new", "outcomes"),
    [
        pytest.param(page("", status="404 Not Found"), ["gone", "changed"], id="is-gone"),
        pytest.param(redirect(301, "/item-1"), ["changed", "unchanged"], id="redirects-back"),
    ],
)
def test_page_that_moves_back_is_fetched_at_its_own_url(
    freshet: Freshet, database: Db, server: RawServer, new: bytes, outcomes: list[str]
) -> None:
    for hours in (0, 2, 4):
        paths_of(freshet, server, hours)
    server.answers |= {"/item-1": page("<h1>Own</h1>"), "/new-1": new}
    assert paths_of(freshet, server, 6)[0] == "/new-1"
    assert paths_of(freshet, server, 32) == ["/item-1"]
    found = visits(database, target=f"{server.url}/item-1")
    assert [visit["outcome"] for visit in found[3:]] == outcomes


def test_own_url_of_moved_page_is_checked_every_four_weeks(
    freshet: Freshet, database: Db, server: RawServer
) -> None:
    for hours in (0, 2, 4):
        paths_of(freshet, server, hours)
    server.answers["/item-1"] = page("<h1>Another page</h1>")
    month = 4 + 28 * 24
    asked = [paths_of(freshet, server, hours) for hours in (month - 1, month + 1)]
    assert asked == [["/new-1"], ["/item-1"]]
    assert database.posts.distinct("title") == ["Another page"]


def test_temporary_redirect_is_followed_at_each_visit(
    freshet: Freshet, database: Db, server: RawServer
) -> None:
    server.answers["/item-1"] = redirect(302, "/new-1")
    asked = [paths_of(freshet, server, hours) for hours in (0, 2, 4, 6)]
    assert asked == [["/item-1", "/new-1"]] * 4


# List pages that have moved.


@pytest.fixture
def renamed(freshet: Freshet) -> Iterator[tuple[RawServer, Path]]:
    """Serve a shop whose category moves from /list/tea to /list/infusions after the first run."""
    with RawServer() as server:
        items = page("<a href=/item-1>1</a><a href=/item-2>2</a>")
        server.answers = {
            "/": page("<a href=/list/tea>Tea</a>"),
            "/list/tea": items, "/item-1": ONE, "/item-2": page("<h1>Two</h1>"),
        }  # fmt: skip
        definition = freshet.wrapper(
            "renamed", start_urls=[f"{server.url}/"], list_pages="/list/(?P<category>[a-z]+)",
            item_pages="/item-", robots=False, fields={"title": "h1"},
        )  # fmt: skip
        freshet.crawl(definition)
        server.answers |= {
            "/": page("<a href=/list/infusions>Infusions</a>"),
            "/list/tea": redirect(301, "/list/infusions"), "/list/infusions": items,
        }  # fmt: skip
        yield server, definition


def test_items_of_a_moved_list_follow_it_to_its_new_url(
    freshet: Freshet, database: Db, renamed: tuple[RawServer, Path]
) -> None:
    server, definition = renamed
    for hours in (7, 14):
        freshet.crawl(definition, hours=hours)
    items = list(database.targets.find({"kind": "item"}))
    assert [item["categories"] for item in items] == [["infusions"]] * 2
    assert [item.get("unlisted_at") for item in items] == [None, None]
    assert database.posts.distinct("categories") == ["infusions"]
    old, new = f"{server.url}/list/tea", f"{server.url}/list/infusions"
    assert f"leads to the same page as {new}" in freshet("explain", old).out, "by its own target"
    assert in_json(freshet, "history", old)["visits"][-1]["reason"] == f"redirects to {new}"
    server.answers["/list/infusions"] = page("<a href=/item-1>1</a>")
    freshet.crawl(definition, hours=21)
    unlisted = database.targets.find({"unlisted_at": {"$type": "date"}})
    assert urls(unlisted) == {f"{server.url}/item-2"}, "no list shows it any more"


def test_items_of_a_moved_list_stay_listed_if_its_new_url_is_not_visited_yet(
    freshet: Freshet, database: Db, renamed: tuple[RawServer, Path]
) -> None:
    server, definition = renamed
    freshet.crawl(definition, "-a", "limit=1", hours=7)  # finds the new URL
    database.targets.update_one(
        {"url": f"{server.url}/list/infusions"},
        {"$set": {"next_visit": datetime.now(UTC) + timedelta(days=9)}},
    )
    freshet.crawl(definition, hours=8)
    assert target(database, f"{server.url}/list/tea")["alias_of"].endswith("/list/infusions")
    assert database.targets.count_documents({"unlisted_at": {"$type": "date"}}) == 0


# Items that redirect to pages of another kind.


def test_item_that_redirects_to_another_page(
    freshet: Freshet, database: Db, server: RawServer
) -> None:
    """Only a redirect to a page with the item's values, or to another item, is followed."""
    moves = {
        "home": ("/", "gone"), "search": ("/search?q=1", "gone"),
        "same": ("/moved", "changed"), "item": ("/new-1", "changed"),
    }  # fmt: skip
    definition = freshet.wrapper(
        "shop", start_urls=[f"{server.url}/list"], item_pages="/(item|new)-", robots=False,
        fields={"title": "h1", "price": "b"}, item_interval_hours=1,
    )  # fmt: skip
    server.answers = {
        "/list": page("".join(f"<a href=/item-{name}>{name}</a>" for name in [*moves, "stays"])),
        "/": page("<h1>Shop</h1><p>Offers</p>"),
        "/search?q=1": page("<h1>Results</h1>"),
        "/moved": page("<h1>same</h1><b>3 EUR</b>"),
        "/new-1": page("<h1>Won</h1><b>4 EUR</b>"),
    } | {f"/item-{name}": page(f"<h1>{name}</h1><b>1 EUR</b>") for name in [*moves, "stays"]}
    freshet.crawl(definition)
    server.answers |= {f"/item-{name}": redirect(302, to) for name, (to, _) in moves.items()}
    freshet.crawl(definition, hours=2)
    outcomes = {
        name: visits(database, target=f"{server.url}/item-{name}")[-1]["outcome"] for name in moves
    }
    assert outcomes == {name: outcome for name, (_, outcome) in moves.items()}
    posts = {post["url"].rpartition("-")[2]: post["title"] for post in database.posts.find()}
    assert posts == {name: name for name in [*moves, "stays"]} | {"item": "Won"}


def test_items_that_redirect_to_one_other_page_keep_their_posts(
    freshet: Freshet, database: Db, server: RawServer
) -> None:
    server.answers = {
        "/list": page("<a href=/item-1>1</a><a href=/item-2>2</a>"),
        "/item-1": page("<h1>One</h1>"),
        "/item-2": page("<h1>Two</h1>"),
        "/welcome": page("<h1>Shop</h1>"),
    }
    paths_of(freshet, server, 0)
    server.answers |= {path: redirect(301, "/welcome") for path in ("/item-1", "/item-2")}
    for hours in (2, 30):
        paths_of(freshet, server, hours)
    assert sorted(post["title"] for post in database.posts.find()) == ["One", "Two"]
    assert database.targets.count_documents({"consecutive_gone": 2}) == 2
