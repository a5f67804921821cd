"""Convert markup to plain text: a string of HTML, or an element of a parsed page.

Both conversions take time linear in the length of the markup, even for hostile markup. Blocks
become separate words or lines. Elements that browsers do not show as text (scripts, styles) are
left out.

Strings are converted with regular expressions, not with an HTML parser. Most are summaries of a
few hundred bytes, and a parser takes minutes for some hostile ones (thousands of attributes) or
drops their text (deep nesting).
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lxml import etree  # slow to import, and the search commands do not need a parser

MAX_CHARACTERS = 1_000_000
# Characters that XML forbids and databases reject, including unpaired surrogates.
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "body", "br", "caption", "center", "dd",
    "details", "dialog", "dir", "div", "dl", "dt", "fieldset", "figcaption", "figure",
    "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hgroup", "hr", "legend",
    "li", "main", "menu", "nav", "ol", "optgroup", "option", "p", "pre", "search", "section",
    "summary", "table", "tbody", "tfoot", "thead", "title", "tr", "ul",
})  # fmt: skip
CELLS = frozenset({"td", "th"})
# Separators that replace the tags of these elements in plain text.
SEPARATORS = dict.fromkeys(BLOCKS, "\n") | dict.fromkeys(CELLS, " ")
# Elements whose content browsers do not show as text.
UNSEEN = frozenset({"script", "style", "template", "noscript", "iframe", "object"})
# A tag with quoted values; a tag with unclosed quotes, or truncated at the end of the text; and
# declarations or instructions (`<!…>`, `<?…>`).
TAG = re.compile(
    r"""</?([A-Za-z][^\s<>/"']*+)(?:[^<>"']|"[^"]*"|'[^']*')*+>"""
    r"""|</?([A-Za-z][^\s<>/"']*+)[^<>]*(?:>|\Z)"""
    r"""|<[!?][^<>]*(?:>|\Z)"""
)
START_OF_UNSEEN = re.compile(rf"<({'|'.join(sorted(UNSEEN))})(?=[\s/>])", re.I)
ENDS = {name: re.compile(rf"</{name}(?=[\s/>])[^>]*>?", re.I) for name in UNSEEN}
PRE = re.compile(r"<pre(?=[\s/>])", re.I)
END_OF_PRE = re.compile(r"</pre", re.I)
# html.unescape raises ValueError for numbers this long. They do not represent any character.
ENDLESS_REFERENCE = re.compile(r"&#[0-9]{9,};?")


class Markup(str):
    """A string of HTML. Comparing and searching posts use its plain text."""

    __slots__ = ()


def text_below(root: etree._Element, without: Collection[str] = UNSEEN) -> str:
    """Return the text inside an element as one line, with a space between blocks and table cells.

    without: tags of descendants to leave out with their content
    """
    if not len(root):
        return " ".join((root.text or "").split())
    parts = [root.text or ""]
    # An explicit stack: pages may be nested deeper than Python's recursion limit.
    levels: list[tuple[Iterator[etree._Element], str]] = [(iter(root), "")]
    while levels:
        children, tail_of_parent = levels[-1]
        if (child := next(children, None)) is None:
            levels.pop()
            parts.append(tail_of_parent)
            continue
        tag, tail = child.tag, child.tail or ""
        if tag in without or not isinstance(tag, str):
            parts.append(tail)
            continue
        if tag in SEPARATORS:
            parts.append(" ")
            tail = f" {tail}"
        parts.append(child.text or "")
        if len(child):
            levels.append((iter(child), tail))
        else:
            parts.append(tail)
    return " ".join("".join(parts).split())


def as_texts(fields: Mapping[str, Any], markup: Collection[str]) -> Mapping[str, Any]:
    """Return fields with their HTML converted to plain text.

    markup: names of the fields that contain HTML
    """
    if not markup:
        return fields
    return {
        name: plain(value) if name in markup and isinstance(value, str) else value
        for name, value in fields.items()
    }


def fields_of_post(post: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the fields of a post's document and of its page, with text instead of HTML."""
    parts = (post, post.get("page") or {})
    return [as_texts(part.get("fields") or {}, part.get("markup") or ()) for part in parts]


def plain(markup: str, max_characters: int = MAX_CHARACTERS) -> str:
    """Return the text of a piece of HTML: one line per block, with entities decoded once."""
    if "<" in markup:
        if "<!--" in markup:
            # An unclosed comment extends to the end. Cutting it off first keeps the substitution
            # linear: otherwise each `<!--` would scan to the end of the text for a `-->` that does
            # not exist.
            last = markup.rfind("-->") + 3
            unclosed = markup.find("<!--", last if last >= 3 else 0)
            markup = markup if unclosed < 0 else markup[:unclosed]
            markup = re.sub(r"<!--.*?-->", "", markup, flags=re.S)
        markup = _without_unseen(markup)
        # White space is collapsed below, so turn newlines in preformatted text into tags.
        before, *preformatted = PRE.split(markup)
        parts = [before]
        for part in preformatted:
            end = END_OF_PRE.search(part)
            inside = part[: end.start()] if end else part
            parts.append(inside.replace("\n", "<br>") + part[len(inside) :])
        markup = TAG.sub(
            lambda tag: SEPARATORS.get((tag[1] or tag[2] or "").lower(), ""),
            " ".join("<pre".join(parts).split()),
        )
    else:
        markup = " ".join(markup.split())
    if "&" in markup:
        markup = html.unescape(ENDLESS_REFERENCE.sub("", markup))
    return lines(markup, max_characters)


def lines(text: str, max_characters: int = MAX_CHARACTERS) -> str:
    """Collapse white space within lines, and remove empty lines and control characters."""
    squeezed = (" ".join(line.split()) for line in FORBIDDEN.sub("", text).splitlines())
    return "\n".join(filter(None, squeezed))[:max_characters].rstrip()


def line(text: str, max_characters: int) -> str:
    """Collapse a text to one line, without control characters."""
    return " ".join(FORBIDDEN.sub("", text).split())[:max_characters].rstrip()


def _without_unseen(markup: str) -> str:
    """Remove scripts, styles and other unseen elements; an unclosed one extends to the end."""
    kept, at = [], 0
    while start := START_OF_UNSEEN.search(markup, at):
        kept.append(markup[at : start.start()])
        end = ENDS[start[1].lower()].search(markup, start.end())
        at = end.end() if end else len(markup)
    return "".join([*kept, markup[at:]]) if kept else markup
