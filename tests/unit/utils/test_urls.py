"""Canonical URLs: one URL for each page."""

from __future__ import annotations

import re
import time

import pytest

from crawler.utils.urls import (
    bare,
    canonical,
    host_of,
    is_http,
    item_key,
    like,
    of_same_list,
    variants,
    within,
)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://EXAMPLE.com", "http://example.com/"),
        ("HTTP://example.com/", "http://example.com/"),
        ("  http://example.com/a \n", "http://example.com/a"),
        ("http://example.com/a#part", "http://example.com/a"),
        ("http://example.com/?b=2&a=1", "http://example.com/?a=1&b=2"),
        ("http://example.com/?a=2&a=1", "http://example.com/?a=1&a=2"),
        ("http://example.com/%7euser/%c3%a9", "http://example.com/~user/%C3%A9"),
        ("http://example.com/é b", "http://example.com/%C3%A9%20b"),
        ("http://example.com/?q=ü", "http://example.com/?q=%C3%BC"),
        ("http://example.com/%2F", "http://example.com/%2F"),
        ("http://bücher.example/", "http://xn--bcher-kva.example/"),
        ("http://example.com:8080/", "http://example.com:8080/"),
        ("http://example.com/a/../b", "http://example.com/b"),
        ("http://example.com/A", "http://example.com/A"),
    ],
    ids=[
        "host and empty path",
        "scheme",
        "surrounding whitespace",
        "fragment",
        "query is sorted",
        "repeated name",
        "escapes",
        "path in UTF-8",
        "query in UTF-8",
        "escaped slash is kept",
        "international host",
        "port",
        "dots",
        "case of the path is kept",
    ],
)
def test_canonical_form(url: str, expected: str) -> None:
    assert canonical(url) == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://example.com:80/a", "http://example.com/a"),
        ("https://example.com:443/a", "https://example.com/a"),
        ("https://example.com:80/a", "https://example.com:80/a"),
    ],
)
def test_default_port_is_removed(url: str, expected: str) -> None:
    assert canonical(url) == expected


@pytest.mark.parametrize(
    "query",
    ["utm_source=x", "UTM_Campaign=y", "gclid=1", "PHPSESSID=ab", "fbclid", "utm_a=1&utm_b=2"],
)
def test_campaign_and_session_parameters_are_removed(query: str) -> None:
    assert canonical(f"http://example.com/a?{query}") == "http://example.com/a"
    assert canonical(f"http://example.com/a?id=5&{query}") == "http://example.com/a?id=5"


@pytest.mark.parametrize("query", ["id=5", "page=2", "utm=1", "q=utm_source"])
def test_other_parameters_are_kept(query: str) -> None:
    assert canonical(f"http://example.com/a?{query}") == f"http://example.com/a?{query}"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://example.com/a;jsessionid=12", "http://example.com/a"),
        ("http://example.com/a;jsessionid=12?x=1", "http://example.com/a?x=1"),
        ("http://example.com/a;JSESSIONID=12", "http://example.com/a"),
        ("http://example.com/a;v=2", "http://example.com/a;v=2"),
        ("http://example.com/a;jsessionid=1;jsessionid=2", "http://example.com/a"),
        ("http://example.com/a;jsessionid=1/b", "http://example.com/a/b"),
    ],
    ids=["at the end", "before a query", "capitals", "no session", "twice", "inside the path"],
)
def test_session_ids_in_path_are_removed(url: str, expected: str) -> None:
    assert canonical(url) == expected


def test_removing_a_parameter_keeps_other_escapes() -> None:
    assert canonical("http://example.com/?q=%E9&utm_source=x") == canonical(
        "http://example.com/?q=%E9"
    )


@pytest.mark.parametrize("strip", [("sid",), ("SID",), ("s*",), ("S?D",)])
@pytest.mark.parametrize("name", ["sid", "SID", "Sid"])
def test_stripped_parameters_ignore_case(name: str, strip: tuple[str, ...]) -> None:
    assert canonical(f"http://example.com/?{name}=1&a=2", strip) == "http://example.com/?a=2"


def test_keeps_all_parameters_without_strip_rules() -> None:
    url = "http://example.com/a;jsessionid=1?utm_source=x"
    assert canonical(url, ()) == url


