"""Pages that are fetched while somebody adds or edits a site, kept in memory for an hour.

Pages are fetched in a subprocess with the limits of a crawl, and read in subprocesses with limits
of time and memory. `SitePages` shows what an edit of the site definition extracts from them.
"""

from __future__ import annotations

import asyncio
import pickle
import re
import time
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from typing_extensions import TypedDict

from crawler.config import Config
from crawler.errors import Busy, ConfigError
from crawler.extract.proposals import Anchor, LinkPage, Proposals, propose, worth_fetching
from crawler.extract.site_definition import OPTIONAL_VALUES, PAGE_VALUES
from crawler.reports import site_draft, site_setup
from crawler.reports.site_draft import Found
from crawler.reports.site_setup import (
    SAMPLE_PAGES,
    CategoryItems,
    ChosenField,
    DefinitionEdit,
    FieldValues,
)
from crawler.utils.sandbox import LimitExceeded, ProcessPool
from crawler.utils.urls import site_of

Result = TypeVar("Result")
MAX_PAGES = 60
MAX_BYTES = 24_000_000
MAX_SECONDS = 3600
# Maximum number of pages that one request may fetch, and of requests in progress.
MAX_ORDER = 8
MAX_WAITING = 4
# Pages that are fetched for proposals after the first one, in two rounds.
ROUNDS, ROUND_PAGES = 2, 4
READ_SECONDS, READ_MB = 10.0, 512.0
MAX_LINKS = 20_000
# List pages that are read for headings and for buttons that load more.
MAX_TEXTS = 16
# Lists that are fetched for a draft, and URLs of their further pages, which are not.
MAX_LISTS = 8
FURTHER = re.compile(r"[/=](?:page[/=-]?)?\d+(?:/|$|\.html?$)", re.I)


# Fetches pages of a site with the headers and politeness of its definition.
Fetch = Callable[[dict[str, Any], Sequence[str], Config], Awaitable[Sequence[Any]]]


@dataclass(frozen=True, slots=True)
class CachedPage:
    """A fetched page; its HTML and links are compressed."""

    url: str
    final_url: str
    packed: bytes
    at: float

    @property
    def html(self) -> str:
        """Return the HTML of the page."""
        return str(self._unpacked()[0])

    @property
    def anchors(self) -> tuple[Anchor, ...]:
        """Return the links of the page to its own host."""
        return tuple(Anchor(*values) for values in self._unpacked()[1])

    def _unpacked(self) -> Any:
        # Written by this process; nothing else can put data here.
        return pickle.loads(zlib.decompress(self.packed))


class SampleValues(TypedDict):
    """What an edit extracts from the fetched pages."""

    samples: list[str]
    """URLs of the item pages, at most SAMPLE_PAGES."""
    values: list[FieldValues]
    """Values by field on these pages."""
    usual: list[ChosenField]
    """Proposed fields, without the names that are taken."""
    categories: list[CategoryItems]
    """Categories of the items on list pages."""


