"""Digests of the entries that list pages contain about items."""

from __future__ import annotations

from urllib.parse import urldefrag

from scrapy.http import HtmlResponse

from crawler.extract.links import digests_of, link_elements, wanted_links
from crawler.items import LinkCounts
from tests.unit.pages import wrapper

BASE = "https://shop.example/list/"
ITEMS = {f"https://shop.example/item/{n}": f"https://shop.example/item/{n}" for n in range(9)}


def entry_digests(body: str, items: dict[str, str] = ITEMS) -> dict[str, str]:
    html = f"<html><body>{body}</body></html>"
    response = HtmlResponse(BASE, body=html.encode(), encoding="utf-8")
    links = [(element, urldefrag(url)[0]) for element, url in link_elements(response)]
    digests = digests_of((element, items[url]) for element, url in links if url in items)
    return {url.rpartition("/")[2]: digest for url, digest in digests.items()}


def product(number: int, price: str, more: str = "") -> str:
    return (
        f'<li><a href="/item/{number}"><img src="x.png"></a><h3><a href="/item/{number}">'
        f"Jug {number}</a></h3><b>{price}</b>{more}</li>"
    )


def test_digest_changes_only_with_the_items_own_entry() -> None:
    before = entry_digests(f"<p>2 items</p><ul>{product(1, '£5')}{product(2, '£6')}</ul>")
    after = entry_digests(f"<p>Sale!</p><ul>{product(1, '£5')}{product(2, '£4')}</ul><p>9:14</p>")
    assert before["1"] == after["1"]
    assert before["2"] != after["2"]


def test_digest_ignores_order_markup_and_white_space() -> None:
    before = entry_digests(f"<ul>{product(1, '£5')}{product(2, '£6')}</ul>")
    spaced = product(2, "\n £6 ").replace("><", "> \n <")
    assert entry_digests(f"<div><ol>{spaced}{product(1, '£5')}</ol></div>") == before


def test_relative_links_and_fragments_are_resolved() -> None:
    by_path = '<p><a href="../item/1#top">one</a> £5</p><p><a href=" /item/2 ">two</a></p>'
    assert set(entry_digests(by_path)) == {"1", "2"}


def test_links_that_browsers_escape_have_digests() -> None:
    links = ["/item/茶", "/item/green tea", "/item/a|b", "/item/plain"]
    body = "".join(f'<li><a href="{link}">{link}</a></li>' for link in links)
    html = f"<html><body><ul>{body}</ul></body></html>"
    response = HtmlResponse(BASE, body=html.encode(), encoding="utf-8")
    found = wanted_links(response, wrapper(), None, 200, LinkCounts())
    assert len({link.digest for link in found} - {None}) == len(links)


def test_single_item_on_a_page_has_no_digest() -> None:
    assert entry_digests(f"<ul>{product(1, '£5')}</ul><p>{'news ' * 9}</p>") == {}


def test_digest_uses_the_first_of_two_links_to_an_item() -> None:
    twice = f"<ul>{product(1, '£5')}{product(2, '£6')}</ul><p><a href='/item/1'>again</a>"
    assert entry_digests(f"{twice} today</p>") == entry_digests(f"{twice} tomorrow</p>")


def test_unselected_and_invalid_links_are_ignored() -> None:
    body = f'<a href="http://[::1">x</a><a>y</a><a href="/about">z</a>{product(1, "£5")}'
    assert set(entry_digests(body + product(2, "£6"))) == {"1", "2"}
    assert entry_digests("") == {}
    assert entry_digests("", {}) == {}


def test_deeply_nested_entries_are_found() -> None:
    deep = "<div>" * 200 + product(1, "£5") + "</div>" * 200
    assert set(entry_digests(deep + product(2, "£6"))) == {"1", "2"}


def test_digest_ignores_scripts() -> None:
    def digests_with(nonce: int) -> dict[str, str]:
        script = f"<script>track({nonce})</script>"
        return entry_digests(f"<ul>{product(1, '£5', script)}{product(2, '£6', script)}</ul>")

    assert digests_with(1) == digests_with(2)
