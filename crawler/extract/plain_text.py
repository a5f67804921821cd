"""Plain text from markup: from a string, or from an element of a parsed page.

Both take time that grows with the length of the markup, whatever the markup holds. Blocks become
separate words or lines, and what a browser does not show as text (scripts, styles) is left out.

A page is worth a parser; the few hundred bytes of a summary are not, and a parser's tree of a
hostile one costs minutes (attributes by the thousand) or loses its text (deep nesting).
"""

from __future__ import annotations

import html
import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lxml import etree  # searches need no parser

LONGEST_CHARACTERS = 1_000_000
# What XML forbids and databases refuse; half of a pair of surrogates among it.
FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
BLOCKS = frozenset({
    "address", "article", "aside", "blockquote", "body", "br", "caption", "center", "dd",
    "details", "dialog", "dir", "div", "dl", "dt", "fieldset", "figcaption", "figure",
    "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hgroup", "hr", "legend",
    "li", "main", "menu", "nav", "ol", "optgroup", "option", "p", "pre", "search", "section",
    "summary", "table", "tbody", "tfoot", "thead", "title", "tr", "ul",
})  # fmt: skip
CELLS = frozenset({"td", "th"})
SEPARATE = BLOCKS | CELLS
# Elements whose content a browser does not show as text of the page.
UNSEEN = frozenset({"script", "style", "template", "noscript", "iframe", "object"})
# A tag with its quoted values, one whose quotes are not closed, one that is cut off at the end,
# and what else begins with `<!` or `<?`.
TAG = re.compile(
    r"""</?([A-Za-z][^\s<>/"']*+)(?:[^<>"']|"[^"]*"|'[^']*')*+>"""
    r"""|</?([A-Za-z][^\s<>/"']*+)[^<>]*(?:>|\Z)"""
    r"""|<[!?][^<>]*(?:>|\Z)"""
)
START_OF_UNSEEN = re.compile(rf"<({'|'.join(sorted(UNSEEN))})(?=[\s/>])", re.I)
ENDS = {name: re.compile(rf"</{name}(?=[\s/>])[^>]*>?", re.I) for name in UNSEEN}
PRE = re.compile(r"<pre(?=[\s/>])", re.I)
END_OF_PRE = re.compile(r"</pre", re.I)
# html.unescape would refuse such numbers; no character has one.
ENDLESS_REFERENCE = re.compile(r"&#[0-9]{9,};?")


class Markup(str):
    """A string of HTML: posts are compared and searched by its text."""

    __slots__ = ()


def text_below(root: etree._Element, without: Collection[str] = UNSEEN) -> str:
    """All text below an element as one line, with a space between blocks and between table cells.

    without: tags to leave out with all that they hold; the element itself may have one of them
    """
    parts = [root.text or ""]
    # A stack of its own: pages may be nested deeper than Python calls functions.
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
        if tag in SEPARATE:
            parts.append(" ")
            tail = f" {tail}"
        parts.append(child.text or "")
        if len(child):
            levels.append((iter(child), tail))
        else:
            parts.append(tail)
    return " ".join("".join(parts).split())


def as_texts(fields: Mapping[str, Any], markup: Collection[str]) -> Mapping[str, Any]:
    """Fields with plain text in place of HTML. markup: names of the fields that hold HTML."""
    if not markup:
        return fields
    return {
        name: plain(value) if name in markup and isinstance(value, str) else value
        for name, value in fields.items()
    }


def plain(markup: str, longest: int = LONGEST_CHARACTERS) -> str:
    """The text of a piece of HTML: a line for each block, entities decoded once."""
    if "<" in markup:
        markup = _without_unseen(_without_comments(markup))
        # White space is folded next: line ends of preformatted text become tags.
        before, *preformatted = PRE.split(markup)
        parts = [before]
        for part in preformatted:
            end = END_OF_PRE.search(part)
            inside = part[: end.start()] if end else part
            parts.append(inside.replace("\n", "<br>") + part[len(inside) :])
        markup = TAG.sub(_separator, " ".join("<pre".join(parts).split()))
    else:
        markup = " ".join(markup.split())
    if "&" in markup:
        markup = html.unescape(ENDLESS_REFERENCE.sub("", markup))
    return lines(markup, longest)


def lines(text: str, longest: int = LONGEST_CHARACTERS) -> str:
    """Text without empty lines, control characters and white space at the ends of its lines."""
    squeezed = (" ".join(line.split()) for line in FORBIDDEN.sub("", text).splitlines())
    return "\n".join(filter(None, squeezed))[:longest].rstrip()


def line(text: str, longest: int) -> str:
    """Text as one line."""
    return " ".join(FORBIDDEN.sub("", text).split())[:longest].rstrip()


def _separator(tag: re.Match[str]) -> str:
    name = (tag[1] or tag[2] or "").lower()
    if name in BLOCKS:
        return "\n"
    return " " if name in CELLS else ""


def _without_comments(markup: str) -> str:
    """No search looks for an end that is not there: that is done once, from behind."""
    if "<!--" not in markup:
        return markup
    last = markup.rfind("-->") + 3
    unclosed = markup.find("<!--", last if last >= 3 else 0)
    whole = markup if unclosed < 0 else markup[:unclosed]
    return re.sub(r"<!--.*?-->", "", whole, flags=re.S)


def _without_unseen(markup: str) -> str:
    """Without scripts, styles and the like; one that is not closed ends the text."""
    kept, at = [], 0
    while start := START_OF_UNSEEN.search(markup, at):
        kept.append(markup[at : start.start()])
        end = ENDS[start[1].lower()].search(markup, start.end())
        at = end.end() if end else len(markup)
    return "".join([*kept, markup[at:]]) if kept else markup
