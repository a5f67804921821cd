"""The board: all sites with their state, one row each, and their runs in progress."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response, StreamingResponse

from crawler.reports.notifications import alerts
from crawler.reports.sites import BoardSite, RunningSite, SiteFilter
from crawler.web import charts
from crawler.web.dependencies import NowDep, PlaceDep, StoreDep, cursor_of
from crawler.web.pages import page
from crawler.web.site_views import board, runs_in_progress

router = APIRouter()
api = APIRouter(tags=["sites"])
TextQuery = Annotated[
    str, Query(alias="q", max_length=200, description="part of the name or of a tag")
]
TagQuery = Annotated[str, Query(max_length=100, description="tag that sites must have")]


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
    request: Request, store: StoreDep, now: NowDep, place: PlaceDep,
    text: TextQuery = "", tag: TagQuery = "",
) -> Response:  # fmt: skip
    """Show all sites."""
    wanted = SiteFilter(text or None, tag or None)
    part = await board(request.app, store, now, wanted, place.limit, place.value(str))
    crawls = {site["name"]: request.app.state.crawls.of(site["name"]) for site in part.sites}
    return page(
        request, "board/index.html", fragment="sites",
        board=part, crawls=crawls, next=cursor_of(part.last), place=place, text=text, tag=tag,
        charts=charts, alerts=await alerts(store.db, store.config.notify_file),
    )  # fmt: skip


@api.get("/sites", name="board.api")
async def sites(
    request: Request, store: StoreDep, now: NowDep, place: PlaceDep,
    text: TextQuery = "", tag: TagQuery = "",
) -> Sites:  # fmt: skip
    """Return sites with their state, by name."""
    wanted = SiteFilter(text or None, tag or None)
    part = await board(request.app, store, now, wanted, place.limit, place.value(str))
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
