"""What a spider yields for a target."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from crawler.items.feeds import FeedDocument, KnownFeed, Post
from crawler.items.outcomes import Kind, Outcome
from crawler.items.targets import NO_VALIDATORS, Noise, Target, Validators
from crawler.utils.urls import shapes

if TYPE_CHECKING:
    from crawler.archive.writer import Archiving


# Key in request.meta of the last response, an Archiving; absent if the site has no archive.
ARCHIVED = "archived"
# Key in request.meta of a second request, which confirms a change. Its response is not archived.
CONFIRMS = "confirms"


class LinkCount(StrEnum):
    """Names of the link counts of a run.

    PAGES:      pages whose links were extracted
    ALL:        links to pages of the site, counted once per page
    LISTS:      of these, links that match list_pages; links to start URLs are not counted
    ITEMS:      of these, links that match item_pages; links to start URLs are not counted
    AMBIGUOUS:  of these, links that match both and are skipped
    UNMATCHED:  of these, links that match neither
    FOREIGN:    links to other hosts
    UNFOLLOWED: links that match a pattern, on a start URL that is an item
    VARIANTS:   items whose page states another form of their URL as canonical; the example has both
    """

    PAGES = "pages with links"
    ALL = "links"
    LISTS = "list links"
    ITEMS = "item links"
    AMBIGUOUS = "ambiguous links"
    UNMATCHED = "unmatched links"
    FOREIGN = "foreign links"
    UNFOLLOWED = "unfollowed links"
    VARIANTS = "variant urls"


@dataclass(frozen=True, slots=True)
class Link:
    """Link on a page that matches the site definition.

    digest:  listing digest: hash of the text around a link to an item
    pattern: digest of the site definition's pattern that the URL matches
    """

    url: str
    kind: Kind
    category: str | None = None
    lastmod: datetime | None = None
    digest: str | None = None
    pattern: str | None = field(default=None, compare=False)


@dataclass(slots=True)
class LinkCounts:
    """Counts of how the links of one or several pages matched a site definition's patterns.

    kept:      maximum number of unmatched links to keep
    counts:    number of links by LinkCount
    unmatched: links of this site that match no pattern, at most `kept`; the values are unused
    examples:  first link (or page) of some counts, by LinkCount; of PAGES, a page that asks for a
               password and has no wanted link; of ALL, a redirect to a page without wanted links
    """

    kept: int = 20
    counts: Counter[str] = field(default_factory=Counter)
    unmatched: dict[str, None] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, name: LinkCount, example: str = "") -> None:
        """Count one link, and keep the first one as the example of its count."""
        self.counts[name] += 1
        if example:
            self.examples.setdefault(name, example)

    def keep(self, url: str) -> None:
        """Count an unmatched link, and keep it if fewer than `kept` are kept."""
        self.counts[LinkCount.UNMATCHED] += 1
        self._keep(url)

    def _keep(self, url: str) -> None:
        if len(self.unmatched) < self.kept:
            self.unmatched[url] = None

    def few(self, max_links: int) -> LinkCounts:
        """Return at most `max_links` unmatched links of different URL shapes, and the examples."""
        urls = [shape.example for shape in shapes(self.unmatched)[:max_links]]
        return LinkCounts(max_links, unmatched=dict.fromkeys(urls), examples=self.examples)

    def merge(self, other: LinkCounts) -> None:
        """Add the counts, links and examples of other pages."""
        self.counts.update(other.counts)
        for url in other.unmatched:
            self._keep(url)
        self.examples = other.examples | self.examples


@dataclass(slots=True)
class Fetched:
    """Result of fetching a target, before it is compared with the stored state.

    outcome:        set by the spider if the response determines it (not_modified, gone, error,
                    blocked); None if the content has to be compared
    content:        fields of the site definition, or title and main text; None for list pages
    links:          matching links on a list page, or on an item page that is followed
    document:       parsed document of a feed
    posts:          normalized entries of `document`
    moved_to:       final URL if all redirects were permanent
    is_direct:      the request went to the `moved_to` of the target, not to its own URL
    canonical_url:  URL of another item that the page states as its canonical one
    fresh_hours: how long the response stays fresh according to its Cache-Control header
    push:           `_id` of the WebSub delivery with this document, which may lack old posts
    pushed_at:      time of that delivery
    follow:         fetch the pages of new posts, too
    compared:       fields in which duplicates are compared; empty: none; None: the usual ones
    markup:         fields that contain HTML: their text is compared and searched
    shared_fetch:   a cell: the page was fetched for another cell
    link_counts:    counts of the page's links, if links were extracted
    empty_fields:   fields that the page lacks; None if no fields were extracted
    unordered:      values whose lines or entries are compared in any order
    stand_in:       outcome and reason if another page, such as a login page, was probably sent
                    instead; applies only if the content differs from the stored one
    doubtful:       the page may be a login page or similar, and is read as the requested one
    archived:       the response, which is being archived; None if it is not archived
    noise:          random text of an item whose content differs, after a second request or a wait
                    for one; None: as before
    known:          what is stored of a feed, to compare its document with
    """

    target: Target
    at: datetime
    selector_digest: str
    status: int | None = None
    elapsed_ms: int = 0
    outcome: Outcome | None = None
    reason: str | None = None
    size: int = 0
    raw_hash: str | None = None
    validators: Validators = NO_VALIDATORS
    final_url: str | None = None
    content: dict[str, Any] | None = None
    links: tuple[Link, ...] | None = None
    document: FeedDocument | None = None
    posts: tuple[Post, ...] = ()
    moved_to: str | None = None
    is_direct: bool = False
    canonical_url: str | None = None
    fresh_hours: float | None = None
    push: str | None = None
    pushed_at: datetime | None = None
    follow: bool = False
    compared: tuple[str, ...] | None = None
    markup: tuple[str, ...] = ()
    unordered: tuple[str, ...] = ()
    shared_fetch: bool = False
    content_hash: str | None = None
    link_counts: LinkCounts | None = None
    empty_fields: tuple[str, ...] | None = None
    stand_in: tuple[Outcome, str] | None = None
    doubtful: bool = False
    archived: Archiving | None = None
    noise: Noise | None = None
    known: KnownFeed | None = None

    @property
    def differs(self) -> bool:
        """Return whether the content differs from that of the last visit that had one."""
        before = self.target.content_hash
        return None not in (before, self.content_hash) and before != self.content_hash

    @property
    def random_text(self) -> Noise:
        """Return what is known of the random text of this page, with its present definition."""
        noise = self.noise or self.target.noise
        is_known = noise is not None and noise.scheme == self.selector_digest
        return noise if noise is not None and is_known else Noise(self.selector_digest)


@dataclass(slots=True)
class Skipped:
    """Target that was handed out but not fetched (cap of the host, Retry-After); not a visit.

    ended:     the process stopped before the fetch
    elsewhere: the cause is another host, to which the target redirects
    """

    target: Target
    reason: str
    ended: bool = False
    elsewhere: bool = False
