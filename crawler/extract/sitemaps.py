"""Documents that list URLs for crawlers: XML sitemaps and their indexes, text sitemaps, and feeds.

All of them are allowed as parts of a sitemap index (https://www.sitemaps.org/protocol.html).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from lxml import etree
from scrapy.http import TextResponse
from scrapy.utils.sitemap import Sitemap

from crawler.extract.documents import PlainTextPage, XmlPage
from crawler.utils.compression import GZIP, CorruptData, gunzipped
from crawler.utils.urls import is_http

SNIFFED_BYTES = 8192
# The root element may follow an XML declaration, comments and stylesheets. The atomic group
# prevents backtracking on pages that begin with thousands of comments.
ROOT = re.compile(
    rb"(?:\xef\xbb\xbf)?(?>\s+|<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^\[>]*(?:\[.*?\])?\s*>)*+"
    rb"<(?:\w+:)?(?P<name>urlset|sitemapindex|rss|feed|RDF)[\s/>]",
    re.S,
)
FEEDS = frozenset({b"rss", b"feed", b"RDF"})
INDEX = "sitemapindex"
FEED, TEXT = "feed", "text"
# An ampersand that does not begin a reference of XML, as in `<loc>https://shop.example/?a=1&b=2`.
RAW_AMPERSAND = re.compile(rb"&(?!(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#x[0-9A-Fa-f]{1,6});)")
# In a document with a DTD, which may declare others.
RAW_WITH_DTD = re.compile(rb"&(?!(?:[A-Za-z][\w.-]{0,30}|#[0-9]{1,7}|#x[0-9A-Fa-f]{1,6});)")
CDATA, END_OF_CDATA = b"<![CDATA[", b"]]>"
MAX_LINE_CHARACTERS = 10_000


@dataclass(frozen=True, slots=True)
class Listing:
    """The URLs in a document for crawlers.

    type:    `urlset`, `sitemapindex`, `feed` or `text`
    entries: dicts with `loc` and perhaps `lastmod`
    """

    type: str
    entries: Iterable[dict[str, Any]]

    @property
    def is_sitemap(self) -> bool:
        """Return whether the document is a sitemap or an index in XML, which is no item."""
        return self.type not in (FEED, TEXT)


def listing_of(body: bytes, limit_bytes: int) -> Listing | None:
    """Return the URLs in a response body, gzipped or not; None if the body is something else.

    limit_bytes: maximum size of the decompressed document

    Raises BadResponse for a decompression bomb.
    """
    if body.startswith(GZIP):
        with suppress(CorruptData):
            body = gunzipped(body, limit_bytes)
    if (root := ROOT.match(body[:SNIFFED_BYTES])) is None:
        urls = _text_urls(body)
        return Listing(TEXT, [{"loc": url} for url in urls]) if urls else None
    body = _with_escaped_ampersands(body)
    if root["name"] in FEEDS:
        return Listing(FEED, _feed_entries(body))
    sitemap = Sitemap(body)
    return Listing(sitemap.type, sitemap)


def unread_list(page: TextResponse) -> str | None:
    """Return why a list page without links is no list; None if it may be one."""
    if isinstance(page, PlainTextPage):
        return "plain text instead of a page with links, or of one URL per line"
    if isinstance(page, XmlPage) and not page.xpath("//a[@href]"):
        return "XML that is neither a sitemap nor a feed"
    return None


def _with_escaped_ampersands(body: bytes) -> bytes:
    """Return XML with references in place of raw ampersands, except in CDATA sections."""
    if b"&" not in body:
        return body
    raw = RAW_WITH_DTD if b"<!DOCTYPE" in body[:SNIFFED_BYTES] else RAW_AMPERSAND
    before, *sections = body.split(CDATA)
    parts = [raw.sub(b"&amp;", before)]
    for section in sections:
        text, end, after = section.partition(END_OF_CDATA)
        parts += [CDATA, text, end, raw.sub(b"&amp;", after)]
    return b"".join(parts)


def _text_urls(body: bytes) -> list[str]:
    """Return the URLs of a text with one URL per line; empty if a line is something else."""
    # The first line is enough for nearly all pages.
    if not body[:SNIFFED_BYTES].removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith(b"http"):
        return []
    lines = (line.strip() for line in body.decode("utf-8-sig", "replace").splitlines())
    urls = [line for line in lines if line and not line.startswith("#")]
    is_list = all(
        len(url) <= MAX_LINE_CHARACTERS and len(url.split()) == 1 and is_http(url) for url in urls
    )
    return urls if is_list else []


def _feed_entries(body: bytes) -> Iterator[dict[str, Any]]:
    """Yield the links of the entries of an RSS or Atom feed, with `updated` as `lastmod`."""
    elements = etree.iterparse(
        BytesIO(body), events=("end",), recover=True, resolve_entities=False, remove_comments=True
    )
    with suppress(etree.XMLSyntaxError):
        for _, element in elements:
            if _name(element) not in ("item", "entry"):
                continue
            entry: dict[str, Any] = {}
            for child in element.iterchildren(etree.Element):
                name, text = _name(child), (child.text or "").strip()
                relation = child.get("rel") or "alternate"
                if name == "link" and relation == "alternate":
                    entry.setdefault("loc", child.get("href") or text)
                elif name == "updated":
                    entry["lastmod"] = text
                elif name == "guid" and is_http(text):
                    entry["guid"] = text
            entry["loc"] = entry.get("loc") or entry.pop("guid", "")
            element.clear()
            if entry["loc"]:
                yield entry


def _name(element: etree._Element) -> str:
    return str(element.tag).rpartition("}")[2]
