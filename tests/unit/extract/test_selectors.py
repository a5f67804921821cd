"""Selectors of clicked elements, and proposed types and selectors of fields."""

from __future__ import annotations

import re
from zoneinfo import ZoneInfo

import pytest
from parsel import Selector

from crawler.extract.fields import FieldType, proposed_type
from crawler.extract.selectors import (
    Suggestion,
    numbered_html,
    selector_of,
    suggested_fields,
)

UTC = ZoneInfo("UTC")


def number_of(html: str, mark: str = "here") -> int:
    """Return the number of the element with a text."""
    shown = numbered_html(Selector(html))
    match = re.search(rf'data-n="(\d+)"[^>]*>{mark}<', shown)
    assert match
    return int(match[1])


@pytest.mark.parametrize(
    ("html", "expected"),
    [
        ("<h1>here</h1><p>x</p>", "h1"),
        ("<p class='a1b2c price'>here</p><p>x</p>", ".price"),
        ("<p id='price'>here</p><p class=price>x</p>", "#price"),
        ("<p id='p-123'>x</p><span itemprop=price>here</span><span>x</span>", "[itemprop=price]"),
        ("<p>x</p><div class=info><p>here</p></div>", ".info p"),
        ("<div class=info><p>x</p><p>here</p></div>", ".info > p:nth-of-type(2)"),
        ("<p>x</p><p class='is-active css-1x2y3'>here</p>", "html > body > p:nth-of-type(2)"),
        ("<p class='a:b'>x</p><p class='x\\'y'>here</p>", "html > body > p:nth-of-type(2)"),
    ],
)
def test_the_selector_is_short_and_stable(html: str, expected: str) -> None:
    page = Selector(html)
    css = selector_of(page, number_of(html))
    assert css == expected
    assert page.css(css)[0].xpath("string()").get() == "here"


def test_selector_also_matches_other_pages() -> None:
    first = "<div class=box><p class=amount>here</p></div><p class=note>x</p>"
    other = "<div class=box><p class=sum>5</p></div><p class=note>x</p>"
    css = selector_of(Selector(first), number_of(first), [Selector(other)])
    assert css == ".box p"


def test_an_unknown_number_has_no_selector() -> None:
    assert selector_of(Selector("<p>x</p>"), 99) is None
    assert selector_of(Selector('{"a": 1}', type="json"), 0) is None


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["€ 3.50", "4,00 €"], FieldType.PRICE),
        (["USD 12", "$1,234.50"], FieldType.PRICE),
        (["12", "1 003"], FieldType.NUMBER),
        (["4 May 2024", "2024-05-06"], FieldType.DATE),
        (["In stock (3)", "Sold out"], FieldType.TEXT),
        (["", ""], FieldType.TEXT),
    ],
)
def test_proposed_type_fits_all_values(texts: list[str], expected: FieldType) -> None:
    nodes = [Selector(f"<p>{text}</p>").css("p")[0] for text in texts]
    assert proposed_type(nodes, UTC) is expected


def test_blocks_of_text_are_html() -> None:
    node = Selector("<div><p>a</p><p>b</p><p>c</p></div>").css("div")[0]
    assert proposed_type([node], UTC) is FieldType.HTML


def test_fields_on_most_pages_are_suggested() -> None:
    pages = [
        Selector(
            f"<article><h1>Tea {n}</h1><p class=price>€ {n}.00</p>"
            f"<time datetime='2024-05-0{n}T10:00Z'>May</time></article>"
        )
        for n in range(1, 4)
    ]
    suggestions = suggested_fields(pages, UTC)
    assert Suggestion("title", "article h1", FieldType.TEXT) in suggestions
    assert Suggestion("price", ".price", FieldType.PRICE) not in suggestions
    assert Suggestion("price", "p.price", FieldType.PRICE) in suggestions
    dates = [suggestion for suggestion in suggestions if suggestion.type is FieldType.DATE]
    assert [suggestion.css for suggestion in dates] == ["article time[datetime]::attr(datetime)"]


def test_numbered_html_has_no_active_content() -> None:
    html = (
        "<base href=//evil.example><p onclick=a() style=x:url(y) class=c>here</p><script>s</script>"
        "<a href='javascript:x'>l</a><img src=//evil.example/x alt=picture><svg><a>z</a></svg>"
        "<input value=v><textarea>w</textarea><p data-n='7' id=i>p</p>"
    )
    shown = numbered_html(Selector(html))
    assert re.sub(r' data-n="\d+"', "", shown).replace("\n", "") == (
        '<p class="c">here</p><a>l</a><img alt="picture"><p id="i">p</p>'
    )
    assert 'data-n="7"' not in shown or shown.count('data-n="7"') == 1


def test_large_and_deep_pages_are_truncated() -> None:
    many = numbered_html(Selector("<p>x</p>" * 30_000))
    assert many.count("<p") < 21_000
    deep = numbered_html(Selector("<div>" * 1000 + "here"))
    assert deep.count("<div") <= 300
