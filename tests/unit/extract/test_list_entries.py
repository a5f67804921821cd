"""Fields of items, read from list pages."""

from __future__ import annotations

from scrapy.http import HtmlResponse

from crawler.extract.links import digests_of

BASE = "https://shop.example/list/"
ITEMS = {f"https://shop.example/item/{n}": f"https://shop.example/item/{n}" for n in range(9)}


def cards(body: str, items: dict[str, str] = ITEMS) -> dict[str, str]:
    html = f"<html><body>{body}</body></html>"
    digests = digests_of(HtmlResponse(BASE, body=html.encode(), encoding="utf-8"), items)
    return {url.rpartition("/")[2]: card for url, card in digests.items()}


def product(number: int, price: str, more: str = "") -> str:
    return (
        f'<li><a href="/item/{number}"><img src="x.png"></a><h3><a href="/item/{number}">'
        f"Jug {number}</a></h3><b>{price}</b>{more}</li>"
    )


def test_a_card_is_all_that_is_said_of_an_item_and_of_no_other() -> None:
    before = cards(f"<p>2 items</p><ul>{product(1, '£5')}{product(2, '£6')}</ul>")
    after = cards(f"<p>Sale!</p><ul>{product(1, '£5')}{product(2, '£4')}</ul><p>9:14</p>")
    assert before["1"] == after["1"]
    assert before["2"] != after["2"]


def test_order_place_and_white_space_do_not_matter() -> None:
    before = cards(f"<ul>{product(1, '£5')}{product(2, '£6')}</ul>")
    spaced = product(2, "\n £6 ").replace("><", "> \n <")
    assert cards(f"<div><ol>{spaced}{product(1, '£5')}</ol></div>") == before


def test_relative_links_and_fragments_are_those_of_the_item() -> None:
    by_path = '<p><a href="../item/1#top">one</a> £5</p><p><a href=" /item/2 ">two</a></p>'
    assert set(cards(by_path)) == {"1", "2"}


def test_an_item_that_has_the_page_to_itself_has_no_card() -> None:
    assert cards(f"<ul>{product(1, '£5')}</ul><p>{'news ' * 9}</p>") == {}


def test_an_item_that_is_linked_from_two_places_is_told_by_the_first() -> None:
    twice = f"<ul>{product(1, '£5')}{product(2, '£6')}</ul><p><a href='/item/1'>again</a>"
    assert cards(f"{twice} today</p>") == cards(f"{twice} tomorrow</p>")


def test_other_links_and_broken_ones_are_no_items() -> None:
    body = f'<a href="http://[::1">x</a><a>y</a><a href="/about">z</a>{product(1, "£5")}'
    assert set(cards(body + product(2, "£6"))) == {"1", "2"}
    assert cards("") == {}
    assert digests_of(HtmlResponse(BASE, body=b""), ITEMS) == {}


def test_a_deep_page_is_no_trouble() -> None:
    deep = "<div>" * 200 + product(1, "£5") + "</div>" * 200
    assert set(cards(deep + product(2, "£6"))) == {"1", "2"}


def test_scripts_say_nothing_of_an_item() -> None:
    def listed(nonce: int) -> dict[str, str]:
        script = f"<script>track({nonce})</script>"
        return cards(f"<ul>{product(1, '£5', script)}{product(2, '£6', script)}</ul>")

    assert listed(1) == listed(2)
