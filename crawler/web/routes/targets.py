"""One target: its timeline, versions, values, explanation and settings, and the search for it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import RedirectResponse, Response

from crawler.items import Kind, Outcome
from crawler.planning.report_types import Explanation
from crawler.reports import history, target
from crawler.reports.history import StoredVersion, Version, VersionDiff, VisitRow, visit_row
from crawler.reports.item_history import (
    ItemChange,
    extremes,
    item_history,
    read_version,
    version_with_content,
)
from crawler.reports.target import FoundTargets, IntervalLimits, Series, TargetReport, forget
from crawler.storage import posts, target_queries, visits
from crawler.storage import sites as site_marks
from crawler.storage.client import Document
from crawler.utils.urls import target_id
from crawler.web import charts
from crawler.web.dependencies import NowDep, Pagination, PaginationDep, StoreDep, cursor_of
from crawler.web.pages import Form, not_found, page, path_to, redirect_to, wants_fragment
from crawler.web.subprocesses import Subprocesses

router = APIRouter()
api = APIRouter(prefix="/targets", tags=["targets"])
MAX_HASH = 200
NEW_VERSIONS = 10
# Message on the page after a write, by the value of `done`.
DONE = {
    "recheck": "The target is due: the next run of its site visits it.",
    "mute": "The target is muted. It is not visited until you unmute it.",
    "unmute": "The target is no longer muted: the next run of its site visits it.",
    "limits": "The limits are stored. They apply from the next visit and the next plan on.",
}


async def _target(request: Request, store: StoreDep) -> Document:
    """Return the target that the path names; raises HTTPException (404) if there is none."""
    document = await target.read_target(store.db, request.path_params["target_id"])
    if document is None:
        raise not_found("target")
    request.state.audit = document["_id"]
    return document


TargetDep = Annotated[Document, Depends(_target)]
Outcomes = Annotated[list[Outcome], Query(description="outcomes of visits; absent: all")]
Hash = Annotated[str, Query(max_length=MAX_HASH, description="`content_hash` of a version")]
HashInPath = Annotated[str, Path(max_length=MAX_HASH, description="`content_hash` of a version")]
UrlText = Annotated[
    str, Query(max_length=target.MAX_URL_CHARACTERS, description="URL, its beginning, or cell:NAME")
]
Spider = Annotated[str | None, Query(max_length=500, description="name of the spider")]


class VisitPage(BaseModel):
    """A part of the visits of a target, newest first."""

    visits: list[VisitRow]
    next: str | None = Field(
        description="cursor of the next page; null at the end. With outcomes, a page may have few "
        "rows although more follow"
    )


class VersionPage(BaseModel):
    """A part of the versions of a target, newest first."""

    versions: list[StoredVersion]
    next: str | None = Field(description="cursor of the next page; null at the end")


class Limits(BaseModel):
    """Limits of the interval between two visits; null: that of the site."""

    min_hours: float | None = Field(None, description="minimum interval in hours")
    max_hours: float | None = Field(None, description="maximum interval in hours")


class Forgotten(BaseModel):
    """Deleted documents."""

    deleted: dict[str, int] = Field(description="number of documents by collection")
    dry_run: bool = Field(description="whether nothing was deleted")


# Pages


@router.get("/targets", name="targets.index")
async def index(
    request: Request, store: StoreDep, url: UrlText = "", spider: Spider = None
) -> Response:
    """Show the search, or redirect to the target if only one has the URL."""
    matches: FoundTargets | None = None
    form = Form.of({"url": url})
    if url.strip():
        with form.rejecting("url"):
            matches = await target.search(store.db, store.config, url, spider or None)
    if matches and len(matches["exact"]) == 1:
        return _redirect(request, "targets.target", matches["exact"][0]["id"])
    status = 200 if form.is_valid else 422
    return page(request, "targets/index.html", status=status, form=form, found=matches)


@router.get("/targets/{target_id}", name="targets.target")
async def show(
    request: Request, store: StoreDep, document: TargetDep, pagination: PaginationDep,
    outcome: Outcomes = [], done: str = "",  # noqa: B006 - FastAPI copies defaults
) -> Response:  # fmt: skip
    """Show a target."""
    return await _target_page(request, store, document, pagination, outcome, done=done)


async def _target_page(
    request: Request, store: StoreDep, document: Document, pagination: Pagination,
    outcomes: list[Outcome], form: Form | None = None, done: str = "",
) -> Response:  # fmt: skip
    report = target.report_of(document)
    rows = await target_visits(store, document, pagination, outcomes)
    newest = await target_versions(store, document, Pagination(NEW_VERSIONS))
    status = 200 if form is None else 422
    template, of_item = "targets/target.html", {}
    series = await target.series_of(store.db, document["spider"], document["url"])
    if document["kind"] == Kind.ITEM and not wants_fragment(request):
        template = "targets/item.html"
        of_item = {
            "item": await item_history(store.db, document), "extremes": extremes(series),
            "titles": await site_marks.titles(store.db, [document["spider"]]),
        }  # fmt: skip
    return page(
        request, template, status=status, fragment="visits",
        target=report, visits=rows.visits, next=rows.next, pagination=pagination,
        strip=charts.strip(rows.visits), outcomes=list(Outcome), chosen=outcomes,
        versions=newest.versions, more_versions=newest.next is not None,
        series=series, **of_item, form=form or Form.of(report["limits"]), done=DONE.get(done),
        service=await request.app.state.service.state(store.db),
    )  # fmt: skip


@router.get("/targets/{target_id}/explain", name="targets.explain")
async def explain_page(request: Request, store: StoreDep, document: TargetDep) -> Response:
    """Show the explanation of the target's schedule; until it is ready, a page that polls."""
    explanation = await Subprocesses.of(request.app).explained(store.config, document)
    chart = None if explanation is None else charts.explanation_charts(explanation)
    return page(
        request, "targets/explain.html", fragment="explanation", target=target.report_of(document),
        explanation=explanation, chart=chart,
    )  # fmt: skip


