"""One site: its targets and visits, its weekly pattern, and the actions of editors."""

from __future__ import annotations

import asyncio
import re
import shutil
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from pydantic import BaseModel, BeforeValidator, Field
from starlette.background import BackgroundTask
from starlette.responses import FileResponse, Response, StreamingResponse

from crawler.errors import ConfigError
from crawler.exchange.item_files import MAX_XLSX_ROWS, csv_of, item_table, write_xlsx
from crawler.items import Kind
from crawler.reports import sites as reports
from crawler.reports.item_comparison import (
    MAX_COMPARED,
    ComparedItem,
    common_fields,
    compared_items,
)
from crawler.reports.items import (
    Item,
    ItemPage,
    ListedTarget,
    columns_of,
    item_page,
    listed_targets,
)
from crawler.reports.site_history import SiteVisit, VisitFilter, site_visits
from crawler.reports.sites import SiteMarks
from crawler.reports.target import Series, recent_series
from crawler.storage import items, readers, sites
from crawler.storage.items import CHANGED, MAX_SORTED, NAME, OF_VALUE, ItemFilter
from crawler.storage.site_queries import Sorting, TargetFilter, TargetStatus, page_of_targets
from crawler.storage.sites import Site
from crawler.storage.store import Store
from crawler.web import charts, site_views
from crawler.web.auth import UserDep
from crawler.web.dependencies import NowDep, Pagination, PaginationDep, StoreDep, cursor_of
from crawler.web.pages import Form, not_found, page, redirect, redirect_to
from crawler.web.site_views import SiteDetails

router = APIRouter()
XLSX_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
# Workbooks that are written at a time; each occupies a thread for up to half a minute.
MAX_SPREADSHEETS = 2
# Numbers that changed in this time have a spark line, whose text says four weeks.
DRAWN = timedelta(weeks=4)
api = APIRouter(prefix="/sites", tags=["sites"])


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


BACKWARD = "-"
ITEM_SORTS = rf"^{BACKWARD}?({NAME}|{CHANGED}|{OF_VALUE}.{{1,200}})$"


def _item_filter(
    category: Annotated[str, Query(max_length=1000, description="category")] = "",
    text: Annotated[str, Query(alias="q", max_length=200, description="part of the name")] = "",
    sort: Annotated[
        str,
        Query(
            pattern=ITEM_SORTS,
            description=f"`{NAME}`, `{CHANGED}` (last change), or `{OF_VALUE}` and the name of a "
            f"field; with `{BACKWARD}` in front in descending order. At most {MAX_SORTED:,} items, "
            "those that changed last, are sorted by a field; the others follow, last change first",
        ),
    ] = f"{BACKWARD}{CHANGED}",
) -> ItemFilter:
    is_descending = sort.startswith(BACKWARD)
    sorting = sort.removeprefix(BACKWARD)
    return ItemFilter(category or None, text.strip() or None, sorting, is_descending)


ItemFilterDep = Annotated[ItemFilter, Depends(_item_filter)]


IdsDep = Annotated[list[str], Query(alias="id", description="ids of items, at most 8")]


class Items(BaseModel):
    """A part of the items of a site."""

    items: list[Item]
    is_partial: bool = Field(
        description="true if the search stopped at its limit: `next` goes on, even if the page has "
        "few items or none"
    )
    is_cut: bool = Field(
        description="true if only the items that changed last are sorted by the field; the others "
        "follow, last change first"
    )
    next: str | None = Field(description="cursor of the next page; null at the end")


class Targets(BaseModel):
    """A part of the targets of a site."""

    targets: list[ListedTarget]
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


class Title(BaseModel):
    """The name of a site that people see."""

    title: str = Field(
        max_length=reports.MAX_TITLE, description="name; empty: the name of the site"
    )


class Started(BaseModel):
    """A crawl that was started."""

    site: str = Field(description="name of the site")
    started: datetime = Field(description="time of the request")
    waits: bool = Field(description="whether it begins when the crawl in progress has ended")


@router.get("/sites/{name:path}/visits", name="sites.visits")
async def visits_page(
    request: Request, site: SiteDep, wanted: VisitFilterDep, store: StoreDep, now: NowDep,
    pagination: PaginationDep,
) -> Response:  # fmt: skip
    """Show the visits of a site, newest first."""
    part = await visits(site, wanted, store, now, pagination)
    return page(
        request, "sites/visits.html", fragment="visits", visits=part.visits, wanted=wanted,
        pagination=pagination, next=part.next, **await _head(request, site, store, now, "visits"),
    )  # fmt: skip


