"""The main text of a page: the post that it marks, what trafilatura finds, or a short post.

Where a post is short and the page marks none, the page's frame says more than its post, and
extractors take parts of the frame for the post: `short_post` looks for it by names and headings.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from lxml import etree
from parsel import SelectorList
from scrapy.http import TextResponse

from crawler.extract.fields import node_text, squeeze
from crawler.extract.plain_text import UNSEEN, text_below
from crawler.utils.text import normalized

SHORT_CHARACTERS = 400
# So much prose in one place beside what is taken for the post, and the page is a longer article.
ARTICLE_CHARACTERS = 450
PROSE_CHARACTERS = 15
# No more of a heading is read; those that are never closed hold all that follows.
HEADING_PARTS = 50
# How frames name the post, the surest first.
NAMES = (
    re.compile(r"(^|[-_a-z])(article|story|post|entry|art)[-_]*(body|content|text)$", re.I),
    re.compile(r"^(article|story|post|entry|text)$", re.I),
)
NAMED_TAGS = ("div", "section", "main", "td", "article")
HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
INLINE = {
    *("a", "abbr", "acronym", "b", "bdi", "big", "br", "cite", "code", "del", "em", "font", "i"),
    *("ins", "label", "mark", "nobr", "q", "s", "small", "span", "strong", "sub", "sup", "time"),
    *("tt", "u", "wbr"),
}
FRAME = {
    *("aside", "button", "footer", "form", "header", "iframe", "nav", "noscript", "script"),
    *("select", "style", "svg", "template", "textarea"),
}
SENTENCE = re.compile(r"[.!?…。！？:][\"'”’»)“]*(\s|$)")  # noqa: RUF001
LONGEST_CHARACTERS = 1_000_000
# So many long paragraphs are an article, and not worth the search for a short post.
LONG_PARAGRAPHS = 5
# How a page marks its post, the surest first.
POSTS = (
    "[itemprop~=articleBody]",
    ".entry-content, .post-content, .post-body, .article-body, .e-content",
    "article",
)
OG_TITLE = "//meta[@property='og:title']/@content"
UNSEEN_OR_FRAME = UNSEEN | {"nav", "header", "footer"}


def main_text(response: TextResponse) -> dict[str, Any]:
    """{"title", "main_text"} of a page; values are None where nothing was found.

    trafilatura (`fast`) was the best of the measured extractors; where it finds nothing, as on
    pages without prose, the body's text outside of the frame stands in. Of short posts in one frame
    it makes texts that are alike, as it believes that it has missed something and adds what else
    the page says. So it is shown no more than the post where the page marks it, and what it adds
    is left out where the post can be told by names and headings.
    """
    # The one element that is marked as the post and says something; else none.
    marked: SelectorList[Any] = SelectorList()
    for query in POSTS:
        elements = response.css(query)
        if len(elements) == 1 and node_text(elements[0]):
            marked = elements
            break
    if marked and len(node_text(marked[0])) < SHORT_CHARACTERS:
        text = _extracted(marked.get() or "") or _text_of(marked)
        if text:
            return {"title": page_title(response), "main_text": text[:LONGEST_CHARACTERS]}
    text, post = _extracted(response.text), ""
    paragraphs = sum(len(paragraph) >= ARTICLE_CHARACTERS for paragraph in text.split("\n"))
    bodies = response.xpath("//body")
    if not marked and paragraphs < LONG_PARAGRAPHS and bodies:
        titles = [response.xpath(query).get() or "" for query in (OG_TITLE, "string(//title)")]
        post = short_post(bodies[0].root, titles)
    is_shorter = post and (not text or len(post) < len(text))
    text = post if is_shorter else text or _text_of(bodies)
    return {"title": page_title(response), "main_text": text[:LONGEST_CHARACTERS] or None}


def load() -> None:
    """Load the extractor: a second of imports, for wrappers without fields alone."""
    import trafilatura  # noqa: F401


def page_title(response: TextResponse) -> str | None:
    """The page's own title: og:title, else the first h1, else <title>."""
    for query in (OG_TITLE, "//h1", "//title"):
        if (nodes := response.xpath(query)) and (title := node_text(nodes[0])):
            return title[:1000]
    return None


def _extracted(html: str) -> str:
    import trafilatura  # slow, see `load`
    from trafilatura.xml import xmltotxt

    try:
        # `extract` would sort the combining marks of the text in quadratic time.
        document = trafilatura.bare_extraction(
            html, fast=True, include_comments=False, output_format="txt"
        )
        body = getattr(document, "body", None)
        return "" if body is None else normalized("NFC", xmltotxt(body, False).strip())
    except (etree.LxmlError, RecursionError, ValueError):
        return ""


def _text_of(elements: SelectorList[Any]) -> str:
    """What elements say outside of the frame."""
    return " ".join(text_below(element.root, UNSEEN_OR_FRAME) for element in elements)


@dataclass(eq=False, slots=True)
class Block:
    """What one block element says itself, without the blocks in it."""

    element: Any
    heading: bool
    parts: list[str] = field(default_factory=list)
    text: str = ""
    linked: int = 0

    @property
    def prose(self) -> bool:
        """Sentences that are no links."""
        some = len(self.text) >= PROSE_CHARACTERS and self.linked * 2 <= len(self.text)
        return some and not self.heading and bool(SENTENCE.search(self.text))

    @property
    def teaser(self) -> bool:
        """The heading of another post."""
        return self.heading and self.element.tag != "h1" and self.linked * 2 >= len(self.text)


