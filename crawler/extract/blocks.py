"""Blocks of text in a page, and which of them are beside its content, such as menus and footers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice
from typing import Any

from crawler.extract.fields import squeeze

PROSE_CHARACTERS = 15
# Maximum number of text nodes read from a heading: an unclosed one contains the rest of the page.
HEADING_PARTS = 50
HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
INLINE = {
    *("a", "abbr", "acronym", "b", "bdi", "big", "br", "cite", "code", "del", "em", "font", "i"),
    *("ins", "label", "mark", "nobr", "q", "s", "small", "span", "strong", "sub", "sup", "time"),
    *("tt", "u", "wbr"),
}
BOILERPLATE = {
    *("aside", "button", "footer", "form", "header", "iframe", "nav", "noembed", "noscript"),
    *("object", "script", "select", "style", "svg", "template", "textarea"),
}
SENTENCE = re.compile(r"[.!?…。！？:][\"'”’»)“]*(\s|$)")  # noqa: RUF001
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
# A part with more prose is content, whatever its name is.
MAX_REGION_PROSE = 200


@dataclass(eq=False, slots=True)
class Block:
    """The text of one block element, without that of blocks inside it.

    element: lxml element
    heading: the element is a heading, or inside one
    parts:   text nodes; `text` is their normalized text
    linked:  number of characters in links
    prose:   the text has sentences, as opposed to headings and links
    """

    element: Any
    heading: bool
    parts: list[str] = field(default_factory=list)
    text: str = ""
    linked: int = 0
    prose: bool = False

    @property
    def teaser(self) -> bool:
        """Return True for the heading of a link to another post."""
        return self.heading and self.element.tag != "h1" and self.linked * 2 >= len(self.text)


def prose_below(blocks: Iterable[Block]) -> Counter[Any]:
    """Return the characters of prose in each element."""
    prose: Counter[Any] = Counter()
    for block in blocks:
        if block.prose:
            characters = len(block.text) - block.linked
            for element in (block.element, *block.element.iterancestors()):
                prose[element] += characters
    return prose


def blocks_outside(blocks: Iterable[Block], elements: Collection[Any]) -> list[Block]:
    """Return the blocks that are in none of some elements."""
    return [block for block in blocks if block.element not in elements]


def elements_with_heading(elements: Sequence[Any]) -> set[Any]:
    """Return the elements around the main headings."""
    return {above for heading in elements[0].iter("h1") for above in heading.iterancestors()}


def elements_beside(elements: Sequence[Any], blocks: Iterable[Block]) -> set[Any]:
    """Return the elements beside the content: regions without a main heading, with little prose.

    elements: an element and all elements below it, in the order of the page
    blocks:   its blocks
    """
    prose, with_heading = prose_below(blocks), elements_with_heading(elements)
    inside: set[Any] = set()
    for element in elements[1:]:
        if (
            element not in inside
            and (is_region(element) or _is_frame(element))
            and prose[element] <= MAX_REGION_PROSE
            and element not in with_heading
        ):
            inside.update(element.iter())
    return inside


def _is_frame(element: Any) -> bool:
    """Return whether an element is the header or footer of the page, not of an article."""
    return element.tag in FRAME_TAGS and not any(
        above.tag in CONTENT_TAGS for above in element.iterancestors()
    )


def is_region(element: Any) -> bool:
    """Return whether tag, role or names of an element are those of a part beside the content."""
    if element.tag in REGION_TAGS or element.get("role") in REGION_ROLES:
        return True
    names = names_of(element)
    return bool(names) and has_region_name(names)


def names_of(element: Any) -> str:
    """Return the classes and the id of an element, cut to MAX_NAME_CHARACTERS."""
    classes, identifier = element.get("class"), element.get("id")
    names = f"{classes} {identifier}" if classes and identifier else classes or identifier or ""
    return names[:MAX_NAME_CHARACTERS]


@lru_cache(maxsize=8192)
def has_region_name(names: str) -> bool:
    """Return whether one of the names of an element is that of a part beside the content."""
    spelled = CAPITAL.sub("-", names).replace("_", "-").lower()
    return any(REGION_NAME.fullmatch(name) for name in spelled.split())


def blocks_of(body: Any, without: Collection[str] = BOILERPLATE) -> list[Block]:
    """Return the blocks with text outside of the boilerplate, in the order of their first text.

    without: tags of the boilerplate
    """
    blocks: list[Block] = []
    block: Block | None = Block(body, False)
    # The open elements: their remaining children, and the text after each with its block. An
    # explicit stack, because pages may be nested deeper than Python's recursion limit.
    levels: list[tuple[Iterator[Any], str | None, Block | None, bool]] = []
    _add(blocks, block, body.text, is_linked=False)
    children, is_linked = iter(body), False
    while True:
        if (element := next(children, None)) is None:
            if not levels:
                break
            children, tail, block, is_linked = levels.pop()
            _add(blocks, block, tail, is_linked=is_linked)
            continue
        tag = element.tag
        if block is None or tag in without or not isinstance(tag, str):
            _add(blocks, block, element.tail, is_linked=is_linked)
            continue
        inner, in_link = block, is_linked or tag == "a"
        if tag == "br":
            block.parts.append(" ")
        elif tag not in INLINE:
            # A paragraph inside a heading is text: the heading was never closed.
            inner = Block(element, (block.heading and tag != "p") or tag in HEADINGS)
        _add(blocks, inner, element.text, is_linked=in_link)
        if len(element):
            levels.append((children, element.tail, block, is_linked))
            children, block, is_linked = iter(element), inner, in_link
        else:
            _add(blocks, block, element.tail, is_linked=is_linked)
    # Text after the end tag of the body.
    _add(blocks, Block(body, False), body.tail, is_linked=False)
    for each in blocks:
        each.text = squeeze("".join(each.parts))
        is_text = len(each.text) >= PROSE_CHARACTERS and each.linked * 2 <= len(each.text)
        each.prose = is_text and not each.heading and bool(SENTENCE.search(each.text))
    return blocks


def _add(blocks: list[Block], block: Block | None, text: str | None, *, is_linked: bool) -> None:
    """Add a text to a block, and the block to the list with its first text."""
    if text is None or block is None:
        return
    block.parts.append(text)
    if not text.isspace():
        if not block.text:
            block.text = text
            blocks.append(block)
        if is_linked:
            block.linked += len(squeeze(text))


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
