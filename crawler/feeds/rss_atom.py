"""Parse RSS, Atom and CDF with feedparser, and convert its results to drafts.

`feedparser.parse` has no limits: a few hundred kilobytes of categories, author names or line breaks
keep it busy for minutes. `Strict` and `Loose` are its two parsers with limits on all methods that
take more than linear time. feedparser has no type annotations; `parse` converts its results to
plain dicts.
"""

from __future__ import annotations

import re
import xml.sax
import xml.sax.handler
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any
from xml.parsers.expat import errors
from xml.sax.saxutils import escape, unescape
from xml.sax.xmlreader import AttributesNSImpl

from feedparser.api import LooseFeedParser, StrictFeedParser
from feedparser.mixin import _FeedParserMixin

from crawler.extract.page_values import markup_without
from crawler.extract.plain_text import FORBIDDEN, line, lines, plain
from crawler.feeds.draft import (
    MAX_GUID_CHARACTERS,
    MAX_TITLE_CHARACTERS,
    MAX_URL_CHARACTERS,
    DateReader,
    Draft,
    Row,
    Source,
    absolute,
    address,
    bounds,
    rows_in,
    string_in,
    unique,
)
from crawler.feeds.recover import HTML_NAMES, Markup, Prolog, prolog, repaired
from crawler.items import NoFeed
from crawler.utils.text import count

MAX_REPAIRS = 4
MAX_LOOSE_CHARACTERS = 5_000_000
END = re.compile(r"</(?:[\w.-]+:)?(?:rss|feed|rdf|channel)\s*>", re.I)
TAIL = 2000
# The document is truncated, or has extra text after its end. Everything before that is valid.
AT_THE_END = frozenset({
    errors.XML_ERROR_NO_ELEMENTS, errors.XML_ERROR_UNCLOSED_TOKEN, errors.XML_ERROR_PARTIAL_CHAR,
    errors.XML_ERROR_UNCLOSED_CDATA_SECTION, errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT,
})  # fmt: skip
# Clearer texts for some errors of expat.
ERROR_TEXTS = {errors.XML_ERROR_NO_ELEMENTS: "its end is missing"}
# Exceptions with which feedparser may crash on unusual documents.
CRASHES = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip

HTML_TYPES = frozenset({"text/html", "application/xhtml+xml", "html", "xhtml"})
# Keys for titles and summaries, best first. Summaries are used for posts without content.
TITLES = ("title", "itunes_title")
SUMMARIES = ("summary", "dc_description", "itunes_summary", "media_description", "subtitle")
OTHERS = {
    "opml": "a list of feeds in OPML", "urlset": "a sitemap", "sitemapindex": "a sitemap",
}  # fmt: skip
TITLE = re.compile(r"<title(?=[\s>])[^>]*>", re.I)
END_OF_TITLE = re.compile(r"</title", re.I)
HEAD_CHARACTERS = 65_536
SHOWN_CHARACTERS = 80
QUOTES = {"&quot;": '"', "&apos;": "'"}
MAX_ELEMENTS = 500_000
MAX_TAGS = 200
MAX_NAMESPACES = 100
MAX_ATTRIBUTES = 200
MAX_HOURS = 100
MAX_AUTHOR_CHARACTERS = 500
# A text arrives in one piece per tag or entity inside it. Above this number of pieces, `pop` drops
# the empty pieces at the start.
MANY_PIECES = 100


@dataclass(slots=True)
class Parsed:
    """The result of feedparser.

    version:    feedparser's name of the format; empty if it is unknown
    feed:       values of the feed, with feedparser's keys
    entries:    values of each entry, with feedparser's keys
    skip_hours, skip_days: texts of the skipHours and skipDays elements
    exceeded:   limit that the document exceeds, so that the rest was left out; else None
    cut:        the document ends within its last entry, which was left out
    malformed:  reason why the document is not well-formed XML; None if it is
    """

    version: str
    feed: dict[str, Any]
    entries: list[dict[str, Any]]
    skip_hours: list[str] = field(default_factory=list)
    skip_days: list[str] = field(default_factory=list)
    exceeded: str | None = None
    cut: bool = False
    malformed: str | None = None


