"""The links that a site definition wants: of an HTML page, of a sitemap, and not of a trap.

Each item's link has a digest of its card, the part of the list page that belongs to it alone: as
long as that is the same, the item has probably not changed.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import urldefrag, urljoin, urlsplit

from lxml import etree
from scrapy.http import TextResponse
from scrapy.linkextractors import LinkExtractor
from scrapy.utils.response import get_base_url
from scrapy.utils.sitemap import Sitemap

from crawler.extract.fields import node_text, selected
from crawler.extract.keys import CategoryRule
from crawler.extract.plain_text import text_below
from crawler.extract.wrapper import Match, Wrapper
from crawler.items import Kind, Link, LinkCount, LinkCounts
from crawler.utils.compression import GZIP, Broken, gunzipped
from crawler.utils.urls import is_http

logger = logging.getLogger(__name__)
# What stands for a pattern for the parts of a sitemap index, which meet none.
SITEMAPS = "sitemaps"
OF_KIND = {Kind.LIST: "max_pattern_lists", Kind.ITEM: "max_pattern_items"}
WHY = {
    "max_depth": "is further than {cap:,} pages from the start URLs",
    "max_path_repeats": "has a part of its path more than {cap:,} times",
    "max_pattern_lists": "would be one more than {cap:,} list pages by {pattern!r}",
    "max_pattern_items": "would be one more than {cap:,} items by {pattern!r}",
}
# A part of the page that belongs to several items.
SHARED = ""
DIGEST_BYTES = 8
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


class Traps:
    """The caps of a wrapper in one pass.

    targets:  how many targets each pattern has, by its digest, as far as is known
    left_out: links that were left out
    """

    def __init__(self, wrapper: Wrapper) -> None:
        self.wrapper = wrapper
        self.targets: dict[str, int] = {}
        self.left_out = 0
        self._said: set[tuple[str, str]] = set()

    def sifted(self, links: Iterable[Link], depth: int) -> list[Link]:
        """Those of new links that may become targets at this depth; they count from now on."""
        wanted = []
        for link in links:
            if key := self._over(link, depth):
                self._leave_out(key, link)
            else:
                wanted.append(link)
                if link.pattern:
                    self.targets[link.pattern] = self._count(link) + 1
        return wanted

    def filled(self, links: Iterable[Link]) -> set[str]:
        """Digests of the patterns that would have too many targets with all of these links."""
        new = Counter((link.pattern, link.kind) for link in links if link.pattern)
        return {
            pattern
            for (pattern, kind), n in new.items()
            if (cap := self._cap(OF_KIND[kind])) and self.targets.get(pattern, 0) + n > cap
        }

    def _count(self, link: Link) -> int:
        return self.targets.get(link.pattern or "", 0)

    def _over(self, link: Link, depth: int) -> str | None:
        """The key of the cap that a link is over."""
        of_kind = OF_KIND[link.kind]
        for key, value in (("max_depth", depth), (of_kind, self._count(link) + 1)):
            if (cap := self._cap(key)) and value > cap:
                return key
        most = self._cap("max_path_repeats")
        return "max_path_repeats" if most and repeats(link.url, most) else None

    def _cap(self, key: str) -> int | None:
        cap: int | None = getattr(self.wrapper, key)
        return cap

    def _leave_out(self, key: str, link: Link) -> None:
        """Count a link, and say so once a pass, cap and pattern."""
        self.left_out += 1
        digest = link.pattern or ""
        if (key, digest) in self._said:
            return
        self._said.add((key, digest))
        pattern = self.wrapper.patterns.get(digest, digest)
        why = WHY[key].format(cap=self._cap(key), pattern=pattern)
        logger.warning(
            "%s: %s %s and is left out, like others after it (if they are wanted: %s in the "
            "wrapper, or FRESHET_%s)",
            self.wrapper.name, link.url, why, key, key.upper(),
        )  # fmt: skip


def repeats(url: str, most: int) -> bool:
    """Whether a part of a URL's path stands in it more than `most` times."""
    if url.count("/") <= most:
        return False
    parts = Counter(urlsplit(url).path.removesuffix("/").split("/")[1:])
    return max(parts.values(), default=0) > most


