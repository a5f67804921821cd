"""Names and values that resemble MongoDB operators and paths are stored unchanged."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.integration.harness import Db, Freshet, Pages, Row, target, visits

PLAIN = {
    "title": "$title",
    "main_text": "$$ROOT says {$set: 1} to $fields.title",
    "tags": ["$where"],
}
# JSON that `read_item` returns, by page name, and the fields expected in the database.
READ: dict[str, tuple[str, Row]] = {
    "operator": ('{"$where": "$x", "b": {"$set": {"$$NOW": "$x"}}}',
                 {"＄where": "$x", "b": {"＄set": {"＄$NOW": "$x"}}}),
    "path": ('{"a.b": {"c.d": 1}, "e": [{"f.g": 2}]}', {"a．b": {"c．d": 1}, "e": [{"f．g": 2}]}),
    "nameless": ('{"": 1, "x": {"": 2}}', {"_": 1, "x": {"_": 2}}),
    "reference": ('{"$ref": "a", "$id": 1, "$db": "b"}', {"＄ref": "a", "＄id": 1, "＄db": "b"}),
    "nul": ('{"a\\0b": "c\\0d", "\\ud800": "\\udc00x"}', {"ab": "cd", "\ufffd": "\ufffdx"}),
    "long": ('{"k" * 100_000: "v"}', {"k" * 100_000: "v"}),
    "numbers": ('{1: 2, None: 3}', {"1": 2, "None": 3}),
    "odd title": ('{"title": {"$gt": ""}, "main_text": ["$x"]}', {"title": {"＄gt": ""}}),
    "own names": ('{"_id": 5, "search_language": 7, "original": 0}',
                  {"_id": 5, "search_language": 7, "original": 0}),
    "plain": (repr(PLAIN), {"title": "$title", "tags": ["$where"]}),
}  # fmt: skip
BROKEN = {
    "huge": ('{"a": "x" * 17_000_000}', "cannot be stored: "),
    "object": ('{"a": object()}', "cannot be stored: InvalidDocument"),
    "nested": ("nested", "cannot be normalized: ValueError: nested deeper than 90 levels"),
    "no dict": ('["a"]', "AttributeError"),
    "reason": ('{}["\\0\\ud800$x"]', "KeyError"),
}
SPIDER = """
from functools import reduce
from spiders.wrapper import WrapperSpider

nested = reduce(lambda inner, _: {{"n": inner}}, range(200), 1)

class Odd(WrapperSpider):
    name = "odd"
    start_urls = ["{url}/list.html"]
    list_pages = "/list"
    item_pages = "/item/"
    category = {{"css": "h2"}}
    custom_settings = {{"AUTOTHROTTLE_ENABLED": False}}

    def read_item(self, response):
        return eval(response.css("h1::attr(title)").get())
"""


def test_odd_field_names_and_values_are_stored(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    sources = {name: source for name, (source, _) in (READ | BROKEN).items()}
    for name, source in sources.items():
        quoted = source.replace("&", "&amp;").replace('"', "&quot;")
        pages.file(f"/item/{name}.html", f'<h1 title="{quoted}">x</h1>')
    pages.list("/list.html", [f"/item/{name}.html" for name in sources], category="$categories")
    # Posts with a duplicate verdict are updated by a separate code path.
    compared = {"FRESHET_DUPLICATES": "characters"}
    freshet.crawl_spider(SPIDER.format(url=pages.url), "odd", **compared)
    stored = {name_of(post["url"]): post for post in database.posts.find()}
    assert {name: post["fields"] for name, post in stored.items()} == {
        name: fields for name, (_, fields) in READ.items()
    }
    plain = stored["plain"]
    assert (plain["title"], plain["text"]) == (PLAIN["title"], PLAIN["main_text"])
    assert plain["categories"] == target(database, plain["url"])["categories"] == ["$categories"]
    (version,) = database.versions.find({"target": plain["url"]})
    assert version["content"] == PLAIN
    errors = {name_of(visit["target"]): visit for visit in visits(database, outcome="error")}
    assert errors.keys() == BROKEN.keys()
    for name, (_, reason) in BROKEN.items():
        assert errors[name]["reason"].startswith(reason)
    assert database.targets.count_documents({"requested": 1}) == 1 + len(READ) + len(BROKEN)


def name_of(url: str) -> str:
    return unquote(url).rpartition("/")[2].removesuffix(".html")


def test_json_with_odd_keys_is_stored(freshet: Freshet, database: Db, pages: Pages) -> None:
    value = {"$where": 1, "a.b": {"": "$x"}, "\ud800": "\udfff\0", "n": 10**40}
    pages.file("/item/1.json", json.dumps({"name": "$name", "all": value}))
    pages.list("/list.html", ["/item/1.json"])
    wrapper = freshet.wrapper(
        "api", start_urls=[f"{pages.url}/list.html"], item_pages="/item/",
        fields={"title": {"jmespath": "name"}, "all": {"jmespath": "all"}},
    )  # fmt: skip
    freshet.crawl(wrapper)
    (post,) = database.posts.find()
    assert post["fields"] == {
        "title": "$name",
        "all": {"＄where": 1, "a．b": {"_": "$x"}, "\ufffd": "\ufffd", "n": float(10**40)},
    }


def test_query_columns_may_have_any_name(freshet: Freshet, database: Db, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.execute("CREATE TABLE t (x)")
        db.execute("INSERT INTO t VALUES (3)")
    db.close()
    path = tmp_path / "cells.toml"
    path.write_text(
        f"""