@router.get("/targets/{target_id}/versions", name="targets.versions")
async def versions_page(
    request: Request, store: StoreDep, document: TargetDep, pagination: PaginationDep
) -> Response:
    """Show all versions, to choose two of them."""
    rows = await target_versions(store, document, pagination)
    return page(
        request, "targets/versions.html", target=target.report_of(document),
        versions=rows.versions, next=rows.next, pagination=pagination,
    )  # fmt: skip


@router.get("/targets/{target_id}/versions/{content_hash:path}", name="targets.version")
async def version_page(
    request: Request, store: StoreDep, document: TargetDep, content_hash: HashInPath
) -> Response:
    """Show a version: its fields and its text as they were."""
    version = await read_version(store.db, document, content_hash)
    if version is None:
        raise not_found("version")
    return page(request, "targets/version.html", target=target.report_of(document), version=version)


@router.get("/targets/{target_id}/compare", name="targets.compare")
async def compare_page(
    request: Request, store: StoreDep, document: TargetDep, before: Hash = "", after: Hash = "",
    view: Annotated[str, Query(pattern="^(inline|side)$")] = "side",
) -> Response:  # fmt: skip
    """Show the difference between two versions, by default the newest two."""
    if not (before and after):
        pair = await posts.newest_two_versions(store.db, document["spider"], document["url"])
        if len(pair) < 2:
            raise HTTPException(404, "Only one version is stored, so there is nothing to compare")
        before, after = pair
    return page(
        request, "targets/compare.html", target=target.report_of(document), view=view,
        difference=await target_difference(request, store, document, before, after),
    )  # fmt: skip


@router.get("/targets/{target_id}/visits/{visit_id}", name="targets.change")
async def change(request: Request, store: StoreDep, document: TargetDep, visit_id: str) -> Response:
    """Redirect to the difference that a visit found."""
    pair = await posts.hashes_around(store.db, document["spider"], document["url"], visit_id)
    if pair is None:
        raise HTTPException(404, "This visit has no earlier version to compare with")
    key = target_id(document["_id"])
    return _redirect(request, "targets.compare", key, before=pair[0], after=pair[1])


@router.post("/targets/{target_id}/recheck", name="targets.recheck")
async def recheck(request: Request, store: StoreDep, document: TargetDep, now: NowDep) -> Response:
    """Make the target due."""
    await _recheck(store, document, now)
    return _done(request, document, "recheck")


@router.post("/targets/{target_id}/mute", name="targets.mute")
async def mute(request: Request, store: StoreDep, document: TargetDep, now: NowDep) -> Response:
    """Stop the visits of the target."""
    await target_queries.mute(store.db, document["_id"], now)
    return _done(request, document, "mute")


