"""Extract the links of HTML pages and sitemaps that a site definition selects.

`Traps` applies the caps that keep a crawl out of endless link structures (crawler traps).

Each item link carries a listing digest: a hash of the text in the part of the list page that
describes only this item. While the digest stays the same, the item has probably not changed.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from urllib.parse import urlsplit

from lxml import etree
from scrapy.http import TextResponse
from w3lib.url import safe_url_string

from crawler.extract.fields import node_text, selected
from crawler.extract.keys import CategoryRule
from crawler.extract.plain_text import text_below
from crawler.extract.response import asks_password, with_valid_base
from crawler.extract.site_definition import Match, Wrapper
from crawler.extract.sitemaps import INDEX, Listing
from crawler.items import Kind, Link, LinkCount, LinkCounts
from crawler.utils.link_headers import links_of_headers
from crawler.utils.urls import (
    BLANKS,
    XHTML,
    bare,
    base_url,
    host_of,
    is_http,
    joined,
    without_userinfo,
)

logger = logging.getLogger(__name__)
# Placeholder pattern for the parts of a sitemap index, which match no pattern.
SITEMAPS = "sitemaps"
PATTERN_CAPS = {Kind.LIST: "max_pattern_lists", Kind.ITEM: "max_pattern_items"}
REASONS = {
    "max_depth": "more than {cap:,} pages away from the start URLs",
    "max_redundant_lists": "{cap:,} pages of a list in a row show no new item",
    "max_path_repeats": "a path segment occurs more than {cap:,} times",
    "max_pattern_lists": "already {cap:,} list pages match {pattern!r}",
    "max_pattern_items": "already {cap:,} items match {pattern!r}",
}
# Owner of a part of the page that describes several items.
SHARED = ""
DIGEST_BYTES = 8
LINK_TAGS = ("a", "area", f"{XHTML}a", f"{XHTML}area")
# Relations of `<link>` elements and Link headers to other pages of a list.
HEAD_TAGS = ("link", f"{XHTML}link")
PAGING = frozenset({"next", "prev", "previous"})
# The category of a list page is stored with each of its items.
MAX_CATEGORY_CHARACTERS = 1000
YEAR_OR_MONTH = re.compile(r"\d{4}(?:-\d{2})?")


# Parameters that usually hold a session id, if the value looks like one.
SESSION = re.compile(
    r"[?&;](s|sid|ses|sess|session|sessionid|session_id|sessid|cfid)=([0-9a-z]{16,128})(?=[&;#]|$)",
    re.I,
)
# Number of different links of a page with the same value that prove a session id.
MIN_SESSION_LINKS = 3


class Traps:
    """Applies the caps of a site definition during one run.

    targets:  number of known targets by the digest of their pattern
    left_out: number of links that were left out
    copied_lists: number of new list pages with a query whose items are all on other list pages
    copied_list:  URL of the last of these; empty without one
    """

    def __init__(self, wrapper: Wrapper) -> None:
        self.wrapper = wrapper
        self.targets: dict[str, int] = {}
        self.left_out = 0
        self.copied_lists, self.copied_list = 0, ""
        self._logged: set[tuple[str, str]] = set()

    def within_caps(
        self, links: Iterable[Link], depth: int, redundant_lists: int = 0
    ) -> list[Link]:
        """Return the new links that the caps allow, and count them as targets.

        depth:           number of links from a start URL to them
        redundant_lists: number of redundant list pages in a row before them
        """
        wanted = []
        for link in links:
            if key := self._exceeded_cap(link, depth, redundant_lists):
                self._leave_out(key, link)
            else:
                wanted.append(link)
                if link.pattern:
                    self.targets[link.pattern] = self._count(link) + 1
        return wanted

    def over_caps(self, links: Iterable[Link]) -> set[str]:
        """Return the digests of the patterns that these links would bring over their caps."""
        new = Counter((link.pattern, link.kind) for link in links if link.pattern)
        return {
            pattern
            for (pattern, kind), n in new.items()
            if (cap := self._cap(PATTERN_CAPS[kind])) and self.targets.get(pattern, 0) + n > cap
        }

    def _count(self, link: Link) -> int:
        return self.targets.get(link.pattern or "", 0)

    def _exceeded_cap(self, link: Link, depth: int, redundant_lists: int) -> str | None:
        """Return the key of the first cap that a link exceeds."""
        values = {"max_depth": depth, PATTERN_CAPS[link.kind]: self._count(link) + 1}
        if link.kind is Kind.LIST:
            values["max_redundant_lists"] = redundant_lists
        for key, value in values.items():
            if (cap := self._cap(key)) and value > cap:
                return key
        max_repeats = self._cap("max_path_repeats")
        return "max_path_repeats" if max_repeats and repeats(link.url, max_repeats) else None

    def _cap(self, key: str) -> int | None:
        cap: int | None = getattr(self.wrapper, key)
        return cap

    def _leave_out(self, key: str, link: Link) -> None:
        """Count a link that is left out. Log a warning once per run, cap and pattern."""
        self.left_out += 1
        digest = link.pattern or ""
        if (key, digest) in self._logged:
            return
        self._logged.add((key, digest))
        pattern = self.wrapper.patterns.get(digest, digest)
        reason = REASONS[key].format(cap=self._cap(key), pattern=pattern)
        unwanted = "not_list_pages" if link.kind is Kind.LIST else "not_item_pages"
        logger.warning(
            "%s: %s left out, and others like it: %s (to include them, raise %s in the site "
            "definition, or FRESHET_%s; if they are a crawler trap, exclude such URLs with %s)",
            self.wrapper.name, link.url, reason, key, key.upper(), unwanted,
        )  # fmt: skip


def repeats(url: str, max_repeats: int) -> bool:
    """Return True if a segment of the URL's path occurs more than `max_repeats` times."""
    # Most URLs are too short for that: skip the parsing.
    if url.count("/") <= max_repeats:
        return False
    segments = Counter(urlsplit(url).path.removesuffix("/").split("/")[1:])
    return max(segments.values(), default=0) > max_repeats


