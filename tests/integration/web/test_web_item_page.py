"""The page of an item: current values, changes, and versions to read."""

from __future__ import annotations

from urllib.parse import quote

from lxml import html

from tests.integration.harness import Db
from tests.integration.web.browser import Browser, Browsers
from tests.integration.web.items import NOW, SITE, id_of, price, put_item, url_of

HOSTILE = "<script>alert(1)</script>\"'&"
PAGE = f"/targets/{id_of('a')}"
API = f"/api/v1{PAGE}"
FIRST = {
    "title": "Walnut lamp", "price": price(330), "stock": 12, "color": "oak",
    "main_text": "A lamp.\n\nMade of walnut.", "about": "First. " * 30,
}  # fmt: skip


def put(db: Db, **of_target: object) -> None:
    """Store an item with three versions."""
    second = FIRST | {"price": price(321), "about": "Second. " * 30}
    put_item(
        db, "a", (32, FIRST), (9, second), (1, second | {"price": price(289.9), "stock": 9}),
        categories=("Lamps",), **of_target,
    )  # fmt: skip


def texts(page: str, path: str) -> list[str]:
    """Return the texts of some elements, as people read them."""
    tree = html.fromstring(page)
    for silent in tree.xpath("//*[@class='hidden']"):
        silent.drop_tree()
    return [" ".join(each.text_content().split()) for each in tree.xpath(path)]


def test_an_item_begins_with_its_name_and_current_values(local: Browser, database: Db) -> None:
    put(database)
    page = local.get(PAGE).text
    assert texts(page, "//h1") == ["Walnut lamp"]
    assert texts(page, "//dl[@class='vals']//b") == ["£289.90", "9", "oak", "£289.90 · £330"]
    was = texts(page, "//dl[@class='vals']//*[@class='was']")
    assert was[:2] == ["−9.7 % 24 h ago · was £321", "−25 % 24 h ago · was 12"]
    assert was[2].startswith("since ")
    assert f'href="/sites/{SITE}?category=Lamps"' in page
    assert f'<a class="outside" href="{url_of("a")}"' in page
    heads = texts(page, "//h2")
    order = ["Values over time", "What changed", "Versions", "Schedule", "Visits"]
    assert [head for head in heads if head in order] == order


def test_changes_of_an_item_are_read_as_values(local: Browser, database: Db) -> None:
    put(database)
    database.visits.insert_one(
        {"spider": SITE, "target": url_of("a"), "at": NOW, "outcome": "gone", "changed": 0,
         "event": True, "content_hash": "hash2"}
    )  # fmt: skip
    rows = texts(local.get(PAGE).text, "//ol[@class='happened']/li/div[1]")
    assert rows == [
        "The page was gone", "price £321 → £289.90 −9.7 % stock 12 → 9 −25 %",
        "price £330 → £321 −2.7 %", "First seen",
    ]  # fmt: skip
    changes = local.get(f"{API}/changes").json()
    assert [each["kind"] for each in changes] == ["gone", "changed", "changed", "new"]
    assert changes[1]["fields"][1] == {
        "name": "stock", "before": "12", "after": "9", "number_before": 12.0, "number_after": 9.0,
        "unit": None, "direction": "lower", "ratio": -0.25, "is_price": False,
    }  # fmt: skip
    database.versions.delete_one({"content_hash": "hash1"})
    rows = texts(local.get(PAGE).text, "//ol[@class='happened']/li/div[1]")
    assert rows[1:3] == ["Text or other fields"] * 2, "a version was pruned"


def test_a_title_and_removed_values_are_changes(local: Browser, database: Db) -> None:
    put_item(database, "a", (5, {"title": "Old", "stock": 3}), (2, {"title": "New", "stock": None}))
    rows = texts(local.get(PAGE).text, "//ol[@class='happened']/li/div[1]")
    assert rows == ["title Old → New stock 3 removed", "First seen"]


def test_a_version_is_read_as_it_was(local: Browser, database: Db) -> None:
    put(database)
    (link,) = [
        path
        for path in html.fromstring(local.get(PAGE).text).xpath("//table//a/@href")
        if path.endswith("/versions/hash1")
    ]
    page = local.get(link).text
    assert texts(page, "//dl[@class='read']/div") == [
        "title Walnut lamp", "price £321", "stock 12", "color oak",
    ]  # fmt: skip
    assert texts(page, "//section[@class='read-text']/h2") == ["about", "Text"]
    assert "A lamp.\n\nMade of walnut." in page
    links = html.fromstring(page).xpath("//nav[@class='views']/a/@href")
    assert links == [
        f"{PAGE}/versions/hash0", f"{PAGE}/versions/hash2",
        f"{PAGE}/compare?before=hash0&after=hash1",
    ]  # fmt: skip
    assert all(local.get(each).status_code == 200 for each in links)
    stored = local.get(f"{API}/versions/hash1").json()
    assert stored["content"]["price"] == price(321)
    for path in (PAGE, API):
        assert local.get(f"{path}/versions/none").status_code == 404


def test_a_long_version_says_what_is_left_out(local: Browser, database: Db) -> None:
    put_item(database, "a", (1, {"title": "x", "main_text": "word " * 30_000, "list": ["y"] * 3}))
    page = local.get(f"{PAGE}/versions/hash0").text
    assert "more characters are not shown" in page
    assert 100_000 < len(page) < 110_000
    assert "y\ny\ny" in page


def test_hostile_versions_are_text(local: Browser, database: Db) -> None:
    content = {"title": HOSTILE, HOSTILE: HOSTILE, "main_text": f"{HOSTILE}\n" * 20_000}
    put_item(database, "a", (9, {HOSTILE: "1", "n": 1}), (2, content), categories=(HOSTILE,))
    database.versions.update_one(
        {"content_hash": "hash1"}, {"$set": {"content.links": [f"javascript:{HOSTILE}"]}}
    )
    database.targets.update_one({}, {"$set": {"kind": "list"}})
    for kind in ("list", "item"):
        database.targets.update_one({}, {"$set": {"kind": kind}})
        for path in (PAGE, f"{PAGE}/versions/hash1", f"{PAGE}/versions/{quote(HOSTILE)}"):
            page = local.get(path)
            assert "<script>alert" not in page.text
            assert 'href="javascript' not in page.text
            assert len(page.text) < 700_000


def test_an_item_without_content_says_why(local: Browser, database: Db) -> None:
    put(database)
    for name in ("posts", "versions", "visits"):
        database[name].delete_many({})
    page = local.get(PAGE).text
    assert "Nothing is stored yet" in page
    assert texts(page, "//h1") == ["A"], "the name comes from the URL"
    assert "No check could read the page so far" in page


def test_lists_keep_their_page(local: Browser, database: Db) -> None:
    put(database, kind="list")
    page = local.get(PAGE).text
    assert texts(page, "//h1") == [url_of("a")]
    assert "What changed" not in texts(page, "//h2")
    assert f"{PAGE}/versions/hash1" in page


def test_viewers_see_no_actions(vic: Browser, browsers: Browsers, database: Db) -> None:
    put(database)
    page = vic.get(PAGE).text
    assert "Check now" not in page
    assert "Forget" not in page
    assert browsers(address="203.0.113.77").get(f"{PAGE}/versions/hash0").status_code == 303
