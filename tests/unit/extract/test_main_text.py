"""Title and main text of pages without fields."""

from __future__ import annotations

import pytest

from crawler.extract.main_text import MAX_CHARACTERS, main_text, page_title
from tests.unit.pages import page

PARAGRAPHS = [
    "The council decided on Monday that the old bridge over the river will be repaired next year.",
    "Engineers had warned for a long time that its piers were weaker than anyone had thought.",
    "Until then lorries have to take the longer way through the valley, and many are not pleased.",
]
ARTICLE = f"""<html><head><title>Bridge | The Daily</title><style>p {{ color: red }}</style></head>
<body>
<header><a href="/">The Daily</a></header>
<nav><ul><li><a href="/politics">Politics</a></li><li><a href="/sport">Sport</a></li></ul></nav>
<article><h1>Old bridge to be repaired</h1>
{"".join(f"<p>{text}</p>" for text in PARAGRAPHS)}</article>
<aside><a href="/a">Ten bridges you must see</a></aside>
<script>track("page")</script><footer>Imprint and privacy</footer></body></html>"""


def test_main_text_excludes_boilerplate() -> None:
    text = main_text(page(ARTICLE))["main_text"]
    assert all(paragraph in text for paragraph in PARAGRAPHS)
    assert not [word for word in ("Politics", "Imprint", "track", "color") if word in text]


def test_title_is_extracted_from_the_article() -> None:
    assert main_text(page(ARTICLE))["title"] == "Old bridge to be repaired"


@pytest.mark.parametrize(
    "body",
    ["<p>5</p>", "<ul><li>5</li></ul>", "<table><tr><td>5</td></tr></table>", "<div>5</div>"],
)
def test_page_without_prose_falls_back_to_its_body(body: str) -> None:
    read = main_text(page(f"<body><nav>menu</nav>{body}<script>x=1</script><footer>end</footer>"))
    assert read["main_text"] is not None
    assert "5" in read["main_text"]
    assert not [word for word in ("menu", "x=1", "end") if word in read["main_text"]]


@pytest.mark.parametrize("body", ["<body></body>", "<body><nav>menu</nav></body>", "<!-- -->"])
def test_empty_page_has_no_title_or_main_text(body: str) -> None:
    assert main_text(page(body)) == {"title": None, "main_text": None}


@pytest.mark.parametrize("tag", ["div", "b", "table", "font", "blockquote"])
def test_deep_nesting_does_not_fail(tag: str) -> None:
    read = main_text(page(f"<body><p>shallow</p>{f'<{tag}>' * 100_000}deep</body>"))
    assert "shallow" in (read["main_text"] or "")


def test_very_long_page_is_truncated() -> None:
    read = main_text(page(f"<body><div>{'word ' * 300_000}</div></body>"))
    assert read["main_text"] is not None
    assert len(read["main_text"]) <= MAX_CHARACTERS


@pytest.mark.parametrize(
    ("head", "title"),
    [
        ("<meta property='og:title' content=' A  b '><title>T</title><h1>H</h1>", "A b"),
        ("<title>T</title><h1>H\n <b>1</b></h1>", "H 1"),
        ("<title> T </title><p>x</p>", "T"),
        ("<meta property='og:title' content=' '><h1> </h1><title>T</title>", "T"),
        ("<p>x</p>", None),
    ],
    ids=["og:title first", "then h1", "then title", "empty titles are ignored", "none"],
)
def test_title_precedence(head: str, title: str | None) -> None:
    assert page_title(page(head)) == title


def test_blocks_and_line_breaks_become_spaces() -> None:
    body = "<h1>Tea<br>and <i>cof</i>fee</h1><div>One</div><div>Two<template>3</template></div>"
    read = main_text(page(f"<body>{body}</body>"))
    assert read["title"] == "Tea and coffee"
    assert "One Two" in " ".join(read["main_text"].split())
    assert "3" not in read["main_text"]


def shop_page(**parts: str) -> str:
    usual = {"ad": "Shoes at half price", "cart": "0", "date": "1 May", "also": "Oak bench"} | parts
    return f"""<body><div id="header"><div class="logo">Shop</div>{usual["date"]}
<div class="mini-cart">Cart: <b>{usual["cart"]}</b> items</div></div>
<div id="leftSidebar"><h3>Popular</h3><ul><li><a href="/n">{usual["also"]}</a></li></ul>
<div class="ad-box">{usual["ad"]}</div></div>
<div id="content"><h1>Walnut stool</h1><div class="price">{usual.get("price", "£51")}</div>
<div class="stock">In stock</div>
<div class="related-items"><a href="/p/1">{usual["also"]}</a> <a href="/p/2">Elm bed</a></div></div>
<div id="footer">Imprint</div></body>"""


@pytest.mark.parametrize("part", ["ad", "cart", "date", "also"])
def test_parts_beside_a_short_content_are_left_out(part: str) -> None:
    assert main_text(page(shop_page(**{part: "Other"}))) == main_text(page(shop_page()))


def test_short_content_is_kept() -> None:
    assert main_text(page(shop_page()))["main_text"] == "Walnut stool\n£51\nIn stock"
    assert main_text(page(shop_page(price="£49"))) != main_text(page(shop_page()))


def test_part_with_the_heading_or_prose_is_content_whatever_its_name_is() -> None:
    dishes = "<div class='header'><h1>Lunch</h1><div>Soup £4</div></div>"
    assert "Soup £4" in main_text(page(f"<body>{dishes}</body>"))["main_text"]
    prose = "".join(f"<div>{text}</div>" for text in PARAGRAPHS)
    read = main_text(page(f"<body><h1>Bridge</h1><div class='sidebar'>{prose}</div></body>"))
    assert PARAGRAPHS[0] in read["main_text"]


def test_page_with_nothing_but_menus_keeps_its_text() -> None:
    assert main_text(page("<body><div class='nav'>Tea</div></body>"))["main_text"] == "Tea"


@pytest.mark.parametrize(
    "name",
    ["promo-price", "ad-price", "menu", "cart", "card-footer", "top", "cookie", "popularPrice"],
)
def test_names_that_content_may_have_are_no_parts_beside_it(name: str) -> None:
    body = f"<body><h1>Tea</h1><div>Green</div><div class='{name}'>£4</div></body>"
    assert "£4" in main_text(page(body))["main_text"]


def test_header_of_an_article_is_content() -> None:
    tea = "<article><header><h2>Tea</h2><div>£4</div></header><div>Green</div></article>"
    assert "£4" in main_text(page(f"<body>{tea}{tea.replace('£4', '£5')}</body>"))["main_text"]
