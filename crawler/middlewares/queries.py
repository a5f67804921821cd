"""Scrapy's download handler for `sql://DATABASE/CELL`: a query goes the way of any request.

So its place in the queue, the number at a time, failures and time taken are a page's.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from scrapy import Request
from scrapy.core.downloader.handlers.base import BaseDownloadHandler
from scrapy.crawler import Crawler
from scrapy.exceptions import NotSupported
from scrapy.http import Response, TextResponse

from crawler.errors import QueryFailed
from crawler.items import Target
from crawler.middlewares.manners import NotAsked
from crawler.session import Session

if TYPE_CHECKING:
    from crawler.cells.queries import Queries

MEGABYTE = 1024 * 1024


class SqlHandler(BaseDownloadHandler):
    """Runs the query of the cell that a request is for."""

    lazy = True

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self._queries: dict[str, Queries] = {}

    async def download_request(self, request: Request) -> Response:
        """The result as a JSON response; raises QueryFailed, and NotAsked after one that hung."""
        session, target = Session.of(self.crawler), request.meta.get("target")
        if not isinstance(target, Target) or target.cell is None:
            raise NotSupported(f"{request.url}: no cell of this spider")
        cell = session.wrapper.cells[target.cell]
        if target.host in session.limits.given_up:
            raise NotAsked(f"{cell.database} does not answer")
        try:
            queries = self._of(session, cell.database or "")
            began = time.monotonic()
            body = await queries.result(cell)
        except QueryFailed as error:
            if error.hangs:
                session.limits.given_up.add(target.host)
            raise
        request.meta["download_latency"] = time.monotonic() - began
        return TextResponse(request.url, body=body, encoding="utf-8", request=request)

    async def close(self) -> None:
        """Let all connections go."""
        from crawler.cells.queries import all_closed

        await all_closed(list(self._queries.values()))

    def _of(self, session: Session, database: str) -> Queries:
        from crawler.cells.queries import Queries

        if database not in self._queries:
            source, most = session.wrapper.databases[database], session.config.response_mb
            self._queries[database] = Queries(database, source, int(most * MEGABYTE))
        return self._queries[database]
