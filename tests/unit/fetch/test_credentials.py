"""Destinations to which a site's headers and cookies may be sent."""

from __future__ import annotations

import pytest
from scrapy import Request
from scrapy.downloadermiddlewares.cookies import CookiesMiddleware

from crawler.extract.site_definition import Wrapper
from crawler.fetch.credentials import CredentialsMiddleware, FewCookiesMiddleware, OwnPlaces
from crawler.items import Kind, Target


@pytest.mark.parametrize(
    ("start", "own", "foreign"),
    [
        (
            "http://shop.test/",
            ["http://shop.test/a", "http://SHOP.test:80/", "http://www.shop.test/", "https://shop.test/"],
            ["http://shop.test:8080/", "https://shop.test:8443/", "http://a.shop.test/",
             "http://shop.test.evil.test/", "http://notshop.test/", "http://shop.test@evil.test/",
             "http://evil.test/shop.test", "ftp://shop.test/", "http://[", "//shop.test/", ""],
        ),
        (
            "https://www.shop.test/",
            ["https://shop.test/", "https://www.shop.test:443/"],
            ["http://shop.test/", "http://www.shop.test:443/", "https://shop.test:80/"],
        ),
        (
            "http://127.0.0.1:8000/list",
            ["http://127.0.0.1:8000/"],
            ["http://127.0.0.1:8001/", "http://127.0.0.1/", "https://127.0.0.1:8000/",
             "http://localhost:8000/", "http://127.0.0.2:8000/"],
        ),
    ],
)  # fmt: skip
def test_start_url_covers_its_own_hosts(start: str, own: list[str], foreign: list[str]) -> None:
    places = OwnPlaces([start])
    assert [url for url in own if not places.cover(url)] == []
    assert [url for url in foreign if places.cover(url)] == []


def test_allowed_domains_require_https_if_start_url_does() -> None:
    secure = OwnPlaces(["https://shop.test:8443/"], ["shop.test", "cdn.test"])
    for url in ("https://a.shop.test/", "https://cdn.test/", "https://a.cdn.test:8443/"):
        assert secure.cover(url)
    for url in ("http://a.shop.test/", "http://cdn.test/", "https://cdn.test:9000/"):
        assert not secure.cover(url)
    plain = OwnPlaces(["http://shop.test:8080/"], ["shop.test"])
    for url in ("http://a.shop.test/", "https://a.shop.test/", "http://a.shop.test:8080/"):
        assert plain.cover(url)
    assert not plain.cover("http://a.shop.test:9200/")


def sent(
    wrapper: Wrapper, cookies: CookiesMiddleware, url: str
) -> tuple[bytes | None, bytes | None]:
    """Return the key and the cookies that a request for a page sends."""
    request = Request(url, meta={"target": Target("x", url, Kind.ITEM)})
    CredentialsMiddleware(wrapper).process_request(request)
    cookies.process_request(request)
    return request.headers.get("X-Key"), request.headers.get("Cookie")


def test_credentials_are_sent_only_to_own_hosts_and_schemes() -> None:
    wrapper = Wrapper(
        name="x", start_urls=["https://a.test/", "http://b.test/"], item_pages="/item",
        headers={"X-Key": "k"}, cookies={"basket": "s"},
    )  # fmt: skip
    cookies = FewCookiesMiddleware()
    for url in ("https://a.test/1/2", "http://b.test/1", "https://a.test/", "http://b.test/"):
        assert sent(wrapper, cookies, url) == (b"k", b"basket=s")
    for url in ("http://a.test/", "http://b.test:81/", "http://c.b.test/", "https://c.test/"):
        assert sent(wrapper, cookies, url) == (None, None)