@router.post("/targets/{target_id}/unmute", name="targets.unmute")
async def unmute(request: Request, store: StoreDep, document: TargetDep, now: NowDep) -> Response:
    """Unmute the target; return to the list whose button was used, or to the target."""
    await target_queries.unmute(store.db, document["_id"], now)
    form = await Form.read(request)
    return (
        redirect_to(request, form["back"]) if form["back"] else _done(request, document, "unmute")
    )


@router.post("/targets/{target_id}/limits", name="targets.limits")
async def limits(request: Request, store: StoreDep, document: TargetDep) -> Response:
    """Set the limits of the interval."""
    form = await Form.read(request)
    given: dict[str, float | None] = {}
    for name in ("min_hours", "max_hours"):
        try:
            given[name] = float(form[name]) if form[name].strip() else None
        except ValueError:
            form.reject(name, "not a number of hours. Use a number such as 6 or 0.5")
    if form.is_valid:
        limits = IntervalLimits(min_hours=given["min_hours"], max_hours=given["max_hours"])
        for name, problem in target.problems_of_limits(document, limits, store.config).items():
            form.reject(name, problem)
    if not form.is_valid:
        return await _target_page(request, store, document, Pagination(), [], form)
    await target_queries.set_limits(store.db, document["_id"], **limits)
    return _done(request, document, "limits")


@router.get("/targets/{target_id}/forget", name="targets.forget")
async def forget_page(request: Request, store: StoreDep, document: TargetDep) -> Response:
    """Show what would be deleted, and ask for confirmation."""
    return await _forget_page(request, store, document, Form())


async def _forget_page(
    request: Request, store: StoreDep, document: Document, form: Form, status: int = 200
) -> Response:
    counts = await forget(store.db, store.config, document["url"], delete=False)
    report = target.report_of(document)
    return page(
        request, "targets/forget.html", status=status, target=report, counts=counts, form=form
    )


@router.post("/targets/{target_id}/forget", name="targets.do_forget")
async def do_forget(request: Request, store: StoreDep, document: TargetDep) -> Response:
    """Delete all data of the URL."""
    form = await Form.read(request)
    if form["confirm"] != "yes":
        form.reject("confirm", "Check the box to confirm")
        return await _forget_page(request, store, document, form, 422)
    counts = await forget(store.db, store.config, document["url"], delete=True)
    return page(request, "targets/forgotten.html", url=document["url"], counts=counts)


def _done(request: Request, document: Document, done: str) -> Response:
    return _redirect(request, "targets.target", target_id(document["_id"]), done=done)


def _redirect(request: Request, route: str, target_id: str, **query: str) -> Response:
    """Return a redirect to a page of a target; its path may be too long for `redirect_to`."""
    path = path_to(request, route, target_id=target_id)
    return RedirectResponse(f"{path}?{urlencode(query)}" if query else path, 303)


async def _recheck(store: StoreDep, document: Document, now: datetime) -> None:
    if reason := target.refusal_to_recheck(document):
        raise HTTPException(409, f"This target cannot be visited: {reason}")
    await target_queries.make_due(store.db, [document["_id"]], now)


# JSON


@api.get("", name="targets.api")
async def search(store: StoreDep, url: UrlText, spider: Spider = None) -> FoundTargets:
    """Return the targets with a URL; if there are none, targets with similar URLs."""
    return await target.search(store.db, store.config, url, spider)


@api.get("/{target_id}", name="targets.api_target")
async def target_state(document: TargetDep) -> TargetReport:
    """Return a target with its settings."""
    return target.report_of(document)


@api.get("/{target_id}/visits", name="targets.api_visits")
async def target_visits(
    store: StoreDep, document: TargetDep, pagination: PaginationDep,
    outcome: Outcomes = [],  # noqa: B006 - FastAPI copies defaults
) -> VisitPage:  # fmt: skip
    """Return the visits of a target, newest first."""
    chosen = [str(each) for each in outcome]
    rows = await visits.page_of_target(
        store.db, document["spider"], document["url"], chosen, pagination.limit, pagination.after
    )
    return VisitPage(visits=[visit_row(row) for row in rows.rows], next=cursor_of(rows.last))


