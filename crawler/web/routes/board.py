"""The board: all sites with their state, one row each."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from crawler.storage.overview import SiteOverview, sites_overview
from crawler.web.dependencies import NowDep, StoreDep
from crawler.web.pages import page

router = APIRouter()
api = APIRouter(prefix="/sites", tags=["sites"])


class SiteState(BaseModel):
    """The state of a site."""

    name: str = Field(description="name of the site")
    targets: int = Field(description="stored targets, including gone ones and aliases")
    due: int = Field(description="targets that are due now")
    errors: int = Field(description="targets whose last visit failed")
    last_run: datetime | None = Field(description="start of the last run; null before the first")
    last_reason: str | None = Field(
        description="how the last run ended; null while it is in progress and before the first"
    )
    next_visit: datetime | None = Field(
        description="earliest planned visit; null if no visit is planned"
    )


class Sites(BaseModel):
    """All sites."""

    sites: list[SiteState]


@router.get("/", name="board.index")
async def index(request: Request, store: StoreDep, now: NowDep) -> Response:
    """Show all sites."""
    sites = await sites_overview(store.db, now)
    return page(request, "board/index.html", fragment="sites", sites=sites)


@api.get("", name="board.api")
async def sites(store: StoreDep, now: NowDep) -> Sites:
    """Return all sites with their state, by name."""
    return Sites(sites=[_state(site) for site in await sites_overview(store.db, now)])


def _state(site: SiteOverview) -> SiteState:
    return SiteState.model_validate(site, from_attributes=True)
