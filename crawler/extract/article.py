"""Find the article of a page: its paragraphs, lists and tables, without the parts around them.

The article is in the element that the page marks up for it, or in the smallest element with nearly
all prose of the page. Prose is text with sentences outside of links. Parts with names such as
`author-box` or `related` are left out if the page has much more prose than they have.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from crawler.extract.blocks import (
    BOILERPLATE,
    CAPITAL,
    MAX_REGION_PROSE,
    REGION_TAGS,
    SENTENCE,
    Block,
    blocks_outside,
    elements_beside,
    elements_with_heading,
    has_region_name,
    names_of,
    prose_below,
    title_heading,
)

# Forms and headers may be around the whole page, or around an article.
BOILERPLATE_OF_ARTICLES = BOILERPLATE - {"form", "header"}
# Tags and names in classes and ids of parts of an article that are not its text, and often differ
# on every visit. On pages with less prose, such parts are content: a price may be in an `ad-price`.
MIN_PROSE_FOR_NAMES = 1000
PART_TAGS = REGION_TAGS | {"address", "figcaption", "figure", "form"}
PART_NAME = re.compile(
    r"(?:ads?|adverts?|affiliate|anzeige|authors?|banner|bio|borlabscookie|breadcrumbs?|byline"
    r"|caption|commentlist|comments?|consent|cookies?|copyright|credits?|cta|dateline|disqus|embed"
    r"|foot|footer|infobox|keywords|kicker|legend|login|mailchimp|menu|meta|modal|nav|navigation"
    r"|newsletter|next|outbrain|pager|pagination|paywall|popular|popup|postmeta|prev|previous|print"
    r"|promo|ratings?|recommand\w*|recommend\w*|related|relatedarticles|relatedposts?|reply|respond"
    r"|search|shares?|sharedaddy|sharing|sidebar|signup|similar|sociable|socials?|sponsor\w*"
    r"|subscribe|subscription|taboola|taglist|tags?|teasers?|toolbar|trending|vcard|widget)"
)
# Comments may have more text than the article that they are about.
COMMENTS_NAME = re.compile(
    r"comments?(?:-(?:area|block|body|box|container|content|item|list|section|text|thread|wrapper))?"
    r"|commentlist|disqus-thread|respond|repl(?:y|ies)"
)
MIN_COMMENTED = 100
NAME_PARTS = re.compile(r"[-\s]+")
# A part with a larger share of the prose is content, whatever its name is.
MAX_PART_SHARE = 0.15
# If less text is left, the names were misleading.
MIN_KEPT_SHARE = 0.2
# A marked element needs this share of the prose, and an element is left for its child with most of
# the prose if the child has this share of it.
MIN_MARKED_SHARE, MIN_CHILD_SHARE = 0.1, 0.85
# The paragraphs of an element are its text, so they are no better choice than the element.
TEXT_TAGS = frozenset({"p", "blockquote", "pre", "ul", "ol", "dl", "table", "tbody", "tr"})
# Blocks with a larger share in links lead to other pages, except on pages without an article, where
# the entries of a list may be links.
MAX_LINKED_SHARE = 0.65
ENTRY_TAGS = frozenset({"li", "dd", "dt", "td", "th"})
PARTS_OF_LISTS = ENTRY_TAGS | {"ul", "ol", "dl", "table", "tbody", "thead", "tfoot", "tr"}
# Minimum number of characters of an introduction between the heading and the article.
MIN_LEAD_CHARACTERS, MIN_LEAD_HEADING = 40, 80
CELL_TAGS = frozenset({"td", "th"})
CELLS = " | "


def article_of(
    elements: Sequence[Any], blocks: list[Block], titles: list[str], marked: Any = None
) -> str:
    """Return the text of the article of a page, one block a line; empty if there is none.

    elements: lxml elements of the page, the body first
    blocks:   its blocks outside of BOILERPLATE_OF_ARTICLES
    titles:   titles of the page, to recognize its heading
    marked:   element that the page marks up for its article, if there is one
    """
    body = elements[0]
    prose = prose_below(blocks)
    has_article = prose[body] >= MIN_PROSE_FOR_NAMES
    content = blocks_outside(blocks, elements_beside(elements, blocks))
    if not has_article:
        return _article(body, titles, marked, content)
    with_heading = elements_with_heading(elements)
    comments, named = _named(elements)
    most_comments = prose[body] - MIN_COMMENTED
    content = blocks_outside(content, _parts(comments, prose, most_comments, with_heading))
    prose = prose_below(content)
    most = max(MAX_REGION_PROSE, MAX_PART_SHARE * prose[body])
    parts = _parts(named, prose, most, with_heading)
    text = _article(body, titles, marked, blocks_outside(content, parts))
    if len(text) < MIN_KEPT_SHARE * prose[body]:
        text = _article(body, titles, marked, content)
    return text


def _article(body: Any, titles: list[str], marked: Any, blocks: list[Block]) -> str:
    prose = prose_below(blocks)
    root = marked
    if root is None or prose[root] < MIN_MARKED_SHARE * prose[body]:
        root = _smallest(body, prose)
    inside = set(root.iter())
    first = next((n for n, block in enumerate(blocks) if block.element in inside), 0)
    own = [block for block in blocks if block.element in inside]
    entries = _linked_entries(own, is_list=prose[body] < MIN_PROSE_FOR_NAMES)
    kept = [
        block
        for block in own
        if block in entries or block.linked <= MAX_LINKED_SHARE * len(block.text)
    ]
    while kept and kept[-1].heading:
        kept.pop()
    return "\n".join(lines_of([*_lead(body, titles, blocks[:first]), *kept]))


def _linked_entries(blocks: Sequence[Block], *, is_list: bool) -> set[Block]:
    """Return the entries of lists that are links, but belong to the text.

    is_list: the page has no article: these are lists next to the main heading or a paragraph;
             otherwise, lists between two paragraphs
    """
    linked = [
        (n, block)
        for n, block in enumerate(blocks)
        if block.element.tag in ENTRY_TAGS and block.linked > MAX_LINKED_SHARE * len(block.text)
    ]
    # The first and the last paragraph in each element.
    spans: dict[Any, tuple[int, int]] = {}
    for n, block in enumerate(blocks if linked else ()):
        is_text = block.prose and block.element.tag not in ENTRY_TAGS
        if is_text or (is_list and block.element.tag == "h1"):
            parent = block.element.getparent()
            spans[parent] = (spans.get(parent, (n, n))[0], n)
    entries: set[Block] = set()
    for n, block in linked:
        parent = block.element.getparent()
        while parent is not None and parent not in spans and parent.tag in PARTS_OF_LISTS:
            parent = parent.getparent()
        first, last = spans.get(parent, (n, n))
        if (is_list and parent in spans) or first < n < last:
            entries.add(block)
    return entries


def lines_of(blocks: Sequence[Block]) -> list[str]:
    """Return the lines of blocks: a list item begins with a hyphen, a table row is one line."""
    lines: list[str] = []
    row = None
    for block in blocks:
        tag, parent = block.element.tag, block.element.getparent()
        if tag in CELL_TAGS and parent is row and lines:
            lines[-1] += CELLS + block.text
        elif tag == "pre":
            lines += filter(None, (line.rstrip() for line in "".join(block.parts).split("\n")))
        else:
            lines.append(f"- {block.text}" if tag == "li" else block.text)
        row = parent if tag in CELL_TAGS else None
    return lines


def texts_in(line: str) -> list[str]:
    """Return the texts of the blocks that a line of an article has."""
    return [line, *line.removeprefix("- ").split(CELLS)]


def _smallest(body: Any, prose: Counter[Any]) -> Any:
    """Return the smallest element with nearly all prose."""
    root = body
    while prose[root]:
        children = (child for child in root if isinstance(child.tag, str))
        child = max(children, key=prose.__getitem__, default=None)
        if child is None or prose[child] < MIN_CHILD_SHARE * prose[root] or child.tag in TEXT_TAGS:
            break
        root = child
    return root


def _lead(body: Any, titles: list[str], blocks: list[Block]) -> list[Block]:
    """Return the introduction between the main heading and the element with the article.

    blocks: blocks before the article
    """
    at = max((n for n, block in enumerate(blocks) if block.element.tag == "h1"), default=None)
    if at is None and (heading := title_heading(body, titles)) is not None:
        own = set(heading.iter())
        at = max((n for n, block in enumerate(blocks) if block.element in own), default=None)
    if at is None:
        return []
    return [block for block in blocks[at + 1 :] if _is_lead(block)]


def _is_lead(block: Block) -> bool:
    if not block.heading:
        return block.prose and len(block.text) > MIN_LEAD_CHARACTERS
    is_text = len(block.text) > MIN_LEAD_HEADING and block.linked * 2 <= len(block.text)
    return is_text and SENTENCE.search(block.text) is not None


def _named(elements: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the elements with names of comments, and those with names of other parts."""
    comments: list[Any] = []
    parts: list[Any] = []
    for element in elements[1:]:
        if element.tag in PART_TAGS:
            parts.append(element)
        elif names := names_of(element):
            is_comment, is_part = _kinds(names)
            if is_comment:
                comments.append(element)
            if is_part:
                parts.append(element)
    return comments, parts


@lru_cache(maxsize=8192)
def _kinds(names: str) -> tuple[bool, bool]:
    """Return whether the names of an element are those of comments, and of another part."""
    spelled = CAPITAL.sub("-", names).replace("_", "-").lower()
    is_part = any(map(PART_NAME.fullmatch, NAME_PARTS.split(spelled)))
    is_comment = any(map(COMMENTS_NAME.fullmatch, spelled.split()))
    return is_comment, is_part or has_region_name(names)


def _parts(
    named: Sequence[Any], prose: Counter[Any], limit: float, with_heading: set[Any]
) -> set[Any]:
    """Return the elements of parts that are not the text of an article, and all below them.

    named: elements with names of parts
    limit: maximum number of characters of prose in a part
    """
    parts: set[Any] = set()
    for element in named:
        if (
            element not in parts
            and prose[element] <= limit
            and (element not in with_heading or prose[element] < MAX_REGION_PROSE)
        ):
            parts.update(element.iter())
    return parts
