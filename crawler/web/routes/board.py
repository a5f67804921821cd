"""The board: all sites with their state, one row each, and their runs in progress.

Runs are also sent as server-sent events. A stream ends after MAX_SECONDS; then browsers connect
again, with the session that is valid at that time.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.encoders import jsonable_encoder
from pydantic import BaseModel, Field
from starlette.responses import Response, StreamingResponse

from crawler.errors import StorageError
from crawler.reports.notifications import alerts
from crawler.reports.sites import BoardSite, RunningSite, SiteFilter
from crawler.web import charts
from crawler.web.dependencies import NowDep, PaginationDep, StoreDep, cursor_of
from crawler.web.pages import page, redirect_to
from crawler.web.service import ServiceState
from crawler.web.site_views import board, runs_in_progress

router = APIRouter()
api = APIRouter(tags=["sites"])
TextQuery = Annotated[
    str, Query(alias="q", max_length=200, description="part of the name or of a tag")
]
TagQuery = Annotated[str, Query(max_length=100, description="tag that sites must have")]
# Each stream holds one of the server's connections.
MAX_STREAMS = 16
MAX_SECONDS = 300.0
INTERVAL_SECONDS = 1.0
# Interval of comments in an idle stream, so that neither proxies nor the server close it.
KEEP_SECONDS = 15.0
RETRY_MILLISECONDS = 2000
RETRY_LATER = {"Retry-After": "10"}


class Sites(BaseModel):
    """A part of the sites, by name."""

    sites: list[BoardSite]
    tags: list[str] = Field(description="tags of all sites")
    next: str | None = Field(description="cursor of the next page; null at the end")


class Runs(BaseModel):
    """Runs in progress."""

    runs: list[RunningSite]


@router.get("/", name="board.index")
async def index(
    request: Request, store: StoreDep, now: NowDep, pagination: PaginationDep,
    text: TextQuery = "", tag: TagQuery = "",
) -> Response:  # fmt: skip
    """Show all sites."""
    wanted = SiteFilter(text or None, tag or None)
    part = await board(request.app, store, now, wanted, pagination.limit, pagination.value(str))
    crawls = {site["name"]: request.app.state.crawls.of(site["name"]) for site in part.sites}
    return page(
        request, "board/index.html", fragment="sites",
        board=part, crawls=crawls, next=cursor_of(part.last), pagination=pagination,
        text=text, tag=tag, charts=charts, alerts=await alerts(store.db, store.config.notify_file),
        service=await request.app.state.service.state(store.db),
    )  # fmt: skip


@router.post("/service/start", name="board.start")
async def start(request: Request) -> Response:
    """Start the service of the app: it crawls what is due until the app ends."""
    request.app.state.service.start()
    return redirect_to(request, None)


@api.get("/service", name="board.api_service")
async def service(request: Request, store: StoreDep) -> ServiceState:
    """Return whether a service crawls what is due."""
    state: ServiceState = await request.app.state.service.state(store.db)
    return state


@api.post("/service/start", name="board.api_start", status_code=202)
async def start_by_api(request: Request, store: StoreDep) -> ServiceState:
    """Start the service of the app: it crawls what is due until the app ends."""
    request.app.state.service.start()
    return await service(request, store)


@api.get("/sites", name="board.api")
async def sites(
    request: Request, store: StoreDep, now: NowDep, pagination: PaginationDep,
    text: TextQuery = "", tag: TagQuery = "",
) -> Sites:  # fmt: skip
    """Return sites with their state, by name."""
    wanted = SiteFilter(text or None, tag or None)
    part = await board(request.app, store, now, wanted, pagination.limit, pagination.value(str))
    return Sites(sites=part.sites, tags=part.tags, next=cursor_of(part.last))


@api.get("/runs", name="board.runs")
async def runs(request: Request, store: StoreDep) -> Runs:
    """Return the runs in progress."""
    return Runs(runs=await runs_in_progress(request.app, store))


@api.get("/runs/events", name="board.events", response_class=StreamingResponse)
async def events(request: Request) -> Response:
    """Send the runs in progress as server-sent events named `runs`, whenever they change."""
    app = request.app

    async def read() -> Runs:
        async with app.state.database.opened() as store:
            return Runs(runs=await runs_in_progress(app, store))

    response: Response = app.state.streams.response("runs", read)
    return response


class Streams:
    """The streams of an app."""

    def __init__(self) -> None:
        self._count = 0
        self._stop = asyncio.Event()

    def end(self) -> None:
        """End all streams, because the app is about to stop."""
        self._stop.set()

    def response(
        self,
        event: str,
        read: Callable[[], Awaitable[Any]],
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> StreamingResponse:
        """Return a stream that sends a value as JSON whenever it has changed.

        read: returns the value; while it raises StorageError, the previous value stays

        Raises HTTPException (503) if there are too many streams.
        """
        if self._count >= MAX_STREAMS:
            problem = f"{MAX_STREAMS} live views are open. Close one, or reload this page later"
            raise HTTPException(503, problem, RETRY_LATER)
        return StreamingResponse(
            self._events(event, read, interval_seconds),
            media_type="text/event-stream",
            # Otherwise, proxies such as nginx would buffer the events.
            headers={"X-Accel-Buffering": "no"},
        )

    async def _events(
        self, event: str, read: Callable[[], Awaitable[Any]], interval_seconds: float
    ) -> AsyncIterator[str]:
        self._count += 1
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            yield f"retry: {RETRY_MILLISECONDS}\n\n"
            began = sent_at = time.monotonic()
            sent = ""
            while (now := time.monotonic()) - began < MAX_SECONDS and not self._stop.is_set():
                reading = asyncio.ensure_future(read())
                # Even a cancelled read may end with an error, which asyncio would log.
                reading.add_done_callback(lambda task: task.cancelled() or task.exception())
                try:
                    # A read of an unavailable or busy database must not delay the end of the app.
                    await asyncio.wait({reading, stopped}, return_when=asyncio.FIRST_COMPLETED)
                    if not reading.done():
                        break
                    value = jsonable_encoder(reading.result())
                    text = json.dumps(value, separators=(",", ":"))
                except StorageError:
                    text = sent
                finally:
                    reading.cancel()
                if text != sent:
                    sent, sent_at = text, now
                    yield f"event: {event}\ndata: {text}\n\n"
                elif now - sent_at >= KEEP_SECONDS:
                    sent_at = now
                    yield ": no news\n\n"
                await asyncio.wait({stopped}, timeout=interval_seconds)
        finally:
            stopped.cancel()
            self._count -= 1
