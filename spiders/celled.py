"""The cells of a wrapper: asked for, several of one page at once, and read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.http import Response, TextResponse
from scrapy.utils.response import get_base_url

from crawler.extract.cells import Cell, with_whole_links
from crawler.extract.list_wrappers import address, slot
from crawler.extract.response import HANDLED, decoded, page_problem, status_outcome
from crawler.extract.wrapper import Wrapper
from crawler.items import Fetched, Outcome, Target
from crawler.storage import cells
from crawler.utils.sandbox import is_heavy
from crawler.utils.text import storable_name

if TYPE_CHECKING:
    from spiders.wrapper import WrapperSpider


class CellReader:
    """Does for cells what the spider does for pages."""

    def __init__(self, spider: WrapperSpider) -> None:
        self.spider = spider

    async def request(self, target: Target) -> Request:
        """The request for a cell, and for the others of its page with it."""
        cell = self._cell(target)
        if cell.database is not None:
            return self._query(target, cell)
        meta: dict[str, Any] = {"target": target, "handle_httpstatus_list": HANDLED}
        meta["along"] = await self._others(target, cell)
        if self.spider.wrapper.robots is False:
            meta["dont_obey_robotstxt"] = True
        return self._request(target, cell, meta)

    async def read(self, response: Response) -> AsyncIterator[Fetched]:
        """What each cell is; a failure is that cell's outcome, no more."""
        target: Target = response.meta["target"]
        yield await self._read(response, target)
        for other in response.meta.get("along", ()):
            fetched = await self._read(response, other)
            fetched.along = True
            yield fetched

    def _cell(self, target: Target) -> Cell:
        return self.spider.wrapper.cells[target.cell or ""]

    def _query(self, target: Target, cell: Cell) -> Request:
        meta: dict[str, Any] = {
            "target": target,
            "download_slot": slot(cell.database or ""),
            "dont_obey_robotstxt": True,
            "autothrottle_dont_adjust_delay": True,
        }
        return self._request(target, cell, meta)

    def _request(self, target: Target, cell: Cell, meta: dict[str, Any]) -> Request:
        return Request(
            address(target.cell or "", cell),
            callback=self.spider.parse_cells,
            errback=self.spider.parse_failure,
            meta=meta,
            dont_filter=True,
        )

    async def _others(self, target: Target, cell: Cell) -> list[Target]:
        """The other cells of the page: they cost nothing, so they need not be due."""
        session, wrapper = self.spider.session, self.spider.wrapper
        names = [n for n, one in wrapper.cells.items() if one.url == cell.url and n != target.cell]
        if not names:
            return []
        found = await session.patience.read(lambda: cells.others(session.db, session.spider, names))
        free = [one for one in found if one.key not in session.in_flight | session.along]
        for one in free:
            session.take_along(one)
        return free

    async def _read(self, response: Response, target: Target) -> Fetched:
        fetched = self.spider.fetched(response, target)
        # Where the page was moved to is no other name of a part of it.
        fetched.final_url = None
        cell = self._cell(target)
        if cell.database is None:
            return await self._read_page(response, fetched, cell)
        try:
            await self._read_result(response, fetched)
        except Exception as error:
            self.spider.logger.exception("Reading %s failed", target.url)
            fetched.outcome = Outcome.ERROR
            fetched.reason = f"{type(error).__name__}: {error}"[:300]
        return fetched

    async def _read_page(self, response: Response, fetched: Fetched, cell: Cell) -> Fetched:
        page = decoded(response) if isinstance(response, TextResponse) else response
        read = partial(self._read_part, page, fetched, cell)
        if is_heavy(page):
            return await self.spider.read_apart(fetched, read)
        return self.spider.read_safely(fetched, read)

    def _read_part(self, page: Response, fetched: Fetched, cell: Cell) -> None:
        if decided := status_outcome(page):
            fetched.outcome, fetched.reason = decided
        elif problem := page_problem(page):
            fetched.outcome, fetched.reason = Outcome.ERROR, problem
        else:
            assert isinstance(page, TextResponse)
            zone = self.spider.wrapper.zone
            content = {name: one.read(page, zone) for name, one in cell.selectors.items()}
            if isinstance(found := content.get("html"), str) and not cell.fields:
                content["html"] = with_whole_links(found, get_base_url(page))
            if all(value in (None, [], "") for value in content.values()):
                fetched.outcome, fetched.reason = Outcome.ERROR, _not_found(cell)
            fetched.content = content
            fetched.size = len(json.dumps(content, default=str).encode())

    async def _read_result(self, response: Response, fetched: Fetched) -> None:
        result: dict[str, Any] = json.loads(response.body)
        columns, target, session = result["columns"], fetched.target, self.spider.session
        rows = [dict(zip(columns, row, strict=True)) for row in result["rows"]]
        fetched.content = {"columns": columns, "rows": rows}
        if target.content_hash is None or target.scheme != fetched.scheme:
            return
        known = await session.patience.read(lambda: cells.columns(session.db, target))
        if known is not None and _stored(known) != _stored(columns):
            fetched.outcome = Outcome.ERROR
            fetched.reason = (
                f"the columns were {', '.join(known)} and are {', '.join(columns)} "
                "(name those that are wanted in sql)"
            )[:300]


def _stored(columns: list[str]) -> list[str]:
    return list(map(storable_name, columns))


def slots_of(wrapper: Wrapper) -> dict[str, dict[str, float]]:
    """Scrapy's DOWNLOAD_SLOTS of a wrapper's databases: so many queries at a time, no delays."""
    return {
        slot(name): {"concurrency": source.connections, "delay": 0, "jitter": 0}
        for name, source in wrapper.databases.items()
    }


def _not_found(cell: Cell) -> str:
    selector = cell.css or cell.xpath or cell.jmespath
    if selector is None:
        return f"none of the fields found: {', '.join(cell.fields)}"
    return f"nothing found by {selector!r}"