@router.get("/sites/{name:path}/lists", name="sites.lists")
async def lists_page(
    request: Request, site: SiteDep, wanted: FilterDep, store: StoreDep, now: NowDep,
    pagination: PaginationDep,
) -> Response:  # fmt: skip
    """Show all targets of a site: lists, items, and errors."""
    head = await _head(request, site, store, now, "lists")
    part = await page_of_targets(
        store.db, site.name, wanted, now, pagination.limit, pagination.after
    )
    hidden: tuple[str, ...] = ()
    if wanted.status is TargetStatus.MUTED:
        hidden = (await readers.load(store.db, request.state.user.name)).mutes
    return page(
        request, "sites/lists.html", fragment="targets", targets=part, wanted=wanted,
        pagination=pagination, next=cursor_of(part.last), hidden=hidden, kinds=list(Kind),
        statuses=list(TargetStatus), sortings=list(Sorting),
        details=await site_views.details(request.app, store, now, site), **head,
    )  # fmt: skip


@router.get("/sites/{name:path}/schedule", name="sites.schedule")
async def schedule_page(request: Request, site: SiteDep, store: StoreDep, now: NowDep) -> Response:
    """Show the numbers, the week, the freshness and the settings of a site."""
    return await _schedule_page(request, site, store, now)


async def _schedule_page(
    request: Request, site: Site, store: Store, now: datetime, form: Form | None = None
) -> Response:
    """Show the schedule of a site. form: rejected form for the tags; None without one."""
    return page(
        request, "sites/schedule.html", status=422 if form else 200, form=form or Form(),
        charts=charts, details=await site_views.details(request.app, store, now, site),
        **await _head(request, site, store, now, "schedule"),
    )  # fmt: skip


@router.get("/sites/{name:path}/compare", name="sites.compare")
async def compare_page(
    request: Request, site: SiteDep, store: StoreDep, now: NowDep, ids: IdsDep = [],  # noqa: B006
    field: Annotated[str, Query(max_length=200, description="field to draw")] = "",
) -> Response:  # fmt: skip
    """Show a number of several items over time in one chart."""
    compared = await compared_items(store.db, site.name, ids)
    fields = common_fields(compared)
    chosen = field if field in fields else next(iter(fields), None)
    lines = [
        (place, item, next((each for each in item["series"] if each["name"] == chosen), None))
        for place, item in enumerate(compared, 1)
    ]
    return page(
        request, "sites/compare.html", lines=lines, fields=fields, chosen=chosen,
        is_cut=len(set(ids)) > MAX_COMPARED, max_compared=MAX_COMPARED,
        units={each["unit"] for _, _, each in lines if each},
        **await _head(request, site, store, now, "items"),
    )  # fmt: skip


@router.get("/sites/{name:path}/items.csv", name="sites.csv")
async def items_as_csv(site: SiteDep, wanted: ItemFilterDep, store: StoreDep) -> Response:
    """Send all items of a list as CSV."""
    table = await item_table(store.db, site.name, wanted)
    headers = _attachment(f"{site.name}.csv")
    return StreamingResponse(csv_of(table), headers=headers, media_type="text/csv; charset=utf-8")


