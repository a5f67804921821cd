"""Login, error, robot check and "not found" pages with status 200 are not changes of a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.harness import Db, Freshet, Pages, visits
from tests.integration.raw_server import RawServer, page

ITEM = '<title>Tea</title><h1>Tea</h1><p class="price">£2</p>'
FIELDS = {"title": "h1", "price": "p.price"}
CHALLENGE = "<title>Just a moment...</title><h1>Just a moment</h1><p>Checking your browser</p>"
LOGIN = '<title>Sign in</title><h1>Sign in</h1><input type="password">'
MISSING = "<title>Page not found</title><h1>Page not found</h1><p>Try the search.</p>"


def wrapper(freshet: Freshet, pages: Pages, **keys: object) -> Path:
    start = [f"{pages.url}/list.html"]
    return freshet.wrapper("shop", start_urls=start, item_pages="/item-", **keys)


@pytest.mark.parametrize("fields", [FIELDS, {"title": "h1"}, {}], ids=["all", "title", "text"])
def test_known_item_keeps_its_content(
    freshet: Freshet, database: Db, pages: Pages, fields: dict[str, str]
) -> None:
    definition = wrapper(freshet, pages, fields=fields) if fields else wrapper(freshet, pages)
    stand_ins = {"blocked": CHALLENGE, "error": LOGIN, "gone": MISSING}
    pages.list("list.html", [f"item-{outcome}.html" for outcome in stand_ins])
    for hours in range(3):
        for outcome, stand_in in stand_ins.items():
            html = stand_in if hours == 1 else ITEM.replace("Tea", f"Tea ({outcome})")
            pages.file(f"item-{outcome}.html", html)
        freshet.crawl(definition, "-a", "full=1", hours=hours)
    for outcome in stand_ins:
        item = visits(database, target=f"{pages.url}/item-{outcome}.html")
        assert [visit["outcome"] for visit in item] == ["new", outcome, "not_modified"]
    assert set(database.posts.distinct("title")) == {f"Tea ({outcome})" for outcome in stand_ins}


def test_check_for_robots_is_never_stored(freshet: Freshet, database: Db, pages: Pages) -> None:
    definition = wrapper(freshet, pages)
    pages.file("list.html", CHALLENGE)
    pages.file("item-a.html", CHALLENGE)
    result = freshet.crawl(definition, code=1)
    assert "a bot check instead of the page: 'Just a moment'" in result.err
    pages.list("list.html", ["item-a.html"])
    freshet.crawl(definition, "-a", "full=1", hours=1, code=1)
    assert [(v["outcome"], v["changed"]) for v in visits(database)] == [
        ("blocked", 0), ("new", 0), ("blocked", 0),
    ]  # fmt: skip
    assert database.posts.count_documents({}) == 0


def test_list_keeps_its_items(freshet: Freshet, database: Db, pages: Pages) -> None:
    definition = wrapper(freshet, pages, fields=FIELDS)
    pages.list("list.html", ["item-a.html"])
    pages.file("item-a.html", ITEM)
    freshet.crawl(definition)
    pages.file("list.html", "<title>503 Service Unavailable</title><h1>Service Unavailable</h1>")
    freshet.crawl(definition, "-a", "full=1", hours=1)
    (listed,) = visits(database, target=f"{pages.url}/list.html", outcome="error")
    assert listed["reason"].startswith("a page with status 200 that reports an error")
    assert database.targets.count_documents({"unlisted_at": {"$type": "date"}}) == 0


def test_json_instead_of_pages_is_an_error(freshet: Freshet, database: Db) -> None:
    json = page('{"error": "busy"}', "Content-Type: application/json")
    with RawServer() as server:
        server.answers = {
            "/list": [page("<a href=/item-1>1</a>"), json],
            "/item-1": [page(ITEM), json],
        }
        definition = freshet.wrapper(
            "shop", start_urls=[f"{server.url}/list"], item_pages="/item-", robots=False,
            fields=FIELDS,
        )  # fmt: skip
        freshet.crawl(definition)
        result = freshet.crawl(definition, "-a", "full=1", hours=1, code=1)
    assert "Traceback" not in result.err
    reasons = [visit["reason"] for visit in visits(database, outcome="error")]
    assert reasons == ["JSON instead of a page with markup (fields with jmespath read JSON)"] * 2
    assert database.targets.count_documents({"unlisted_at": {"$type": "date"}}) == 0
