"""A document of markup through feedparser: strictly where it is XML, else as well as can be."""

from __future__ import annotations

import re
import xml.sax
import xml.sax.handler
from dataclasses import dataclass, field
from typing import Any
from xml.parsers.expat import errors
from xml.sax.saxutils import escape

from crawler.feeds.fence import Bounded, Loose, Strict, TooMuch
from crawler.feeds.mending import HTML_NAMES, Markup, mended
from crawler.feeds.prolog import Prolog

MOST_MENDS = 4
LARGEST_LOOSE = 5_000_000
END = re.compile(r"</(?:[\w.-]+:)?(?:rss|feed|rdf|channel)\s*>", re.I)
TAIL = 2000
# The document is cut off, or something stands behind its end: all before that is well read.
AT_THE_END = frozenset({
    errors.XML_ERROR_NO_ELEMENTS, errors.XML_ERROR_UNCLOSED_TOKEN, errors.XML_ERROR_PARTIAL_CHAR,
    errors.XML_ERROR_UNCLOSED_CDATA_SECTION, errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT,
})  # fmt: skip
PLAINLY = {errors.XML_ERROR_NO_ELEMENTS: "its end is missing"}
# Whatever feedparser raises over a document that nobody has thought of.
CRASHES = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip


@dataclass(slots=True)
class Parsed:
    """What feedparser read.

    version:    its name of the format; empty where it recognises none
    feed:       what the document says of itself; entries: of its posts, both by feedparser's keys
    skip_hours, skip_days: as they stand
    left:       there is more than so much, which is left out; None where it is not
    cut:        the document ends within its last entry, which is left out
    malformed:  why it is no XML; None where it is
    """

    version: str
    feed: dict[str, Any]
    entries: list[dict[str, Any]]
    skip_hours: list[str] = field(default_factory=list)
    skip_days: list[str] = field(default_factory=list)
    left: str | None = None
    cut: bool = False
    malformed: str | None = None


class Malformed(Exception):
    """A document is no XML. message, line: expat's; sofar: what was read before that."""

    def __init__(self, message: str, line: int, sofar: Parsed) -> None:
        super().__init__(message)
        self.message, self.line, self.sofar = message, line, sofar


class Unreadable(Exception):
    """No parser gets through the document; `str()` says why."""


def parse(text: str, prolog: Prolog, url: str, most_entries: int) -> Parsed:
    """Read a document; raises Unreadable where even the loose parser fails.

    text: without characters that XML forbids       url: what its links are relative to
    """
    is_netscape = "netscape" in prolog.doctype.lower()
    # The DTD that Netscape's RSS names has the names of HTML.
    names = HTML_NAMES | prolog.entities if is_netscape else prolog.entities
    markup = Markup(text[prolog.at :], names)
    try:
        parsed = _strict(markup, url, most_entries)
    except Malformed as error:
        parsed = _nevertheless(markup, error, url, most_entries)
        # The head is one line; what stood in its place had its own.
        line = error.line - 1 + text.count("\n", 0, prolog.at)
        parsed.malformed = f"{PLAINLY.get(error.message, error.message)}, line {max(1, line):,}"
    if is_netscape and parsed.version.startswith("rss"):
        parsed.version = "rss091n"
    return parsed


def _nevertheless(markup: Markup, error: Malformed, url: str, most_entries: int) -> Parsed:
    """What can be read of a document that is no XML."""
    for _ in range(MOST_MENDS):
        if error.message in AT_THE_END and (error.sofar.version or error.sofar.entries):
            return error.sofar
        better = mended(markup, error.message)
        if better is None:
            break
        markup = better
        try:
            return _strict(markup, url, most_entries)
        except Malformed as again:
            error = again
    return _loose(markup, url, most_entries)


def _strict(markup: Markup, url: str, most_entries: int) -> Parsed:
    handler = Strict(url, most_entries)
    reader: Any = xml.sax.make_parser()
    reader.setFeature(xml.sax.handler.feature_namespaces, 1)
    reader.setFeature(xml.sax.handler.feature_external_ges, 0)
    reader.setContentHandler(handler)
    reader.setErrorHandler(handler)
    left = None
    try:
        reader.feed(markup.head + markup.text)
        reader.close()
    except TooMuch as much:
        left = str(much)
    except xml.sax.SAXParseException as error:
        sofar = _parsed(handler, cut=bool(handler.inentry))
        raise Malformed(error.getMessage(), error.getLineNumber() or 1, sofar) from None
    except xml.sax.SAXException as error:
        raise Malformed(error.getMessage(), 1, _parsed(handler)) from None
    except CRASHES as crash:
        raise Malformed(f"feedparser: {type(crash).__name__}", 1, _parsed(handler)) from None
    return _parsed(handler, left=left)


def _loose(markup: Markup, url: str, most_entries: int) -> Parsed:
    if len(markup.text) > LARGEST_LOOSE:
        raise Unreadable(f"no XML, and with {len(markup.text):,} characters too long to guess")
    names = {name: escape(markup.names[name]) for name in markup.used()}
    handler = Loose(url, most_entries, names)
    left = None
    try:
        handler.feed(_closed(markup.text))
    except TooMuch as much:
        left = str(much)
    except CRASHES as crash:
        raise Unreadable(f"no XML, and feedparser fails: {type(crash).__name__}") from None
    cut = bool(handler.inentry) and not END.search(markup.text, len(markup.text) - TAIL)
    return _parsed(handler, left=left, cut=cut)


def _closed(markup: str) -> str:
    """Without beginnings of tags and comments that have no end: sgmllib would look for each."""
    end = markup.rfind(">") + 1
    markup = markup[:end] + markup[end:].replace("<", "&lt;")
    end = markup.rfind("-->") + 3 if "-->" in markup else 0
    return markup[:end] + markup[end:].replace("<!--", "&lt;!--")


def _parsed(handler: Bounded, *, left: str | None = None, cut: bool = False) -> Parsed:
    entries = handler.entries[:-1] if cut else handler.entries
    skips = (handler.skip_hours, handler.skip_days)
    return Parsed(handler.version, handler.feeddata, entries, *skips, left=left, cut=cut)