[databases.shop]
url = "sqlite:///{tmp_path / "shop.db"}"
[cells.odd]
database = "shop"
sql = 'SELECT sum(t.x), x AS "$where", x AS "" FROM t'
every = "1s"
"""
    )
    for hours in (0, 1):
        result = freshet("crawl", "cells", "-a", f"file={path}", hours=hours)
        assert result.code == 0, result.err
    (cell,) = database.cells.find()
    columns = ["sum(t．x)", "＄where", "_"]
    assert cell["content"] == {"columns": columns, "rows": [dict.fromkeys(columns, 3)]}
    assert [visit["outcome"] for visit in visits(database)] == ["new", "unchanged"]


@pytest.mark.parametrize("words", ["targets", "forget --yes"])
def test_invalid_utf8_argument_prints_one_line(freshet: Freshet, words: str) -> None:
    result = freshet(*words.split(), os.fsdecode(b"\xff"))
    assert result.code == 1
    assert result.complaint == f"scrapy {words.split(maxsplit=1)[0]}: '\\udcff' is not valid UTF-8"


def test_odd_post_ids_and_feed_categories_are_stored(
    freshet: Freshet, database: Db, pages: Pages, tmp_path: Path
) -> None:
    names = ["$where", "a.b", "$$ROOT", "{}", "[$ne]", "\\0", "/^.*/"]
    items = "".join(
        f"<item><guid isPermaLink='false'>{name}</guid><title>{name} title</title>"
        f"<category>{name}</category><description>{name} says $set.</description></item>"
        for name in names
    )
    pages.file("/feed.xml", f"<rss version='2.0'><channel>{items}</channel></rss>")
    outline = f"<outline text='$where.x'><outline xmlUrl='{pages.url}/feed.xml'/></outline>"
    listed = tmp_path / "feeds.opml"
    listed.write_text(f"<opml><body>{outline}</body></opml>")
    assert freshet("feeds", "import", listed).code == 0
    assert freshet("crawl", "feeds").code == 0
    posts = {post["guid"]: post for post in database.posts.find()}
    assert posts.keys() == set(names)
    assert all(post["title"] == f"{name} title" for name, post in posts.items())
    assert all(post["fields"]["tags"] == [name] for name, post in posts.items())
    assert {tuple(post["categories"]) for post in posts.values()} == {("$where.x",)}
    listing = freshet("feeds", "list", "--category", "$where.x", "--json")
    assert [row["url"] for row in json.loads(listing.out)] == [f"{pages.url}/feed.xml"]


class Tagged(BaseHTTPRequestHandler):
    """Serve a page with validators that look like operators and paths."""

    def do_GET(self) -> None:
        body = b"<a href=/item/1>x</a><h1>One</h1>"
        self.send_response(200 if "robots" not in self.path else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("ETag", '"$set.a\xff{$x}"')
        self.send_header("Last-Modified", "$where " + "x" * 900)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Suppress the request log."""


def test_odd_validators_are_stored(freshet: Freshet, database: Db) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Tagged) as server:
        threading.Thread(target=server.serve_forever).start()
        url = f"http://127.0.0.1:{server.server_port}"
        wrapper = freshet.wrapper(
            "tagged", start_urls=[f"{url}/"], item_pages="/item/", fields={"title": "h1"}
        )
        freshet.crawl(wrapper)
        server.shutdown()
    item = target(database, f"{url}/item/1")
    assert item["etag"] == '"$set.a\xff{$x}"'
    assert item["last_modified"] == "$where " + "x" * 900
