"""Different posts in the same page template: similar as pages, not similar as posts.

The tests with real pages require a folder that contains `pages.jsonl.xz`. Set the variable
EXTRACTION to the folder's path. The texts belong to their publishers and are not part of this
project.
"""

from __future__ import annotations

import json
import lzma
import os
from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from lxml import html

from crawler.dedup.minhash import by_characters
from crawler.extract.fields import Field, squeeze, text
from crawler.extract.main_text import main_text
from tests.unit.pages import page
from tests.unit.prose import Writer

EXTRACTION = os.environ.get("EXTRACTION")
needs_pages = pytest.mark.skipif(
    not EXTRACTION, reason="set EXTRACTION to a folder with the real pages"
)
THRESHOLD = 0.7
POSTS = 16
# Share of the main text's characters that an element must contain.
MIN_CONTAINED_SHARE = 0.98
SHORT, LONGER = (10, 50), (50, 150)


def page_templates() -> dict[str, str]:
    """Return page templates with the placeholders {title} and {post}."""
    writer = Writer(0)
    menu, popular = (
        "".join(f"<li><a href='/{n}'>{writer.title()}</a></li>" for n in range(12)) for _ in "ab"
    )
    related = "".join(
        f"<div class='card'><a href='/post/{n}'><h4>{writer.title()}</h4></a>"
        f"<p>{writer.text(20)}</p></div>"
        for n in range(4)
    )
    about, imprint, reply = writer.text(40), writer.text(40), writer.text(25)
    return {
        "html5": f"""<header><a href="/">{about[:20]}</a><nav><ul>{menu}</ul></nav></header>
            <main><article><h1>{{title}}</h1>{{post}}</article>
            <section class="related"><h2>Related</h2>{related}</section>
            <section id="comments"><form><p>{reply}</p><textarea></textarea></form></section></main>
            <aside><p>{about}</p><ul>{popular}</ul></aside><footer><p>{imprint}</p></footer>""",
        "wordpress": f"""<div id="page"><div id="masthead"><ul class="menu">{menu}</ul></div>
            <div id="content"><div id="primary"><div class="post hentry">
            <h1 class="entry-title">{{title}}</h1><div class="entry-content">{{post}}</div>
            <div id="jp-relatedposts">{related}</div></div>
            <div id="comments" class="comments-area"><div id="respond" class="comment-respond">
            <h3>Leave a Reply</h3><p class="comment-notes">{reply}</p></div></div></div>
            <div id="secondary" class="widget-area"><p>{about}</p><ul>{popular}</ul></div></div>
            <div id="colophon" class="site-footer"><p>{imprint}</p></div></div>""",
        "blogger": f"""<div class="tabs"><ul>{menu}</ul></div><div class="main section">
            <div class="post" itemscope><h3 class="post-title" itemprop="name">{{title}}</h3>
            <div class="post-body" itemprop="description articleBody">{{post}}</div>
            <div class="post-footer"><p>{reply}</p></div></div><div class="feed">{related}</div>
            </div><div class="sidebar"><h2>About</h2><p>{about}</p><ul>{popular}</ul></div>
            <div class="foot"><p>{imprint}</p></div>""",
        "plain": f"""<div id="top"><ul>{menu}</ul></div><div id="middle"><h2>{{title}}</h2>
            <div class="text">{{post}}</div></div><div id="more">{related}</div>
            <div id="right"><p>{about}</p><ul>{popular}</ul></div><div id="end">{imprint}</div>""",
        "table": f"""<table><tr><td colspan="2"><ul>{menu}</ul></td></tr><tr>
            <td width="20%">{about}<ul>{popular}</ul></td><td><h1>{{title}}</h1>{{post}}</td></tr>
            <tr><td colspan="2">{related}</td></tr>
            <tr><td colspan="2">{imprint}</td></tr></table>""",
    }