@api.get("/{target_id}/versions", name="targets.api_versions")
async def target_versions(
    store: StoreDep, document: TargetDep, pagination: PaginationDep
) -> VersionPage:
    """Return the versions of a target without their contents, newest first."""
    rows = await posts.read_versions(
        store.db, document["spider"], document["url"], pagination.limit, pagination.after
    )
    stored = [history.version_of(row) for row in rows.rows]
    return VersionPage(versions=stored, next=cursor_of(rows.last))


@api.get("/{target_id}/versions/{content_hash:path}", name="targets.api_version")
async def target_version(store: StoreDep, document: TargetDep, content_hash: HashInPath) -> Version:
    """Return a version of a target with its whole content."""
    version = await version_with_content(store.db, document, content_hash)
    if version is None:
        raise not_found("version")
    return version


@api.get("/{target_id}/changes", name="targets.api_changes")
async def target_changes(store: StoreDep, document: TargetDep) -> list[ItemChange]:
    """Return the newest changes of an item with the values that changed, at most 30."""
    return (await item_history(store.db, document)).changes


@api.get("/{target_id}/difference", name="targets.api_difference")
async def target_difference(
    request: Request, store: StoreDep, document: TargetDep, before: Hash, after: Hash
) -> VersionDiff:
    """Return the difference between two versions, field by field."""
    pair = await target.content_of_pair(
        store.db, document["spider"], document["url"], (before, after)
    )
    contents = [version["content"] for version in pair]
    (difference,) = await history.compared(contents, Subprocesses.of(request.app).comparing)
    return history.version_diff(*pair, difference)


@api.get("/{target_id}/values", name="targets.api_values")
async def target_values(store: StoreDep, document: TargetDep) -> list[Series]:
    """Return the numbers in the fields of a target over time."""
    return await target.series_of(store.db, document["spider"], document["url"])


@api.get("/{target_id}/explanation", name="targets.api_explanation")
async def target_explanation(request: Request, store: StoreDep, document: TargetDep) -> Explanation:
    """Return the explanation of a target's schedule, as `scrapy explain --json` does.

    While the explanation is being made, the status is 503. Try again after the time in Retry-After.
    """
    explanation = await Subprocesses.of(request.app).explained(store.config, document)
    if explanation is None:
        raise HTTPException(503, "The explanation is not ready", {"Retry-After": "1"})
    return explanation


@api.post("/{target_id}/recheck", name="targets.api_recheck")
async def api_recheck(store: StoreDep, document: TargetDep, now: NowDep) -> TargetReport:
    """Make a target due."""
    await _recheck(store, document, now)
    return await _again(store, document)


@api.post("/{target_id}/mute", name="targets.api_mute")
async def api_mute(store: StoreDep, document: TargetDep, now: NowDep) -> TargetReport:
    """Stop the visits of a target until it is unmuted."""
    await target_queries.mute(store.db, document["_id"], now)
    return await _again(store, document)


@api.post("/{target_id}/unmute", name="targets.api_unmute")
async def api_unmute(store: StoreDep, document: TargetDep, now: NowDep) -> TargetReport:
    """Make a muted target due."""
    await target_queries.unmute(store.db, document["_id"], now)
    return await _again(store, document)


@api.put("/{target_id}/limits", name="targets.api_limits")
async def api_limits(store: StoreDep, document: TargetDep, given: Limits) -> TargetReport:
    """Set the limits of the interval between two visits."""
    limits = IntervalLimits(min_hours=given.min_hours, max_hours=given.max_hours)
    for name, problem in target.problems_of_limits(document, limits, store.config).items():
        raise HTTPException(422, f"{name}: {problem}" if name else problem)
    await target_queries.set_limits(store.db, document["_id"], **limits)
    return await _again(store, document)


@api.delete("/{target_id}", name="targets.api_forget")
async def api_forget(
    store: StoreDep, document: TargetDep, *,
    dry_run: Annotated[bool, Query(description="only count")] = False,
) -> Forgotten:  # fmt: skip
    """Delete all data of the URL of a target, of all spiders. This cannot be undone."""
    counts = await forget(store.db, store.config, document["url"], delete=not dry_run)
    return Forgotten(deleted=counts, dry_run=dry_run)


async def _again(store: StoreDep, document: Document) -> TargetReport:
    """Return the current state of a target."""
    stored = await target_queries.find(store.db, document["_id"])
    if stored is None:
        raise not_found("target")
    return target.report_of(stored)
