"""A site's headers and cookies are sent only to its own hosts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.certificates import certificate
from tests.integration.feeds.test_feed_crawl import post, rss, subscribe
from tests.integration.harness import Db, Freshet, target
from tests.integration.recording import Recorder

SECRETS = {
    "headers": {"X-Api-Key": "${KEY}", "Authorization": "Bearer ${KEY}", "User-Agent": "own/1"},
    "cookies": {"session": "${KEY}"},
}
ENV = {"KEY": "s3cret-k3y", "FRESHET_PRIVATE_ADDRESSES": 1}
PAGE = "<h1>A page</h1>"


@pytest.fixture
def own() -> Iterator[Recorder]:
    with Recorder() as server:
        yield server


@pytest.fixture
def other() -> Iterator[Recorder]:
    with Recorder() as server:
        yield server


def site(freshet: Freshet, server: Recorder, **more: Any) -> Path:
    keys: dict[str, Any] = {
        "start_urls": [f"{server.url}/list"],
        "list_pages": r"/list|sitemap",
        "item_pages": r"/item",
        "fields": {"title": "h1"},
    }
    return freshet.wrapper("shop", **keys | SECRETS | more)


def carries(headers: dict[str, str]) -> bool:
    """Return true if a request has all of the site's headers and cookies; fail if only some."""
    whole = (
        headers.get("x-api-key") == ENV["KEY"],
        headers.get("authorization") == f"Bearer {ENV['KEY']}",
        headers.get("cookie") == f"session={ENV['KEY']}",
        headers.get("user-agent") == "own/1",
    )
    if not all(whole):
        assert not any(whole), headers
        assert str(ENV["KEY"]) not in str(headers)
        assert headers["user-agent"].startswith("Freshet/")
    return all(whole)


def assert_no_secrets(server: Recorder) -> None:
    """Check that no request, including for robots.txt, has a secret or a foreign Referer."""
    assert server.asked
    for _, headers in server.asked:
        assert not carries(headers)
        assert headers.get("referer", server.url).startswith(server.url)


def test_redirect_to_another_host_sends_no_secrets(
    freshet: Freshet, own: Recorder, other: Recorder
) -> None:
    statuses = [301, 302, 303, 307, 308]
    own.answers |= {f"/list?key={n}": (n, f"{other.url}/item/{n}") for n in statuses}
    other.answers |= {f"/item/{n}": PAGE for n in statuses}
    starts = [f"{own.url}/list?key={n}" for n in statuses]
    freshet.crawl(site(freshet, own, start_urls=starts), code=1, **ENV)
    for n in statuses:
        assert carries(own.headers(f"/list?key={n}"))
        assert other.headers(f"/item/{n}")
    assert_no_secrets(other)


def test_redirect_chain_sends_secrets_to_own_host_only(
    freshet: Freshet, own: Recorder, other: Recorder
) -> None:
    own.answers |= {"/list": (302, "/list/2"), "/list/2": (307, f"{other.url}/a"), "/list/3": PAGE}
    other.answers |= {"/a": (301, "/b"), "/b": (302, f"{own.url}/list/3")}
    other.extra["/a"] = {"Set-Cookie": "theirs=1"}
    freshet.crawl(site(freshet, own), code=1, **ENV)
    assert all(carries(own.headers(path)) for path in ("/list", "/list/2", "/list/3"))
    assert other.headers("/b")["cookie"] == "theirs=1"
    assert_no_secrets(other)


def test_refresh_to_another_host_sends_no_secrets(
    freshet: Freshet, own: Recorder, other: Recorder
) -> None:
    own.answers["/list"] = f'<meta http-equiv="refresh" content="0; url={other.url}/item">'
    other.answers["/item"] = PAGE
    freshet.crawl(site(freshet, own), code=1, **ENV)
    assert_no_secrets(other)


