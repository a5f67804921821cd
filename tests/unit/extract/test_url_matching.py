"""Classification of URLs by a site definition: list page, item, or neither."""

from __future__ import annotations

from typing import Any

import pytest

from crawler.extract.site_definition import Match
from crawler.items import Kind
from tests.unit.pages import SITE, wrapper

NOTHING = Match()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://shop.example/category/tea/", Match(Kind.LIST, "tea")),
        ("https://shop.example/category/tea/page2", Match(Kind.LIST, "tea")),
        ("https://shop.example/item/5", Match(Kind.ITEM)),
        ("https://shop.example/about", NOTHING),
        ("https://other.example/item/5", NOTHING),
        ("https://evilshop.example/item/5", NOTHING),
        ("https://shop.example.evil.net/item/5", NOTHING),
        ("https://shop.example/category/tea/item/5", Match(both=True)),
        ("https://shop.example/", Match(Kind.LIST)),
    ],
    ids=["list", "list below", "item", "neither", "host", "prefix", "suffix", "both", "start"],
)
def test_patterns_classify_urls(url: str, expected: Match) -> None:
    assert wrapper().match(url) == expected


@pytest.mark.parametrize(
    ("start", "patterns"),
    [
        ("https://shop.example/category/a/item/b", {}),
        ("https://shop.example/category/a/", {}),
        ("https://shop.example/unmatched", {"list_pages": ()}),
        ("https://shop.example/unmatched?id=5", {"item_pages": "https://shop.example/other"}),
    ],
    ids=["matches both", "matches list_pages", "matches none", "no pattern"],
)
def test_a_start_url_is_a_list_page(start: str, patterns: dict[str, Any]) -> None:
    assert wrapper(start_urls=start, **patterns).match(start).kind is Kind.LIST


WATCHED = "https://shop.example/page?id=5"


@pytest.mark.parametrize(
    ("start", "patterns"),
    [
        ("https://shop.example/item/all", {}),
        ("https://shop.example/item/all", {"list_pages": ()}),
        (WATCHED, {"item_pages": WATCHED, "list_pages": ()}),
        (WATCHED, {"item_pages": ["/nowhere", WATCHED]}),
    ],
    ids=["matches item_pages", "without list_pages", "URL as pattern", "one of several"],
)
def test_a_start_url_that_only_item_pages_matches_is_an_item(
    start: str, patterns: dict[str, Any]
) -> None:
    shop = wrapper(start_urls=[start, SITE], **patterns)
    assert shop.match(start) == Match(Kind.ITEM)
    assert shop.match(start).pattern is None
    assert shop.match(SITE).kind is Kind.LIST


def test_list_pages_take_precedence_for_a_start_url() -> None:
    shop = wrapper(start_urls=WATCHED, item_pages=WATCHED, list_pages=r"/page\?")
    assert shop.match(WATCHED).kind is Kind.LIST


def test_item_start_url_may_contain_its_category() -> None:
    shop = wrapper(start_urls="https://shop.example/tea/item/5", item_pages=r"/(?P<category>\w+)/i")
    assert shop.match("https://shop.example/tea/item/5") == Match(Kind.ITEM, "tea")


@pytest.mark.parametrize(
    ("keys", "url", "category"),
    [
        ({}, "https://shop.example/category/green%20tea/", "green tea"),
        ({}, "https://shop.example/category/th%C3%A9/", "thé"),
        ({}, "https://shop.example/category/%E9/", "\ufffd"),
        ({"category": "tea"}, "https://shop.example/category/coffee/", "tea"),
        ({"category": "tea"}, "https://shop.example/", "tea"),
        ({"category": {"pattern": "category/(.)"}}, "https://shop.example/category/tea/", "t"),
        ({"category": {"pattern": "t.a"}}, "https://shop.example/category/tea/", "tea"),
        (
            {"category": {"pattern": "(cat)egory/(?P<category>..)"}},
            "https://shop.example/category/tea/",
            "te",
        ),
        ({"category": {"pattern": "nowhere"}}, "https://shop.example/category/tea/", None),
        ({"category": {"css": "h1"}}, "https://shop.example/category/tea/", None),
        ({"list_pages": "/category/"}, "https://shop.example/category/tea/", None),
        ({}, "https://shop.example/", None),
    ],
    ids=[
        "group, unquoted",
        "group, UTF-8",
        "group, another encoding",
        "constant",
        "constant on the start URL",
        "pattern: first group",
        "pattern: whole match",
        "pattern: named group",
        "pattern without a match",
        "selector: not in the URL",
        "no group",
        "start URL without a group",
    ],
)
def test_the_category_of_a_list_page(keys: dict[str, Any], url: str, category: str | None) -> None:
    assert wrapper(**keys).match(url) == Match(Kind.LIST, category)


def test_item_url_may_contain_its_category() -> None:
    shop = wrapper(item_pages=r"/(?P<category>\w+)/item/")
    assert shop.match("https://shop.example/tea/item/5") == Match(Kind.ITEM, "tea")


@pytest.mark.parametrize("start", ["https://shop.example/", "https://www.shop.example/"])
@pytest.mark.parametrize("host", ["shop.example", "www.shop.example"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_www_and_scheme_do_not_change_the_site(start: str, host: str, scheme: str) -> None:
    assert wrapper(start_urls=start).match(f"{scheme}://{host}/item/5").kind is Kind.ITEM


@pytest.mark.parametrize(
    ("domains", "host", "kind"),
    [
        ([], "blog.shop.example", None),
        (["shop.example"], "blog.shop.example", Kind.ITEM),
        (["shop.example"], "shop.example", Kind.ITEM),
        (["blog.shop.example"], "shop.example", None),
        (["other.example"], "other.example", Kind.ITEM),
        ("Shop.Example", "shop.example", Kind.ITEM),
        ("bücher.example", "xn--bcher-kva.example", Kind.ITEM),
    ],
    ids=["no subdomains", "subdomain", "same", "narrower", "other site", "capitals", "IDN"],
)
def test_allowed_domains_limit_the_site(
    domains: list[str] | str, host: str, kind: Kind | None
) -> None:
    assert wrapper(allowed_domains=domains).match(f"https://{host}/item/5").kind is kind


def test_internationalized_domain_matches_itself() -> None:
    books = wrapper(start_urls="https://bücher.example/")
    assert books.match(books.starts[0]).kind is Kind.LIST
    assert books.match(books.canonical("https://bücher.example/item/5")).kind is Kind.ITEM
