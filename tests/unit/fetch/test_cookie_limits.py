"""Limits on the cookies of a site."""

from __future__ import annotations

import pytest
from scrapy import Request
from scrapy.downloadermiddlewares import cookies
from scrapy.http import Response
from scrapy.http.cookies import CookieJar
from tldextract.cache import DiskCache

from crawler.fetch.credentials import (
    MAX_COOKIES,
    MAX_HOST_BYTES,
    MAX_HOST_COOKIES,
    FewCookiesMiddleware,
)


def visit(middleware: FewCookiesMiddleware, url: str, *lines: str) -> CookieJar:
    """Visit a page that sets cookies."""
    response = Response(url, headers={"Set-Cookie": list(lines)})
    middleware.process_response(Request(url), response)
    return middleware.jars[None]


def sent(middleware: FewCookiesMiddleware, url: str) -> list[bytes]:
    """Return the cookies sent with the next request."""
    request = Request(url)
    middleware.process_request(request)
    return (request.headers.get("Cookie") or b"").split(b"; ")


def test_all_cookies_are_kept_below_the_limits() -> None:
    middleware = FewCookiesMiddleware()
    visit(middleware, "http://a.example/", "a=1", "b=2")
    visit(middleware, "http://a.example/", "a=3")
    assert sorted(sent(middleware, "http://a.example/x")) == [b"a=3", b"b=2"]


def test_newest_cookies_of_a_host_are_kept() -> None:
    middleware = FewCookiesMiddleware()
    for page in range(30):
        of_page = [f"c{page}-{n}=1; Path=/{page}" for n in range(5)]
        jar = visit(middleware, f"http://a.example/{page}", *of_page)
    assert len(jar) == MAX_HOST_COOKIES
    assert len(jar._cookies["a.example"]) == MAX_HOST_COOKIES // 5
    assert len(sent(middleware, "http://a.example/29/x")) == 5


def test_cookies_fit_into_a_request() -> None:
    middleware = FewCookiesMiddleware()
    visit(middleware, "http://a.example/", *(f"c{n}={'x' * 3000}" for n in range(10)))
    visit(middleware, "http://a.example/", f"huge={'x' * MAX_HOST_BYTES}")
    assert [cookie[:2] for cookie in sent(middleware, "http://a.example/")] == [b"c8", b"c9"]


def test_cookies_of_the_most_recent_hosts_are_kept() -> None:
    middleware = FewCookiesMiddleware()
    for n in range(MAX_COOKIES // 40 + 10):
        jar = visit(middleware, f"http://h{n}.example/", *(f"c{i}=1" for i in range(40)))
    assert len(jar) <= MAX_COOKIES
    assert "h0.example" not in jar._cookies
    assert len(sent(middleware, f"http://h{MAX_COOKIES // 40 + 9}.example/")) == 40


def test_public_suffixes_are_not_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object, **__: object) -> None:
        pytest.fail("the crawl would wait for a server that the user has not named")

    monkeypatch.setattr(DiskCache, "cached_fetch_url", download)
    # Neither from memory nor from the disk.
    monkeypatch.setattr(cookies._split_domain, "_extractor", None)
    monkeypatch.setattr(cookies._split_domain, "_cache", DiskCache(None))
    middleware = FewCookiesMiddleware()
    visit(middleware, "http://shop.co.uk/", "public=1; Domain=co.uk", "own=1; Domain=shop.co.uk")
    assert sent(middleware, "http://shop.co.uk/") == [b"own=1"]