def test_links_and_sitemaps_send_no_secrets_to_another_port(
    freshet: Freshet, own: Recorder, other: Recorder
) -> None:
    head = "<?xml version='1.0'?><urlset xmlns='http://www.sitemaps.org/schemas/sitemap/0.9'>"
    own.answers["/list"] = f'<a href="{other.url}/item-a">a</a> <a href="/sitemap.xml">s</a>'
    own.answers["/sitemap.xml"] = f"{head}<url><loc>{other.url}/item-b</loc></url></urlset>"
    other.answers |= {"/item-a": PAGE, "/item-b": PAGE}
    freshet.crawl(site(freshet, own), **ENV)
    assert carries(own.headers("/list"))
    assert carries(own.headers("/sitemap.xml"))
    assert other.headers("/item-a")
    assert other.headers("/item-b")
    assert_no_secrets(other)


def test_robots_txt_requests_send_no_secrets(
    freshet: Freshet, own: Recorder, other: Recorder
) -> None:
    own.answers |= {"/list": PAGE, "/robots.txt": (302, f"{other.url}/robots.txt")}
    freshet.crawl(site(freshet, own), code=1, **ENV)
    assert "x-api-key" not in own.headers("/robots.txt")
    assert_no_secrets(other)


def test_cells_on_other_hosts_get_no_secrets(
    freshet: Freshet, own: Recorder, other: Recorder
) -> None:
    own.answers |= {"/list": PAGE, "/rate": PAGE}
    other.answers["/rate"] = PAGE
    cells = {
        "near": {"url": f"{own.url}/rate", "css": "h1"},
        "far": {"url": f"{other.url}/rate", "css": "h1"},
    }
    freshet.crawl(site(freshet, own, cells=cells), code=1, **ENV)
    assert carries(own.headers("/rate"))
    assert_no_secrets(other)


def test_crawl_of_cells_sends_secrets_to_their_hosts(
    freshet: Freshet, own: Recorder, other: Recorder
) -> None:
    own.answers["/rate"] = (302, f"{other.url}/rate")
    other.answers["/rate"] = PAGE
    keys = {"cells": {"near": {"url": f"{own.url}/rate", "css": "h1"}}}
    path = freshet.wrapper("rates", **keys | SECRETS)
    result = freshet("crawl", "cells", "-a", f"file={path}", **ENV)
    assert result.code == 0, result.err
    assert carries(own.headers("/rate"))
    assert_no_secrets(other)


def test_redirect_from_https_to_http_sends_no_secrets(freshet: Freshet, tmp_path: Path) -> None:
    with Recorder(certificate(tmp_path)) as secure, Recorder() as plain:
        # Both sites have the same host name, so the redirect only changes the scheme and the port.
        secure.answers["/list"] = (302, plain.url + "/item")
        plain.answers["/item"] = PAGE
        freshet.crawl(site(freshet, secure, verify_tls=False), code=1, **ENV)
        assert carries(secure.headers("/list"))
        assert_no_secrets(plain)


def test_subdomains_and_proxies_get_no_secrets(freshet: Freshet, own: Recorder) -> None:
    proxy = own.url.replace("://", "://me:${KEY}@")
    at_home, below = "http://shop.test/list", "http://evil.shop.test/item"
    own.answers |= {at_home: (302, below), below: (302, "http://www.shop.test/list"),
                    "http://www.shop.test/list": PAGE}  # fmt: skip
    freshet.crawl(site(freshet, own, start_urls=[at_home], proxy=proxy), code=1, **ENV)
    assert carries(own.headers(at_home))
    assert carries(own.headers("http://www.shop.test/list"))
    assert not carries(own.headers(below))
    assert all(headers["proxy-authorization"] for _, headers in own.asked)


def test_allowed_domains_get_secrets(freshet: Freshet, own: Recorder) -> None:
    at_home, below = "http://shop.test/list", "http://items.shop.test/item"
    own.answers |= {at_home: f'<a href="{below}">a</a>', below: PAGE}
    more = {"start_urls": [at_home], "allowed_domains": ["shop.test"], "proxy": own.url}
    freshet.crawl(site(freshet, own, **more), **ENV)
    assert carries(own.headers(below))


