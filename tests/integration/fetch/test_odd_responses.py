"""Responses that are valid only in part: incomplete, conditional without a condition, in a loop."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import brotli
import pytest

from tests.integration.harness import Db, Freshet, visits
from tests.integration.raw_server import RawServer, page

TEXT = "".join(f"<p>Paragraph {n} of a page.</p>" for n in range(500))
PAGE = f"<h1>Tea</h1>{TEXT}".encode()
NOT_MODIFIED = b"HTTP/1.1 304 Not Modified\r\n\r\n"


@pytest.fixture
def server() -> Iterator[RawServer]:
    with RawServer() as server:
        yield server


def shop(freshet: Freshet, server: RawServer) -> Path:
    return freshet.wrapper(
        "shop", start_urls=[f"{server.url}/item"], item_pages="/item", robots=False,
        fields={"title": "h1"},
    )  # fmt: skip


def results(database: Db) -> list[tuple[str, str | None]]:
    return [(visit["outcome"], visit.get("reason")) for visit in visits(database)]


@pytest.mark.parametrize(
    ("coding", "body"), [("gzip", gzip.compress(PAGE)), ("br", brotli.compress(PAGE))]
)
def test_incomplete_page_is_no_change(
    freshet: Freshet, database: Db, server: RawServer, coding: str, body: bytes
) -> None:
    encoding = f"Content-Encoding: {coding}"
    server.answers["/item"] = [page(body, encoding), page(body[:-40], encoding)]
    freshet.crawl(shop(freshet, server))
    freshet.crawl(shop(freshet, server), "-a", "full=1", hours=1, code=1)
    too_short = f"cannot be decompressed as {coding}: the data ends too early"
    assert results(database) == [("new", None), ("error", too_short)]


def test_part_of_a_page_is_an_error(freshet: Freshet, database: Db, server: RawServer) -> None:
    part = "Content-Range: bytes 0-99/500"
    server.answers["/item"] = page(PAGE[:100], part, status="206 Partial Content")
    freshet.crawl(shop(freshet, server), code=1)
    assert results(database) == [("error", "status 206: only a part of the page")]


@pytest.mark.parametrize(
    "headers", [(), ("ETag: *",), ("Last-Modified: Fri, 01 Jan 2100 00:00:00 GMT",)]
)
def test_status_304_without_a_condition_is_an_error(
    freshet: Freshet, database: Db, server: RawServer, headers: tuple[str, ...]
) -> None:
    server.answers["/item"] = [page(PAGE, *headers), NOT_MODIFIED]
    freshet.crawl(shop(freshet, server))
    freshet.crawl(shop(freshet, server), "-a", "full=1", hours=1, code=1)
    assert "if-" not in server.heads[1].lower()
    unasked = "status 304, but the request had no condition"
    assert results(database) == [("new", None), ("error", unasked)]


@pytest.mark.parametrize("status", ["412 Precondition Failed", "400 Bad Request"])
def test_rejected_condition_is_left_out(
    freshet: Freshet, database: Db, server: RawServer, status: str
) -> None:
    plain = page(PAGE, 'ETag: "odd')
    server.answers["/item"] = [plain, page("", status=status), plain]
    freshet.crawl(shop(freshet, server))
    freshet.crawl(shop(freshet, server), "-a", "full=1", hours=1)
    assert ["If-None-Match" in head for head in server.heads] == [False, True, False]
    assert results(database) == [("new", None), ("unchanged", None)]


@pytest.mark.parametrize("location", ["/item", "", "/item#top", "/item/other"])
def test_redirect_loop_ends_early(
    freshet: Freshet, database: Db, server: RawServer, location: str
) -> None:
    server.answers["/item"] = page("", f"Location: {location}", status="302 Found")
    server.answers["/item/other"] = page("", "Location: /item", status="302 Found")
    freshet.crawl(shop(freshet, server), code=1)
    assert results(database) == [("error", "max redirections reached (they are a loop)")]
    assert server.asked.count("/item") == 3


def test_redirect_to_the_same_url_may_set_a_cookie(
    freshet: Freshet, database: Db, server: RawServer
) -> None:
    first = page("", "Location: /item", "Set-Cookie: seen=1", status="302 Found")
    server.answers["/item"] = [first, page(PAGE)]
    freshet.crawl(shop(freshet, server))
    assert results(database) == [("new", None)]
    assert "Cookie: seen=1" in server.heads[1]


@pytest.mark.parametrize(
    ("headers", "requests"), [((), 1), (("Set-Cookie: seen=1",), 2)], ids=["plain", "cookie"]
)
@pytest.mark.parametrize("target", ["/item", "", "/item#news"])
def test_page_that_refreshes_itself_is_read(
    freshet: Freshet, database: Db, server: RawServer, target: str, headers: tuple[str, ...],
    requests: int,
) -> None:  # fmt: skip
    meta = f'<meta http-equiv="refresh" content="60; url={target}">'
    server.answers["/item"] = page(meta.encode() + PAGE, *headers)
    freshet.crawl(shop(freshet, server))
    assert results(database) == [("new", None)]
    assert server.asked == ["/item"] * requests


@pytest.mark.parametrize("charset", ["rot13", "hex", "idna", "undefined", "unknown"])
@pytest.mark.parametrize("is_header", [True, False])
def test_invalid_charset_is_ignored(
    freshet: Freshet, database: Db, server: RawServer, charset: str, is_header: bool
) -> None:
    kind = f"text/html; charset={charset}" if is_header else "text/html"
    head = "" if is_header else f'<meta charset="{charset}">'
    server.answers["/item"] = page(f"{head}<h1>Grün</h1>", f"Content-Type: {kind}")
    freshet.crawl(shop(freshet, server))
    assert results(database) == [("new", None)]
    (post,) = database.posts.find()
    assert post["fields"]["title"] == "Grün"


def test_passwords_in_links_and_redirects_are_left_out(
    freshet: Freshet, database: Db, server: RawServer
) -> None:
    place = f"ann:secret@127.0.0.1:{server.port}"
    server.answers |= {
        "/list": page(f"<a href=http://{place}/item/1>1</a><a href=/item/2>2</a>"),
        "/item/1": page(PAGE),
        "/item/2": page("", f"Location: http://{place}/item/3", status="302 Found"),
        "/item/3": page(PAGE.replace(b"Tea", b"Coffee")),
    }
    definition = freshet.wrapper(
        "shop", start_urls=[f"{server.url}/list"], item_pages="/item/", robots=False,
        fields={"title": "h1"},
    )  # fmt: skip
    result = freshet.crawl(definition)
    assert results(database) == [("new", None)] * 3
    assert database.targets.find_one({"url": f"{server.url}/item/1"})
    assert "secret" not in result.err + "".join(server.heads)
    for name in ("targets", "visits", "posts"):
        assert "secret" not in str(list(database[name].find()))
