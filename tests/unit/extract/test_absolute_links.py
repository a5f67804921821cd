"""URLs in extracted HTML are absolute."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest

from crawler.extract.fields import absolute_srcset, html, with_absolute_links
from tests.unit.pages import page

BASE = "https://a.example/b/"
UTC_ZONE = ZoneInfo("UTC")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('<a href="c?d#e">x</a>', '<a href="https://a.example/b/c?d#e">x</a>'),
        ('<img src="/c.png">', '<img src="https://a.example/c.png">'),
        (
            '<img srcset="c.png 1x, /d,e.png 2x">',
            '<img srcset="https://a.example/b/c.png 1x, https://a.example/d,e.png 2x">',
        ),
        ('<source srcset="c.png">', '<source srcset="https://a.example/b/c.png">'),
        (
            '<img data-src="c.png" data-srcset="d.png 480w">',
            '<img data-src="https://a.example/b/c.png" '
            'data-srcset="https://a.example/b/d.png 480w">',
        ),
        (
            '<img data-lazy-src="//x.example/c.png">',
            '<img data-lazy-src="https://x.example/c.png">',
        ),
        ('<img data-original="c.png">', '<img data-original="https://a.example/b/c.png">'),
        (
            '<video poster="c.jpg"></video>',
            '<video poster="https://a.example/b/c.jpg"></video>',
        ),
        # Not URLs.
        ('<img data-lazy="true">', '<img data-lazy="true">'),
        ('<img data-src="">', '<img data-src="">'),
        ('<b data-image="{&quot;a&quot;: 1.5}">x</b>', '<b data-image=\'{"a": 1.5}\'>x</b>'),
        ('<img data-src="data:image/gif,R0">', '<img data-src="data:image/gif,R0">'),
        ('<a href="mailto:a@b.example">x</a>', '<a href="mailto:a@b.example">x</a>'),
        ('<img data-src="http://[bad/c.png">', '<img data-src="http://[bad/c.png">'),
    ],
)  # fmt: skip
def test_urls_of_elements_become_absolute(given: str, expected: str) -> None:
    assert with_absolute_links(given, BASE).replace("</source>", "") == expected
    read = html("section > *").read(page(f"<section>{given}</section>", BASE), UTC_ZONE)
    assert str(read).replace("</source>", "") == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("a.png", ["a.png"]),
        ("a.png,b.png 2x", ["a.png,b.png 2x"]),
        ("a.png, b.png", ["a.png", "b.png"]),
        (" a.png 1x,b.png 2x , c.png 3x", ["a.png 1x", "b.png 2x", "c.png 3x"]),
        ("a.png 100w 50h,\n\tb.png 200w", ["a.png 100w 50h", "b.png 200w"]),
        (",,a.png,,", ["a.png"]),
        (", ,", []),
        ("", []),
    ],
)
def test_srcset_is_split_as_browsers_do(given: str, expected: list[str]) -> None:
    assert absolute_srcset(given, BASE) == ", ".join(f"{BASE}{image}" for image in expected)


def test_base_of_the_page_counts() -> None:
    response = page("<base href='/other/'><div><img data-src=c.png></div>tail", BASE)
    expected = '<div><img data-src="https://a.example/other/c.png"></div>'
    assert html("div").read(response, UTC_ZONE) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("1 &lt; 2 <img src=c.png> <p>x", f'1 &lt; 2 <img src="{BASE}c.png"> <p>x</p>'),
        ("plain & simple", "plain & simple"),
        ("<tr><td><img src=c.png></td></tr>", f'<tr><td><img src="{BASE}c.png"></td></tr>'),
    ],
)
def test_markup_in_texts(given: str, expected: str) -> None:
    assert with_absolute_links(given, BASE) == expected


def test_row_of_a_table_stays_a_row() -> None:
    response = page("<table><tr><td><a href=c>x</a></td></tr></table>", BASE)
    assert html("tr").read(response, UTC_ZONE) == f'<tr><td><a href="{BASE}c">x</a></td></tr>'
