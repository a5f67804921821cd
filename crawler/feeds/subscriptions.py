"""Lists of feeds: read and write OPML, including malformed documents, and read lists of URLs.

Nested outlines are categories: a feed in the folder Local inside the folder News has the category
`News/Local`. The attribute `category` is read as well (`/News/Local,/Sport`).

This module does not use listparser, which ignores declared encodings and htmlUrl, does not report
malformed lists, and takes quadratic time and memory in the number of folders (10 s for a list of
1.4 MB, 100 MB for one of 0.4 MB).
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import format_datetime
from itertools import chain, takewhile
from typing import Any, BinaryIO, Literal
from urllib.parse import urlsplit
from xml.sax.saxutils import escape, quoteattr

from lxml import etree

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.feeds.recover import ESCAPING, codec_of
from crawler.utils.terminal import UNSAFE, without_secrets
from crawler.utils.text import guessed_encoding
from crawler.utils.urls import BLANKS, TRACKING_PARAMETERS, canonical, is_http

# Characters that XML cannot contain, not even escaped.
NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# `feed:` URLs, which some browsers and feed readers use.
# Schemes with which pages make feed readers and podcast programs open a feed.
FEED_SCHEME = re.compile(r"(?:feed|itpc|pcast|podcast):(?:(?://)?(?=https?://)|(?=//))", re.I)
TITLE_CHARACTERS = 500
CATEGORY_CHARACTERS = 200
# Maximum number of categories of one feed. A feed in 100,000 folders is a mistake or an attack.
MAX_FEED_CATEGORIES = 100
MAX_FEEDS = 1_000_000
MAX_REFUSED = 10_000
SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Subscription:
    """A feed in a list.

    url:        canonical URL
    categories: paths such as `News/Local`, each once
    """

    url: str
    title: str | None = None
    site: str | None = None
    categories: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """An entry of a list that is not a feed.

    where:  position such as `line 3`, with the title if there is one; empty on the command line
    reason: reason why the URL was refused
    """

    where: str
    url: str
    reason: str


@dataclass(frozen=True, slots=True)
class FeedList:
    """The contents of a list.

    problems: problems of the list as a whole, one line each
    """

    feeds: tuple[Subscription, ...]
    refused: tuple[Refused, ...] = ()
    problems: tuple[str, ...] = ()


class NotAFeedList(Exception):
    """The file is not a list of feeds, or is too long; `str()` is the reason."""


@dataclass(slots=True)
class FeedListBuilder:
    """Collects the feeds of a list, and merges repeated feeds; the first title is used."""

    config: Config
    refused: list[Refused] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _feeds: dict[str, Subscription] = field(default_factory=dict)
    _has_too_many_categories: bool = False

    def take(
        self,
        where: str,
        url: str,
        title: str | None = None,
        site: str | None = None,
        categories: Iterable[str] = (),
    ) -> None:
        """Add a feed, or refuse an invalid URL. Raises NotAFeedList if there are too many feeds.

        where: position in the list, such as `line 3`
        """
        title = tidy(title or "", TITLE_CHARACTERS) or None
        try:
            feed = feed_url(url, self.config)
        except ValueError as error:
            self.refuse(where, url, title, str(error))
            return
        before = self._feeds.get(feed) or Subscription(feed)
        self._feeds[feed] = Subscription(
            feed,
            before.title or (None if title in (url.strip(), feed) else title),
            before.site or site,
            self._united(before.categories, categories),
        )
        if len(self._feeds) > MAX_FEEDS:
            raise NotAFeedList(f"more than {MAX_FEEDS:,} feeds. Import the list in parts")

    def _united(self, categories: tuple[str, ...], named: Iterable[str]) -> tuple[str, ...]:
        for category in filter(None, map(category_of, named)):
            if category not in categories and len(categories) == MAX_FEED_CATEGORIES:
                self._has_too_many_categories = True
            elif category not in categories:
                categories = (*categories, category)
        return categories

    def refuse(self, where: str, url: str, title: str | None, reason: str) -> None:
        """Record an entry that is not a feed. Raises NotAFeedList if there are too many of them."""
        if len(self.refused) == MAX_REFUSED:
            raise NotAFeedList(f"more than {MAX_REFUSED:,} lines are not feeds")
        shown = url if len(url) <= SHOWN_CHARACTERS else url[:SHOWN_CHARACTERS] + "…"
        place = f"{where}, {title}" if title else where
        shown = without_secrets(tidy(shown, SHOWN_CHARACTERS + 1))
        self.refused.append(Refused(place, shown, reason))

    def result(self) -> FeedList:
        """Return the list with everything that was added."""
        problems = tuple(self.problems)
        if self._has_too_many_categories:
            problems += (f"only the first {MAX_FEED_CATEGORIES} categories of a feed are used",)
        return FeedList(tuple(self._feeds.values()), tuple(self.refused), problems)


def feed_url(text: str, config: Config) -> str:
    """Return the canonical URL of a feed. Accepts `feed://HOST` and `feed:https://HOST` as well.

    Raises ValueError for other URLs.
    """
    url = text.strip(BLANKS)
    if scheme := FEED_SCHEME.match(url):
        rest = url[scheme.end() :]
        url = f"http:{rest}" if rest.startswith("//") else rest
    if not url:
        raise ValueError("the URL is empty")
    if len(url) > config.url_characters:
        raise ValueError(f"longer than {config.url_characters} characters")
    if not is_http(url):
        raise ValueError("not an http or https URL")
    if "@" in urlsplit(url).netloc:
        raise ValueError(
            "URLs must not contain a user name or password. Add the feed to a separate spider "
            "(--spider NAME) whose file sets headers = { Authorization = 'Basic ${VARIABLE}' } and "
            "credentials_for"
        )
    strip = config.strip_parameters
    url = canonical(url, TRACKING_PARAMETERS if strip is None else strip)
    if not is_http(url) or re.search(r"\s", url) or urlsplit(url).port == 0:
        raise ValueError("not an http or https URL")
    return url


def tidy(text: str, max_characters: int) -> str:
    """Collapse a text to one line, without characters that XML cannot contain."""
    return " ".join(NOT_IN_XML.sub(" ", text).split())[:max_characters].rstrip()


def category_of(path: str) -> str:
    """Normalize a category: names of folders joined with `/`; empty if no name is left."""
    names = (tidy(name, CATEGORY_CHARACTERS) for name in path.split("/"))
    return "/".join(filter(None, names))[:CATEGORY_CHARACTERS].rstrip("/ ")


Chunks = Iterable[str]
FEED_TYPES = frozenset({"rss", "atom", "feed", "rdf", "json"})
# Types of outlines that refer to other documents.
REFERENCE_TYPES = frozenset({"include", "link"})
# libxml2 compares each attribute of a tag with all previous ones.
MAX_ATTRIBUTES = 200
TOO_MANY_REASON = f"a tag with more than {MAX_ATTRIBUTES} attributes"
ATTRIBUTE = r"""[\s/]*+[^\s/>][^\s/>=]*+(?:\s*+=\s*+(?:"[^"]*+"?|'[^']*+'?|[^\s>"'][^\s>]*+)?+)?+"""
TOO_MANY = re.compile(rf"<[a-zA-Z][^\s/>]*+(?:{ATTRIBUTE}){{{MAX_ATTRIBUTES + 1}}}")
# libxml2 does not count lines beyond this in HTML.
LAST_LINE = 65_500
# Do not resolve entities or fetch anything, and reject very deep trees and very long texts.
EVENTS: tuple[Literal["start", "end"], ...] = ("start", "end")
STRICT: dict[str, Any] = {
    "resolve_entities": False,
    "no_network": True,
    "huge_tree": False,
    "encoding": "utf-8",
}

MAX_MB = 256
BYTES_IN_MB = 1024 * 1024
CHUNK_BYTES = 65_536
# Longer lines are not URLs; cutting them limits the memory for files without line breaks.
MAX_LINE_CHARACTERS = 65_536
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
DECLARED = re.compile(rb"""<\?xml[^>]{0,200}?encoding\s*=\s*["']([\w.:-]{1,40})""")
# Errors for files without outlines, by their first tag.
KINDS = (
    (re.compile(r"<(?:\w+:)?opml\b", re.I), "OPML without any feeds"),
    (
        re.compile(r"<(?:rss|feed|rdf:RDF)\b", re.I),
        "a feed, not a list of feeds. Use scrapy feeds add URL",
    ),
    (re.compile(r"<(?:!doctype\s+)?html\b", re.I), "an HTML page, not OPML"),
)
UNKNOWN_KIND = "neither OPML nor a list of URLs"


def read(
    chunks: Callable[[], Chunks], new_builder: Callable[[], FeedListBuilder]
) -> tuple[FeedListBuilder, int]:
    """Read an OPML document. Return its feeds and the number of its outlines.

    chunks:      returns the text of the document from its start, each time it is called
    new_builder: returns an empty builder

    If a document is not well-formed, it is read again with an HTML parser, which recovers most of
    the outlines, and the problem is recorded. Raises NotAFeedList.
    """
    builder = new_builder()
    try:
        return builder, _take_outlines(etree.XMLPullParser(EVENTS, **STRICT), chunks(), builder)
    except etree.XMLSyntaxError as error:
        reason = " ".join((error.msg or "not XML").split())
    builder = new_builder()
    builder.problems.append(f"malformed XML ({reason}): read as far as possible")
    parser = etree.HTMLPullParser(EVENTS, encoding="utf-8")
    return builder, _take_outlines(parser, _checked_chunks(chunks()), builder)


def _take_outlines(parser: Any, chunks: Chunks, builder: FeedListBuilder) -> int:
    """Add all outlines to the builder, in bounded memory, and return their number."""
    folders: list[str] = [""]
    count = 0
    for chunk in chain(chunks, [None]):
        if chunk is None:
            parser.close()
        else:
            parser.feed(chunk.encode("utf-8", "replace"))
        for event, element in parser.read_events():
            if isinstance(element.tag, str) and _local(element.tag) == "outline":
                if event == "start":
                    count += 1
                    folders.append(_take_outline(element, folders[-1], builder))
                    continue
                folders.pop()
            if event == "end":
                # Free this element and the ones before it.
                element.clear()
                parent = element.getparent()
                while parent is not None and element.getprevious() is not None:
                    del parent[0]
    return count


def _checked_chunks(chunks: Chunks) -> Iterator[str]:
    """Yield the chunks. Raises NotAFeedList for a tag with too many attributes.

    libxml2's HTML parser could take hours for such a tag.
    """
    before = ""
    for chunk in chunks:
        if TOO_MANY.search(before + chunk):
            raise NotAFeedList(TOO_MANY_REASON)
        yield chunk
        before = chunk


def _local(tag: str) -> str:
    return tag.rpartition("}")[2].rpartition(":")[2].lower()


def _take_outline(element: Any, folder: str, builder: FeedListBuilder) -> str:
    """Add one outline to the builder, and return the folder of the outlines inside it."""
    if len(element.attrib) > MAX_ATTRIBUTES:
        builder.refuse(_where(element), "an outline", None, TOO_MANY_REASON)
        return folder
    attributes = {_local(name): value for name, value in element.attrib.items()}
    title = attributes.get("text", "").strip() or attributes.get("title", "")
    kind = attributes.get("type", "").strip().lower()
    url = attributes.get("xmlurl")
    if url is None and kind in FEED_TYPES:
        url = attributes.get("url")
    if url is None:
        if kind in REFERENCE_TYPES and attributes.get("url"):
            reason = "a link or another list, not a feed"
            builder.refuse(_where(element), attributes["url"], title.strip() or None, reason)
            return folder
        return category_of(f"{folder}/{title}") if title else folder
    categories = (folder, *attributes.get("category", "").split(","))
    site = attributes.get("htmlurl", "").strip() or None
    builder.take(_where(element), url, title, site, categories)
    return folder


def _where(element: Any) -> str:
    line = element.sourceline or 0
    return f"line {line}" if line < LAST_LINE else f"after line {LAST_LINE}"


def opml_lines(feeds: Iterable[Subscription], title: str, at: datetime) -> Iterator[str]:
    """Yield the lines of an OPML 2.0 document; feeds appear in the folder of each category.

    title: title of the document
    at:    date of the document
    """
    folders: dict[tuple[str, ...], list[Subscription]] = {}
    for feed in feeds:
        for category in feed.categories or ("",):
            folders.setdefault(tuple(category_of(category).split("/")), []).append(feed)
    yield '<?xml version="1.0" encoding="UTF-8"?>\n<opml version="2.0">\n  <head>\n'
    yield f"    <title>{_referenced(escape(NOT_IN_XML.sub(' ', title)))}</title>\n"
    yield f"    <dateCreated>{format_datetime(at, usegmt=True)}</dateCreated>\n"
    yield "  </head>\n  <body>\n"
    yield from (_line(feed, 0) for feed in folders.pop(("",), ()))
    opened: tuple[str, ...] = ()
    for path in [*sorted(folders), ()]:
        pairs = zip(opened, path, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        for depth in range(len(opened), shared, -1):
            yield f"{_indent(depth - 1)}</outline>\n"
        for depth in range(shared, len(path)):
            yield f"{_indent(depth)}<outline text={_quoted(path[depth])}>\n"
        yield from (_line(feed, len(path)) for feed in folders.get(path, ()))
        opened = path
    yield "  </body>\n</opml>\n"


def _line(feed: Subscription, depth: int) -> str:
    named = _quoted(feed.title or feed.url)
    title = f" title={named}" if feed.title else ""
    site = f" htmlUrl={_quoted(feed.site)}" if feed.site else ""
    url = _quoted(feed.url)
    return f'{_indent(depth)}<outline type="rss" text={named}{title} xmlUrl={url}{site}/>\n'


def _indent(depth: int) -> str:
    return "  " * (depth + 2)


def _quoted(text: str) -> str:
    return _referenced(quoteattr(NOT_IN_XML.sub(" ", text)))


def _referenced(text: str) -> str:
    """Replace unsafe characters with character references, because lists may be printed."""
    return UNSAFE.sub(lambda match: f"&#{ord(match[0])};", text)


def read_list(file: BinaryIO, name: str, config: Config) -> FeedList:
    """Read a list of feeds from a seekable file: OPML, or a text file with one URL per line.

    name: name of the file, for errors

    Raises ConfigError if the file is too large, not a list of feeds, or empty.
    """
    if file.seek(0, io.SEEK_END) > MAX_MB * BYTES_IN_MB:
        raise ConfigError(f"{name}: larger than {MAX_MB} MB. Import it in parts")
    encoding, problem = encoding_of(file)
    head = next(_decoded(file, encoding), "").lstrip()
    builder = FeedListBuilder(config)
    try:
        if head.startswith("<"):
            builder, count = read(lambda: _decoded(file, encoding), lambda: FeedListBuilder(config))
            if not count:
                kinds = [
                    (match.start(), kind) for sign, kind in KINDS if (match := sign.search(head))
                ]
                raise NotAFeedList(min(kinds)[1] if kinds else UNKNOWN_KIND)
        elif head.startswith(("{", "[")) or "\0" in head:
            raise NotAFeedList(UNKNOWN_KIND)
        else:
            _take_lines(_decoded(file, encoding), builder)
    except NotAFeedList as error:
        raise ConfigError(f"{name}: {error}") from None
    builder.problems += [problem] if problem else []
    listed = builder.result()
    if not (listed.feeds or listed.refused):
        reason = f" ({listed.problems[0]})" if listed.problems else ""
        raise ConfigError(f"{name}: no feeds found{reason}")
    return listed


def _take_lines(chunks: Iterator[str], builder: FeedListBuilder) -> None:
    """Add one URL per line to the builder. A `#` at the start of a word begins a comment."""
    number, tail = 0, ""
    for chunk in chain(chunks, ["\n"]):
        *lines, tail = (tail + chunk).replace("\r\n", "\n").split("\n")
        tail = tail[:MAX_LINE_CHARACTERS]
        for line in lines:
            number += 1
            url, *more = line.split(maxsplit=1) or ("#",)
            if url.startswith("#"):
                continue
            if more and not more[0].startswith("#"):
                builder.refuse(f"line {number}", line.strip(), None, "not a single URL")
            else:
                builder.take(f"line {number}", url)


def encoding_of(file: BinaryIO) -> tuple[str, str | None]:
    """Return the encoding of a file, and a problem if it does not match the declaration.

    A file that is valid UTF-8 is UTF-8, whatever it declares: text in other encodings is hardly
    ever valid UTF-8.
    """
    file.seek(0)
    head = file.read(4096)
    for mark, name in BYTE_ORDER_MARKS:
        if head.startswith(mark):
            return name, None
    match = DECLARED.search(head)
    declared = codec_of(match[1].decode("ascii")) if match else None
    if (bad_at := _bad_at(file, "utf-8")) is None:
        return declared if declared and ESCAPING.match(declared) else "utf-8", None
    if declared and _bad_at(file, declared) is None:
        return declared, None
    file.seek(bad_at)
    guessed = guessed_encoding(file.read(CHUNK_BYTES)) or "cp1252"
    return guessed, f"not valid {declared or 'utf-8'}: read as {guessed}"


def _bad_at(file: BinaryIO, encoding: str) -> int | None:
    """Return the approximate offset of the first invalid byte; None if the file is valid."""
    decoder = codecs.getincrementaldecoder(encoding)()
    file.seek(0)
    at = 0
    try:
        while chunk := file.read(CHUNK_BYTES):
            decoder.decode(chunk)
            at += len(chunk)
        decoder.decode(b"", final=True)
    except UnicodeError:
        return at
    return None


def _decoded(file: BinaryIO, encoding: str) -> Iterator[str]:
    """Yield the text of the file from its start, in pieces."""
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    file.seek(0)
    while chunk := file.read(CHUNK_BYTES):
        if text := decoder.decode(chunk):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text