def post_of(seed: int, words: tuple[int, int]) -> str:
    """Return a post of `words` (minimum and maximum) words, as HTML paragraphs."""
    writer = Writer(seed)
    prose = writer.text(writer.random.randint(*words))
    half = prose.find(". ", len(prose) // 2) + 1
    parts = [prose[:half], prose[half:]] if half and seed % 2 else [prose]
    return "".join(f"<p>{part.strip()}</p>" for part in parts)


def pages_with(html_template: str, words: tuple[int, int]) -> list[str]:
    return [page_with(html_template, seed, words) for seed in range(1, POSTS + 1)]


def page_with(html_template: str, seed: int, words: tuple[int, int]) -> str:
    title = Writer(1000 + seed).title()
    body = html_template.format(title=title, post=post_of(seed, words))
    return f"<html><head><title>{title}</title></head><body>{body}</body></html>"


def similarity(one: str | None, other: str | None) -> float:
    a, b = by_characters(one or ""), by_characters(other or "")
    return a.similarity(b) if a and b else 0.0


def flagged(texts: list[str | None]) -> float:
    """Return the share of pairs that are flagged as duplicates."""
    alike = [similarity(one, other) >= THRESHOLD for one, other in combinations(texts, 2)]
    return sum(alike) / len(alike)


def extracted(body: str) -> str | None:
    main: str | None = main_text(page(body))["main_text"]
    return main


def whole(body: str) -> str | None:
    return squeeze(" ".join(page(body).xpath("//body//text()").getall()))


@pytest.mark.parametrize("name", page_templates())
@pytest.mark.parametrize(("words", "share"), [(SHORT, 0.9), (LONGER, 0.2)])
def test_whole_pages_of_different_posts_are_similar(
    name: str, words: tuple[int, int], share: float
) -> None:
    """Show why the main text must be extracted before posts are compared."""
    assert flagged([whole(body) for body in pages_with(page_templates()[name], words)]) > share


@pytest.mark.parametrize("name", page_templates())
@pytest.mark.parametrize("words", [SHORT, LONGER])
def test_extracted_posts_are_not_similar(name: str, words: tuple[int, int]) -> None:
    texts = [extracted(body) for body in pages_with(page_templates()[name], words)]
    assert all(texts)
    assert flagged(texts) == 0


@pytest.mark.parametrize(
    ("name", "post"), [("plain", text("div.text")), ("table", text(xpath="//h1/.."))]
)
def test_field_reads_short_posts_in_unmarked_templates(name: str, post: Field) -> None:
    bodies = pages_with(page_templates()[name], SHORT)
    texts = [post.read(page(body), ZoneInfo("UTC")) for body in bodies]
    assert all(texts)
    assert flagged(texts) == 0


@pytest.mark.parametrize("name", page_templates())
@pytest.mark.parametrize("words", [SHORT, LONGER])
def test_extracted_post_is_complete(name: str, words: tuple[int, int]) -> None:
    for seed, body in enumerate(pages_with(page_templates()[name], words), 1):
        for part in html.fromstring(f"<div>{post_of(seed, words)}</div>").itertext():
            assert part in (extracted(body) or "")


# Real templates


@cache
def real_templates() -> tuple[str, ...]:
    """Return real pages with {post} in place of the main text, if a single element contains it."""
    with lzma.open(Path(str(EXTRACTION)) / "pages.jsonl.xz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    made = (template_of(row["html"], row["truth_html"]) for row in rows if row.get("truth_html"))
    return tuple(html_template for html_template in made if html_template)


def template_of(body: str, truth: str) -> str | None:
    parser = html.HTMLParser(encoding="utf-8")
    tree = html.document_fromstring(body.encode("utf-8", "ignore"), parser=parser)
    for element in tree.xpath("//script|//style|//noscript|//template"):
        element.drop_tree()
    parts = [part for part in map(squeeze, html.fromstring(truth).itertext()) if len(part) > 20]
    element = smallest_container(tree.body, parts)
    if element is None or element.tag not in ("div", "article", "section", "main", "td"):
        return None
    for child in list(element):
        element.remove(child)
    element.text = "{post}"
    return html.tostring(tree, encoding="unicode")


def smallest_container(element: html.HtmlElement, parts: list[str]) -> html.HtmlElement | None:
    """Return the smallest element that contains nearly all of the main text, or None."""
    if contained_share(element, parts) < MIN_CONTAINED_SHARE:
        return None
    children = (smallest_container(child, parts) for child in element if isinstance(child.tag, str))
    return next((child for child in children if child is not None), element)


def contained_share(element: html.HtmlElement, parts: list[str]) -> float:
    """Return the share of the parts' characters that an element contains."""
    content = squeeze(element.text_content())
    return sum(len(part) for part in parts if part in content) / max(1, sum(map(len, parts)))


def real_pairs(words: tuple[int, int]) -> Iterator[tuple[str, str]]:
    """Yield two different posts in each real template."""
    for n, html_template in enumerate(real_templates()):
        one, other = (html_template.replace("{post}", post_of(2 * n + i, words)) for i in (1, 2))
        yield one, other


def flagged_real(words: tuple[int, int], read: Callable[[str], str | None]) -> float:
    alike = [similarity(read(one), read(other)) >= THRESHOLD for one, other in real_pairs(words)]
    return sum(alike) / len(alike)


@needs_pages
@pytest.mark.soak
@pytest.mark.parametrize(("words", "share"), [(SHORT, 0.5), (LONGER, 0.3)])
def test_whole_real_pages_of_different_posts_are_similar(
    words: tuple[int, int], share: float
) -> None:
    assert len(real_templates()) > 100
    assert flagged_real(words, whole) > share


@needs_pages
@pytest.mark.soak
@pytest.mark.parametrize(("words", "share"), [(SHORT, 0.02), (LONGER, 0)])
def test_posts_extracted_from_real_pages_are_not_similar(
    words: tuple[int, int], share: float
) -> None:
    """Tolerate templates that also contain whole articles, or none of the post."""
    assert flagged_real(words, extracted) <= share
