"""Wanted links on HTML pages, and the category of a page."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from scrapy.http import TextResponse

from crawler.extract.links import category_of, wanted_links
from crawler.extract.site_definition import Wrapper
from crawler.items import Kind, Link, LinkCounts
from tests.unit.pages import SITE, page, wrapper

LONGEST = 200


def wanted(
    response: TextResponse, shop: Wrapper, category: str | None, counts: LinkCounts | None = None
) -> tuple[Link, ...]:
    """Return the wanted links on a page, and count all links in `counts`."""
    return wanted_links(response, shop, category, LONGEST, counts or LinkCounts())


def urls_on(body: str, **keys: Any) -> list[str]:
    """Return the wanted URLs on a page."""
    return [link.url for link in wanted(page(body), wrapper(**keys), None)]


@pytest.mark.parametrize(
    ("anchor", "url"),
    [
        ('<a href="/item/1">', "https://shop.example/item/1"),
        ('<a href="item/1">', "https://shop.example/item/1"),
        ('<a href="  /item/1\n">', "https://shop.example/item/1"),
        ('<a href="//shop.example/item/1">', "https://shop.example/item/1"),
        ('<a href="https://SHOP.example/item/1#reviews">', "https://shop.example/item/1"),
        ('<a href="/item/1?utm_source=mail&b=2&a=1">', "https://shop.example/item/1?a=1&b=2"),
        ('<a href="/item/1?a=1&amp;b=2">', "https://shop.example/item/1?a=1&b=2"),
        ('<a href="/item/thé">', "https://shop.example/item/th%C3%A9"),
        ('<a href="/item/1.pdf">', "https://shop.example/item/1.pdf"),
        ('<area href="/item/1">', "https://shop.example/item/1"),
        ('<base href="/deep/"><a href="item/1">', "https://shop.example/deep/item/1"),
        ('<base href="https://www.shop.example/"><a href="/item/1">',
         "https://www.shop.example/item/1"),
    ],
)  # fmt: skip
def test_a_wanted_link_is_found(anchor: str, url: str) -> None:
    assert urls_on(anchor) == [url]


@pytest.mark.parametrize(
    "anchor",
    [
        '<a href="/about">',
        '<a href="https://other.example/item/1">',
        '<a href="mailto:item/@shop.example">',
        "<a href=\"javascript:open('/item/1')\">",
        '<a href="tel:/item/1">',
        '<a href="data:text/html,/item/1">',
        '<a href="ftp://shop.example/item/1">',
        '<a href="http://[::1/item/1">',
        '<a href="https://shop.example:99999/item/1">',
        '<a name="/item/1">',
        f'<a href="/item/{"1" * LONGEST}">',
        '<link href="/item/1"><img src="/item/1">',
        '<!-- <a href="/item/1"> -->',
    ],
    ids=lambda anchor: anchor[:40],
)
def test_an_unwanted_or_broken_link_does_not_hide_the_others(anchor: str) -> None:
    assert urls_on(f'{anchor}</a><a href="/item/2">') == ["https://shop.example/item/2"]


def test_a_base_that_cannot_be_read_is_none() -> None:
    assert urls_on('<base href="http://[x"><a href="/item/2">') == ["https://shop.example/item/2"]


def test_a_link_counts_once_whatever_form_it_has() -> None:
    body = '<a href="/item/1">a</a><a href="/item/1#b">b</a><a href="/item/1?gclid=5">c</a>'
    assert urls_on(body) == ["https://shop.example/item/1"]


def test_links_come_in_the_order_of_the_page() -> None:
    body = '<a href="/item/2"></a><a href="/category/tea/"></a><a href="/item/1"></a>'
    assert [url.removeprefix(SITE) for url in urls_on(body)] == [
        "item/2", "category/tea/", "item/1",
    ]  # fmt: skip


def test_items_take_the_category_of_the_page_and_list_pages_do_not() -> None:
    response = page('<a href="/item/1"></a><a href="/category/tea/"></a>')
    assert wanted(response, wrapper(), "coffee") == (
        Link("https://shop.example/item/1", Kind.ITEM, "coffee"),
        Link("https://shop.example/category/tea/", Kind.LIST),
    )


def test_the_category_in_an_item_s_own_url_comes_first() -> None:
    response = page('<a href="/tea/item/1"></a>')
    shop = wrapper(item_pages=r"/(?P<category>\w+)/item/")
    assert [x.category for x in wanted(response, shop, "coffee")] == ["tea"]


LINKS = """
    <a href="/category/tea/"></a> <a href="/item/1"></a> <a href="/item/2"></a>
    <a href="/category/tea/item/both"></a> <a href="/category/oolong/item/both#top"></a>
    <a href="/category/tea/item/both?utm_source=mail"></a>
    <a href="/about"></a> <a href="/tag/a"></a> <a href="/tag/a#b"></a> <a href="/tag/c"></a>
    <a href="/"></a> <a href="https://other.example/item/1"></a> <a href="mailto:item/1"></a>
"""


def counted(body: str, kept: int = 20, **keys: Any) -> LinkCounts:
    """Return the link counts of a page."""
    counts = LinkCounts(kept)
    wanted(page(body), wrapper(**keys), None, counts)
    return counts


def test_every_link_is_counted_once_by_what_the_patterns_make_of_it() -> None:
    counts = counted(LINKS)
    assert counts.counts == {
        "pages with links": 1, "links": 9, "list links": 1, "item links": 2,
        "ambiguous links": 2, "unmatched links": 3, "foreign links": 1,
    }  # fmt: skip
    assert counts.examples == {
        "ambiguous links": "https://shop.example/category/tea/item/both",
        "foreign links": "https://other.example/item/1",
    }
    assert [url.removeprefix(SITE) for url in counts.unmatched] == ["about", "tag/a", "tag/c"]


def test_a_link_that_matches_both_patterns_is_left_out_without_a_word_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert urls_on('<a href="/category/tea/item/both">') == []
    assert caplog.messages == []


def test_of_a_page_of_many_links_few_are_kept_and_all_are_counted() -> None:
    body = "".join(f'<a href="/tag/{n}"></a><a href="//h{n}.example/"></a>' for n in range(5000))
    counts = counted(body, kept=7)
    assert counts.counts["unmatched links"] == counts.counts["foreign links"] == 5000
    assert (len(counts.unmatched), len(counts.examples)) == (7, 1)
    sums = LinkCounts(10)
    for _ in range(3):
        sums.merge(counts)
    sums.merge(counted(body.replace("/tag/", "/word/")))
    assert sums.counts["unmatched links"] == 20_000
    assert len(sums.unmatched) == 10


@pytest.mark.parametrize(
    ("rule", "category"),
    [
        (None, "tea"),
        ("all", "all"),
        ({"pattern": "category/(t)"}, "t"),
        ({"css": "h1"}, "Green tea"),
        ({"css": "h1::attr(id)"}, "top"),
        ({"xpath": "//h1"}, "Green tea"),
        ({"xpath": "string(//h1/b)"}, "tea"),
        ({"css": "h2"}, None),
        ({"css": "p"}, None),
    ],
    ids=str,
)
def test_the_category_of_a_page_by_url_selector_or_constant(
    rule: Any, category: str | None
) -> None:
    url = "https://shop.example/category/tea/"
    response = page("<h1 id=top>Green\n <b>tea</b></h1><p> </p>", url)
    assert category_of(response, wrapper(category=rule), url) == category
