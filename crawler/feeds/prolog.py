"""What a document of markup begins with: the name of its root, and what stands before it."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field

# Before the root: white space, instructions, comments; the DOCTYPE is read with its brackets.
NAME = re.compile(r"<([A-Za-z_][\w.:-]*+)")
IS_HTML = re.compile(r"<!DOCTYPE\s+html", re.I)
DOCTYPE = re.compile(r"<!DOCTYPE", re.I)
FEED = re.compile(r"<(?:[\w.-]{1,40}:)?(?:rss|feed|rdf)(?=[\s>])", re.I)
DECLARATION = re.compile(r"<\?xml\s", re.I)
JUNK_CHARACTERS = 65_536
FEED_ROOTS = frozenset({"rss", "feed", "rdf"})
HTML_ROOTS = frozenset({
    "html", "head", "title", "meta", "link", "body", "script", "style", "noscript", "div", "p",
    "a", "b", "br", "hr", "h1", "h2", "h3", "font", "table", "center", "img", "span", "pre",
    "iframe", "form", "ul",
})  # fmt: skip
IN_DOCTYPE = re.compile(r"""<!--.*?-->|"[^"]*"|'[^']*'|[\[\]>]""", re.S)
LONGEST_DOCTYPE = 16_384
ENTITY = re.compile(r"""<!ENTITY\s+([A-Za-z_][\w.-]*)\s+(?:"([^"<>%]*)"|'([^'<>%]*)')\s*>""")
HARMLESS = re.compile(r"(?:[^&]|&#\w{1,8};)*+")
LONGEST_ENTITY = 200
MOST_ENTITIES = 500


@dataclass(slots=True)
class Prolog:
    """What stands before the root.

    root:     its local name, lower case; empty where there is none
    at:       where the root begins
    entities: what the DOCTYPE says of names, as plain text
    doctype:  the DOCTYPE as it stands
    late:     something stands before the XML declaration
    junk:     text or tags stand before it all
    """

    root: str = ""
    at: int = 0
    entities: dict[str, str] = field(default_factory=dict)
    doctype: str = ""
    late: bool = False
    junk: bool = False

    @property
    def is_html(self) -> bool:
        """Whether this is a page for people."""
        if self.root in FEED_ROOTS:
            return False
        return self.root in HTML_ROOTS or bool(IS_HTML.match(self.doctype))


def prolog(text: str) -> Prolog:
    """What a text of markup begins with; what servers write before a feed is stepped over."""
    found = Prolog()
    _walk(text, 0, found)
    # A server's warnings in HTML; a real page has its own root and no feed in it.
    if found.junk or (found.is_html and found.root != "html"):
        _step_over(text, found)
    declaration = DECLARATION.search(text, 0, found.at)
    found.late = declaration is not None and declaration.start() > 0
    return found


def _step_over(text: str, found: Prolog) -> None:
    if later := FEED.search(text, 0, JUNK_CHARACTERS):
        found.junk, found.at = True, later.start()
        found.root = later[0].rpartition(":")[2].lstrip("<").lower()


def _walk(text: str, at: int, found: Prolog) -> None:
    """Find the root; every step is longer than the one before or the last one."""
    while at >= 0 and (start := text.find("<", at)) >= 0:
        found.junk = found.junk or bool(text[at:start].strip())
        if name := NAME.match(text, start):
            found.root, found.at = name[1].rpartition(":")[2].lower(), start
            return
        at = _end(text, start, found)


def _end(text: str, start: int, found: Prolog) -> int:
    """Where a comment, an instruction or a DOCTYPE ends; -1 where it does not."""
    if text.startswith("<!--", start):
        return _behind(text, "-->", start + 4)
    if text.startswith("<?", start):
        return _behind(text, "?>", start + 2)
    if DOCTYPE.match(text, start):
        end = _end_of_doctype(text, start)
        found.doctype = text[start:end] if end >= 0 else ""
        found.entities = entities(found.doctype)
        return end
    return start + 1


def _behind(text: str, mark: str, at: int) -> int:
    end = text.find(mark, at)
    return end + len(mark) if end >= 0 else -1


def _end_of_doctype(text: str, start: int) -> int:
    """Its end is the first `>` outside of brackets, quotes and comments."""
    depth = 0
    for part in IN_DOCTYPE.finditer(text, start, start + LONGEST_DOCTYPE):
        depth += {"[": 1, "]": -1}.get(part[0], 0)
        if part[0] == ">" and depth <= 0:
            return part.end()
    return _behind(text, ">", start)


def entities(doctype: str) -> dict[str, str]:
    """Names that a DOCTYPE declares and their plain text; none that refers to another."""
    found: dict[str, str] = {}
    for name, one, other in ENTITY.findall(doctype):
        value = one or other
        if len(value) <= LONGEST_ENTITY and HARMLESS.fullmatch(value):
            found.setdefault(name, html.unescape(value))
        if len(found) >= MOST_ENTITIES:
            break
    return found
