"""RSS, Atom and CDF: what feedparser says of a document, in the words of this project."""

from __future__ import annotations

import re
import xml.sax
import xml.sax.handler
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any
from xml.parsers.expat import errors
from xml.sax.saxutils import escape

from crawler.extract.plain_text import FORBIDDEN, line, lines, plain
from crawler.feeds.bounded_parser import Bounded, Loose, Strict, LimitExceeded
from crawler.feeds.dates import DateReader
from crawler.feeds.draft import (
    MAX_GUID_CHARACTERS,
    MAX_TITLE_CHARACTERS,
    MAX_URL_CHARACTERS,
    Draft,
    Source,
    absolute,
    bounds,
    unique,
)
from crawler.feeds.recover import HTML_NAMES, Markup, Prolog, repaired, prolog
from crawler.items import NoFeed
from crawler.utils.text import count

MAX_REPAIRS = 4
MAX_LOOSE_CHARACTERS = 5_000_000
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

HTML_TYPES = frozenset({"text/html", "application/xhtml+xml", "html", "xhtml"})
# Shorter texts of a post, the better ones first; taken where it has no content.
SUMMARIES = ("summary", "dc_description", "itunes_summary", "media_description", "subtitle")
OTHERS = {
    "opml": "a list of feeds in OPML", "urlset": "a sitemap", "sitemapindex": "a sitemap",
}  # fmt: skip
TITLE = re.compile(r"<title(?=[\s>])[^>]*>", re.I)
END_OF_TITLE = re.compile(r"</title", re.I)
HEAD_CHARACTERS = 65_536
SHOWN_CHARACTERS = 80
Row = dict[str, Any]


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


def parse(text: str, prolog: Prolog, url: str, max_entries: int) -> Parsed:
    """Read a document; raises Unreadable where even the loose parser fails.

    text: without characters that XML forbids       url: what its links are relative to
    """
    is_netscape = "netscape" in prolog.doctype.lower()
    # The DTD that Netscape's RSS names has the names of HTML.
    names = HTML_NAMES | prolog.entities if is_netscape else prolog.entities
    markup = Markup(text[prolog.at :], names)
    try:
        parsed = _strict(markup, url, max_entries)
    except Malformed as error:
        parsed = _repaired(markup, error, url, max_entries)
        # The head is one line; what stood in its place had its own.
        line = error.line - 1 + text.count("\n", 0, prolog.at)
        parsed.malformed = f"{PLAINLY.get(error.message, error.message)}, line {max(1, line):,}"
    if is_netscape and parsed.version.startswith("rss"):
        parsed.version = "rss091n"
    return parsed


def _repaired(markup: Markup, error: Malformed, url: str, max_entries: int) -> Parsed:
    """What can be read of a document that is no XML."""
    for _ in range(MAX_REPAIRS):
        if error.message in AT_THE_END and (error.sofar.version or error.sofar.entries):
            return error.sofar
        better = repaired(markup, error.message)
        if better is None:
            break
        markup = better
        try:
            return _strict(markup, url, max_entries)
        except Malformed as again:
            error = again
    return _loose(markup, url, max_entries)


def _strict(markup: Markup, url: str, max_entries: int) -> Parsed:
    handler = Strict(url, max_entries)
    reader: Any = xml.sax.make_parser()
    reader.setFeature(xml.sax.handler.feature_namespaces, 1)
    reader.setFeature(xml.sax.handler.feature_external_ges, 0)
    reader.setContentHandler(handler)
    reader.setErrorHandler(handler)
    left = None
    try:
        reader.feed(markup.head + markup.text)
        reader.close()
    except LimitExceeded as much:
        left = str(much)
    except xml.sax.SAXParseException as error:
        sofar = _parsed(handler, cut=bool(handler.inentry))
        raise Malformed(error.getMessage(), error.getLineNumber() or 1, sofar) from None
    except xml.sax.SAXException as error:
        raise Malformed(error.getMessage(), 1, _parsed(handler)) from None
    except CRASHES as crash:
        raise Malformed(f"feedparser: {type(crash).__name__}", 1, _parsed(handler)) from None
    return _parsed(handler, left=left)


