"""Proxies and Scrapy's settings for downloads: they work, or are refused before any request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.harness import Db, Freshet, target
from tests.integration.recording import Recorder

PAGE = "<h1>A page</h1>"


@pytest.fixture
def site() -> Iterator[Recorder]:
    with Recorder() as server:
        server.answers["/item"] = PAGE
        yield server


def test_definition_with_a_socks_proxy_is_refused(freshet: Freshet, site: Recorder) -> None:
    keys = {"start_urls": [f"{site.url}/item"], "item_pages": "/item"}
    path = freshet.wrapper("shop", **keys, proxy="socks5://127.0.0.1:1080")
    for result in (
        freshet.crawl(path, code=1),
        freshet("wrapper", "check", str(path), f"{site.url}/item"),
    ):
        assert result.code == 1
        assert "proxy: socks5:// proxies are not supported. Use an HTTP proxy" in result.complaint
    assert not site.asked


@pytest.mark.parametrize("name", ["http_proxy", "HTTPS_PROXY"])
def test_socks_proxy_in_the_environment_is_refused(
    freshet: Freshet, site: Recorder, name: str
) -> None:
    path = freshet.wrapper("shop", start_urls=[f"{site.url}/item"], item_pages="/item")
    result = freshet.crawl(path, code=1, **{name: "socks5h://127.0.0.1:1080"})
    assert f"{name.lower()}: socks5h:// proxies are not supported" in result.complaint
    assert len(result.err.strip().splitlines()) < 20, "a traceback"
    assert not site.asked


def test_proxy_of_a_spiders_request_is_refused(
    freshet: Freshet, database: Db, site: Recorder
) -> None:
    code = f"""
from spiders.wrapper import WrapperSpider

class Shop(WrapperSpider):
    name = "shop"
    start_urls = ["{site.url}/item"]
    item_pages = "/item"
    robots = False

    def request(self, target):
        request = super().request(target)
        request.meta["proxy"] = "socks5://127.0.0.1:1080"
        return request
"""
    (freshet.folder / "proxied.py").write_text(code)
    settings = ("-s", "SPIDER_MODULES=proxied")
    assert freshet("crawl", "shop", *settings, PYTHONPATH=str(freshet.folder)).code == 1
    reason = target(database, f"{site.url}/item")["last_visit"]["reason"]
    assert "socks5:// proxies are not supported" in reason


def test_settings_of_downloads_are_kept(freshet: Freshet, database: Db, site: Recorder) -> None:
    site.answers["/item"] = PAGE + "<p>" + "x" * 5000
    path = freshet.wrapper("shop", start_urls=[f"{site.url}/item"], item_pages="/item")
    result = freshet.crawl(path, "-s", "DOWNLOAD_WARNSIZE=1000")
    assert "larger than download warn size (1000)" in result.err
