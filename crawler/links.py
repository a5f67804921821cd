"""Wanted links: of an HTML page by its anchors, of a sitemap by its entries."""

from __future__ import annotations

import logging
import zlib
from datetime import UTC, datetime
from urllib.parse import urljoin

from scrapy.http import TextResponse
from scrapy.linkextractors import LinkExtractor
from scrapy.utils.sitemap import Sitemap

from crawler.errors import WrapperError
from crawler.fields import node_text
from crawler.items import Kind, Link
from crawler.urls import is_http
from crawler.wrapper import CategoryRule, Wrapper

logger = logging.getLogger(__name__)
GZIP_MAGIC = b"\x1f\x8b"
SNIFFED_BYTES = 1024

_anchors = LinkExtractor(deny_extensions=(), unique=True)


def sitemap_of(body: bytes, limit_bytes: int) -> Sitemap | None:
    """The sitemap in a body (gzipped or not); None if it is none."""
    if body.startswith(GZIP_MAGIC):
        body = _unzipped(body, limit_bytes)
    head = body[:SNIFFED_BYTES]
    if b"<urlset" not in head and b"<sitemapindex" not in head:
        return None
    return Sitemap(body)


def wanted_links(
    response: TextResponse, wrapper: Wrapper, category: str | None, longest: int
) -> tuple[Link, ...]:
    """Links of an HTML page that the wrapper wants, each once; `category` is the page's own."""
    found: dict[str, Link] = {}
    for anchor in _anchors.extract_links(response):
        link = _wanted(anchor.url, wrapper, category, None, longest)
        if link:
            found.setdefault(link.url, link)
    return tuple(found.values())


def sitemap_links(
    sitemap: Sitemap, base: str, wrapper: Wrapper, longest: int
) -> tuple[Link, ...]:
    """Entries of a sitemap that the wrapper wants; the sitemaps of an index are list pages."""
    found: dict[str, Link] = {}
    for entry in sitemap:
        url, lastmod = urljoin(base, entry["loc"]), _moment(entry.get("lastmod"))
        if sitemap.type == "sitemapindex":
            link = Link(wrapper.canonical(url), Kind.LIST) if is_http(url) else None
        else:
            link = _wanted(url, wrapper, None, lastmod, longest)
        if link:
            found.setdefault(link.url, link)
    return tuple(found.values())


def category_of(response: TextResponse, wrapper: Wrapper, url: str) -> str | None:
    """The category of a list page: by its URL, a selector on it, or constant."""
    rule = wrapper.category
    if not isinstance(rule, CategoryRule) or rule.pattern is not None:
        return wrapper.match(url).category
    found = response.css(rule.css) if rule.css is not None else response.xpath(rule.xpath or "")
    return (node_text(found[0]) or None) if found else None


def _wanted(
    url: str, wrapper: Wrapper, category: str | None, lastmod: datetime | None, longest: int
) -> Link | None:
    if not is_http(url) or len(url) > longest:
        return None
    try:
        url = wrapper.canonical(url)
        match = wrapper.match(url)
    except ValueError:
        return None
    if match.both:
        logger.error("%s", WrapperError(f"{wrapper.name}: {url} meets list_pages and item_pages"))
    if match.kind is None:
        return None
    own = match.category if match.kind is Kind.ITEM else None
    return Link(url, match.kind, own or (category if match.kind is Kind.ITEM else None), lastmod)


def _moment(value: str | None) -> datetime | None:
    try:
        read = datetime.fromisoformat(value.strip()) if value else None
    except ValueError:
        return None
    return read and (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)


def _unzipped(body: bytes, limit_bytes: int) -> bytes:
    unzip = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        return unzip.decompress(body, limit_bytes)
    except zlib.error:
        return b""

