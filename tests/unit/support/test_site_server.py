"""The demo site over HTTP: validators, clock, edits, log, large pages, and practice hosts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from http.client import HTTPConnection, HTTPMessage
from urllib.parse import urljoin, urlsplit

import pytest
from parsel import Selector

from tests.site import big, practice
from tests.site.exchange import etag_matches
from tests.site.practice_books import BOOKS
from tests.site.practice_quotes import AUTHORS, QUOTES, author_path
from tests.site.running import RunningSite
from tests.site.world import START, World

WORLD = World()
BUSY = max(WORLD.items, key=lambda item: len(item.offers) if item.live(START) else 0).path


@pytest.fixture
def site() -> Iterator[RunningSite]:
    """Run a new site for each test."""
    with RunningSite("--practice") as running:
        yield running


def get(site: RunningSite, path: str, **headers: str) -> tuple[int, HTTPMessage, bytes]:
    """Fetch a path or, by proxy, an absolute URL; `_` in header names stands for `-`."""
    connection = HTTPConnection(urlsplit(site.url).netloc, timeout=10)
    connection.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, response.headers, body


def test_boilerplate_does_not_change_etag(site: RunningSite) -> None:
    status, first, body = get(site, BUSY)
    _, second, two = get(site, BUSY)
    assert status == 200
    assert body != two
    assert first["ETag"] == second["ETag"]
    assert first["Date"] == "Mon, 05 Jan 2026 00:00:00 GMT"


def test_conditional_requests_follow_the_clock(site: RunningSite) -> None:
    _, headers, _ = get(site, BUSY)
    etag, modified = headers["ETag"], headers["Last-Modified"]
    change = WORLD.changes(BUSY, START, START + timedelta(weeks=2))[0]
    for now, expected in ((change - timedelta(seconds=1), 304), (change, 200)):
        site.set_clock(now)
        assert get(site, BUSY, If_None_Match=etag)[0] == expected
        assert get(site, BUSY, If_Modified_Since=modified)[0] == expected
    assert get(site, BUSY, If_None_Match='"no"', If_Modified_Since=modified)[0] == 200


def test_304_has_validators_and_no_body(site: RunningSite) -> None:
    etag = get(site, "/")[1]["ETag"]
    status, headers, body = get(site, "/", If_None_Match=f'W/"x", W/{etag}')
    assert (status, headers["ETag"], body) == (304, etag, b"")


def test_invalid_date_is_ignored(site: RunningSite) -> None:
    assert get(site, "/", If_Modified_Since="yesterday")[0] == 200


def test_edits_change_content_and_validators(site: RunningSite) -> None:
    _, headers, _ = get(site, BUSY)
    assert [site.edit(BUSY), site.edit(BUSY)] == [1, 2]
    status, after, body = get(site, BUSY, If_None_Match=headers["ETag"])
    assert status == 200
    assert b"edited 2 times" in body
    assert get(site, BUSY, If_Modified_Since=headers["Last-Modified"])[0] == 200
    assert after["Last-Modified"] != headers["Last-Modified"]


def test_the_log_has_a_line_for_each_request(site: RunningSite) -> None:
    etag = get(site, f"{BUSY}?utm_source=x")[1]["ETag"]
    get(site, "/nothing", If_None_Match=etag)
    first, second = site.requests()
    assert (first["path"], first["status"]) == (f"{BUSY}?utm_source=x", 200)
    assert first["bytes"] > 1000
    assert (first["conditional"], first["complete"]) == (False, True)
    assert (second["path"], second["status"], second["conditional"]) == ("/nothing", 404, True)
    assert abs(first["at"] - time.time()) < 60
    site.clear_log()
    assert site.requests() == []
    get(site, "/")
    assert len(site.requests()) == 1


def test_server_stops_immediately_during_a_request() -> None:
    with RunningSite() as site:
        connection = HTTPConnection(urlsplit(site.url).netloc, timeout=10)
        connection.request("GET", "/edge/item/slow")
        connection.getresponse()
        began = time.monotonic()
    assert time.monotonic() - began < 2
    connection.close()


def test_failed_start_reports_the_reason() -> None:
    with pytest.raises(RuntimeError, match="unrecognized"), RunningSite("--nonsense"):
        pass


def test_big_item_has_fields_and_can_be_edited(site: RunningSite) -> None:
    path = "/big/5000/item/17.html"
    status, headers, body = get(site, path)
    page = Selector(body.decode())
    assert status == 200
    assert page.css("h1::text").get()
    assert page.css("p.price::text").get() == "£21.23"
    assert page.css("p.stock::text").get()
    assert page.css("span.sku::text").get() == "BG-00000017"
    assert page.css("div.description p::text").get()
    assert get(site, path, If_None_Match=headers["ETag"])[0] == 304
    site.edit(path)
    status, _, body = get(site, path, If_None_Match=headers["ETag"])
    assert (status, Selector(body.decode()).css("p.price::text").get()) == (200, "£21.33")
    assert [row["method"] for row in site.requests()] == ["POST"]


def test_big_pages_have_requested_sizes() -> None:
    for i in range(1, 2000, 7):
        body = big.page(b"/big/5000/item/%d.html" % i, b"", 0)
        assert body is not None
        assert 4850 < len(body) < 5200
    for kb in (5, 100):
        body = big.page(b"/big/9/article/3.html", b"kb=%d" % kb, 0)
        assert body is not None
        assert kb * 1000 <= len(body) < kb * 1000 + 600
        assert body != big.page(b"/big/9/article/4.html", b"kb=%d" % kb, 0)


@pytest.mark.parametrize("kind", [b"list", b"articles"])
def test_big_lists_link_everything_once(kind: bytes) -> None:
    path, links, categories = f"/big/2050/{kind.decode()}/1/", [], set()
    for _ in range(21):
        body = big.page(path.partition("?")[0].encode(), b"kb=7", 0)
        assert body is not None
        page = Selector(body.decode())
        links += page.css("li.product a::attr(href)").getall()
        categories.add(page.css("h2.category::text").get())
        path = page.css("a.next::attr(href)").get() or ""
    assert path == ""
    assert len(set(links)) == len(links) == 2050
    assert len(categories) == 3


@pytest.mark.parametrize(
    "path",
    [b"/big/", b"/big/0/list/1/", b"/big/10/item/11.html", b"/big/10/item/01.html", b"/big/x/y/z"],
)
def test_big_pages_that_do_not_exist(path: bytes) -> None:
    assert big.page(path, b"", 0) is None


def test_etags_are_compared_weakly() -> None:
    assert etag_matches('"a", W/"b"', "b")
    assert etag_matches("*", "b")
    assert not etag_matches('"a"', "b")


def test_practice_hosts_answer_by_proxy_and_by_host(site: RunningSite) -> None:
    status, _, body = get(site, "http://books.toscrape.com/catalogue/page-2.html")
    assert status == 200
    assert len(Selector(body.decode()).css("article.product_pod")) == 20
    assert get(site, "/page/3/", Host="quotes.toscrape.com")[0] == 200
    assert get(site, "/page/3/")[0] == 404
    assert [row["host"] for row in site.requests()][:2] == list(practice.HOSTS)


def test_practice_books_have_their_fields() -> None:
    assert len(BOOKS) == 45
    for book in BOOKS:
        page = Selector(practice.page("books.toscrape.com", book.path) or "")
        assert page.css("h1::text").get() == book.title
        assert page.css("p.price_color::text").get()
        assert "available" in "".join(page.css("p.availability::text").getall())
        assert page.css(f"p.star-rating.{book.stars}")
        assert page.css("#product_description + p::text").get() == book.description
        assert page.css("table td::text").get() == book.upc


@pytest.mark.parametrize("host", list(practice.HOSTS))
def test_practice_links_resolve_to_pages(host: str) -> None:
    waiting, seen = [f"http://{host}/"], set[str]()
    for url in waiting:
        if url in seen:
            continue
        seen.add(url)
        html = practice.page(host, urlsplit(url).path)
        assert html is not None, url
        links = Selector(html).css("a::attr(href)").getall()
        waiting += [urljoin(url, link) for link in links]
    assert len(seen) > 20


def test_practice_quotes_have_their_fields() -> None:
    pages = [practice.page("quotes.toscrape.com", f"/page/{n}/") or "" for n in (1, 2, 3)]
    quotes = [quote for page in pages for quote in Selector(page).css("div.quote")]
    assert len(quotes) == len(QUOTES) == 25
    assert all(q.css("span.text::text").get() and q.css("a.tag::text").get() for q in quotes)
    assert {q.css("small.author::text").get() for q in quotes} == set(AUTHORS)
    page = Selector(practice.page("quotes.toscrape.com", author_path("Clara Weir") + "/") or "")
    assert page.css("h3.author-title::text").get() == "Clara Weir"
    assert page.css("span.author-born-date::text").get() == AUTHORS["Clara Weir"][0]
    assert page.css("span.author-born-location::text").get() == AUTHORS["Clara Weir"][1]
    assert page.css("div.author-description::text").get()
