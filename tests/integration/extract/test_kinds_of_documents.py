"""Pages that are not HTML: JSON, XML and plain text, whatever their content type says."""

from __future__ import annotations

from typing import Any

from tests.integration.harness import Db, Freshet, Pages, outcomes, visits

# Halves of an emoji, as programs write them that cut texts within one.
HALF = (
    '{"name": "Kettle \\ud83d", "more": ["\\udc00 x"], "\\ud83d key": 1, "whole": "\\ud83d\\ude00"}'
)
CATALOG = (
    '<?xml version="1.0"?><catalog xmlns="https://shop.example/ns" xmlns:x="https://x.example">'
    '<item id="K1"><title>Kettle</title><x:price>49.90</x:price></item></catalog>'
)
NOTES = "Notes\r\n\r\n* fixed the <T> of Map<K, V>\n    and &amp; kept it\n\n\n* added more\n"


def crawl(
    freshet: Freshet, pages: Pages, name: str, hours: float = 0, code: int = 0, **keys: Any
) -> None:
    pages.list("list.html", [f"/{name}"])
    usual = {"start_urls": [f"{pages.url}/list.html"], "item_pages": f"/{name}"}
    freshet.crawl(freshet.wrapper("shop", **(usual | keys)), hours=hours, code=code)


def stored(database: Db) -> dict[str, Any]:
    (post,) = database.posts.find()
    return dict(post["fields"]) | {key: post.get(key) for key in ("title", "text")}


def test_half_an_emoji_in_json_is_stored_exported_and_shown(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    pages.file("page.json", HALF)
    fields = {"name": {"jmespath": "name"}, "all": {"jmespath": "@"}}
    crawl(freshet, pages, "page.json", fields=fields, duplicates=["name"])
    assert stored(database)["name"] == "Kettle \ufffd"
    whole = {"name": "Kettle \ufffd", "more": ["\ufffd x"], "\ufffd key": 1, "whole": "\U0001f600"}
    assert stored(database)["all"] == whole
    pages.file("page.json", HALF.replace("Kettle", "Steel kettle"))
    crawl(freshet, pages, "page.json", 800, fields=fields, duplicates=["name"])
    assert "Steel kettle \ufffd" in freshet("history", f"{pages.url}/page.json", "--diff").out
    exported = freshet("export", "posts", freshet.folder / "export", "--format", "jsonl")
    assert exported.code == 0, exported.err


def test_numbers_in_json_keep_all_digits(freshet: Freshet, database: Db, pages: Pages) -> None:
    numbers = ("9007199254740993", "18446744073709551613", "9007199254740993.5", "1e400")
    fields = {name: {"jmespath": "n", "type": name} for name in ("text", "number", "price", "list")}
    start = [f"{pages.url}/list.html"]
    shop = freshet.wrapper("shop", start_urls=start, item_pages=r"/page-\d\.json", fields=fields)
    pages.list("list.html", [f"/page-{n}.json" for n in range(len(numbers))])
    for hours, digit in enumerate("34"):
        for n, number in enumerate(numbers):
            pages.file(f"page-{n}.json", f'{{"n": {number.replace("3", digit)}}}')
        freshet.crawl(shop, hours=1000 * hours)
        posts = database.posts.find().sort("url")
        seen = [str(post["fields"]["number"]) for post in posts]
        assert seen[:3] == [number.replace("3", digit) for number in numbers[:3]]
    for n in range(3):
        assert outcomes(database, target=f"{pages.url}/page-{n}.json")["changed"] == 1


def test_json_sent_as_html_is_read(freshet: Freshet, database: Db, pages: Pages) -> None:
    pages.file("page.html", '\ufeff\n {"price": 2, "name": "<b>K</b>"}')
    fields = {"price": {"jmespath": "price", "type": "number"}, "name": {"jmespath": "name"}}
    crawl(freshet, pages, "page.html", fields=fields)
    assert stored(database)["price"] == 2
    assert stored(database)["name"] == "<b>K</b>"


def test_json_sent_as_html_without_fields_for_it_is_named(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    pages.file("page.html", '[{"price": 2}]')
    crawl(freshet, pages, "page.html", code=1)
    (visit,) = visits(database, target=f"{pages.url}/page.html")
    assert visit["reason"].startswith("JSON instead of a page with markup")


def test_xml_with_a_default_namespace_is_read(freshet: Freshet, database: Db, pages: Pages) -> None:
    for name in ("page.xml", "page.html"):
        pages.file(name, CATALOG)
        fields = {
            "id": {"css": "item::attr(id)"},
            "title": {"xpath": "//item/title"},
            "price": {"xpath": "//item/price", "type": "price"},
        }
        crawl(freshet, pages, name, fields=fields)
    for post in database.posts.find():
        price = {"amount": 49.9, "currency": None}
        assert post["fields"] == {"id": "K1", "title": "Kettle", "price": price}


def test_xml_without_fields_is_stored_line_by_line(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    pages.file("page.xml", CATALOG)
    crawl(freshet, pages, "page.xml")
    assert stored(database)["text"] == "item id: K1\ntitle: Kettle\nprice: 49.90"
    pages.file("page.xml", CATALOG.replace("K1", "K2"))
    crawl(freshet, pages, "page.xml", 1000)
    assert outcomes(database, target=f"{pages.url}/page.xml") == {"new": 1, "changed": 1}


def test_plain_text_keeps_its_lines_and_is_not_markup(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    pages.file("notes.txt", NOTES)
    crawl(freshet, pages, "notes.txt")
    text = "Notes\n\n* fixed the <T> of Map<K, V>\n    and &amp; kept it\n\n\n* added more"
    assert stored(database)["text"] == text
    pages.file("notes.txt", NOTES.replace("<T>", "<U>"))
    crawl(freshet, pages, "notes.txt", 1000)
    assert outcomes(database, target=f"{pages.url}/notes.txt") == {"new": 1, "changed": 1}


def test_html_sent_as_plain_text_is_read_as_html(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    pages.file("page.txt", "<!DOCTYPE html><html><body><h1>Kettle</h1><p>Of copper.</p></html>")
    crawl(freshet, pages, "page.txt")
    assert stored(database)["title"] == "Kettle"