def _loose(markup: Markup, url: str, max_entries: int) -> Parsed:
    if len(markup.text) > MAX_LOOSE_CHARACTERS:
        raise Unreadable(f"no XML, and with {len(markup.text):,} characters too long to guess")
    names = {name: escape(markup.names[name]) for name in markup.used()}
    handler = Loose(url, max_entries, names)
    left = None
    # sgmllib would look for the end of each beginning of a tag or comment that has none.
    end = markup.text.rfind(">") + 1
    closed = markup.text[:end] + markup.text[end:].replace("<", "&lt;")
    end = closed.rfind("-->") + 3 if "-->" in closed else 0
    closed = closed[:end] + closed[end:].replace("<!--", "&lt;!--")
    try:
        handler.feed(closed)
    except LimitExceeded as much:
        left = str(much)
    except CRASHES as crash:
        raise Unreadable(f"no XML, and feedparser fails: {type(crash).__name__}") from None
    cut = bool(handler.inentry) and not END.search(markup.text, len(markup.text) - TAIL)
    return _parsed(handler, left=left, cut=cut)


def _parsed(handler: Bounded, *, left: str | None = None, cut: bool = False) -> Parsed:
    entries = handler.entries[:-1] if cut else handler.entries
    skips = (handler.skip_hours, handler.skip_days)
    return Parsed(handler.version, handler.feeddata, entries, *skips, left=left, cut=cut)


def xml_source(text: str, url: str, dates: DateReader, max_entries: int) -> Source:
    """Read a document of markup; raises NoFeed where it is another one.

    url: what its links are relative to        max_entries: the rest is left out
    """
    clean = FORBIDDEN.sub("", text)
    start = prolog(clean)
    if start.is_html:
        opening = TITLE.search(clean, 0, HEAD_CHARACTERS)
        end = END_OF_TITLE.search(clean, opening.end()) if opening else None
        title = clean[opening.end() : end.start()] if opening and end else ""
        title = line(plain(title), SHOWN_CHARACTERS)
        raise NoFeed(f"an HTML page: {title!r}" if title else "an HTML page")
    if not start.root:
        raise NoFeed("text without markup")
    try:
        parsed = parse(clean, start, url, max_entries)
    except Unreadable as why:
        raise NoFeed(str(why)) from None
    version = parsed.version or ("cdf" if start.root == "channel" else "")
    if not version and not parsed.entries:
        other = OTHERS.get(start.root, f"a document of <{start.root[:SHOWN_CHARACTERS]}>")
        raise NoFeed(f"{other}, malformed: {parsed.malformed}" if parsed.malformed else other)
    source = _head(parsed, url, dates)
    source.format = version or "unknown"
    forbidden = len(text) - len(clean)
    malformed = [
        parsed.malformed,
        "text before the XML declaration" if start.late and not start.junk else None,
        "text before the feed" if start.junk else None,
        f"{count(forbidden, 'character')} that XML forbids" if forbidden else None,
    ]
    if any(malformed):
        source.problems.append(f"malformed XML: {'; '.join(filter(None, malformed))}")
    if parsed.cut:
        source.problems.append("the document ends within its last entry, which is left out")
    if parsed.left:
        source.problems.append(f"more than {parsed.left}: the rest is left out")
    if not version:
        source.problems.append("entries in a format that is none of a feed")
    source.drafts = [_draft(entry, url, dates) for entry in parsed.entries]
    return source


