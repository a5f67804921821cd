"""Links on HTML pages that a site definition selects, and the category of a page."""

from __future__ import annotations

import logging
import tracemalloc
from typing import Any

import pytest
from scrapy.http import TextResponse

from crawler.extract.links import category_of, wanted_links
from crawler.extract.site_definition import Wrapper
from crawler.items import Kind, Link, LinkCounts
from crawler.utils.sandbox import time_limit
from tests.unit.pages import SITE, page, wrapper

MAX_URL_LENGTH = 200


def wanted(
    response: TextResponse, shop: Wrapper, category: str | None, counts: LinkCounts | None = None
) -> tuple[Link, ...]:
    """Return the wanted links on a page, and count all links in `counts`."""
    return wanted_links(response, shop, category, MAX_URL_LENGTH, counts or LinkCounts())


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
        (r'<a href="\item\1">', "https://shop.example/item/1"),
        (r'<a href="\\shop.example\item\1">', "https://shop.example/item/1"),
        (r'<a href="https:\\shop.example/item\1?a=\b">', "https://shop.example/item/1?a=%5Cb"),
        (r'<base href="\deep\"><a href="item\1">', "https://shop.example/deep/item/1"),
        ('<link rel="next" href="/item/1">', "https://shop.example/item/1"),
        ('<LINK REL="canonical NEXT" href="/item/1">', "https://shop.example/item/1"),
        ('<body><link rel=prev href="item/1">', "https://shop.example/item/1"),
        ('<area href="/item/1">', "https://shop.example/item/1"),
        ('<base href="/deep/"><a href="item/1">', "https://shop.example/deep/item/1"),
        ('<base href="https://www.shop.example/"><a href="/item/1">',
         "https://www.shop.example/item/1"),
        ('<base href=/deep/><a href="item/1">', "https://shop.example/deep/item/1"),
        ('<base target="_top"><base href=" /deep/ "><base href="/other/"><a href="item/1">',
         "https://shop.example/deep/item/1"),
        (f'<style>{"a {} " * 1000}</style><base href="/deep/"><a href="item/1">',
         "https://shop.example/deep/item/1"),
    ],
    ids=lambda value: value[-60:],
)  # fmt: skip
def test_selected_link_is_found(anchor: str, url: str) -> None:
    assert urls_on(anchor) == [url]


@pytest.mark.parametrize(
    "markup",
    [
        '<link rel="stylesheet" href="/item/1">', '<link rel="canonical" href="/item/1">',
        '<link rel="nextpage" href="/item/1">', '<link href="/item/1">', '<link rel="next">',
        r'<a href="javascript:go(\item/1)">', r'<a href="mailto:a\item/1">',
    ],
)  # fmt: skip
def test_other_links_are_not_followed(markup: str) -> None:
    assert urls_on(markup) == []


def test_next_page_in_a_link_header_is_followed() -> None:
    link = '</category/tea/?page=2>; rel="next", </item/9>; rel=preload'
    response = page("<p>No links</p>", Link=link)
    assert [each.url for each in wanted(response, wrapper(), None)] == [
        "https://shop.example/category/tea/?page=2"
    ]


def test_text_next_to_an_item_describes_it_rather_than_the_head() -> None:
    cards = "".join(f"<li><a href=/item/{n}>Jug {n}</a> {n} EUR</li>" for n in range(3))
    head = "<head><title>Jugs</title><link rel=next href=/item/1></head>"
    with_next, without = (wanted(page(h + cards), wrapper(), None) for h in (head, ""))
    assert [link.digest for link in with_next] == [link.digest for link in without]


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
        f'<a href="/item/{"1" * MAX_URL_LENGTH}">',
        '<link href="/item/1"><img src="/item/1">',
        '<!-- <a href="/item/1"> -->',
    ],
    ids=lambda anchor: anchor[:40],
)
def test_invalid_or_unselected_links_are_skipped(anchor: str) -> None:
    assert urls_on(f'{anchor}</a><a href="/item/2">') == ["https://shop.example/item/2"]


def test_invalid_base_url_is_ignored() -> None:
    assert urls_on('<base href="http://[x"><a href="/item/2">') == ["https://shop.example/item/2"]


def test_equivalent_links_are_returned_once() -> None:
    body = '<a href="/item/1">a</a><a href="/item/1#b">b</a><a href="/item/1?gclid=5">c</a>'
    assert urls_on(body) == ["https://shop.example/item/1"]


def test_links_keep_page_order() -> None:
    body = '<a href="/item/2"></a><a href="/category/tea/"></a><a href="/item/1"></a>'
    assert [url.removeprefix(SITE) for url in urls_on(body)] == [
        "item/2", "category/tea/", "item/1",
    ]  # fmt: skip