@router.get("/sites/{name:path}/items.xlsx", name="sites.xlsx")
async def items_as_xlsx(
    request: Request, site: SiteDep, wanted: ItemFilterDep, store: StoreDep
) -> Response:
    """Send the items of a list as a workbook."""
    async with request.app.state.spreadsheets:
        folder = Path(await asyncio.to_thread(mkdtemp, prefix="freshet-items-"))
        try:
            table = await item_table(store.db, site.name, wanted)
            await write_xlsx(folder / "items.xlsx", table, site.name)
        except BaseException:
            _remove(folder)
            raise
    return FileResponse(
        folder / "items.xlsx", headers=_attachment(f"{site.name}.xlsx"), media_type=XLSX_TYPE,
        background=BackgroundTask(_remove, folder),
    )  # fmt: skip


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _attachment(name: str) -> dict[str, str]:
    """Return the header with the name of a file; browsers replace what file systems reject."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
    named = f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name[-200:], safe='')}"
    return {"Content-Disposition": named}


@router.get("/sites/{name:path}", name="sites.index")
async def index(
    request: Request, site: SiteDep, wanted: ItemFilterDep, store: StoreDep, now: NowDep,
    pagination: PaginationDep, added: Annotated[bool, Query()] = False,
) -> Response:  # fmt: skip
    """Show a site and its items. added: whether the user has just added the site."""
    # Concurrently, because some numbers wait a moment for their computation.
    head, (part, drawn), (columns, more_columns), counts = await asyncio.gather(
        _head(request, site, store, now, "items"),
        _items_drawn(store, site.name, wanted, now, pagination),
        columns_of(store.db, site.name),
        site_views.item_counts(request.app, store, now, site),
    )
    query = dict(request.query_params)
    # Feeds and cells are listed with all targets, as are links to states of targets of old.
    if not head["has_items"] or "state" in query or "kind" in query:
        return redirect(request, "sites.lists", query, name=quote(site.name, safe=""))
    rows = [
        {
            **each,
            "by_name": {value["name"]: value for value in each["values"]},
            "drawn": drawn.get(f"{site.name} {each['url']}", {}),
        }
        for each in part.items
    ]
    chosen = [key for key in ("q", "category", "sort") if query.get(key)]
    return page(
        request, "sites/index.html", fragment="items", columns=columns, spark=charts.spark,
        saved=head["service"] if added else None, name=site.name,
        is_crawled=head["crawl"] is not None and head["crawl"].code is None,
        more_columns=more_columns, is_partial=part.is_partial, is_cut=part.is_cut, wanted=wanted,
        pagination=pagination, next=cursor_of(part.last),
        counts=counts, items=rows, max_sorted=items.MAX_SORTED,
        max_rows=MAX_XLSX_ROWS, filters=urlencode([(key, query[key]) for key in chosen]), **head,
    )  # fmt: skip


async def _items_drawn(
    store: Store, spider: str, wanted: ItemFilter, now: datetime, pagination: Pagination
) -> tuple[ItemPage, dict[str, dict[str, Series]]]:
    """Return a page of items, and the numbers that changed in DRAWN, by the ids of the items."""
    part = await item_page(store.db, spider, wanted, now, pagination.limit, pagination.after)
    changed = [
        f"{spider} {each['url']}"
        for each in part.items
        if each["changed_at"] and each["changed_at"] > max(now - DRAWN, each["first_seen"])
    ]
    return part, await recent_series(store.db, spider, changed, now - DRAWN)


async def _head(
    request: Request, site: Site, store: Store, now: datetime, tab: str
) -> dict[str, Any]:
    """Return the variables of the head of all pages of a site."""
    (row,) = await site_views.board_sites(request.app, store, now, [site.name])
    return {
        "site": site,
        "row": row,
        "tab": tab,
        # A site that was never crawled has no kind yet; its items are to come.
        "has_items": row["kind"] == "site" or await items.is_any(store.db, site.name),
        "crawl": request.app.state.crawls.of(site.name),
        "is_editable": site.name in await sites.editable_names(store.db),
        "service": await request.app.state.service.state(store.db),
    }


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
    """Replace the tags of a site and the name that people see."""
    form = await Form.read(request)
    with form.rejecting("tags"):
        tags, title = reports.tags_of(form["tags"]), reports.checked_title(form["title"])
        await sites.set_tags(store.db, site.name, tags)
        await sites.set_title(store.db, site.name, "" if title == site.name else title)
        request.state.audit = f"{site.name}: {', '.join(tags)}"
        return await _back(request)
    return await _schedule_page(request, site, store, now, form)


async def _back(request: Request) -> Response:
    """Return to the page with the button: the board or the site."""
    form = await Form.read(request)
    return redirect_to(request, form["back"])


@api.get("/{name:path}/items", name="sites.api_items")
async def items_by_api(
    site: SiteDep, wanted: ItemFilterDep, store: StoreDep, now: NowDep, pagination: PaginationDep
) -> Items:
    """Return items of a site with their current values, and the changes of the last seven days."""
    part = await item_page(store.db, site.name, wanted, now, pagination.limit, pagination.after)
    return Items(
        items=part.items, is_partial=part.is_partial, is_cut=part.is_cut, next=cursor_of(part.last)
    )


@api.get("/{name:path}/items/values", name="sites.api_compare")
async def compare_by_api(
    site: SiteDep,
    store: StoreDep,
    ids: IdsDep = [],  # noqa: B006 - FastAPI copies defaults
) -> list[ComparedItem]:
    """Return the numbers of up to eight items over time."""
    return await compared_items(store.db, site.name, ids)


@api.get("/{name:path}/targets", name="sites.api_targets")
async def targets(
    site: SiteDep, wanted: FilterDep, store: StoreDep, now: NowDep, pagination: PaginationDep
) -> Targets:
    """Return targets of a site."""
    part = await page_of_targets(
        store.db, site.name, wanted, now, pagination.limit, pagination.after
    )
    rows = await listed_targets(store.db, part.rows)
    return Targets(targets=rows, is_partial=part.is_partial, next=cursor_of(part.last))


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
    return Started(site=crawl.site, started=crawl.started, waits=crawl.waits)


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


@api.put("/{name:path}/title", name="sites.api_title")
async def set_title_by_api(site: SiteDep, sent: Title, store: StoreDep) -> SiteMarks:
    """Replace the name of a site that people see."""
    await sites.set_title(store.db, site.name, reports.checked_title(sent.title))
    return await reports.marks_of(store.db, site.name)