def _head(parsed: Parsed, url: str, dates: DateReader) -> Source:
    feed = parsed.feed
    links = _links(feed)
    hubs = [link["href"] for link in links if "hub" in link["rel"].split()]
    topics = [link["href"] for link in links if "self" in link["rel"].split()]
    return Source(
        format="",
        title=line(_text(dict.get(feed, "title"), _type(feed, "title")), MAX_TITLE_CHARACTERS),
        site=_alternate(links, url),
        bounds=bounds(
            ttl=dict.get(feed, "ttl"),
            period=dict.get(feed, "sy_updateperiod"),
            frequency=dict.get(feed, "sy_updatefrequency"),
            hours=parsed.skip_hours,
            days=parsed.skip_days,
        ),
        hubs=tuple(filter(None, dict.fromkeys(absolute(hub, url) for hub in hubs))),
        topic=next(filter(None, (absolute(topic, url) for topic in topics)), None),
        built=_date(feed, dates, ("updated", "published")),
    )


def _draft(entry: Row, url: str, dates: DateReader) -> Draft:
    links = _links(entry)
    enclosures = [link["href"] for link in links if link["rel"] == "enclosure"]
    # The publisher's own address behind a service's, else the page; a guid is an address where it
    # says so and looks like one, as many that say so are numbers.
    link = absolute(_string(entry, "feedburner_origlink"), url) or _alternate(links, url)
    guid = _string(entry, "id")
    if not link and dict.get(entry, "guidislink") and guid.startswith(("http:", "https:", "/")):
        link = absolute(guid, url)
    authors = [_string(row, "name") or _string(row, "email") for row in _rows(entry, "authors")]
    authors = list(filter(None, authors)) or [_string(entry, "author")]
    return Draft(
        guid=line(guid, MAX_GUID_CHARACTERS),
        link=link,
        stated=_date(entry, dates, ("published", "created", "updated")),
        title=line(_text(dict.get(entry, "title"), _type(entry, "title")), MAX_TITLE_CHARACTERS),
        text=_main_text(entry),
        author=line(", ".join(unique(authors)), MAX_TITLE_CHARACTERS),
        tags=unique(
            [_string(tag, "term") or _string(tag, "label") for tag in _rows(entry, "tags")]
        ),
        enclosures=unique([absolute(link, url) or "" for link in enclosures], MAX_URL_CHARACTERS),
    )


def _alternate(links: list[dict[str, str]], url: str) -> str | None:
    pages = [link for link in links if link["rel"] == "alternate"]
    pages.sort(key=lambda link: link["type"] not in HTML_TYPES)
    return next(filter(None, (absolute(link["href"], url) for link in pages)), None)


def _main_text(entry: Row) -> str:
    """The longest content that says something, else the best summary."""
    contents = [
        row
        for row in _rows(entry, "content")
        if (kind := _string(row, "type")) in HTML_TYPES
        or kind.startswith("text")
        or kind.endswith("xml")
    ]
    contents.sort(key=lambda row: -len(_string(row, "value")))
    texts = (_text(_string(row, "value"), _string(row, "type")) for row in contents)
    summaries = (_text(dict.get(entry, name), _type(entry, name)) for name in SUMMARIES)
    return next(filter(None, chain(texts, summaries)), "")


def _text(value: object, kind: str) -> str:
    if not isinstance(value, str):
        return ""
    return plain(value) if kind in HTML_TYPES or kind.endswith("xml") else lines(value)


def _type(row: Row, name: str) -> str:
    """What feedparser takes a text for; what it says nothing of is as in RSS."""
    detail = dict.get(row, f"{name}_detail")
    return _string(detail, "type") if isinstance(detail, dict) else "text/plain"


def _date(row: Row, dates: DateReader, names: tuple[str, ...]) -> datetime | None:
    read = (dates.read(dict.get(row, name), dict.get(row, f"{name}_parsed")) for name in names)
    return next(filter(None, read), None)


def _links(row: Row) -> list[dict[str, str]]:
    names = ("href", "rel", "type")
    return [{name: _string(link, name) for name in names} for link in _rows(row, "links")]


def _rows(row: Row, name: str) -> list[Row]:
    rows = dict.get(row, name)
    return [each for each in rows if isinstance(each, dict)] if isinstance(rows, list) else []


def _string(row: Row, name: str) -> str:
    # Not row.get: feedparser's dicts give one date for another, with a warning.
    value = dict.get(row, name)
    return value if isinstance(value, str) else ""