def short_post(body: Any, titles: list[str]) -> str:
    """The short post of a page without marks; empty where that is not sure."""
    blocks = blocks_of(body)
    heading = _heading(body, titles)
    ways = (*(_named(body, blocks, names) for names in NAMES), _headed(blocks, heading))
    first: list[Block] = next(filter(None, ways), [])
    post = [block for block in first if heading is None or block.element is not heading]
    text = "\n".join(block.text for block in post)
    is_short = _prose(post) < SHORT_CHARACTERS and len(text) < 2 * SHORT_CHARACTERS
    return text if is_short and _most_beside(blocks, set(post)) < ARTICLE_CHARACTERS else ""


def blocks_of(body: Any) -> list[Block]:
    """The blocks that say something outside of the frame, in the order of their first words."""
    blocks: dict[Block, None] = {}
    places: dict[Any, tuple[Block | None, bool]] = {body.getparent(): (Block(body, False), False)}
    for event, element in etree.iterwalk(body, events=("start", "end", "comment", "pi")):
        if event == "start":
            block, linked = places[element.getparent()]
            if block is None or element.tag in FRAME:
                block, linked = None, False
            elif element.tag not in INLINE:
                # Paragraphs in a heading are those of an article whose heading is never closed.
                within = block.heading and element.tag != "p"
                block = Block(element, within or element.tag in HEADINGS)
            places[element] = block, linked or (block is not None and element.tag == "a")
        text = (element.text if event == "start" else element.tail) or ""
        block, linked = places[element if event == "start" else element.getparent()]
        if block:
            block.parts.append(" " * (element.tag == "br") + text)
            block.linked += len(squeeze(text)) * linked
            blocks |= {block: None} if text.strip() else {}
    for block in blocks:
        block.text = squeeze("".join(block.parts))
    return list(blocks)


def _heading(body: Any, titles: list[str]) -> Any:
    """The page's own heading: the one that says most of the title."""
    wanted = [_letters(title) for title in titles]
    own: list[tuple[int, Any]] = []
    for heading in chain.from_iterable(body.iter(tag) for tag in ("h1", "h2", "h3")):
        text = _letters("".join(islice(heading.itertext(), HEADING_PARTS)))
        if text and any(
            text in title or (len(title) >= PROSE_CHARACTERS and title in text) for title in wanted
        ):
            own.append((len(text), heading))
    return max(own, key=lambda pair: pair[0])[1] if own else None


def _letters(text: str) -> str:
    return re.sub(r"\W", "", text).casefold()


def _named(body: Any, blocks: list[Block], names: re.Pattern[str]) -> list[Block]:
    """What the only element with prose and such a name says."""
    prose = {block.element for block in blocks if block.prose}
    seen: set[Any] = set()
    inside: list[set[Any]] = []
    for element in body.iter(*NAMED_TAGS):
        given = [*(element.get("class") or "").split(), element.get("id") or ""]
        # Of named elements in each other, the outermost counts.
        if element not in seen and any(map(names.search, given)):
            held = set(element.iter())
            seen |= held
            if held & prose:
                inside.append(held)
    return [block for block in blocks if block.element in inside[0]] if len(inside) == 1 else []


def _headed(blocks: list[Block], heading: Any) -> list[Block]:
    """What follows the heading in the smallest element with it and the prose up to a teaser."""
    if heading is None:
        return []
    own = set(heading.iter())
    at = max((n for n, block in enumerate(blocks, 1) if block.element in own), default=0)
    following = blocks[at:] if at else []
    run: list[Block] = []
    for block in following:
        if (run and block.teaser) or _prose(run) >= SHORT_CHARACTERS:
            break
        run += [block] * block.prose
    if not run or _prose(run) >= SHORT_CHARACTERS:
        return []
    # The smallest element that has the heading and all of the run.
    above = {element: n for n, element in enumerate((heading, *heading.iterancestors()))}
    lines = ((block.element, *block.element.iterancestors()) for block in run)
    box = max((next(e for e in line if e in above) for line in lines), key=above.__getitem__)
    inside = set() if box.tag == "body" else set(box.iter())
    return [block for block in following if block.element in inside]


def _prose(blocks: list[Block]) -> int:
    return sum(len(block.text) - block.linked for block in blocks if block.prose)


def _most_beside(blocks: list[Block], post: set[Block]) -> int:
    """The most prose in one place beside the post, but for that of teasers."""
    cards: set[Any] = set()  # all that teasers are in
    for block in blocks:
        for above in block.element.iterancestors() if block.teaser else ():
            if above in cards:
                break
            cards.add(above)
    groups: Counter[Any] = Counter()
    for block in blocks:
        if block.prose and block not in post:
            for place in _places(block, cards):
                groups[place] += len(block.text) - block.linked
    return max(groups.values(), default=0)


def _places(block: Block, cards: set[Any]) -> set[Any]:
    """The block, the element of its paragraphs, and that of paragraphs with a div each."""
    places, parent = {block.element}, block.element.getparent()
    if block.element.tag not in ("div", "td"):
        places.add(parent)
    if parent is not None and parent.tag in ("div", "section") and parent not in cards:
        places.add(parent.getparent())
    return {place for place in places if place is not None and place.tag != "body"}