class Malformed(Exception):
    """The document is not well-formed XML.

    message, line: expat's error
    partial:       result up to the error
    """

    def __init__(self, message: str, line: int, partial: Parsed) -> None:
        super().__init__(message)
        self.message, self.line, self.partial = message, line, partial


class Unreadable(Exception):
    """No parser can read the document; `str()` is the reason."""


def parse(text: str, prolog: Prolog, url: str, max_entries: int) -> Parsed:
    """Parse a document. Raises Unreadable if even the loose parser fails.

    text: text without characters that XML forbids
    url:  URL to resolve relative links
    """
    is_netscape = "netscape" in prolog.doctype.lower()
    # Netscape's DTD for RSS 0.91 declares the entities of HTML.
    names = HTML_NAMES | prolog.entities if is_netscape else prolog.entities
    markup = Markup(text[prolog.at :], names)
    try:
        parsed = _parse_strict(markup, url, max_entries)
    except Malformed as error:
        parsed = _parse_malformed(markup, error, url, max_entries)
        # Count lines in the original document: `markup.head`, one line, replaced its prolog.
        line = error.line - 1 + text.count("\n", 0, prolog.at)
        parsed.malformed = f"{ERROR_TEXTS.get(error.message, error.message)}, line {max(1, line):,}"
    if is_netscape and parsed.version.startswith("rss"):
        parsed.version = "rss091n"
    return parsed


def _parse_malformed(markup: Markup, error: Malformed, url: str, max_entries: int) -> Parsed:
    """Parse a document that is not well-formed: repair it, else use the loose parser."""
    for _ in range(MAX_REPAIRS):
        if error.message in AT_THE_END and (error.partial.version or error.partial.entries):
            return error.partial
        better = repaired(markup, error.message)
        if better is None:
            break
        markup = better
        try:
            return _parse_strict(markup, url, max_entries)
        except Malformed as again:
            error = again
    return _parse_loose(markup, url, max_entries)


def _parse_strict(markup: Markup, url: str, max_entries: int) -> Parsed:
    handler = Strict(url, max_entries)
    reader: Any = xml.sax.make_parser()
    reader.setFeature(xml.sax.handler.feature_namespaces, 1)
    reader.setFeature(xml.sax.handler.feature_external_ges, 0)
    reader.setContentHandler(handler)
    reader.setErrorHandler(handler)
    exceeded = None
    try:
        reader.feed(markup.head + markup.text)
        reader.close()
    except LimitExceeded as limit:
        exceeded = str(limit)
    except xml.sax.SAXParseException as error:
        partial = _parsed(handler, cut=bool(handler.inentry))
        raise Malformed(error.getMessage(), error.getLineNumber() or 1, partial) from None
    except xml.sax.SAXException as error:
        raise Malformed(error.getMessage(), 1, _parsed(handler)) from None
    except CRASHES as crash:
        raise Malformed(f"feedparser: {type(crash).__name__}", 1, _parsed(handler)) from None
    return _parsed(handler, exceeded=exceeded)


def _parse_loose(markup: Markup, url: str, max_entries: int) -> Parsed:
    if len(markup.text) > MAX_LOOSE_CHARACTERS:
        raise Unreadable(
            f"malformed XML, and too long for the loose parser: {len(markup.text):,} characters"
        )
    names = {name: escape(markup.names[name]) for name in markup.used()}
    handler = Loose(url, max_entries, names)
    exceeded = None
    # Escape unclosed tags and comments at the end of the text. sgmllib would search the rest of the
    # text for the end of each.
    end = markup.text.rfind(">") + 1
    closed = markup.text[:end] + markup.text[end:].replace("<", "&lt;")
    end = closed.rfind("-->") + 3 if "-->" in closed else 0
    closed = closed[:end] + closed[end:].replace("<!--", "&lt;!--")
    try:
        handler.feed(closed)
    except LimitExceeded as limit:
        exceeded = str(limit)
    except CRASHES as crash:
        raise Unreadable(f"malformed XML, and feedparser failed: {type(crash).__name__}") from None
    cut = bool(handler.inentry) and not END.search(markup.text, len(markup.text) - TAIL)
    return _parsed(handler, exceeded=exceeded, cut=cut)


