"""Extract the main text of a page: its marked-up post, its article, or a short post.

When a post is short and the page does not mark it up, the boilerplate contains more text than the
post, and extractors return parts of the boilerplate. `short_post` finds such posts by class names
and headings.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from scrapy.http import TextResponse

from crawler.extract.article import BOILERPLATE_OF_ARTICLES, article_of, lines_of
from crawler.extract.blocks import (
    Block,
    blocks_of,
    blocks_outside,
    elements_beside,
    title_heading,
)
from crawler.extract.fields import node_text
from crawler.extract.plain_text import UNSEEN, text_below
from crawler.utils.text import normalized

SHORT_CHARACTERS = 400
# With this much prose in one place outside of the presumed short post, the page is a long article.
ARTICLE_CHARACTERS = 450
# Class names and ids of the element with the post, most reliable first.
NAMES = (
    re.compile(r"(^|[-_a-z])(article|story|post|entry|art)[-_]*(body|content|text)$", re.I),
    re.compile(r"^(article|story|post|entry|text)$", re.I),
)
NAMED_TAGS = ("div", "section", "main", "td", "article")
MAX_CHARACTERS, MAX_TITLE_CHARACTERS = 1_000_000, 1000
# A page with at least this many long paragraphs is an article: do not search for a short post.
LONG_PARAGRAPHS = 5
# Markup of the element with the post, most reliable first: a property, classes, a tag.
POST_PROPERTY = "articleBody"
POST_CLASSES = frozenset({
    "entry-content", "post-content", "post-body", "article-body", "e-content",
})  # fmt: skip
OG_TITLE = "//meta[@property='og:title']/@content"
UNSEEN_OR_BOILERPLATE = UNSEEN | {"nav", "header", "footer"}


def main_text(response: TextResponse) -> dict[str, Any]:
    """Return the `title` and `main_text` of a page; a value is None if nothing was found.

    The text is that of the article. If there is none, it is the text of the body outside of the
    boilerplate.

    If a post is short, the boilerplate has more prose than the post, so that all short posts of a
    site would look alike. Therefore only the post is read if the page marks it up, and the text is
    replaced if `short_post` finds a shorter one.
    """
    bodies = response.xpath("//body")
    if not bodies:
        return {"title": page_title(response), "main_text": None}
    # Keep the Python objects of the elements: lxml would make them again in each pass.
    elements = list(bodies[0].root.iter())
    marked, characters = _marked(elements)
    text = _marked_post(marked) if marked is not None and characters < SHORT_CHARACTERS else ""
    text = normalized("NFC", (text or _text_of_page(elements, titles_of(response), marked)))
    return {"title": page_title(response), "main_text": text[:MAX_CHARACTERS] or None}


def _text_of_page(elements: list[Any], titles: list[str], marked: Any) -> str:
    body = elements[0]
    blocks = blocks_of(body, BOILERPLATE_OF_ARTICLES)
    text, post = article_of(elements, blocks, titles, marked), ""
    paragraphs = sum(len(line) >= ARTICLE_CHARACTERS for line in text.split("\n"))
    if marked is None and paragraphs < LONG_PARAGRAPHS:
        post = short_post(body, _outside(body, blocks), titles)
    is_shorter = post and (not text or len(post) < len(text))
    return post if is_shorter else text or text_below(body, UNSEEN_OR_BOILERPLATE)


def _marked(elements: list[Any]) -> tuple[Any, int]:
    """Return the element that a page marks up for its post, and the number of its characters.

    A marker counts only if a single element has it and that element contains text; else None.
    """
    by_marker: tuple[list[Any], ...] = ([], [], [])
    for element in elements:
        if (value := element.get("itemprop")) and POST_PROPERTY in value.split():
            by_marker[0].append(element)
        if (value := element.get("class")) and not POST_CLASSES.isdisjoint(value.split()):
            by_marker[1].append(element)
        if element.tag == "article":
            by_marker[2].append(element)
    for marked in by_marker:
        if len(marked) == 1 and (characters := len(text_below(marked[0]))):
            return marked[0], characters
    return None, 0


def page_title(response: TextResponse) -> str | None:
    """Return the title of a page: `og:title`, else the first h1, else `<title>`."""
    for query in (OG_TITLE, "//h1", "//title"):
        if (nodes := response.xpath(query)) and (title := node_text(nodes[0])):
            return title[:MAX_TITLE_CHARACTERS]
    return None


def titles_of(response: TextResponse) -> list[str]:
    """Return `og:title` and `<title>` of a page, to recognize its heading."""
    titles = (response.xpath(query).get() or "" for query in (OG_TITLE, "string(//title)"))
    # Each heading of the page is searched for in them.
    return [title[:MAX_TITLE_CHARACTERS] for title in titles]


def _marked_post(root: Any) -> str:
    """Return the lines of a marked post, without the parts around its content."""
    blocks = blocks_of(root)
    lines = lines_of(blocks_outside(blocks, elements_beside(list(root.iter()), blocks)))
    return "\n".join(lines) or text_below(root, UNSEEN_OR_BOILERPLATE)


def _outside(body: Any, blocks: list[Block]) -> list[Block]:
    """Return the blocks outside of headers and forms."""
    inside = {element for part in body.iter("header", "form") for element in part.iter()}
    return blocks_outside(blocks, inside)


def short_post(body: Any, blocks: list[Block], titles: list[str]) -> str:
    """Return the short post of a page without markup for it; empty if none is certain.

    body:   lxml element of the body
    blocks: its blocks outside of the boilerplate
    titles: titles of the page, to recognize its heading
    """
    heading = title_heading(body, titles)
    candidates = (
        *(_blocks_by_name(body, blocks, names) for names in NAMES),
        _blocks_after_heading(blocks, heading),
    )
    first: list[Block] = next(filter(None, candidates), [])
    post = [block for block in first if heading is None or block.element is not heading]
    text = "\n".join(block.text for block in post)
    is_short = _prose_characters(post) < SHORT_CHARACTERS and len(text) < 2 * SHORT_CHARACTERS
    if not is_short or _max_prose_elsewhere(blocks, set(post)) >= ARTICLE_CHARACTERS:
        return ""
    return text


def _blocks_by_name(body: Any, blocks: list[Block], names: re.Pattern[str]) -> list[Block]:
    """Return the blocks of the element whose class or id matches; none if several have prose."""
    prose = {block.element for block in blocks if block.prose}
    seen: set[Any] = set()
    inside: list[set[Any]] = []
    for element in body.iter(*NAMED_TAGS):
        element_names = [*(element.get("class") or "").split(), element.get("id") or ""]
        # Of nested elements with such names, use the outermost.
        if element not in seen and any(map(names.search, element_names)):
            descendants = set(element.iter())
            seen |= descendants
            if descendants & prose:
                inside.append(descendants)
    return [block for block in blocks if block.element in inside[0]] if len(inside) == 1 else []


def _blocks_after_heading(blocks: list[Block], heading: Any) -> list[Block]:
    """Return the blocks after the heading, within the element that contains heading and post.

    The post is the prose between the heading and the first teaser. The result is empty if the post
    is long or empty.
    """
    if heading is None:
        return []
    own = set(heading.iter())
    at = max((n for n, block in enumerate(blocks, 1) if block.element in own), default=0)
    following = blocks[at:] if at else []
    run: list[Block] = []
    for block in following:
        if (run and block.teaser) or _prose_characters(run) >= SHORT_CHARACTERS:
            break
        run += [block] * block.prose
    if not run or _prose_characters(run) >= SHORT_CHARACTERS:
        return []
    # Find the smallest element that contains the heading and the whole run.
    above = {element: n for n, element in enumerate((heading, *heading.iterancestors()))}
    lines = ((block.element, *block.element.iterancestors()) for block in run)
    box = max((next(e for e in line if e in above) for line in lines), key=above.__getitem__)
    inside = set() if box.tag == "body" else set(box.iter())
    return [block for block in following if block.element in inside]


def _prose_characters(blocks: list[Block]) -> int:
    return sum(len(block.text) - block.linked for block in blocks if block.prose)


def _max_prose_elsewhere(blocks: list[Block], post: set[Block]) -> int:
    """Return the most characters of prose in any one place outside of the post.

    A block counts for its own element, for the parent of its paragraphs, and for the grandparent
    if each paragraph is wrapped in a div. Prose of teasers is not added up.
    """
    containers: set[Any] = set()  # ancestors of teasers
    for block in blocks:
        for above in block.element.iterancestors() if block.teaser else ():
            if above in containers:
                break
            containers.add(above)
    groups: Counter[Any] = Counter()
    for block in blocks:
        if block.prose and block not in post:
            places, parent = {block.element}, block.element.getparent()
            if block.element.tag not in ("div", "td"):
                places.add(parent)
            if parent is not None and parent.tag in ("div", "section") and parent not in containers:
                places.add(parent.getparent())
            for place in places:
                if place is not None and place.tag != "body":
                    groups[place] += len(block.text) - block.linked
    return max(groups.values(), default=0)