@pytest.mark.parametrize(
    "url",
    ["http://[::1", "http://example.com:99999/", "http://x\ud800.com/", "http://example.com:abc/"],
    ids=["incomplete address", "port out of range", "lone surrogate", "port of letters"],
)
def test_invalid_url_is_a_value_error(url: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        canonical(url)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://User@Shop.Example:8443/a", "shop.example"),
        ("http://[::1]:80/", "::1"),
        ("/relative", ""),
        ("mailto:a@example.com", ""),
        ("http://[::1", ""),
        ("", ""),
    ],
)
def test_host_of_url(url: str, host: str) -> None:
    assert host_of(url) == host


@pytest.mark.parametrize(
    ("url", "http"),
    [
        ("http://example.com", True),
        ("https://example.com/a", True),
        ("HTTPS://Example.com/a", True),
        ("//example.com/a", False),
        ("/a", False),
        ("ftp://example.com/", False),
        ("mailto:a@example.com", False),
        ("javascript:void(0)", False),
        ("http://", False),
        ("http:///a", False),
        ("http://[::1", False),
    ],
)
def test_is_http_requires_absolute_url_with_host(url: str, http: bool) -> None:
    assert is_http(url) is http


@pytest.mark.parametrize(
    ("host", "inside"),
    [
        ("example.com", True),
        ("www.example.com", True),
        ("a.b.example.com", True),
        ("other.org", True),
        ("evilexample.com", False),
        ("example.com.evil.net", False),
        ("com", False),
        ("", False),
    ],
)
def test_within_matches_domains_and_subdomains(host: str, inside: bool) -> None:
    assert within(host, ("example.com", "other.org")) is inside


def test_like_pattern_matches_in_linear_time() -> None:
    assert re.search("^" + like("/news/*-2026"), "https://x/news/a-b-2026.html")
    assert re.search("^" + like("b*a"), "https://x/ab") is None, "the order of the parts matters"
    assert re.search("^" + like("a.c?"), "https://x/abc") is None, "not a regular expression"
    began = time.process_time()
    assert re.search("^" + like("a*" * 400 + "b"), "a" * 2000) is None
    assert time.process_time() - began < 1


def test_variants_of_a_url_have_one_bare_form() -> None:
    urls = variants("https://www.shop.example/News/index.html?a=1")
    for url in (
        "http://www.shop.example/News/index.html?a=1", "https://shop.example/News/",
        "https://www.shop.example/News", "https://www.shop.example/news/index.html",
    ):  # fmt: skip
        assert url in urls
    assert len(urls) == len(set(urls)) <= 200
    assert "https://shop.example/lamp.html" in variants("https://shop.example/lamp")
    assert "https://shop.example/lamp" in variants("https://shop.example/lamp.php")
    names = {bare(url) for url in urls}
    assert names == {"shop.example/news"}


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("https://blog.example/post", "blog.example/post"),
        ("HTTP://Blog.example:80/post?utm_source=feed#top", "blog.example/post"),
        ("https://blog.example/?p=7", "blog.example/?p=7"),
        ("https://blog.example/", None),
        ("https://blog.example", None),
        ("https://blog.example/#top", None),
        ("urn:uuid:1", None),
        ("https://[blog", None),
        (None, None),
    ],
)
def test_item_key_is_url_without_scheme(url: str | None, key: str | None) -> None:
    assert item_key(url) == key


@pytest.mark.parametrize(
    ("url", "other", "same"),
    [
        ("http://a/list?page=2", "http://a/list?page=13", True),
        ("http://a/2026/12/", "http://a/2027/01/", True),
        ("http://a/list?page=2", "http://a/list?page=", False),
        ("http://a/list?page=2", "http://a/list?page=3&sort=price", False),
        ("http://a/list?page=2", "http://a/listxpage=3", False),
        ("http://a/red/page/2", "http://a/blue/page/2", False),
        ("http://a/%E5%BE/2", "http://a/%E5%BE/3", True),
        ("http://a/%45/2", "http://a/%46/2", False),
        ("http://a/%E52", "http://a/%E53", True),
    ],
)
def test_pages_of_one_list_differ_only_in_numbers(url: str, other: str, same: bool) -> None:
    assert bool(re.search(of_same_list(url), other)) is same
    assert re.search(of_same_list(url), url)
