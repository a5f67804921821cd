"""Plain text of posts."""

from __future__ import annotations

import pytest

from crawler.extract.plain_text import MAX_CHARACTERS, plain
from tests.unit.feeding import atom, json_feed, only, rss


def rss_text(inside: str) -> str | None:
    text: str | None = only(rss(f"<item><guid>1</guid>{inside}</item>")).content.get("main_text")
    return text


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<p>One</p><p>Two <b>bold</b></p>", "One\nTwo bold"),
        ("One<br>Two<br/>\n Three", "One\nTwo\nThree"),
        ("<ul><li>One<li>Two</ul>", "One\nTwo"),
        ("<table><tr><td>One</td><td>1</td></tr><tr><td>Two</td></tr></table>", "One 1\nTwo"),
        ("a\n  line <i>that</i>\n goes on", "a line that goes on"),
        ("<pre>one\n  two</pre>three\nfour", "one\ntwo\nthree four"),
        ("<script>if (a<b) x('</p>')</script>said<style>p {}</style>", "said"),
        ("said<!-- <p>not</p> --> once", "said once"),
        ("said <!-- not", "said"),
        ("<p title='a > b' class=x>said</p>", "said"),
        ("<p title='>said</p>", "said"),
        ("cut off <a href='https://a.exa", "cut off"),
        ("1 < 2 and 3 > 2 & so on", "1 < 2 and 3 > 2 & so on"),
        ("&lt;b&gt; &amp;amp; &eacute; &#8217; &#x1f600; &bogus;", "<b> &amp; é ’ 😀 &bogus;"),
        ("a&nbsp;b &#0; &#99999999999999; c", "a b � c"),
        ("\x00a\x1bb\ud800", "ab"),
        ("<p> </p>", ""),
        ("", ""),
    ],
)
def test_markup_becomes_lines_of_text(markup: str, text: str) -> None:
    assert plain(markup) == text


@pytest.mark.parametrize(
    "markup",
    ["<div>" * 50_000 + "deep", "<p " + " ".join(f"a{n}=1" for n in range(50_000)) + ">deep"],
)
def test_deeply_nested_and_very_long_tags_are_parsed(markup: str) -> None:
    assert plain(markup) == "deep"


def test_very_long_text_is_truncated() -> None:
    assert len(plain("word " * 300_000)) <= MAX_CHARACTERS


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        ("<description>Tom &amp;amp; Jerry</description>", "Tom & Jerry"),
        ("<description>Tom &amp; Jerry</description>", "Tom & Jerry"),
        ("<description>&lt;p&gt;1 &amp;lt; 2&lt;/p&gt;</description>", "1 < 2"),
        ("<description><![CDATA[<p>a &amp; b</p>]]></description>", "a & b"),
        ("<description>a</description><content:encoded>b</content:encoded>", "b"),
        ("<description>longer than that</description><content:encoded>b</content:encoded>", "b"),
        ("<description>a</description><content:encoded> </content:encoded>", "a"),
        ("<description>a</description><itunes:summary>b</itunes:summary>", "a"),
        ("<description>a</description><media:description>b</media:description>", "a"),
        ("<description>a</description><dc:description>b</dc:description>", "a"),
        ("<itunes:summary>b</itunes:summary>", "b"),
        ("<media:group><media:description>b</media:description></media:group>", "b"),
        ("", None),
    ],
)
def test_content_takes_precedence_over_summary(inside: str, text: str | None) -> None:
    assert rss_text(inside) == text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('<content type="html">&lt;p&gt;a &amp;amp; b&lt;/p&gt;</content>', "a & b"),
        ('<content type="text">a &lt;b&gt; &amp;amp; c</content>', "a <b> &amp; c"),
        ("<content>a &amp; b\n\n  c</content>", "a & b\nc"),
        (
            '<content type="xhtml"><div xmlns="http://www.w3.org/1999/xhtml"><p>a</p>'
            "<p>b &amp; c</p></div></content>",
            "a\nb & c",
        ),
        ('<content type="image/png">iVBORw0KGgo=</content><summary>a</summary>', "a"),
        ('<content src="https://a.example/1"/><summary>a</summary>', "a"),
    ],
)
def test_atom_text_types_are_respected(content: str, text: str) -> None:
    entry = only(atom(f"<entry><id>1</id>{content}</entry>"))
    assert entry.content["main_text"] == text


@pytest.mark.parametrize(
    ("raw", "title"),
    [
        ("Tom &amp; Jerry", "Tom & Jerry"),
        ("Tom &amp;amp; Jerry", "Tom & Jerry"),
        ("It&amp;#8217;s", "It’s"),
        ("1 &lt; 2", "1 < 2"),
        ("&lt;b&gt;bold&lt;/b&gt;\n move", "bold move"),
        ("<![CDATA[ <i>a</i> ]]>", "a"),
    ],
)
def test_titles_are_plain_text(raw: str, title: str) -> None:
    entry = only(rss(f"<item><guid>1</guid><title>{raw}</title></item>"))
    assert entry.content == {"title": title}


def test_json_content_text_is_not_parsed_as_markup() -> None:
    entry = only(json_feed({"id": "1", "title": "a <b>", "content_text": "a <b> &amp;"}))
    assert entry.content == {"title": "a <b>", "main_text": "a <b> &amp;"}


def test_tags_and_authors_are_deduplicated_and_single_line() -> None:
    tags = "<category> a\n b</category><category>a b</category><category/>"
    entry = only(
        rss(f"<item><guid>1</guid>{tags}<author>Ada</author><dc:creator>Ada</dc:creator></item>")
    )
    assert entry.content == {"tags": ["a b"], "author": "Ada"}
