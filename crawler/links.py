"""Wanted links: of an HTML page by its anchors, of a sitemap by its entries."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import urldefrag, urljoin

from scrapy.http import TextResponse
from scrapy.link import Link as Anchor
from scrapy.linkextractors import LinkExtractor
from scrapy.utils.sitemap import Sitemap

from crawler.cards import cards_of
from crawler.fields import node_text, selected
from crawler.items import Kind, Link, LinkCount, LinkCounts
from crawler.keys import CategoryRule
from crawler.packed import GZIP, Broken, gunzipped
from crawler.traps import SITEMAPS
from crawler.urls import is_http
from crawler.wrapper import Match, Wrapper

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
    response: TextResponse,
    wrapper: Wrapper,
    category: str | None,
    longest: int,
    counts: LinkCounts,
) -> tuple[Link, ...]:
    """Links of an HTML page that the wrapper wants, each once; all of its links are counted.

    category: the page's own; longest: characters of a URL
    """
    links = _Links(wrapper, longest, counts)
    items: dict[str, str] = {}
    page, anchors = _anchors_of(response)
    for anchor in anchors:
        link = links.take(anchor.url, category)
        if link and link.kind is Kind.ITEM:
            items[urldefrag(anchor.url)[0]] = link.url
    cards = cards_of(page, items)
    return tuple(replace(link, card=cards.get(link.url)) for link in links.wanted)


def _anchors_of(response: TextResponse) -> tuple[TextResponse, list[Anchor]]:
    """The page as it can be read, and its anchors."""
    try:
        return response, _anchors.extract_links(response)
    except ValueError:  # a base that is no URL is no base
        bare = response.replace(body=BASE_TAG.sub(b"", response.body))
        return bare, _anchors.extract_links(bare)


def sitemap_links(
    sitemap: Sitemap, base: str, wrapper: Wrapper, longest: int, counts: LinkCounts
) -> tuple[Link, ...]:
    """Entries of a sitemap that the wrapper wants; the sitemaps of an index are list pages.

    All of its entries are counted. longest: characters of a URL
    """
    links = _Links(wrapper, longest, counts)
    for entry in sitemap:
        url = _joined(base, entry.get("loc", ""))
        if sitemap.type == "sitemapindex":
            links.take_part_of_index(url)
        else:
            links.take(url, None, _moment(entry.get("lastmod")))
    return tuple(links.wanted)


def category_of(response: TextResponse, wrapper: Wrapper, url: str) -> str | None:
    """The category of a list page: by its URL, a selector on it, or constant."""
    rule = wrapper.category
    if not isinstance(rule, CategoryRule) or rule.pattern is not None:
        return wrapper.match(url).category
    found = selected(response, rule.css, rule.xpath)
    return (node_text(found[0])[:LONGEST_CATEGORY].rstrip() or None) if found else None


class _Links:
    """The links of one page: the wanted ones are collected, all are counted, each once."""

    def __init__(self, wrapper: Wrapper, longest: int, counts: LinkCounts) -> None:
        self._wrapper, self._longest = wrapper, longest
        self._counts = counts
        # None: not wanted, and counted already.
        self._found: dict[str, Link | None] = {}
        counts.add(LinkCount.PAGES)

    @property
    def wanted(self) -> Iterator[Link]:
        """The wanted links, in the order of the page."""
        return filter(None, self._found.values())

    def take(self, url: str, category: str | None, lastmod: datetime | None = None) -> Link | None:
        """The link to an absolute URL if it is wanted. category: of the page that shows it."""
        if (known := self._canonical(url)) is None:
            return None
        if known not in self._found:
            match = self._counted(known)
            link = None
            if match.kind is not None:
                own = match.category or category if match.kind is Kind.ITEM else None
                link = Link(known, match.kind, own, lastmod, pattern=match.pattern)
            self._found[known] = link
        return self._found[known]

    def take_part_of_index(self, url: str) -> None:
        """A sitemap that a sitemap index names."""
        known = self._canonical(url)
        if known is not None and self._wrapper.is_own(known):
            self._found.setdefault(known, Link(known, Kind.LIST, pattern=SITEMAPS))

    def _canonical(self, url: str) -> str | None:
        """The canonical form of a URL that can be read and is not too long."""
        if not is_http(url) or len(url) > self._longest:
            return None
        try:
            return self._wrapper.canonical(url)
        except ValueError:
            return None

    def _counted(self, url: str) -> Match:
        """What a URL is to the wrapper, counted."""
        counts = self._counts
        if not self._wrapper.is_own(url):
            counts.add(LinkCount.FOREIGN, url)
            return Match()
        match = self._wrapper.match(url)
        counts.add(LinkCount.ALL)
        if match.both:
            counts.add(LinkCount.AMBIGUOUS, url)
        elif match.kind is None:
            counts.keep(url)
        elif match.pattern is not None:
            counts.add(LinkCount.ITEMS if match.kind is Kind.ITEM else LinkCount.LISTS)
        return match


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