def cards_of(response: TextResponse, items: Mapping[str, str]) -> dict[str, str]:
    """Digest of each item's card by the item's URL; none for an item that has the page to itself.

    items: the item's URL by the absolute URL of an anchor, without fragment
    """
    owners: dict[etree._Element, str] = {}
    first: dict[str, etree._Element] = {}
    base, root = get_base_url(response), response.selector.root
    for anchor in root.iter("a") if isinstance(root, etree._Element) else ():
        try:
            url = urldefrag(urljoin(base, str(anchor.get("href", "")).strip()))[0]
        except ValueError:
            continue
        if (item := items.get(url)) is None:
            continue
        first.setdefault(item, anchor)
        # Say of the anchor and all around it whose they are.
        node: etree._Element | None = anchor
        while node is not None and owners.get(node) not in (item, SHARED):
            owners[node] = SHARED if node in owners else item
            node = node.getparent()
    digests: dict[str, str] = {}
    for item, card in first.items():
        above = card.getparent()
        while above is not None and owners[above] == item:
            card, above = above, above.getparent()  # noqa: PLW2901
        if above is not None:
            text = text_below(card).encode("utf-8", "replace")
            digests[item] = hashlib.blake2b(text, digest_size=DIGEST_BYTES).hexdigest()
    return digests


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
    try:
        anchors = _anchors.extract_links(response)
    except ValueError:  # a base that is no URL is no base
        response = response.replace(body=BASE_TAG.sub(b"", response.body))
        anchors = _anchors.extract_links(response)
    for anchor in anchors:
        link = links.take(anchor.url, category)
        if link and link.kind is Kind.ITEM:
            items[urldefrag(anchor.url)[0]] = link.url
    cards = cards_of(response, items)
    return tuple(replace(link, card=cards.get(link.url)) for link in links.wanted)


def sitemap_links(
    sitemap: Sitemap, base: str, wrapper: Wrapper, longest: int, counts: LinkCounts
) -> tuple[Link, ...]:
    """Entries of a sitemap that the wrapper wants; the sitemaps of an index are list pages.

    All of its entries are counted. longest: characters of a URL
    """
    links = _Links(wrapper, longest, counts)
    for entry in sitemap:
        try:
            url = urljoin(base, entry.get("loc", ""))
        except ValueError:
            url = ""
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
    nodes = selected(response, rule.css, rule.xpath)
    return (node_text(nodes[0])[:LONGEST_CATEGORY].rstrip() or None) if nodes else None


class _Links:
    """The links of one page: the wanted ones are collected, all are counted, each once."""

    def __init__(self, wrapper: Wrapper, longest: int, counts: LinkCounts) -> None:
        self._wrapper, self._longest = wrapper, longest
        self._counts = counts
        # None: not wanted, and counted already.
        self._links: dict[str, Link | None] = {}
        counts.add(LinkCount.PAGES)

    @property
    def wanted(self) -> Iterator[Link]:
        """The wanted links, in the order of the page."""
        return filter(None, self._links.values())

    def take(self, url: str, category: str | None, lastmod: datetime | None = None) -> Link | None:
        """The link to an absolute URL if it is wanted. category: of the page that shows it."""
        if (target := self._canonical(url)) is None:
            return None
        if target not in self._links:
            match = self._counted(target)
            link = None
            if match.kind is not None:
                own = match.category or category if match.kind is Kind.ITEM else None
                link = Link(target, match.kind, own, lastmod, pattern=match.pattern)
            self._links[target] = link
        return self._links[target]

    def take_part_of_index(self, url: str) -> None:
        """A sitemap that a sitemap index names."""
        target = self._canonical(url)
        if target is not None and self._wrapper.is_own(target):
            self._links.setdefault(target, Link(target, Kind.LIST, pattern=SITEMAPS))

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