def _parsed(handler: Bounded, *, exceeded: str | None = None, cut: bool = False) -> Parsed:
    entries = handler.entries[:-1] if cut else handler.entries
    skips = (handler.skip_hours, handler.skip_days)
    return Parsed(handler.version, handler.feeddata, entries, *skips, exceeded=exceeded, cut=cut)


def xml_source(
    text: str, url: str, dates: DateReader, max_entries: int, ignore: Sequence[str] = ()
) -> Source:
    """Parse an XML feed. Raises NoFeed with a description if the document is something else.

    url:         URL to resolve relative links
    max_entries: further entries are left out
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
    except Unreadable as error:
        raise NoFeed(str(error)) from None
    version = parsed.version or ("cdf" if start.root == "channel" else "")
    if not version and not parsed.entries:
        other = OTHERS.get(
            start.root, f"an XML document with root <{start.root[:SHOWN_CHARACTERS]}>"
        )
        raise NoFeed(f"{other}, malformed: {parsed.malformed}" if parsed.malformed else other)
    source = _source_of(parsed, url, dates, ignore)
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
    if parsed.exceeded:
        source.problems.append(f"more than {parsed.exceeded}: the rest is left out")
    if not version:
        source.problems.append("entries in an unknown format")
    return source


def _source_of(parsed: Parsed, url: str, dates: DateReader, ignore: Sequence[str]) -> Source:
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
        drafts=[_draft_of_entry(entry, url, dates, ignore) for entry in parsed.entries],
    )


def _draft_of_entry(entry: Row, url: str, dates: DateReader, ignore: Sequence[str]) -> Draft:
    links = _links(entry)
    enclosures = [link["href"] for link in links if link["rel"] == "enclosure"]
    # Media RSS: also those in a media:group.
    enclosures += [string_in(media, "url") for media in rows_in(entry, "media_content")]
    # Prefer the publisher's URL to FeedBurner's. Use a guid as link only if it looks like a URL:
    # many guids claim to be permalinks but are numbers.
    link = absolute(string_in(entry, "feedburner_origlink"), url) or _alternate(links, url)
    guid = string_in(entry, "id")
    if not link and dict.get(entry, "guidislink") and guid.startswith(("http:", "https:", "/")):
        link = absolute(guid, url)
    authors = [
        string_in(row, "name") or string_in(row, "email") for row in rows_in(entry, "authors")
    ]
    authors = list(filter(None, authors)) or [string_in(entry, "author")]
    contents = [
        row
        for row in rows_in(entry, "content")
        if (kind := string_in(row, "type")) in HTML_TYPES
        or kind.startswith("text")
        or kind.endswith("xml")
    ]
    # The longest non-empty content, else the best summary.
    contents.sort(key=lambda row: -len(string_in(row, "value")))
    texts = (_text(string_in(row, "value"), string_in(row, "type"), ignore) for row in contents)
    summaries = (_text(dict.get(entry, name), _type(entry, name), ignore) for name in SUMMARIES)
    titles = (_text(dict.get(entry, name), _type(entry, name)) for name in TITLES)
    return Draft(
        guid=line(guid, MAX_GUID_CHARACTERS),
        link=link,
        stated=_date(entry, dates, ("published", "created", "updated")),
        title=line(next(filter(None, titles), ""), MAX_TITLE_CHARACTERS),
        text=next(filter(None, chain(texts, summaries)), ""),
        author=line(", ".join(unique(authors)), MAX_TITLE_CHARACTERS),
        tags=unique(
            [string_in(tag, "term") or string_in(tag, "label") for tag in rows_in(entry, "tags")]
        ),
        enclosures=unique([address(link, url) or "" for link in enclosures], MAX_URL_CHARACTERS),
    )


def _alternate(links: list[dict[str, str]], url: str) -> str | None:
    pages = [link for link in links if link["rel"] == "alternate"]
    pages.sort(key=lambda link: link["type"] not in HTML_TYPES)
    return next(filter(None, (address(link["href"], url) for link in pages)), None)


def _text(value: object, kind: str, ignore: Sequence[str] = ()) -> str:
    if not isinstance(value, str):
        return ""
    return (
        plain(markup_without(value, ignore))
        if kind in HTML_TYPES or kind.endswith("xml")
        else lines(value)
    )


def _type(row: Row, name: str) -> str:
    """Return the content type that feedparser detected for a text; by default `text/plain`."""
    detail = dict.get(row, f"{name}_detail")
    return string_in(detail, "type") if isinstance(detail, dict) else "text/plain"


def _date(row: Row, dates: DateReader, names: tuple[str, ...]) -> datetime | None:
    read = (dates.read(dict.get(row, name), dict.get(row, f"{name}_parsed")) for name in names)
    return next(filter(None, read), None)


def _links(row: Row) -> list[dict[str, str]]:
    names = ("href", "rel", "type")
    return [{name: string_in(link, name) for name in names} for link in rows_in(row, "links")]


class LimitExceeded(Exception):
    """The document exceeds a limit, and parsing stopped; `str()` is the limit."""


def _handlers(name: str, kind: str) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the handlers of an element's start and end, which store its text under `name`."""

    def start(self: Any, attrs_d: Any) -> None:
        self.push_content(name, attrs_d, kind, 1)

    def end(self: Any) -> None:
        self.pop_content(name)

    return start, end


