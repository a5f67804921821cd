"""Responses that are valid only in part: incomplete, conditional without a condition, in a loop."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import brotli
import pytest

from tests.conftest import Databases
from tests.integration.harness import Db, Freshet, visits
from tests.integration.raw_server import RawServer, page

TEXT = "".join(f"<p>Paragraph {n} of a page.</p>" for n in range(500))
PAGE = f"<h1>Tea</h1>{TEXT}".encode()
NOT_MODIFIED = b"HTTP/1.1 304 Not Modified\r\n\r\n"
BODIES = {"gzip": gzip.compress(PAGE), "br": brotli.compress(PAGE)}
# Headers of a page that allow no conditional request.
NO_VALIDATORS = {
    "none": (), "star": ("ETag: *",), "future": ("Last-Modified: Fri, 01 Jan 2100 00:00:00 GMT",),
}  # fmt: skip
REJECTIONS = {"412": "412 Precondition Failed", "400": "400 Bad Request"}
LOOPS = {"own": "/item/loop-own", "empty": "", "fragment": "#top", "two": "/item/other-two"}
REFRESHES = {"own": "/item/refresh-own{}", "empty": "", "fragment": "#news"}
CHARSETS = ["rot13", "hex", "idna", "undefined", "unknown"]


def redirect(location: str, *headers: str) -> bytes:
    return page("", f"Location: {location}", *headers, status="302 Found")


def shop_pages() -> dict[str, bytes | list[bytes]]:
    """Return the responses of each page in two crawls, by name."""
    pages: dict[str, bytes | list[bytes]] = {
        "part": page(PAGE[:100], "Content-Range: bytes 0-99/500", status="206 Partial Content"),
        "cookie": [redirect("/item/cookie", "Set-Cookie: c=1; Path=/item/cookie"), page(PAGE)],
        "other-two": redirect("/item/loop-two"),
    }
    for coding, body in BODIES.items():
        encoding = f"Content-Encoding: {coding}"
        pages[f"cut-{coding}"] = [page(body, encoding), page(body[:-40], encoding)]
    for name, headers in NO_VALIDATORS.items():
        pages[f"unasked-{name}"] = [page(PAGE, *headers), NOT_MODIFIED]
    for name, status in REJECTIONS.items():
        plain = page(PAGE, 'ETag: "odd')
        pages[f"rejected-{name}"] = [plain, page("", status=status), plain]
    for name, location in LOOPS.items():
        pages[f"loop-{name}"] = redirect(location)
    for name, target in REFRESHES.items():
        for more in ("", "-cookie"):
            url = target.format(more)
            cookie = (f"Set-Cookie: r=1; Path=/item/refresh-{name}{more}",) if more else ()
            meta = f'<meta http-equiv="refresh" content="60; url={url}">'
            pages[f"refresh-{name}{more}"] = page(meta.encode() + PAGE, *cookie)
    for charset in CHARSETS:
        kind = f"Content-Type: text/html; charset={charset}"
        pages[f"header-{charset}"] = page("<h1>Grün</h1>", kind)
        pages[f"meta-{charset}"] = page(
            f'<meta charset="{charset}"><h1>Grün</h1>', "Content-Type: text/html"
        )
    return pages


@dataclass(frozen=True)
class Shop:
    """Hold the results of two crawls of all pages. first: requests of the first one by path."""

    db: Db
    server: RawServer
    first: Counter[str] = field(repr=False)

    def results(self, name: str) -> list[tuple[str, str | None]]:
        rows = visits(self.db, target=f"{self.server.url}/item/{name}")
        return [(row["outcome"], row.get("reason")) for row in rows]

    def heads(self, name: str) -> list[str]:
        """Return the heads of the requests for a page."""
        return [head for head in self.server.heads if head.split()[1] == f"/item/{name}"]


@pytest.fixture(scope="module")
def shop(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder, pages = tmp_path_factory.mktemp("shop"), shop_pages()
    with databases() as (db, uri), RawServer() as server:
        server.answers |= {f"/item/{name}": answers for name, answers in pages.items()}
        freshet = Freshet(folder, MONGO_URI=uri, FRESHET_DATA_DIR=folder / "data")
        starts = [f"{server.url}/item/{name}" for name in pages if name != "other-two"]
        wrapper = freshet.wrapper(
            "shop", start_urls=starts, item_pages="/item/", robots=False, fields={"title": "h1"}
        )
        freshet.crawl(wrapper)
        first = Counter(server.asked)
        freshet.crawl(wrapper, "-a", "full=1", hours=1)
        yield Shop(db, server, first)


@pytest.mark.parametrize("coding", BODIES)
def test_incomplete_page_is_no_change(shop: Shop, coding: str) -> None:
    too_short = f"cannot be decompressed as {coding}: the data ends too early"
    assert shop.results(f"cut-{coding}") == [("new", None), ("error", too_short)]


def test_part_of_a_page_is_an_error(shop: Shop) -> None:
    assert shop.results("part") == [("error", "status 206: only a part of the page")] * 2


@pytest.mark.parametrize("name", NO_VALIDATORS)
def test_status_304_without_a_condition_is_an_error(shop: Shop, name: str) -> None:
    assert "if-" not in shop.heads(f"unasked-{name}")[1].lower()
    unasked = "status 304, but the request had no condition"
    assert shop.results(f"unasked-{name}") == [("new", None), ("error", unasked)]


@pytest.mark.parametrize("status", REJECTIONS)
def test_rejected_condition_is_left_out(shop: Shop, status: str) -> None:
    heads = shop.heads(f"rejected-{status}")
    assert ["If-None-Match" in head for head in heads] == [False, True, False]
    assert shop.results(f"rejected-{status}") == [("new", None), ("unchanged", None)]


@pytest.mark.parametrize("name", LOOPS)
def test_redirect_loop_ends_early(shop: Shop, name: str) -> None:
    loop = ("error", "max redirections reached (they are a loop)")
    assert shop.results(f"loop-{name}") == [loop] * 2
    assert shop.first[f"/item/loop-{name}"] == 3


def test_redirect_to_the_same_url_may_set_a_cookie(shop: Shop) -> None:
    assert shop.results("cookie")[0] == ("new", None)
    assert "Cookie: c=1" in shop.heads("cookie")[1]


@pytest.mark.parametrize(("more", "requests"), [("", 1), ("-cookie", 2)], ids=["plain", "cookie"])
@pytest.mark.parametrize("name", REFRESHES)
def test_page_that_refreshes_itself_is_read(
    shop: Shop, name: str, more: str, requests: int
) -> None:
    assert shop.results(f"refresh-{name}{more}")[0] == ("new", None)
    assert shop.first[f"/item/refresh-{name}{more}"] == requests


@pytest.mark.parametrize("charset", CHARSETS)
@pytest.mark.parametrize("place", ["header", "meta"])
def test_invalid_charset_is_ignored(shop: Shop, charset: str, place: str) -> None:
    assert shop.results(f"{place}-{charset}")[0] == ("new", None)
    post = shop.db.posts.find_one({"url": f"{shop.server.url}/item/{place}-{charset}"})
    assert post is not None
    assert post["fields"]["title"] == "Grün"


@pytest.fixture
def server() -> Iterator[RawServer]:
    with RawServer() as server:
        yield server


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
    assert [visit["outcome"] for visit in visits(database)] == ["new"] * 3
    assert database.targets.find_one({"url": f"{server.url}/item/1"})
    assert "secret" not in result.err + "".join(server.heads)
    for name in ("targets", "visits", "posts"):
        assert "secret" not in str(list(database[name].find()))
