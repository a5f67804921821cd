"""The post of a page that marks none, where it is short.

A page frame then says more than its post, and extractors take parts of the frame for the post.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
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
    said = "\n".join(block.text for block in post)
    short = _prose(post) < SHORT_CHARACTERS and len(said) < 2 * SHORT_CHARACTERS
    return said if short and _most_beside(blocks, set(post)) < ARTICLE_CHARACTERS else ""


def blocks_of(body: Any) -> list[Block]:
    """The blocks that say something outside of the frame, in the order of their first words."""
    blocks: dict[Block, None] = {}
    places: dict[Any, tuple[Block | None, bool]] = {body.getparent(): (Block(body, False), False)}
    for event, element in etree.iterwalk(body, events=("start", "end", "comment", "pi")):
        if event == "start":
            places[element] = _place(element, *places[element.getparent()])
        text = (element.text if event == "start" else element.tail) or ""
        block, linked = places[element if event == "start" else element.getparent()]
        if block:
            block.parts.append(" " * (element.tag == "br") + text)
            block.linked += len(squeeze(text)) * linked
            blocks |= {block: None} if text.strip() else {}
    for block in blocks:
        block.text = squeeze("".join(block.parts))
    return list(blocks)


def _place(element: Any, block: Block | None, linked: bool) -> tuple[Block | None, bool]:
    if block is None or element.tag in FRAME:
        return None, False
    if element.tag not in INLINE:
        # Paragraphs in a heading are those of an article whose heading is never closed.
        within = block.heading and element.tag != "p"
        block = Block(element, within or element.tag in HEADINGS)
    return block, linked or element.tag == "a"


def _heading(body: Any, titles: list[str]) -> Any:
    """The page's own heading: the one that says most of the title."""
    wanted = [_letters(title) for title in titles]
    found = [heading for tag in ("h1", "h2", "h3") for heading in body.iter(tag)]
    said = [
        (_letters("".join(islice(heading.itertext(), HEADING_PARTS))), heading) for heading in found
    ]
    own = [(len(text), heading) for text, heading in said if text and _one_of(text, wanted)]
    return max(own, key=lambda pair: pair[0])[1] if own else None


def _one_of(text: str, titles: list[str]) -> bool:
    return any(
        text in title or (len(title) >= PROSE_CHARACTERS and title in text) for title in titles
    )


def _letters(text: str) -> str:
    return re.sub(r"\W", "", text).casefold()


def _named(body: Any, blocks: list[Block], names: re.Pattern[str]) -> list[Block]:
    """What the only element with prose and such a name says."""
    prose = {block.element for block in blocks if block.prose}
    inside = [held for held in _outermost(body, names) if held & prose]
    return [block for block in blocks if block.element in inside[0]] if len(inside) == 1 else []


def _outermost(body: Any, names: re.Pattern[str]) -> Iterator[set[Any]]:
    """Each named element that is in no other one, with all that is in it."""
    seen: set[Any] = set()
    for element in body.iter(*NAMED_TAGS):
        given = [*(element.get("class") or "").split(), element.get("id") or ""]
        if element not in seen and any(map(names.search, given)):
            held = set(element.iter())
            seen |= held
            yield held


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
    box = _common(heading, run) if run and _prose(run) < SHORT_CHARACTERS else None
    inside = set() if box is None or box.tag == "body" else set(box.iter())
    return [block for block in following if block.element in inside]


def _common(heading: Any, run: list[Block]) -> Any:
    above = {element: n for n, element in enumerate((heading, *heading.iterancestors()))}
    lines = ((block.element, *block.element.iterancestors()) for block in run)
    return max((next(e for e in line if e in above) for line in lines), key=above.__getitem__)


def _prose(blocks: list[Block]) -> int:
    return sum(len(block.text) - block.linked for block in blocks if block.prose)


