"""Extract the main text of a page: its marked-up post, trafilatura's result, or a short post.

When a post is short and the page does not mark it up, the boilerplate contains more text than the
post, and extractors return parts of the boilerplate. `short_post` finds such posts by class names
and headings.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice
from typing import Any

from lxml import etree
from parsel import SelectorList
from scrapy.http import TextResponse

from crawler.extract.fields import node_text, squeeze
from crawler.extract.plain_text import UNSEEN, text_below
from crawler.utils.text import normalized

# It warns of each page without prose, which is read otherwise.
logging.getLogger("trafilatura").setLevel(logging.ERROR)
SHORT_CHARACTERS = 400
# With this much prose in one place outside of the presumed short post, the page is a long article.
ARTICLE_CHARACTERS = 450
PROSE_CHARACTERS = 15
# Maximum number of text nodes read from a heading: an unclosed one contains the rest of the page.
HEADING_PARTS = 50
# Class names and ids of the element with the post, most reliable first.
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
BOILERPLATE = {
    *("aside", "button", "footer", "form", "header", "iframe", "nav", "noscript", "script"),
    *("select", "style", "svg", "template", "textarea"),
}
SENTENCE = re.compile(r"[.!?…。！？:][\"'”’»)“]*(\s|$)")  # noqa: RUF001
MAX_CHARACTERS, MAX_TITLE_CHARACTERS = 1_000_000, 1000
# A page with at least this many long paragraphs is an article: do not search for a short post.
LONG_PARAGRAPHS = 5
# Markup of the element with the post, most reliable first.
POSTS = (
    "[itemprop~=articleBody]",
    ".entry-content, .post-content, .post-body, .article-body, .e-content",
    "article",
)
# Parts of a page beside its content, which may differ on every visit: tags, and names in classes
# and ids. Names such as `ad-price`, `promo` and `menu` also occur in the content.
REGION_TAGS = frozenset({"aside", "nav"})
REGION_ROLES = frozenset({"alertdialog", "banner", "contentinfo", "dialog", "navigation"})
FRAME_TAGS = frozenset({"footer", "header"})
CONTENT_TAGS = frozenset({"article", "main"})
REGION_NAME = re.compile(
    r"(?:[a-z0-9-]{0,40}-)?(?:side-?bar|breadcrumbs?|nav|navbar|navigation|masthead|topbar"
    r"|newsletter|copyright|gdpr|consent|cookies?-(?:banner|notice|bar|law|popup|message)|banners?"
    r"|onetrust|cookiebot|usercentrics|didomi|cmp|cmplz|truste"
    r"|advert|adverts|advertisements?|advertising|adsense|sponsored|related|recommended"
    r"|recommendations?|similar|trending|popular|social|sharing|mini-?cart|shopping-cart)"
    r"(?:-(?:box|block|area|container|wrapper|items?|products?|posts?|list|links?|section|widget"
    r"|inner|left|right|top|bottom))*"
    r"|(?:site-|page-)?(?:header|footer)|ads?|ads?-?(?:box|slot|banner|container|wrapper|unit|block)"
)
MAX_NAME_CHARACTERS = 200
CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
# trafilatura finds the content of a page with more text reliably.
MAX_UNSURE_CHARACTERS = 2000
# A part with more prose is content, whatever its name is.
MAX_REGION_PROSE = 200
OG_TITLE = "//meta[@property='og:title']/@content"
UNSEEN_OR_BOILERPLATE = UNSEEN | {"nav", "header", "footer"}


def main_text(response: TextResponse) -> dict[str, Any]:
    """Return the `title` and `main_text` of a page; a value is None if nothing was found.

    trafilatura (`fast`) had the best results of all extractors measured. If it returns nothing, as
    on pages without prose, the text of the body outside of the boilerplate is used.

    The lines of a short text that occur only in menus, advertisements and similar parts are
    removed: they would make the page change on every visit.

    If a post is short, trafilatura assumes that it has missed some text and adds other text of the
    page, so that all short posts of a site look alike. Therefore it only gets the post if the page
    marks it up, and its result is replaced if `short_post` finds a shorter one.
    """
    # Use a marker only if a single element has it and that element contains text.
    marked: SelectorList[Any] = SelectorList()
    characters = 0
    for query in POSTS:
        elements = response.css(query)
        if len(elements) == 1 and (characters := len(node_text(elements[0]))):
            marked = elements
            break
    if marked and characters < SHORT_CHARACTERS:
        text = _extracted(marked.get() or "") or _text_of(marked)
        if text:
            return {"title": page_title(response), "main_text": text[:MAX_CHARACTERS]}
    text, post = _extracted(response.text), ""
    paragraphs = sum(len(paragraph) >= ARTICLE_CHARACTERS for paragraph in text.split("\n"))
    bodies = response.xpath("//body")
    if not marked and paragraphs < LONG_PARAGRAPHS and bodies:
        post = short_post(bodies[0].root, titles_of(response))
    is_shorter = post and (not text or len(post) < len(text))
    text = post if is_shorter else text or _text_of(bodies)
    if bodies and not is_shorter and len(text) < MAX_UNSURE_CHARACTERS:
        text = _without_regions(text, bodies[0].root)
    return {"title": page_title(response), "main_text": text[:MAX_CHARACTERS] or None}


def load() -> None:
    """Import the extractor in advance. It takes 1 s; only sites without fields need it."""
    import trafilatura  # noqa: F401


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


def _extracted(html: str) -> str:
    import trafilatura  # slow, see `load`
    from trafilatura.xml import xmltotxt

    try:
        # `trafilatura.extract` would normalize the text with `unicodedata`, which takes quadratic
        # time for combining marks. `normalized` is linear.
        document = trafilatura.bare_extraction(
            html, fast=True, include_comments=False, output_format="txt"
        )
        body = getattr(document, "body", None)
        return "" if body is None else normalized("NFC", xmltotxt(body, False).strip())
    except (etree.LxmlError, RecursionError, ValueError):
        return ""


def _text_of(elements: SelectorList[Any]) -> str:
    """Return the text of elements without hidden elements and boilerplate."""
    return " ".join(text_below(element.root, UNSEEN_OR_BOILERPLATE) for element in elements)


@dataclass(eq=False, slots=True)
class Block:
    """The text of one block element, without that of blocks inside it.

    element: lxml element
    heading: the element is a heading, or inside one
    parts:   text nodes; `text` is their normalized text
    linked:  number of characters in links
    """

    element: Any
    heading: bool
    parts: list[str] = field(default_factory=list)
    text: str = ""
    linked: int = 0

    @property
    def prose(self) -> bool:
        """Return True for sentences, as opposed to headings and links."""
        is_text = len(self.text) >= PROSE_CHARACTERS and self.linked * 2 <= len(self.text)
        return is_text and not self.heading and bool(SENTENCE.search(self.text))

    @property
    def teaser(self) -> bool:
        """Return True for the heading of a link to another post."""
        return self.heading and self.element.tag != "h1" and self.linked * 2 >= len(self.text)


def short_post(body: Any, titles: list[str]) -> str:
    """Return the short post of a page without markup for it; empty if none is certain.

    body:   lxml element of the body
    titles: titles of the page, to recognize its heading
    """
    blocks = blocks_of(body)
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


def _without_regions(text: str, body: Any) -> str:
    """Return a text without the lines that occur only beside the content of the page.

    text: extracted text; if all of its lines are beside the content, it is returned as it is

    From a page with little prose, trafilatura returns all lines, and so does the text of the body.
    """
    blocks = blocks_of(body, without=UNSEEN)
    inside = elements_beside(body, blocks)
    if not inside:
        return text
    around: set[str] = set()
    content: set[str] = set()
    for block in blocks:
        lines = around if block.element in inside else content
        lines.update((block.text, *map(squeeze, block.parts)))
    beside = around - content
    kept = [line for line in text.split("\n") if line.removeprefix("- ").strip() not in beside]
    return "\n".join(kept) or text


def elements_beside(body: Any, blocks: list[Block]) -> set[Any]:
    """Return the elements beside the content: regions without a main heading, with little prose."""
    prose: Counter[Any] = Counter()
    for block in blocks:
        if block.prose:
            for element in (block.element, *block.element.iterancestors()):
                prose[element] += len(block.text) - block.linked
    with_heading = {above for heading in body.iter("h1") for above in heading.iterancestors()}
    inside: set[Any] = set()
    content: set[Any] = set()
    for element in body.iterdescendants():
        parent = element.getparent()
        if parent in content or element.tag in CONTENT_TAGS:
            content.add(element)
        is_frame = element.tag in FRAME_TAGS and element not in content
        if parent in inside or (
            (is_frame or _is_region(element))
            and prose[element] <= MAX_REGION_PROSE
            and element not in with_heading
        ):
            inside.add(element)
    return inside


def _is_region(element: Any) -> bool:
    names = f"{element.get('class') or ''} {element.get('id') or ''}"
    return (
        element.tag in REGION_TAGS
        or element.get("role") in REGION_ROLES
        or (names != " " and _has_region_name(names[:MAX_NAME_CHARACTERS]))
    )


@lru_cache(maxsize=4096)
def _has_region_name(names: str) -> bool:
    """Return whether one of the names of an element is that of a part beside the content."""
    spelled = CAPITAL.sub("-", names).replace("_", "-").lower()
    return any(REGION_NAME.fullmatch(name) for name in spelled.split())


def blocks_of(body: Any, without: Collection[str] = BOILERPLATE) -> list[Block]:
    """Return the blocks with text outside of the boilerplate, in the order of their first text.

    without: tags of the boilerplate
    """
    blocks: dict[Block, None] = {}
    # The block of each open element, and whether the element is inside a link.
    places: list[tuple[Block | None, bool]] = [(Block(body, False), False)]
    for event, element in etree.iterwalk(body, events=("start", "end", "comment", "pi")):
        block, linked = places[-1]
        if event == "start":
            if block is None or element.tag in without:
                block, linked = None, False
            elif element.tag not in INLINE:
                # A paragraph inside a heading is text: the heading was never closed.
                within = block.heading and element.tag != "p"
                block = Block(element, within or element.tag in HEADINGS)
            places.append((block, linked or (block is not None and element.tag == "a")))
        elif event == "end":
            places.pop()
        block, linked = places[-1]
        text = (element.text if event == "start" else element.tail) or ""
        if block is None or not (text or element.tag == "br"):
            continue
        block.parts.append(" " * (element.tag == "br") + text)
        if text and not text.isspace():
            blocks[block] = None
            block.linked += len(squeeze(text)) if linked else 0
    for block in blocks:
        block.text = squeeze("".join(block.parts))
    return list(blocks)


def title_heading(body: Any, titles: list[str]) -> Any:
    """Return the heading that shares the most text with one of the page's titles."""
    title_letters = [_letters(title) for title in titles]
    matches: list[tuple[int, Any]] = []
    for heading in chain.from_iterable(body.iter(tag) for tag in ("h1", "h2", "h3")):
        text = _letters("".join(islice(heading.itertext(), HEADING_PARTS)))
        if text and any(
            text in title or (len(title) >= PROSE_CHARACTERS and title in text)
            for title in title_letters
        ):
            matches.append((len(text), heading))
    return max(matches, key=lambda pair: pair[0])[1] if matches else None


def _letters(text: str) -> str:
    return re.sub(r"\W", "", text).casefold()


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