class Bounded(_FeedParserMixin):  # type: ignore[misc] # feedparser has no types
    """Limits and corrections that both parsers share.

    max_entries:           maximum number of entries
    skip_hours, skip_days: texts of the document's skipHours and skipDays elements

    Raises LimitExceeded for more than `max_entries` entries or MAX_ELEMENTS elements.
    """

    resolve_relative_uris = False
    sanitize_html = False
    # Do not resolve guids against the feed's URL: they must not change when the feed moves.
    can_be_relative_uri = _FeedParserMixin.can_be_relative_uri - {"id"}

    def __init__(self, url: str, max_entries: int, *args: Any) -> None:
        self.max_entries = max_entries
        self.elements = 0
        self.skip_hours: list[str] = []
        self.skip_days: list[str] = []
        super().__init__(url, None, "utf-8", *args)

    def unknown_starttag(self, tag: str, attrs: Any) -> None:
        """Handle the start of any element."""
        self.elements += 1
        if self.elements > MAX_ELEMENTS:
            raise LimitExceeded(f"{MAX_ELEMENTS:,} elements")
        super().unknown_starttag(tag, attrs)

    def _start_item(self, attrs_d: Any) -> None:
        if len(self.entries) >= self.max_entries:
            raise LimitExceeded(f"{self.max_entries:,} entries")
        super()._start_item(attrs_d)

    _start_entry = _start_item

    def _add_tag(self, *args: Any) -> None:
        # feedparser compares each tag with all previous tags.
        if len(self._get_context().get("tags", ())) < MAX_TAGS:
            super()._add_tag(*args)

    def _sync_author_detail(self, key: str = "author") -> None:
        # feedparser's search for an email address takes quadratic time.
        context = self._get_context()
        if len(author := dict.get(context, key) or "") > MAX_AUTHOR_CHARACTERS:
            context[key] = author[:MAX_AUTHOR_CHARACTERS]
        super()._sync_author_detail(key)

    def track_namespace(self, prefix: Any, uri: Any) -> None:
        """Register a namespace. feedparser searches all namespaces for each element."""
        if len(self.namespaces_in_use) < MAX_NAMESPACES:
            super().track_namespace(prefix, uri)

    def pop(self, element: str, strip_whitespace: int = 1) -> Any:
        """Return the text of an element.

        feedparser removes leading empty pieces one by one, which takes quadratic time.
        """
        stack = self.elementstack
        if stack and stack[-1][0] == element and len(stack[-1][2]) > MANY_PIECES:
            pieces = list(stack[-1][2])
            first = next((n for n, piece in enumerate(pieces) if piece.strip()), len(pieces))
            stack[-1][2] = pieces[first:]
        return super().pop(element, strip_whitespace)

    def _end_guid(self) -> None:
        super()._end_guid()
        # feedparser takes no guid as link after a link element, even if that is empty.
        self._get_context()["guidislink"] = bool(self.guidislink)

    # feedparser treats a second description as the content of the entry. These elements are always
    # titles or summaries, so store each under its own key.
    _start_itunes_title, _end_itunes_title = _handlers("itunes_title", "text/plain")
    _start_itunes_summary, _end_itunes_summary = _handlers("itunes_summary", "text/plain")
    _start_dc_description, _end_dc_description = _handlers("dc_description", "text/html")
    _start_media_description, _end_media_description = _handlers("media_description", "text/plain")

    # feedparser only keeps the last hour and day.

    def _end_hour(self) -> None:
        self._skip("skiphours", self.pop("hour"), self.skip_hours)

    def _end_day(self) -> None:
        self._skip("skipdays", self.pop("day"), self.skip_days)

    def _skip(self, within: str, text: Any, skipped: list[str]) -> None:
        stack = self.elementstack
        if stack and stack[-1][0] == within and text and len(skipped) < MAX_HOURS:
            skipped.append(str(text))


