"""One site: its targets and visits, its weekly pattern, and the actions of editors."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from pydantic import BaseModel, BeforeValidator, Field
from starlette.responses import Response

from crawler.errors import ConfigError
from crawler.items import Kind
from crawler.reports import sites as reports
from crawler.reports.site_history import SiteVisit, VisitFilter, site_visits
from crawler.reports.sites import SiteMarks
from crawler.storage import readers, sites
from crawler.storage.site_queries import Sorting, TargetFilter, TargetStatus, page_of_targets
from crawler.storage.sites import Site
from crawler.storage.store import Store
from crawler.storage.target_queries import TargetState
from crawler.web import charts, site_views
from crawler.web.auth import UserDep
from crawler.web.dependencies import NowDep, Pagination, PaginationDep, StoreDep, cursor_of
from crawler.web.pages import Form, not_found, page, redirect_to
from crawler.web.site_views import SiteDetails

router = APIRouter()
api = APIRouter(prefix="/sites", tags=["sites"])
EVERYTHING, FIRST = TargetFilter(), Pagination()


async def _site(name: str, store: StoreDep) -> Site:
    try:
        return await reports.known_site(store.db, name)
    except ConfigError:
        raise not_found("Site") from None


SiteDep = Annotated[Site, Depends(_site)]


# Forms send the empty choice of a list as an empty value.
NO_CHOICE = BeforeValidator(lambda value: value or None)


def _target_filter(
    kind: Annotated[Kind | None, NO_CHOICE, Query(description="kind of target")] = None,
    category: Annotated[str, Query(max_length=1000, description="category")] = "",
    state: Annotated[
        TargetStatus | None, NO_CHOICE, Query(description="state of the target")
    ] = None,
    text: Annotated[str, Query(alias="q", max_length=200, description="part of the URL")] = "",
    sort: Annotated[
        Sorting, Query(description="`url`, or by the next visit: `soonest`, `latest`")
    ] = Sorting.URL,
) -> TargetFilter:
    return TargetFilter(kind, category or None, state, text or None, sort)


def _visit_filter(
    weekday: Annotated[int | None, Query(ge=0, le=6, description="day, 0: Monday")] = None,
    hour: Annotated[int | None, Query(ge=0, le=23, description="hour of the local day")] = None,
    changes: Annotated[bool, Query(description="only new, changed, gone and back")] = False,
) -> VisitFilter:
    if (weekday is None) != (hour is None):
        raise HTTPException(422, "weekday and hour: give both, or neither")
    return VisitFilter(weekday, hour, changes)


FilterDep = Annotated[TargetFilter, Depends(_target_filter)]
VisitFilterDep = Annotated[VisitFilter, Depends(_visit_filter)]


class Targets(BaseModel):
    """A part of the targets of a site."""

    targets: list[TargetState]
    is_partial: bool = Field(
        description="true if the search stopped at its limit: `next` goes on, even if the page has "
        "few targets or none"
    )
    next: str | None = Field(description="cursor of the next page; null at the end")


class Visits(BaseModel):
    """A part of the visits of a site in the last eight weeks, newest first."""

    visits: list[SiteVisit]
    next: str | None = Field(description="cursor of the next page; null at the end")


class Tags(BaseModel):
    """Tags of a site."""

    tags: list[str] = Field(max_length=reports.MAX_TAGS, description="tags, at most 20")


class Started(BaseModel):
    """A crawl that was started."""

    site: str = Field(description="name of the site")
    started: datetime = Field(description="time of the start")


@router.get("/sites/{name:path}/visits", name="sites.visits")
async def visits_page(
    request: Request, site: SiteDep, wanted: VisitFilterDep, store: StoreDep, now: NowDep,
    pagination: PaginationDep,
) -> Response:  # fmt: skip
    """Show the visits of a site, newest first."""
    part = await visits(site, wanted, store, now, pagination)
    return page(
        request, "sites/visits.html", fragment="visits",
        site=site, visits=part.visits, wanted=wanted, pagination=pagination, next=part.next,
    )  # fmt: skip


@router.get("/sites/{name:path}", name="sites.index")
async def index(
    request: Request, site: SiteDep, wanted: FilterDep, store: StoreDep, now: NowDep,
    pagination: PaginationDep,
) -> Response:  # fmt: skip
    """Show a site and its targets."""
    return await _site_page(request, site, store, now, wanted=wanted, pagination=pagination)


async def _site_page(
    request: Request, site: Site, store: Store, now: datetime, *,
    wanted: TargetFilter = EVERYTHING, pagination: Pagination = FIRST, form: Form | None = None,
) -> Response:  # fmt: skip
    """Show a site. form: rejected form for the tags; None without one."""
    part = await page_of_targets(
        store.db, site.name, wanted, now, pagination.limit, pagination.after
    )
    details = await site_views.details(request.app, store, now, site)
    hidden: tuple[str, ...] = ()
    if wanted.status is TargetStatus.MUTED:
        hidden = (await readers.load(store.db, request.state.user.name)).mutes
    return page(
        request, "sites/index.html", fragment="targets", status=422 if form else 200,
        site=site, details=details, row=details["site"], targets=part, wanted=wanted,
        pagination=pagination, next=cursor_of(part.last), form=form or Form(), charts=charts,
        crawl=request.app.state.crawls.of(site.name), hidden=hidden,
        is_editable=site.name in await sites.editable_names(store.db),
        kinds=list(Kind), statuses=list(TargetStatus), sortings=list(Sorting),
    )  # fmt: skip


@router.post("/sites/{name:path}/run", name="sites.run")
async def run_now(
    request: Request, site: SiteDep, user: UserDep, store: StoreDep, now: NowDep
) -> Response:
    """Start a crawl of the due targets of a site."""
    await site_views.start_run(request.app, store, now, site.name, user.name)
    request.state.audit = site.name
    return await _back(request)


@router.post("/sites/{name:path}/pause", name="sites.pause")
async def pause(request: Request, site: SiteDep, store: StoreDep, now: NowDep) -> Response:
    """Keep the service from starting runs of a site."""
    await sites.pause(store.db, site.name, now)
    return await _back(request)


@router.post("/sites/{name:path}/resume", name="sites.resume")
async def resume(request: Request, site: SiteDep, store: StoreDep) -> Response:
    """Let the service start runs of a site again."""
    await sites.resume(store.db, site.name)
    return await _back(request)


@router.post("/sites/{name:path}/tags", name="sites.tags")
async def set_tags(request: Request, site: SiteDep, store: StoreDep, now: NowDep) -> Response:
    """Replace the tags of a site."""
    form = await Form.read(request)
    with form.rejecting("tags"):
        tags = reports.tags_of(form["tags"])
        await sites.set_tags(store.db, site.name, tags)
        request.state.audit = f"{site.name}: {', '.join(tags)}"
        return await _back(request)
    return await _site_page(request, site, store, now, form=form)


async def _back(request: Request) -> Response:
    """Return to the page with the button: the board or the site."""
    form = await Form.read(request)
    return redirect_to(request, form["back"])


@api.get("/{name:path}/targets", name="sites.api_targets")
async def targets(
    site: SiteDep, wanted: FilterDep, store: StoreDep, now: NowDep, pagination: PaginationDep
) -> Targets:
    """Return targets of a site."""
    part = await page_of_targets(
        store.db, site.name, wanted, now, pagination.limit, pagination.after
    )
    return Targets(targets=part.rows, is_partial=part.is_partial, next=cursor_of(part.last))


@api.get("/{name:path}/visits", name="sites.api_visits")
async def visits(
    site: SiteDep, wanted: VisitFilterDep, store: StoreDep, now: NowDep, pagination: PaginationDep
) -> Visits:
    """Return visits of a site in the last eight weeks, newest first."""
    part = await site_visits(
        store.db, site, wanted, now, pagination.limit, pagination.value(datetime)
    )
    return Visits(visits=part.visits, next=cursor_of(part.last))


@api.get("/{name:path}", name="sites.api")
async def details(request: Request, site: SiteDep, store: StoreDep, now: NowDep) -> SiteDetails:
    """Return the state of a site, its categories, errors, week, and freshness by day."""
    return await site_views.details(request.app, store, now, site)


@api.post("/{name:path}/run", name="sites.api_run", status_code=202)
async def run_by_api(
    request: Request, site: SiteDep, user: UserDep, store: StoreDep, now: NowDep
) -> Started:
    """Start a crawl of the due targets of a site; 409 if one is in progress."""
    crawl = await site_views.start_run(request.app, store, now, site.name, user.name)
    return Started(site=crawl.site, started=crawl.started)


@api.post("/{name:path}/pause", name="sites.api_pause")
async def pause_by_api(site: SiteDep, store: StoreDep, now: NowDep) -> SiteMarks:
    """Keep the service from starting runs of a site."""
    await sites.pause(store.db, site.name, now)
    return await reports.marks_of(store.db, site.name)


@api.post("/{name:path}/resume", name="sites.api_resume")
async def resume_by_api(site: SiteDep, store: StoreDep) -> SiteMarks:
    """Let the service start runs of a site again."""
    await sites.resume(store.db, site.name)
    return await reports.marks_of(store.db, site.name)


@api.put("/{name:path}/tags", name="sites.api_tags")
async def set_tags_by_api(site: SiteDep, sent: Tags, store: StoreDep) -> SiteMarks:
    """Replace the tags of a site."""
    await sites.set_tags(store.db, site.name, reports.checked_tags(sent.tags))
    return await reports.marks_of(store.db, site.name)
