"""Base class of spiders for sites that are defined by URL patterns and fields."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from scrapy import Request, Spider, signals
from scrapy.crawler import Crawler
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response, TextResponse
from scrapy.settings import BaseSettings
from scrapy.utils.asyncgen import as_async_generator
from twisted.python.failure import Failure

from crawler.config import Config
from crawler.errors import (
    FORBIDDEN,
    BadResponse,
    ConfigError,
    FreshetError,
    OffLimits,
    StorageError,
    first_problem,
)
from crawler.extract.cells import Cell
from crawler.extract.keys import Fields
from crawler.extract.links import (
    category_of,
    listed_links,
    stated_item,
    variant_counts,
    wanted_links,
)
from crawler.extract.list_wrappers import address, slot
from crawler.extract.page_values import page_values, without_elements
from crawler.extract.response import (
    DIRECT,
    HANDLED,
    NOTHING,
    PageParts,
    asks_password,
    decoded,
    failure_text,
    is_heavy,
    is_long,
    judge,
    moved_to,
    out_of_memory,
    page_of,
    page_problem,
    parts_of,
    raw_hash,
    release_page,
    status_outcome,
    validators_of,
    with_valid_base,
)
from crawler.extract.site_definition import Wrapper
from crawler.extract.sitemaps import Listing, listing_of, unread_list
from crawler.extract.stored_definition import Definition
from crawler.fetch.downloader import NotRequested, RunEnded
from crawler.fetch.second_requests import SecondRequests
from crawler.frontier.session import Session
from crawler.items import ARCHIVED, Fetched, Kind, LinkCount, LinkCounts, Outcome, Skipped, Target
from crawler.storage import cells
from crawler.utils.sandbox import (
    LimitExceeded,
    ProcessPool,
    TimeLimitExceeded,
    time_limit,
)
from crawler.utils.text import storable_name
from crawler.utils.urls import bare, host_of, is_plain, item_key

BYTES_IN_MB = 1024 * 1024
# Values of a field that is missing from a page.
# Columns of items in CSV files, before and after those of the fields.
EXPORTED = ("url", "categories", "outcome", "at")
DUPLICATE_COLUMNS = ("duplicate_of", "similarity")
ASKS_PASSWORD = "the page asks for a password instead of showing its fields"
JSON_PAGE = "JSON instead of a page with markup (fields with jmespath read JSON)"
SITEMAP_AS_ITEM = (
    "sitemap matched by item_pages: make list_pages match it, too (list_pages = 'sitemap')"
)
# Source of a definition without a file, for error messages.
ARGUMENTS = "-a"
# Scrapy setting for commands that only inspect pages: no crawl run begins. Not for users.
INSPECTS = "INSPECTS_PAGES"


class Arguments(BaseModel):
    """Arguments of all spiders (`-a`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    full: bool = Field(
        False, description="fetch all targets, due or not, and ignore the caps of the plan"
    )
    limit: int | None = Field(None, ge=1, description="maximum number of targets of the run")


class WrapperSpider(Spider):
    """Base class for a site; `scrapy crawl NAME` keeps the site fresh.

    The class attributes are the keys of a site definition, as in a TOML file (see
    `crawler.extract.site_definition.Wrapper`). Override `read_item` if selectors are not enough.
    """

    arguments_model: ClassVar[type[Arguments]] = Arguments
    wrapper_model: ClassVar[type[Wrapper]] = Wrapper
    # Maximum number of unmatched links per page that are kept as examples.
    kept_links: ClassVar[int] = 20
    # The service crawls an example only if the user has crawled it before.
    is_example: ClassVar[bool] = False
    wrapper: Wrapper
    session: Session
    # None if no run begins.
    second_requests: SecondRequests | None = None
    # Processes that read long pages; None if this process reads them.
    page_readers: ProcessPool | None = None

    def __init__(self, **given: Any) -> None:
        self.arguments = self.read_arguments(given)
        self.wrapper = self.read_wrapper(self.arguments)
        super().__init__(name=self.wrapper.name)
        self.cell_reader = CellReader(self)
        self.start_urls = list(self.wrapper.start_urls)
        self.full = self.arguments.full

    @classmethod
    def update_settings(cls, settings: BaseSettings) -> None:
        """Set CONCURRENT_ITEMS to 1, and the scheduler if workers share runs.

        Scrapy starts CONCURRENT_ITEMS tasks per response, but a response has only one item here.
        """
        settings.set("CONCURRENT_ITEMS", 1, priority="addon")
        if Config.of(settings).redis_url is not None and not settings.getbool(INSPECTS):
            settings.set("SCHEDULER", "crawler.frontier.scheduler.Scheduler", priority="addon")
        super().update_settings(settings)

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        """Create the spider of a crawl, with the settings of its site definition."""
        spider = super().from_crawler(crawler, *args, **kwargs)
        spider.configure(crawler)
        if not crawler.settings.getbool(INSPECTS):
            spider.begin(crawler)
        for name, value in politeness(spider.wrapper).items():
            crawler.settings.set(name, value, priority="spider")
        return spider

    @classmethod
    def handles_request(cls, request: Request) -> bool:
        """Return whether a URL is on this site; Scrapy's commands use this to choose a spider."""
        try:
            wrapper = cls.read_wrapper(cls.read_arguments({}))
        except FreshetError:
            return False
        return bool(wrapper.starts) and wrapper.is_own(request.url)

    def configure(self, crawler: Crawler) -> None:
        """Initialize configuration and clock from the crawl's settings."""
        self.config = Config.of(crawler.settings)
        self.clock = self.config.clock
        self.wrapper = self.wrapper.completed(self.config)
        self.sandbox = ProcessPool.forking(self.config.read_seconds, self.config.read_mb)

    def begin(self, crawler: Crawler) -> None:
        """Open a run."""
        self.session = Session(crawler, self.wrapper, self.config, self.clock)
        self.second_requests = SecondRequests(self.session.run, self.request)
        processes = min(self.config.read_processes, os.cpu_count() or 1)
        # A method of a subclass may need more than the page.
        is_ours = type(self).read_item is WrapperSpider.read_item
        if self.wrapper.wants_main_text and is_ours and processes > 1:
            limits = self.config.read_seconds, self.config.read_mb
            self.page_readers = ProcessPool(self._read_long, processes, *limits)
            crawler.signals.connect(self.page_readers.close, signals.spider_closed)

    @classmethod
    def read_arguments(cls, given: dict[str, Any]) -> Arguments:
        """Parse the `-a` arguments; raises ConfigError with the name of an invalid one."""
        # Scrapyd passes the id of its job as `_job`.
        ours = {name: value for name, value in given.items() if not name.startswith("_")}
        try:
            return cls.arguments_model.model_validate(ours)
        except ValidationError as error:
            names = cls.arguments_model.model_fields
            key, cause = first_problem(error, names)
            if cause == "unknown key":
                cause += f". Available: {', '.join(names)}"
            raise ConfigError(f"-a {key}: {cause}" if key else f"-a {cause}") from None

    @classmethod
    def read_wrapper(cls, arguments: Arguments) -> Wrapper:
        """Return the definition in the class attributes; raises WrapperError."""
        return cls.read_attributes().with_code(own_code(cls))

    @classmethod
    def read_attributes(cls) -> Wrapper:
        """Return the definition in the class attributes, without the code; raises WrapperError."""
        values = {
            key: value
            for key in cls.wrapper_model.model_fields
            if (value := getattr(cls, key, None)) is not None
        }
        return cls.wrapper_model.of(values, inspect.getsourcefile(cls) or cls.__name__)

    @classmethod
    def wrapper_of(cls, values: Mapping[str, Any], source: str) -> Wrapper:
        """Create a definition with these keys; raises WrapperError."""
        return cls.wrapper_model.of(values, source)

    @classmethod
    def defined(cls, values: Mapping[str, Any], file: Path | None) -> Wrapper:
        """Create a definition with these keys that can be stored in the database.

        file: file with the keys; None for arguments
        """
        source = None if file is None else str(file.resolve())
        wrapper = cls.wrapper_of(values, ARGUMENTS if file is None else str(file))
        return wrapper.defined_by(Definition.of(wrapper.name, cls.name, values, source))

    @classmethod
    def own_methods(cls) -> frozenset[str]:
        """Return the names of public methods that a subclass adds to those of `WrapperSpider`."""
        parts = map(vars, _own_classes(cls))
        own = {name for part in parts for name, value in part.items() if callable(value)}
        return frozenset(name for name in own - set(dir(WrapperSpider)) if name[0] != "_")

    async def start(self) -> AsyncIterator[Request]:
        """Yield requests for due targets, as fast as the crawl processes them."""
        try:
            async for target in self.session.frontier.due(self.arguments.limit):
                if isinstance(target, Request):
                    yield target
                elif target.kind is Kind.CELL:
                    yield await self.cell_reader.request(target)
                else:
                    yield self.request(target)
        except Exception as error:  # noqa: BLE001 - Scrapy would log it, and end successfully
            self.session.run.fail(error)

    def request(self, target: Target) -> Request:
        """Create the request for a target; a middleware adds the site's headers and cookies."""
        meta: dict[str, Any] = {"target": target, "handle_httpstatus_list": HANDLED}
        if self.wrapper.robots is False:
            meta["dont_obey_robotstxt"] = True
        url = target.url
        if target.moved_to is not None and not self.full:
            url = target.url_at(self.clock.now(), self.config.gone_confirmations)
            meta[DIRECT] = url != target.url
        meta["verbatim_url"] = is_plain(url)  # saves 3 % of the time of a page
        request = Request(
            url, self.parse_target, meta=meta, dont_filter=True, errback=self.parse_failure
        )
        # A redirect copies this, and its URL may need escapes.
        del request.meta["verbatim_url"]
        return request

    async def parse(self, response: Response, **kwargs: Any) -> AsyncIterator[Any]:
        """Yield items and requests for `scrapy parse` and the Scrapy shell; store nothing.

        An item page yields a dict of its fields, a list page a request for each link to follow.
        """
        url = self.wrapper.canonical(response.url)
        match = self.wrapper.match(url)
        if match.kind is None:
            matches = "both list_pages and item_pages" if match.both else "no pattern"
            self.logger.error("%s matches %s of %s", url, matches, self.name)
            return
        response.meta["target"] = Target(self.name, url, match.kind)
        async for fetched in as_async_generator(self.parse_target(response)):
            if fetched.outcome is not None:
                problem = fetched.reason or fetched.status
                self.logger.error("%s: %s: %s", url, fetched.outcome, problem)
            elif fetched.content is not None:
                yield {"url": url, **fetched.content}
            for link in fetched.links or ():
                request = self.request(Target(self.name, link.url, link.kind))
                yield request.replace(callback=self.parse, errback=None)

    async def parse_target(self, response: Response) -> AsyncIterator[Fetched]:
        """Convert a response to a Fetched; a page that changes often may be requested again."""
        fetched = await self._read_response(response)
        if self.second_requests is not None:
            await self.second_requests.confirm(fetched, self._read_response)
        yield fetched

    async def _read_response(self, response: Response) -> Fetched:
        """Convert a response to a Fetched, in a subprocess if that may take long."""
        fetched = self.fetched(response, response.meta["target"])
        if response.status == 304 and (decided := status_outcome(response)):
            fetched.outcome, fetched.reason = decided
            return fetched
        if isinstance(response, TextResponse):
            response = decoded(response)
        try:
            if is_heavy(response):
                return await self.read_in_subprocess(fetched, lambda: self._read(response, fetched))
            if self.page_readers is not None and is_long(response):
                return await self._read_in_pool(self.page_readers, response, fetched)
            return self.read_safely(fetched, lambda: self._read(response, fetched))
        finally:
            release_page(response)

    async def _read_in_pool(
        self, readers: ProcessPool, response: TextResponse, fetched: Fetched
    ) -> Fetched:
        """Read a page in a process of the pool, while this process works on other pages."""
        parts = parts_of(response)
        release_page(response)
        try:
            fetched = await readers.run((parts, fetched))
        except LimitExceeded as problem:
            fetched.outcome, fetched.reason = Outcome.ERROR, str(problem)
        return fetched

    def _read_long(self, argument: tuple[PageParts, Fetched]) -> Fetched:
        parts, fetched = argument
        page = page_of(parts)
        try:
            return self.read_safely(fetched, lambda: self._read(page, fetched))
        finally:
            release_page(page)

    async def read_in_subprocess(self, fetched: Fetched, read: Callable[[], None]) -> Fetched:
        """Run `read_safely` in a subprocess; return its copy of the Fetched."""
        try:
            fetched = await self.sandbox.run(lambda: self.read_safely(fetched, read))
        except LimitExceeded as problem:
            fetched.outcome, fetched.reason = Outcome.ERROR, str(problem)
        return fetched

    def read_safely(self, fetched: Fetched, read: Callable[[], None]) -> Fetched:
        """Fill a Fetched with `read`; an exception or timeout becomes its outcome."""
        try:
            with time_limit(self.config.read_seconds):
                read()
            return fetched
        except (TimeLimitExceeded, BadResponse) as problem:
            fetched.reason = str(problem)
        except Exception as error:
            if out_of_memory(error):
                fetched.reason = f"takes more than {self.config.read_mb:g} MB of memory"
            else:
                self.logger.exception("Reading %s failed", fetched.target.url)
                fetched.reason = f"{type(error).__name__}: {error}"[:300]
        fetched.outcome, fetched.content, fetched.links = Outcome.ERROR, None, None
        fetched.link_counts = fetched.empty_fields = None
        return fetched

    async def parse_cells(self, response: Response) -> AsyncIterator[Fetched]:
        """Convert a response to a Fetched for each cell of the page."""
        async for fetched in self.cell_reader.read(response):
            yield fetched

    def parse_failure(self, failure: Failure) -> Iterator[Fetched | Skipped]:
        """Convert a failed download to a Fetched, or to Skipped if no request was sent."""
        request: Request = failure.request  # type: ignore[attr-defined]
        yield self._failed(request.meta["target"], failure)
        for other in request.meta.get("shared_fetch", ()):
            yield self._failed(other, failure, shared_fetch=True)

    def _failed(
        self, target: Target, failure: Failure, *, shared_fetch: bool = False
    ) -> Fetched | Skipped:
        if isinstance(failure.value, NotRequested):
            request: Request = failure.request  # type: ignore[attr-defined]
            has_left = host_of(target.url) != host_of(request.url)
            ended = isinstance(failure.value, RunEnded)
            return Skipped(target, str(failure.value), ended, has_left)
        if isinstance(failure.value, StorageError):
            # The page is not the cause: it stays due.
            self.session.run.fail(failure.value)
            return Skipped(target, str(failure.value), ended=True)
        scheme = self.wrapper.selector_digest_of(target)
        fetched = Fetched(target, self.clock.now(), scheme, shared_fetch=shared_fetch)
        error = failure.value
        refused = isinstance(error, OffLimits) or (
            isinstance(error, IgnoreRequest) and str(error) == FORBIDDEN
        )
        fetched.outcome = Outcome.BLOCKED if refused else Outcome.ERROR
        fetched.reason = failure_text(failure)
        return fetched

    @property
    def csv_columns(self) -> tuple[str, ...]:
        """Return the columns of exported items in CSV; empty: those of the first item."""
        if type(self).read_item is not WrapperSpider.read_item or not self.wrapper.item_pages:
            return ()
        return (*EXPORTED, *self.wrapper.columns, *DUPLICATE_COLUMNS)

    def read_item(self, response: TextResponse) -> dict[str, Any]:
        """Extract the fields of an item page, and its main text if the definition asks for it."""
        content = self.read_fields(response, self.wrapper.fields)
        if not self.wrapper.wants_main_text:
            return content
        return page_values(without_elements(response, self.wrapper.ignore)) | content

    def read_fields(self, page: TextResponse, fields: Fields) -> dict[str, Any]:
        """Return the values of fields on a page by name."""
        zone, day_first = self.wrapper.zone, self.wrapper.day_first
        return {name: each.read(page, zone, day_first=day_first) for name, each in fields.items()}

    def fetched(self, response: Response, target: Target) -> Fetched:
        """Create a Fetched with the metadata of a response, before its content is extracted."""
        is_moved = response.url != target.url
        final = self.wrapper.canonical(response.url) if is_moved else target.url
        final_url, now = final if final != target.url else None, self.clock.now()
        return Fetched(
            target,
            now,
            self.wrapper.selector_digest_of(target),
            response.status,
            round(response.meta.get("download_latency", 0) * 1000),
            size=len(response.body),
            raw_hash=raw_hash(response.body),
            validators=validators_of(response, now),
            final_url=final_url,
            moved_to=moved_to(response, final_url),
            is_direct=response.meta.get(DIRECT, False),
            compared=self.wrapper.compared,
            markup=self.wrapper.markup,
            unordered=self.wrapper.unordered,
            archived=response.meta.get(ARCHIVED),
        )

    def _read(self, response: Response, fetched: Fetched) -> None:
        if decided := status_outcome(response):
            fetched.outcome, fetched.reason = decided
            return
        if problem := self._redirect_outcome(fetched):
            fetched.outcome, fetched.reason = problem
        elif fetched.target.kind is Kind.LIST:
            self._read_list(response, fetched)
        else:
            self._read_item(response, fetched)

    def _redirect_outcome(self, fetched: Fetched) -> tuple[Outcome, str] | None:
        """Return an outcome if the page redirects to another site, or an item to a list or home."""
        final = fetched.final_url
        if final is None:
            return None
        reason = f"redirects to {final}"
        if not self.wrapper.is_own(final):
            return Outcome.ERROR, reason
        if fetched.target.kind is not Kind.ITEM:
            return None
        match = self.wrapper.match(final)
        is_home = item_key(final) is None and item_key(fetched.target.url) is not None
        if match.kind is Kind.LIST or (is_home and match.kind is None):
            return Outcome.GONE, reason
        return None

    def _read_list(self, response: Response, fetched: Fetched) -> None:
        longest, counts = self.config.url_characters, LinkCounts(self.kept_links)
        if (listing := self._listing(response)) is not None:
            fetched.links = listed_links(listing, response.url, self.wrapper, longest, counts)
        elif page := self._page(response, fetched):
            category = category_of(page, self.wrapper, fetched.target.url)
            fetched.links = wanted_links(page, self.wrapper, category, longest, counts)
            if not any(link.kind is Kind.ITEM for link in fetched.links):
                judge(page, fetched)
            if not fetched.links and (problem := unread_list(page)):
                fetched.outcome, fetched.reason = Outcome.ERROR, problem
        else:
            return
        final, asked = fetched.final_url, fetched.target.url
        if final and not fetched.links and bare(final) != bare(asked):
            counts.examples[LinkCount.ALL] = f"{asked} redirects to {final}"
        fetched.link_counts = counts

    def _read_item(self, response: Response, fetched: Fetched) -> None:
        is_start = fetched.target.url in self.wrapper.start_matches
        if is_start and (listing := self._listing(response)) and listing.is_sitemap:
            fetched.outcome, fetched.reason = Outcome.ERROR, SITEMAP_AS_ITEM
            return
        if (page := self._page(response, fetched)) is None:
            return
        fetched.content = content = self.read_item(page)
        # Only fields in `content`: `read_item` of a subclass may return other names.
        missing = {name for name, value in content.items() if value in NOTHING}
        fetched.empty_fields = tuple(name for name in self.wrapper.field_names if name in missing)
        # A page with all of several fields is the right one, whatever its heading says.
        if missing or len(content) < 2 or self.wrapper.wants_main_text:
            judge(page, fetched)
        longest = self.config.url_characters
        stated = fetched.canonical_url = stated_item(page, self.wrapper, longest)
        url = fetched.final_url or fetched.target.url
        fetched.link_counts = counts = variant_counts(url, stated, self.kept_links)
        if len(missing) == len(content):
            names = ", ".join(self.wrapper.fields)
            fetched.reason = f"none of the fields found: {names}" if names else "no text found"
            fetched.outcome = Outcome.ERROR
            if fetched.stand_in is None and asks_password(page):
                fetched.stand_in = Outcome.ERROR, ASKS_PASSWORD
        elif self.wrapper.follow_item_links:
            links = wanted_links(page, self.wrapper, None, longest, counts)
            fetched.links = tuple(link for link in links if link.url != fetched.target.url)
        elif is_start:
            # Matching links on a start URL that is an item suggest that it is really a list page.
            links = wanted_links(page, self.wrapper, None, longest, LinkCounts())
            if unfollowed_links := sum(link.pattern is not None for link in links):
                counts.counts[LinkCount.UNFOLLOWED] = unfollowed_links
                counts.examples[LinkCount.UNFOLLOWED] = fetched.target.url

    def _listing(self, response: Response) -> Listing | None:
        return listing_of(response.body, int(self.config.response_mb * BYTES_IN_MB))

    def _page(self, response: Response, fetched: Fetched) -> TextResponse | None:
        if problem := page_problem(response):
            fetched.outcome, fetched.reason = Outcome.ERROR, problem
            return None
        assert isinstance(response, TextResponse)
        page, fields = with_valid_base(response), self.wrapper.fields.values()
        # Only items are read from JSON: by jmespath, or by the method of a subclass.
        is_own = type(self).read_item is not WrapperSpider.read_item
        reads_json = is_own or any(field.jmespath is not None for field in fields)
        if page.selector.type == "json" and not (reads_json and fetched.target.kind is Kind.ITEM):
            fetched.outcome, fetched.reason = Outcome.ERROR, JSON_PAGE
            return None
        return page


def _own_classes(spider: type[WrapperSpider]) -> tuple[type, ...]:
    return spider.__mro__[: spider.__mro__.index(WrapperSpider)]


def own_code(spider: type[WrapperSpider]) -> str:
    """Return the source of the methods that a subclass adds to `WrapperSpider`.

    Empty if the source is not available, as for a class defined in an interpreter.
    """
    methods = [
        method
        for cls in _own_classes(spider)
        for value in vars(cls).values()
        if inspect.isfunction(method := getattr(value, "__func__", value))
    ]
    try:
        return "".join(map(inspect.getsource, methods))
    except (OSError, TypeError):
        return ""


def politeness(wrapper: Wrapper) -> dict[str, Any]:
    """Return the Scrapy settings for the politeness keys of a site definition."""
    # Databases get as many concurrent queries as connections, without delays.
    slots = {
        slot(name): {"concurrency": source.connections, "delay": 0, "jitter": 0}
        for name, source in wrapper.databases.items()
    }
    chosen = {
        "DOWNLOAD_DELAY": wrapper.delay_seconds,
        "CONCURRENT_REQUESTS_PER_DOMAIN": wrapper.concurrency,
        "AUTOTHROTTLE_ENABLED": wrapper.throttle,
        "DOWNLOAD_VERIFY_CERTIFICATES": wrapper.verify_tls,
        "DOWNLOAD_SLOTS": slots or None,
    }
    return {name: value for name, value in chosen.items() if value is not None}


class CellReader:
    """Creates the requests for cells, and converts their responses."""

    def __init__(self, spider: WrapperSpider) -> None:
        self.spider = spider

    async def request(self, target: Target) -> Request:
        """Create the request for a cell and for the other cells of its page."""
        cell = self._cell(target)
        meta: dict[str, Any] = {"target": target}
        if cell.database is not None:
            meta["download_slot"] = slot(cell.database)
            meta["autothrottle_dont_adjust_delay"] = True
        else:
            meta["handle_httpstatus_list"] = HANDLED
            meta["shared_fetch"] = await self._others(target, cell)
        if cell.database is not None or self.spider.wrapper.robots is False:
            meta["dont_obey_robotstxt"] = True
        return Request(
            address(target.cell or "", cell),
            callback=self.spider.parse_cells,
            errback=self.spider.parse_failure,
            meta=meta,
            dont_filter=True,
        )

    async def read(self, response: Response) -> AsyncIterator[Fetched]:
        """Yield a Fetched for each cell; an exception fails only its own cell."""
        target: Target = response.meta["target"]
        yield await self._read(response, target)
        for other in response.meta.get("shared_fetch", ()):
            fetched = await self._read(response, other)
            fetched.shared_fetch = True
            yield fetched

    def _cell(self, target: Target) -> Cell:
        return self.spider.wrapper.cells[target.cell or ""]

    async def _others(self, target: Target, cell: Cell) -> list[Target]:
        """Return the other cells of the page, even if not due: they need no further request."""
        session, wrapper = self.spider.session, self.spider.wrapper
        names = [n for n, c in wrapper.cells.items() if c.url == cell.url and n != target.cell]
        if not names:
            return []
        run = session.run
        stored = await run.patience.read(lambda: cells.targets_of(run.db, run.spider, names))
        taken = run.in_flight.keys | run.in_flight.shared
        free = [other for other in stored if other.key not in taken]
        session.frontier.take_with(target, free)
        return free

    async def _read(self, response: Response, target: Target) -> Fetched:
        fetched = self.spider.fetched(response, target)
        # A redirect of the page does not make the cell an alias of another target.
        fetched.final_url = fetched.moved_to = None
        cell = self._cell(target)
        if cell.database is None:
            page = decoded(response) if isinstance(response, TextResponse) else response
            read = partial(self._read_part, page, fetched, cell)
            try:
                if is_heavy(page):
                    return await self.spider.read_in_subprocess(fetched, read)
                return self.spider.read_safely(fetched, read)
            finally:
                release_page(page)
        try:
            await self._read_result(response, fetched)
        except Exception as error:
            self.spider.logger.exception("Reading %s failed", target.url)
            fetched.outcome = Outcome.ERROR
            fetched.reason = f"{type(error).__name__}: {error}"[:300]
        return fetched

    def _read_part(self, page: Response, fetched: Fetched, cell: Cell) -> None:
        if decided := status_outcome(page):
            fetched.outcome, fetched.reason = decided
        elif problem := page_problem(page):
            fetched.outcome, fetched.reason = Outcome.ERROR, problem
        else:
            assert isinstance(page, TextResponse)
            page = with_valid_base(page)
            fetched.doubtful = asks_password(page)
            content = self.spider.read_fields(page, cell.selectors)
            if all(value in NOTHING for value in content.values()):
                selector = cell.css or cell.xpath or cell.jmespath
                fetched.outcome, fetched.reason = Outcome.ERROR, f"no match for {selector!r}"
                if selector is None:
                    fetched.reason = f"none of the fields found: {', '.join(cell.fields)}"
            fetched.content = content
            fetched.size = len(json.dumps(content, default=str).encode())

    async def _read_result(self, response: Response, fetched: Fetched) -> None:
        result: dict[str, Any] = json.loads(response.body)
        columns, target, run = result["columns"], fetched.target, self.spider.session.run
        rows = [dict(zip(columns, row, strict=True)) for row in result["rows"]]
        fetched.content = {"columns": columns, "rows": rows}
        if target.content_hash is None or target.selector_digest != fetched.selector_digest:
            return
        stored = await run.patience.read(lambda: cells.columns(run.db, target))
        if stored is not None and [*map(storable_name, stored)] != [*map(storable_name, columns)]:
            fetched.outcome = Outcome.ERROR
            fetched.reason = (
                f"columns changed from {', '.join(stored)} to {', '.join(columns)} "
                "(select columns by name in sql)"
            )[:300]