def test_only_item_links_inherit_the_pages_category() -> None:
    response = page('<a href="/item/1"></a><a href="/category/tea/"></a>')
    assert wanted(response, wrapper(), "coffee") == (
        Link("https://shop.example/item/1", Kind.ITEM, "coffee"),
        Link("https://shop.example/category/tea/", Kind.LIST),
    )


def test_category_in_the_item_url_takes_precedence() -> None:
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


def counts_of(body: str, max_kept: int = 20, **keys: Any) -> LinkCounts:
    """Return the link counts of a page."""
    counts = LinkCounts(max_kept)
    wanted(page(body), wrapper(**keys), None, counts)
    return counts


def test_links_are_counted_once_by_class() -> None:
    counts = counts_of(LINKS)
    assert counts.counts == {
        "pages with links": 1, "links": 9, "list links": 1, "item links": 2,
        "ambiguous links": 2, "unmatched links": 3, "foreign links": 1,
    }  # fmt: skip
    assert counts.examples == {
        "ambiguous links": "https://shop.example/category/tea/item/both",
        "foreign links": "https://other.example/item/1",
    }
    assert [url.removeprefix(SITE) for url in counts.unmatched] == ["about", "tag/a", "tag/c"]


def test_ambiguous_link_is_skipped_without_logging(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert urls_on('<a href="/category/tea/item/both">') == []
    assert caplog.messages == []


def test_all_links_are_counted_but_few_are_kept() -> None:
    body = "".join(f'<a href="/tag/{n}"></a><a href="//h{n}.example/"></a>' for n in range(5000))
    counts = counts_of(body, max_kept=7)
    assert counts.counts["unmatched links"] == counts.counts["foreign links"] == 5000
    assert (len(counts.unmatched), len(counts.examples)) == (7, 1)
    sums = LinkCounts(10)
    for _ in range(3):
        sums.merge(counts)
    sums.merge(counts_of(body.replace("/tag/", "/word/")))
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
def test_category_comes_from_url_selector_or_constant(rule: Any, category: str | None) -> None:
    url = "https://shop.example/category/tea/"
    response = page("<h1 id=top>Green\n <b>tea</b></h1><p> </p>", url)
    assert category_of(response, wrapper(category=rule), url) == category


SESSION = "0f3c9a5be27d4418a6d1c8e2b7f09d35"


def session_page(parameters: str, n: int = 4) -> set[str]:
    body = "".join(f"<a href='/item/{i}?{parameters}'>{i}</a>" for i in range(n))
    links = wanted_links(page(body), wrapper(), None, 2000, LinkCounts())
    return {link.url.removeprefix("https://shop.example/item/") for link in links}


@pytest.mark.parametrize("name", ["sid", "SessionID", "s", "session_id"])
def test_session_id_that_all_links_share_is_removed(name: str) -> None:
    assert session_page(f"{name}={SESSION}") == {"0", "1", "2", "3"}
    assert session_page(f"a=1&{name}={SESSION}", 3) == {"0?a=1", "1?a=1", "2?a=1"}


@pytest.mark.parametrize("parameter", ["sid=12", "sid=abcdefghijklmnopqrst", f"id={SESSION}"])
def test_other_parameters_that_all_links_share_are_kept(parameter: str) -> None:
    assert session_page(parameter, 3) == {f"{i}?{parameter}" for i in range(3)}


def test_long_link_with_many_session_ids_takes_little_memory() -> None:
    query = "&".join(f"sid={SESSION}{n}" for n in range(1500))
    tracemalloc.start()
    try:
        assert urls_on(f"<a href='/item/1?{query}'></a><a href='/item/2'></a>") == [f"{SITE}item/2"]
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_unclosed_base_tags_are_read_quickly() -> None:
    with time_limit(3):
        assert urls_on('<base href="http://[x"><a href="/item/2"></a>' + "<base " * 30_000) == [
            f"{SITE}item/2"
        ]


def test_parameter_that_tells_pages_apart_is_no_session_id() -> None:
    urls = [f"/item/?sid={n}{SESSION}" for n in range(4)]
    body = "".join(f"<a href='{url}'>x</a>" for url in urls)
    assert len(wanted_links(page(body), wrapper(), None, 2000, LinkCounts())) == 4
    assert len(session_page(f"sid={SESSION}", 2)) == 2
    same = "".join(f"<a href='/item/?sid={SESSION}'>{n}</a>" for n in range(4))
    (link,) = wanted_links(page(same), wrapper(), None, 2000, LinkCounts())
    assert link.url.endswith(SESSION)
