"""Wanted links: of an HTML page by its anchors, of a sitemap by its entries."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import urldefrag, urljoin

from scrapy.http import TextResponse
from scrapy.link import Link as Anchor
from scrapy.linkextractors import LinkExtractor
from scrapy.utils.sitemap import Sitemap

from crawler.cards import cards_of
from crawler.fields import node_text
from crawler.items import Kind, Link
from crawler.keys import CategoryRule
from crawler.packed import GZIP, Broken, gunzipped
from crawler.traps import SITEMAPS
from crawler.urls import is_http
from crawler.wrapper import Wrapper

logger = logging.getLogger(__name__)
BASE_TAG = re.compile(rb"<base\b[^>]*>", re.I)
# An XML declaration, comments and stylesheets may stand before the root element.
# Atomic groups: a page that begins with a thousand comments is no reason to try them all again.
SITEMAP_START = re.compile(
    rb"(?:\xef\xbb\xbf)?(?>\s+|<\?.*?\?>|<!--.*?-->|<!DOCTYPE[^\[>]*(?:\[.*?\])?\s*>)*+"
    rb"<(?:\w+:)?(?:urlset|sitemapindex)[\s/>]",
    re.S,
)
SNIFFED_BYTES = 8192
# It is kept with each item of its list.
LONGEST_CATEGORY = 1000
YEAR_OR_MONTH = re.compile(r"\d{4}(?:-\d{2})?")

_anchors = LinkExtractor(deny_extensions=(), unique=True)


def sitemap_of(body: bytes, limit_bytes: int) -> Sitemap | None:
    """The sitemap in a body (gzipped or not); None if it is none. Raises Misbehaves for a bomb."""
    if body.startswith(GZIP):
        with suppress(Broken):
            body = gunzipped(body, limit_bytes)
    return Sitemap(body) if SITEMAP_START.match(body[:SNIFFED_BYTES]) else None


def wanted_links(
    response: TextResponse, wrapper: Wrapper, category: str | None, longest: int
) -> tuple[Link, ...]:
    """Links of an HTML page that the wrapper wants, each once; `category` is the page's own."""
    found: dict[str, Link] = {}
    items: dict[str, str] = {}
    page, anchors = _anchors_of(response)
    for anchor in anchors:
        link = _wanted(anchor.url, wrapper, category, None, longest)
        if link:
            found.setdefault(link.url, link)
            if link.kind is Kind.ITEM:
                items[urldefrag(anchor.url)[0]] = link.url
    cards = cards_of(page, items)
    return tuple(replace(link, card=cards.get(link.url)) for link in found.values())


def _anchors_of(response: TextResponse) -> tuple[TextResponse, list[Anchor]]:
    """The page as it can be read, and its anchors."""
    try:
        return response, _anchors.extract_links(response)
    except ValueError:  # a base that is no URL is no base
        bare = response.replace(body=BASE_TAG.sub(b"", response.body))
        return bare, _anchors.extract_links(bare)


def sitemap_links(sitemap: Sitemap, base: str, wrapper: Wrapper, longest: int) -> tuple[Link, ...]:
    """Entries of a sitemap that the wrapper wants; the sitemaps of an index are list pages."""
    found: dict[str, Link] = {}
    for entry in sitemap:
        url, lastmod = _joined(base, entry.get("loc", "")), _moment(entry.get("lastmod"))
        if sitemap.type == "sitemapindex":
            link = _part_of_index(url, wrapper, longest)
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
    return (node_text(found[0])[:LONGEST_CATEGORY].rstrip() or None) if found else None


def _wanted(
    url: str, wrapper: Wrapper, category: str | None, lastmod: datetime | None, longest: int
) -> Link | None:
    known = _own(url, wrapper, longest)
    if known is None:
        return None
    match = wrapper.match(known)
    if match.both:
        _say_ambiguous(wrapper.name, known)
    if match.kind is None:
        return None
    own = match.category or category if match.kind is Kind.ITEM else None
    return Link(known, match.kind, own, lastmod, pattern=match.pattern)


def _part_of_index(url: str, wrapper: Wrapper, longest: int) -> Link | None:
    known = _own(url, wrapper, longest)
    return Link(known, Kind.LIST, pattern=SITEMAPS) if known else None


def _own(url: str, wrapper: Wrapper, longest: int) -> str | None:
    """The canonical form of a URL that is on this site and not too long."""
    if not is_http(url) or len(url) > longest:
        return None
    try:
        known = wrapper.canonical(url)
    except ValueError:
        return None
    return known if wrapper.is_own(known) else None


@lru_cache(maxsize=4096)
def _say_ambiguous(name: str, url: str) -> None:
    """Once a URL, however many pages link to it."""
    logger.error("%s: %s meets list_pages and item_pages both and is left out", name, url)


def _moment(value: str | None) -> datetime | None:
    try:
        text = (value or "").strip()
        if YEAR_OR_MONTH.fullmatch(text):
            text += "-01-01"[len(text) - 4 :]
        read = datetime.fromisoformat(text) if text else None
        return read and (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _joined(base: str, url: str) -> str:
    try:
        return urljoin(base, url)
    except ValueError:
        return ""