def _most_beside(blocks: list[Block], post: set[Block]) -> int:
    """The most prose in one place beside the post, but for that of teasers."""
    cards = _around([block.element for block in blocks if block.teaser])
    groups: Counter[Any] = Counter()
    for block in blocks:
        if block.prose and block not in post:
            groups.update(
                {place: len(block.text) - block.linked for place in _places(block, cards)}
            )
    return max(groups.values(), default=0)


def _around(elements: list[Any]) -> set[Any]:
    """All that elements are in."""
    around: set[Any] = set()
    for element in elements:
        for above in element.iterancestors():
            if above in around:
                break
            around.add(above)
    return around


def _places(block: Block, cards: set[Any]) -> set[Any]:
    """The block, the element of its paragraphs, and that of paragraphs with a div each."""
    places, parent = {block.element}, block.element.getparent()
    if block.element.tag not in ("div", "td"):
        places.add(parent)
    if parent is not None and parent.tag in ("div", "section") and parent not in cards:
        places.add(parent.getparent())
    return {place for place in places if place is not None and place.tag != "body"}


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
MAINTEXT_FRAME = UNSEEN | {"nav", "header", "footer"}


def main_text(response: TextResponse) -> dict[str, Any]:
    """{"title", "main_text"} of a page; values are None where nothing was found.

    trafilatura (`fast`) was the best of the measured extractors; where it finds nothing, as on
    pages without prose, the body's text outside of the frame stands in. Of short posts in one frame
    it makes texts that are alike, as it believes that it has missed something and adds what else
    the page says. So it is shown no more than the post where the page marks it, and what it adds
    is left out where the post can be told by names and headings.
    """
    marked = _marked(response)
    short = 0 < _length(marked) < SHORT_CHARACTERS
    text = (short and (_extracted(marked.get() or "") or _said(marked))) or _found(response, marked)
    return {"title": page_title(response), "main_text": text[:LONGEST_CHARACTERS] or None}


def load() -> None:
    """Load the extractor: a second of imports, for wrappers without fields alone."""
    import trafilatura  # noqa: F401


def page_title(response: TextResponse) -> str | None:
    """The page's own title: og:title, else the first h1, else <title>."""
    for query in (OG_TITLE, "//h1", "//title"):
        if (found := response.xpath(query)) and (title := node_text(found[0])):
            return title[:1000]
    return None


def _marked(response: TextResponse) -> SelectorList[Any]:
    """The one element that is marked as the post and says something; else none."""
    for query in POSTS:
        found = response.css(query)
        if len(found) == 1 and _length(found):
            return found
    return SelectorList()


def _length(found: SelectorList[Any]) -> int:
    return len(node_text(found[0])) if found else 0


def _found(response: TextResponse, marked: SelectorList[Any]) -> str:
    """What trafilatura finds, or the short post in it of a page without marks."""
    text = _extracted(response.text)
    post = "" if marked or _is_long(text) else _guessed(response)
    shorter = post and (not text or len(post) < len(text))
    return post if shorter else text or _said(response.xpath("//body"))


def _is_long(text: str) -> bool:
    long = sum(len(paragraph) >= ARTICLE_CHARACTERS for paragraph in text.split("\n"))
    return long >= LONG_PARAGRAPHS


def _guessed(response: TextResponse) -> str:
    titles = [response.xpath(query).get() or "" for query in (OG_TITLE, "string(//title)")]
    bodies = response.xpath("//body")
    return short_post(bodies[0].root, titles) if bodies else ""


def _extracted(html: str) -> str:
    import trafilatura  # slow, see `load`
    from trafilatura.xml import xmltotxt

    try:
        # `extract` would sort the combining marks of the text in quadratic time.
        found = trafilatura.bare_extraction(
            html, fast=True, include_comments=False, output_format="txt"
        )
        body = getattr(found, "body", None)
        return "" if body is None else normalized("NFC", xmltotxt(body, False).strip())
    except (etree.LxmlError, RecursionError, ValueError):
        return ""


def _said(elements: SelectorList[Any]) -> str:
    """What elements say outside of the frame."""
    return " ".join(text_below(element.root, MAINTEXT_FRAME) for element in elements)