def link_elements(page: TextResponse) -> Iterator[tuple[etree._Element, str]]:
    """Yield the elements that link to other pages, with absolute URLs as browsers request them.

    The elements for links in headers are not part of the page.
    """
    root = with_valid_base(page).selector.root
    if not isinstance(root, etree._Element):
        return
    base = base_url(root, page.url)
    # Last, because the text around a link on the page describes the item.
    paging = [each for each in root.iter(*HEAD_TAGS) if is_paging(each.get("rel") or "")]
    for element in (*root.iter(*LINK_TAGS), *paging):
        if (href := element.get("href")) is not None:
            with suppress(ValueError):
                if url := joined(base, href):
                    yield element, safe_url_string(url, encoding=page.encoding)
    headers = (value.decode("latin-1") for value in page.headers.getlist("Link"))
    for url, relations in links_of_headers(headers, page.url):
        if PAGING.intersection(relations):
            yield etree.Element("link"), safe_url_string(url)


def is_paging(relations: str) -> bool:
    """Return whether a `rel` attribute is that of a link to the next or previous page."""
    return not PAGING.isdisjoint(relations.lower().split())


def stated_item(page: TextResponse, wrapper: Wrapper, max_characters: int) -> str | None:
    """Return the URL that an item page states as canonical, if it is that of another item."""
    if b"canonical" not in page.body or page.selector.type == "json":
        return None
    href = page.xpath("//head/link[@rel='canonical'][1]/@href").get("").strip(BLANKS)
    with suppress(ValueError):
        stated = joined(page.url, href)
        if href and is_http(stated) and len(stated) <= max_characters:
            stated = wrapper.canonical(without_userinfo(stated))
            is_other = stated != wrapper.canonical(page.url)
            return stated if is_other and wrapper.match(stated).kind is Kind.ITEM else None
    return None


def variant_counts(url: str, stated: str | None, kept_links: int) -> LinkCounts:
    """Return new link counts, in which an item counts if its page states another form of its URL.

    stated: of `stated_item`

    The forms differ in parameters, upper case, a slash or an index file.
    """
    counts = LinkCounts(kept_links)
    if stated and bare(stated) == bare(url) and host_of(stated) == host_of(url):
        counts.add(LinkCount.VARIANTS, f"{url} {stated}")
    return counts


def digests_of(links: Iterable[tuple[etree._Element, str]]) -> dict[str, str]:
    """Return the listing digest of each item of a page by the item's URL.

    links: elements that link to items, in the order of the page, and the URLs of these items

    An item that is the only one on the page has no digest: its part would be the whole page.
    """
    owners: dict[etree._Element, str] = {}
    first: dict[str, etree._Element] = {}
    for element, item in links:
        first.setdefault(item, element)
        # Mark the element and its ancestors as owned by this item, or as shared if they already
        # belong to another item.
        node: etree._Element | None = element
        while node is not None and owners.get(node) not in (item, SHARED):
            owners[node] = SHARED if node in owners else item
            node = node.getparent()
    digests: dict[str, str] = {}
    for item, excerpt in first.items():
        above = excerpt.getparent()
        while above is not None and owners[above] == item:
            excerpt, above = above, above.getparent()  # noqa: PLW2901
        if above is not None:
            text = text_below(excerpt).encode("utf-8", "replace")
            digests[item] = hashlib.blake2b(text, digest_size=DIGEST_BYTES).hexdigest()
    return digests