class SitePages:
    """Fetches pages for the setup of sites, and keeps the latest ones.

    fetch: None if this app cannot fetch pages
    """

    def __init__(self, config: Config, fetch: Fetch | None) -> None:
        self.config = config
        self._fetch = fetch
        self._pages: OrderedDict[str, CachedPage] = OrderedDict()
        self._sitemaps: OrderedDict[tuple[str, int], list[str]] = OrderedDict()
        # An item of a site that cannot be read, and why.
        self._unread: OrderedDict[tuple[str, int], tuple[str, str] | None] = OrderedDict()
        self._values: dict[CachedPage, dict[str, str | None]] = {}
        self._sandbox = ProcessPool.forking(READ_SECONDS, READ_MB)
        self._fetch_slot = asyncio.Semaphore(1)
        self._waiting = 0

    def get(self, url: str) -> CachedPage | None:
        """Return a page that was fetched within the last hour; None otherwise."""
        page = self._pages.get(url)
        if page is None or time.monotonic() - page.at > MAX_SECONDS:
            return None
        return page

    def of_hosts(self, urls: Sequence[str]) -> list[CachedPage]:
        """Return the fetched pages on the hosts of some URLs, in the order of their requests.

        Another port is another host.
        """
        places = {site_of(url) for url in urls}
        return [
            page for url in list(self._pages) if site_of(url) in places and (page := self.get(url))
        ]

    def links(self, urls: Sequence[str]) -> list[str]:
        """Return the URLs of the fetched pages on the hosts of some URLs, and of their links."""
        links: dict[str, None] = {}
        for page in self.of_hosts(urls):
            links[page.url] = None
            links |= dict.fromkeys(anchor.url for anchor in page.anchors)
        return list(links)[:MAX_LINKS]

    def sitemaps(self, urls: Sequence[str]) -> list[str]:
        """Return the sitemaps that robots.txt names on the hosts of some URLs, without these."""
        found = [url for each in urls for url in self._sitemaps.get(site_of(each), ())]
        return [url for url in dict.fromkeys(found) if url not in urls]

    async def fetch(self, definition: dict[str, Any], urls: Sequence[str]) -> dict[str, str | None]:
        """Fetch the pages that are not cached. Return the problem of each URL; None: it has none.

        Raises ConfigError for addresses that are not allowed, and Busy if too many users wait.
        """
        wanted = [url for url in dict.fromkeys(urls) if self.get(url) is None][:MAX_ORDER]
        problems: dict[str, str | None] = dict.fromkeys(urls)
        if not wanted:
            return problems
        if self._fetch is None:
            raise ConfigError("This app cannot fetch pages. Start it with scrapy web")
        for url in (*wanted, *definition["start_urls"]):
            site_setup.refuse_private(url, self.config)
        if self._waiting >= MAX_WAITING:
            raise Busy("Other users are fetching pages. Try again in a minute")
        self._waiting += 1
        try:
            async with self._fetch_slot:
                for fetched in await self._fetch(definition, wanted, self.config):
                    problems[fetched["url"]] = fetched["problem"] or await self._keep(fetched)
        finally:
            self._waiting -= 1
        return problems

    async def explore(self, text: str) -> tuple[str, str | None]:
        """Fetch a page of a new site, a few linked ones, and some of the likeliest lists and items.

        Return the URL of the page and why it cannot be read, if it cannot. If the user typed no
        scheme, that is the first URL that can be read.
        """
        problems: dict[str, str | None] = {}
        for url in site_setup.possible_urls(text):
            definition = site_setup.fetchable(DefinitionEdit(start_urls=[url]), None)
            problems |= await self.fetch(definition, [url])
            if problems[url] is None:
                break
        else:
            # The last one was tried without TLS: its problem is not that TLS is missing.
            return list(problems.items())[-1]
        tried = {url}
        for _ in range(ROUNDS):
            pages = self._link_pages([url])
            candidates = await asyncio.to_thread(worth_fetching, pages, ROUND_PAGES + len(tried))
            chosen = [each for each in candidates if each not in tried][:ROUND_PAGES]
            tried |= {*chosen}
            await self.fetch(definition, chosen)
        edit = site_draft.draft(url, await self.proposals([url]))
        lists = site_setup.matches(edit, None, self.links([url]))["lists"]
        await self.fetch(
            definition, [each for each in lists if not FURTHER.search(each)][:MAX_LISTS]
        )
        edit = site_draft.draft(url, await self.proposals([url]))
        items = site_setup.matches(edit, None, self.links([url]))["items"]
        problems = await self.fetch(definition, items[:SAMPLE_PAGES])
        unread = next(((each, text) for each, text in problems.items() if text), None)
        if None in problems.values():
            unread = None
        self._unread[site_of(url)] = unread
        while len(self._unread) > MAX_PAGES:
            self._unread.popitem(last=False)
        return url, None

    async def draft(self, url: str) -> tuple[DefinitionEdit, Found]:
        """Return a first definition of a site that was explored, and what was found on it."""
        edit = site_draft.draft(url, await self.proposals([url]))
        links = self._link_pages([url])
        matches = site_setup.matches(edit, None, self.links([url]))
        lists = self._texts([url, *matches["lists"]])
        names = {anchor.url: anchor.text for page in links for anchor in page.anchors}
        by_heading = partial(site_draft.heading_category, lists, names)
        edit.category = await self.read(by_heading) or edit.category
        samples = await self.samples(edit, None, matches["items"])
        kind = site_draft.with_fields(edit, samples["usual"])
        first, unread = self._texts([url]), self._unread.get(site_of(url))
        work = partial(site_draft.remarks, first[0] if first else None, lists, links, unread)
        return edit, {
            "kind": kind,
            "pages": len(links),
            "items": matches["n_items"],
            "categories": [each["category"] for each in samples["categories"] if each["category"]],
            "remarks": await self.read(work),
        }

    async def fetch_more(
        self, edit: DefinitionEdit, base: Mapping[str, Any] | None, *, lists: bool
    ) -> dict[str, str | None]:
        """Fetch the sample pages of items; return the problem of each page, None without one.

        base:  definition that is edited; None: a new site
        lists: fetch a few unread list pages instead
        """
        definition = site_setup.fetchable(edit, base)
        problems: dict[str, str | None] = {}
        if not self.links(edit.start_urls):
            problems |= await self.fetch(definition, edit.start_urls[:SAMPLE_PAGES])
        matches = site_setup.matches(edit, base, self.links(edit.start_urls))
        unread = [url for url in matches["lists"] if self.get(url) is None]
        wanted = unread if lists else matches["items"]
        return problems | await self.fetch(definition, wanted[:SAMPLE_PAGES])

    async def samples(
        self, edit: DefinitionEdit, base: Mapping[str, Any] | None, items: Sequence[str],
        chosen: str = "",
    ) -> SampleValues:  # fmt: skip
        """Return the fetched item pages, the values of the fields, and the categories of items.

        items:  URLs of item pages
        chosen: URL of the page to show first; empty: as in `items`
        """
        urls = dict.fromkeys(([chosen] if chosen else []) + list(items))
        cached = [page for url in urls if (page := self.get(url))][:SAMPLE_PAGES]
        texts = [(page.html, page.final_url) for page in cached]
        values: list[FieldValues] = []
        usual: list[ChosenField] = []
        if texts:
            values = await self.read(
                partial(site_setup.values_of, edit.fields, texts, edit.timezone)
            )
            chosen_names = {field.name for field in edit.fields}
            found = await self.read(partial(site_setup.usual_fields, texts))
            usual = [each for each in found if each["name"] not in chosen_names]
            if edit.wants_main_text:
                values += await self._page_values(edit, cached)
        return {
            "samples": [page.url for page in cached],
            "values": values,
            "usual": usual,
            "categories": await self._categories(edit, base),
        }

    async def proposals(self, urls: Sequence[str]) -> Proposals:
        """Return patterns for the site of some URLs, from its fetched pages."""
        return await asyncio.to_thread(propose, self._link_pages(urls))

    async def read(self, work: Callable[[], Result]) -> Result:
        """Run work on page content in a subprocess; raises ConfigError if it exceeds a limit."""
        try:
            result: Result = await self._sandbox.run(work)
        except LimitExceeded as error:
            raise ConfigError(f"This page cannot be shown: it {error}") from None
        return result

    async def values_of_pages(self, pages: Sequence[CachedPage]) -> list[dict[str, str | None]]:
        """Return titles, main texts and so on, cut for display; parse each page only once."""
        kept = set(self._pages.values())
        self._values = {key: text for key, text in self._values.items() if key in kept}
        unread = [page for page in pages if page not in self._values]
        if unread:
            texts = [(page.html, page.final_url) for page in unread]
            extracted = await self.read(partial(site_setup.page_values_of, texts))
            self._values |= dict(zip(unread, extracted, strict=True))
        return [self._values[page] for page in pages]

    async def _page_values(
        self, edit: DefinitionEdit, pages: Sequence[CachedPage]
    ) -> list[FieldValues]:
        """Return the values of pages without fields, except those that a field replaces."""
        replaced = {field.name for field in edit.fields}
        names = [name for name in PAGE_VALUES if name not in replaced]
        try:
            texts = await self.values_of_pages(pages)
        except ConfigError as error:
            return [{"name": name, "values": [], "problem": str(error)} for name in names]
        # Most pages lack some of these values.
        names += [
            name
            for name in OPTIONAL_VALUES
            if name not in replaced and any(name in text for text in texts)
        ]
        return [
            {"name": name, "values": [text.get(name) for text in texts], "problem": None}
            for name in names
        ]

    async def _categories(
        self, edit: DefinitionEdit, base: Mapping[str, Any] | None
    ) -> list[CategoryItems]:
        """Return the categories of the items on the fetched pages of a site."""
        fetched = self.of_hosts(edit.start_urls)

        def work() -> list[CategoryItems]:
            texts = [(page.html, page.url, [a.url for a in page.anchors]) for page in fetched]
            return site_setup.categories(edit, base, texts)

        try:
            return await self.read(work) if fetched else []
        except ConfigError:
            # The pages take too long to read. The rest of the preview is still useful.
            return []

    def _texts(self, urls: Sequence[str]) -> list[tuple[str, str]]:
        """Return HTML and URL of fetched pages, at most MAX_TEXTS."""
        pages = [page for url in dict.fromkeys(urls) if (page := self.get(url))]
        return [(page.html, page.url) for page in pages[:MAX_TEXTS]]

    def _link_pages(self, urls: Sequence[str]) -> list[LinkPage]:
        pages = self.of_hosts(urls)
        first = {url: place for place, url in enumerate(urls)}
        pages.sort(key=lambda page: first.get(page.url, len(first)))
        return [LinkPage(page.url, page.anchors) for page in pages]

    async def _keep(self, fetched: Mapping[str, Any]) -> str | None:
        url, final_url, html = fetched["url"], fetched["final_url"], fetched["text"]
        if named := fetched.get("sitemaps"):
            self._sitemaps[site_of(url)] = named
        while len(self._sitemaps) > MAX_PAGES:
            self._sitemaps.popitem(last=False)
        try:
            anchors = await self.read(lambda: site_setup.links_of(html, final_url))
        except ConfigError as error:
            return str(error)
        content = html, [(a.url, a.text, a.place, a.is_frame) for a in anchors]
        packed = zlib.compress(pickle.dumps(content), 6)
        self._pages.pop(url, None)
        self._pages[url] = CachedPage(url, final_url, packed, time.monotonic())
        while len(self._pages) > MAX_PAGES or self._bytes > MAX_BYTES:
            self._pages.popitem(last=False)
        return None

    @property
    def _bytes(self) -> int:
        return sum(len(page.packed) for page in self._pages.values())