def test_pages_of_posts_get_secrets_on_host_of_feed_only(
    freshet: Freshet, stored: tuple[Db, str], own: Recorder, other: Recorder
) -> None:
    db, uri = stored
    links = post("a", link=f"{own.url}/a"), post("b", link=f"{other.url}/b")
    own.answers |= {"/feed": rss(*links), "/a": PAGE}
    other.answers["/b"] = PAGE
    subscribe(db, uri, f"{own.url}/feed")
    wrapper = freshet.wrapper("feeds", credentials_for=own.url, **SECRETS)
    words = ("crawl", "feeds", "-a", f"wrapper={wrapper}", "-a", "follow=1")
    for _ in range(2):
        result = freshet(*words, **ENV)
        assert result.code == 0, result.err
    assert carries(own.headers("/feed"))
    assert carries(own.headers("/a"))
    assert other.headers("/b")
    assert_no_secrets(other)


def test_feed_redirected_to_another_host_sends_no_secrets(
    freshet: Freshet, stored: tuple[Db, str], own: Recorder, other: Recorder
) -> None:
    db, uri = stored
    own.answers["/feed"] = (301, f"{other.url}/feed")
    other.answers["/feed"] = rss(post("a"))
    subscribe(db, uri, f"{own.url}/feed")
    wrapper = freshet.wrapper("feeds", credentials_for=own.url, **SECRETS)
    for visit in range(6):
        result = freshet("crawl", "feeds", "-a", f"wrapper={wrapper}", hours=visit * 700, **ENV)
        assert result.code == 0, result.err
    assert len([path for path, _ in other.asked if path == "/feed"]) == 6
    assert target(db, f"{own.url}/feed")["kind"] == "feed"
    assert_no_secrets(other)


def test_feeds_that_anyone_adds_get_no_secrets(
    freshet: Freshet, stored: tuple[Db, str], own: Recorder, other: Recorder
) -> None:
    db, uri = stored
    own.answers["/feed"] = rss(post("a"))
    other.answers["/feed"] = rss(post("b"))
    subscribe(db, uri, f"{own.url}/feed", f"{other.url}/feed")
    words = ("crawl", "feeds", "-a")
    refused = freshet(*words, f"wrapper={freshet.wrapper('feeds', **SECRETS)}", **ENV)
    assert refused.code == 1
    assert "headers.X-Api-Key may be secret. Set credentials_for" in refused.complaint
    assert not own.asked
    assert not other.asked
    bound = freshet.wrapper("feeds", credentials_for=own.url, **SECRETS)
    assert freshet(*words, f"wrapper={bound}", **ENV).code == 0
    assert carries(own.headers("/feed"))
    assert other.headers("/feed")
    assert_no_secrets(other)


def test_checked_url_on_another_host_gets_no_secrets(
    freshet: Freshet, own: Recorder, other: Recorder
) -> None:
    own.answers["/item"] = other.answers["/item"] = PAGE
    path = site(freshet, own)
    freshet("wrapper", "check", str(path), f"{own.url}/item", f"{other.url}/item", **ENV)
    assert carries(own.headers("/item"))
    assert not [1 for _, headers in other.asked if carries(headers)]


def test_a_password_in_a_start_url_is_refused_and_not_shown(freshet: Freshet) -> None:
    wrapper = freshet.wrapper("x", start_urls=["http://me:pa55@a.test/"], item_pages="/item")
    result = freshet.crawl(wrapper, code=1)
    assert "URLs must not contain a user name or password" in result.complaint
    assert "pa55" not in result.err


def test_typed_url_on_another_host_gets_no_secrets(
    freshet: Freshet, own: Recorder, other: Recorder
) -> None:
    own.answers["/item"] = other.answers["/item"] = PAGE
    wrapper = site(freshet, own)
    words = ("--spider", "site", "-a", f"wrapper={wrapper}")
    for server in (own, other):
        assert freshet("fetch", f"{server.url}/item", *words, **ENV).code == 0
    assert carries(own.headers("/item"))
    assert_no_secrets(other)