class Strict(Bounded, StrictFeedParser):  # type: ignore[misc] # as above
    """Handler for a SAX parser. It joins the lines of a text, which SAX reports one by one."""

    def __init__(self, url: str, max_entries: int) -> None:
        self.pending: list[str] = []
        super().__init__(url, max_entries)

    def characters(self, text: str) -> None:
        """Collect a piece of text until an element starts or ends."""
        self.pending.append(text)

    def startElementNS(self, name: Any, qname: Any, attrs: Any) -> None:  # noqa: N802 # SAX's name
        """Handle the start of an element; drop its attributes if there are too many.

        feedparser searches all attributes for each of them.
        """
        self._flush_text()
        few = attrs if len(attrs) <= MAX_ATTRIBUTES else AttributesNSImpl({}, {})
        super().startElementNS(name, qname, few)

    def endElementNS(self, *args: Any) -> None:  # noqa: N802 # as above
        """Handle the end of an element."""
        self._flush_text()
        super().endElementNS(*args)

    def _flush_text(self) -> None:
        if self.pending:
            self.handle_data("".join(self.pending))
            self.pending.clear()


class Loose(Bounded, LooseFeedParser):  # type: ignore[misc] # as above
    """Parser for text that resembles XML but is not well-formed."""

    def decode_entities(self, element: str, data: str) -> str:
        """Decode entities, also in guids, so that both parsers return the same guid."""
        decoded: str = super().decode_entities(element, data)
        return decoded if self.contentparams else unescape(decoded, QUOTES)

    def pop(self, element: str, strip_whitespace: int = 1) -> Any:
        """Return the text of an element, with entities in names of people decoded."""
        text = super().pop(element, strip_whitespace)
        return unescape(text, QUOTES) if text and element == "name" else text

    def handle_charref(self, ref: str) -> None:
        """Handle a numeric character reference; ignore invalid numbers."""
        try:
            super().handle_charref(ref)
        except (ValueError, OverflowError):
            return