def wanted_links(
    response: TextResponse,
    wrapper: Wrapper,
    category: str | None,
    max_characters: int,
    counts: LinkCounts,
) -> tuple[Link, ...]:
    """Return the links of an HTML page that the site definition selects, each once.

    category:       category of the page
    max_characters: maximum length of a URL
    counts:         receives all links of the page, selected or not; and its URL if it asks for a
                    password and has no selected link
    """
    elements = list(link_elements(response))
    # The time and memory for one URL grow with the square of its length.
    sessions = session_parameters(url for _, url in elements if len(url) <= max_characters)
    links = _Links(wrapper, max_characters, counts, sessions)
    items: list[tuple[etree._Element, str]] = []
    for element, url in elements:
        link = links.take(url, category)
        if link and link.kind is Kind.ITEM:
            items.append((element, link.url))
    if not any(links.wanted) and asks_password(response):
        counts.examples[LinkCount.PAGES] = response.url
    digests = digests_of(items)
    return tuple(replace(link, digest=digests.get(link.url)) for link in links.wanted)


def session_parameters(urls: Iterable[str]) -> tuple[str, ...]:
    """Return the parameters of a page's links that contain the id of a session.

    Such a parameter has the same long value of letters and digits in all links of the page. Without
    it, the links still differ, so removing it joins no two pages.
    """
    values: dict[str, set[str]] = {}
    links: dict[str, set[str]] = {}
    for url in urls:
        for match in SESSION.finditer(url) if "=" in url else ():
            name = match[1].lower()
            values.setdefault(name, set()).add(match[2])
            links.setdefault(name, set()).add(url[: match.start()] + url[match.end() :])
    return tuple(
        name
        for name, found in values.items()
        if len(found) == 1
        and len(links[name]) >= MIN_SESSION_LINKS
        and (value := next(iter(found)))
        and not value.isalpha()
        and not value.isdigit()
    )


def listed_links(
    listing: Listing, base: str, wrapper: Wrapper, max_characters: int, counts: LinkCounts
) -> tuple[Link, ...]:
    """Return the URLs of a sitemap or feed that the site definition selects, each once.

    base:           URL of the document
    max_characters: maximum length of a URL
    counts:         receives all entries, selected or not

    The sitemaps that a sitemap index lists are returned as list pages.
    """
    links = _Links(wrapper, max_characters, counts)
    for entry in listing.entries:
        url = joined(base, entry.get("loc", ""))
        if listing.type == INDEX:
            links.take_part_of_index(url)
        else:
            links.take(url, None, _parse_lastmod(entry.get("lastmod")))
    return tuple(links.wanted)


def category_of(response: TextResponse, wrapper: Wrapper, url: str) -> str | None:
    """Return the category of a list page: a constant, or read from its URL or with a selector."""
    rule = wrapper.category
    if not isinstance(rule, CategoryRule) or rule.pattern is not None:
        return wrapper.match(url).category
    nodes = selected(response, rule.css, rule.xpath)
    return (node_text(nodes[0])[:MAX_CATEGORY_CHARACTERS].rstrip() or None) if nodes else None


class _Links:
    """Collects the selected links of one page, and counts each of its links once."""

    def __init__(
        self,
        wrapper: Wrapper,
        max_characters: int,
        counts: LinkCounts,
        sessions: tuple[str, ...] = (),
    ) -> None:
        self._wrapper, self._max_characters = wrapper, max_characters
        self._counts, self._sessions = counts, sessions
        # By canonical URL; None: already counted, but not selected.
        self._links: dict[str, Link | None] = {}
        counts.add(LinkCount.PAGES)

    @property
    def wanted(self) -> Iterator[Link]:
        """Iterate over the selected links in the order of the page."""
        return filter(None, self._links.values())

    def take(self, url: str, category: str | None, lastmod: datetime | None = None) -> Link | None:
        """Add the link to an absolute URL, and return the link if the site definition selects it.

        category: category of the page with the link, for items whose URL contains none
        """
        if (target := self._canonical(url)) is None:
            return None
        if target not in self._links:
            match = self._count(target)
            link = None
            if match.kind is not None:
                category = match.category or category if match.kind is Kind.ITEM else None
                link = Link(target, match.kind, category, lastmod, pattern=match.pattern)
            self._links[target] = link
        return self._links[target]

    def take_part_of_index(self, url: str) -> None:
        """Add a sitemap that a sitemap index lists, unless it is on another site."""
        target = self._canonical(url)
        if target is not None and self._wrapper.is_own(target):
            self._links.setdefault(target, Link(target, Kind.LIST, pattern=SITEMAPS))

    def _canonical(self, url: str) -> str | None:
        """Return the canonical form of a URL; None if the URL is invalid or too long."""
        if not is_http(url) or len(url) > self._max_characters:
            return None
        try:
            return self._wrapper.canonical(without_userinfo(url), self._sessions)
        except ValueError:
            return None

    def _count(self, url: str) -> Match:
        """Match a canonical URL against the site definition, and count the result."""
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


def _parse_lastmod(value: str | None) -> datetime | None:
    try:
        text = (value or "").strip()
        if YEAR_OR_MONTH.fullmatch(text):
            text += "-01-01"[len(text) - 4 :]
        read = datetime.fromisoformat(text) if text else None
        return read and (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
