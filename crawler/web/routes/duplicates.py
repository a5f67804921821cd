"""Near-duplicates: clusters, two texts side by side, and labels of pairs."""

from __future__ import annotations

from typing import Annotated, Literal

from bson import ObjectId
from bson.errors import InvalidId
from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from crawler.errors import Busy, ConfigError
from crawler.reports import duplicates as report
from crawler.reports.duplicates import Comparison
from crawler.storage.dedup import labels, queries
from crawler.storage.dedup.labels import Label, MeasuredPrecision
from crawler.storage.dedup.queries import Cluster, ListedCluster
from crawler.storage.store import Store
from crawler.web.auth import EditorDep
from crawler.web.dependencies import NowDep, PaginationDep, StoreDep, cursor_of
from crawler.web.pages import Form, not_found, page, redirect
from crawler.web.subprocesses import DuplicateJobs

router = APIRouter(prefix="/duplicates")
api = APIRouter(prefix="/duplicates", tags=["near-duplicates"])
NEWEST, LARGEST = "newest", "largest"
Order = Annotated[Literal["newest", "largest"], Query(description="which clusters come first")]
PostName = Annotated[str, Query(max_length=10_000, description="URL or id of a post")]
MAX_MEMBERS = 200


class ClusterRows(BaseModel):
    """A part of the clusters of near-duplicates."""

    clusters: list[ListedCluster]
    next: str | None = Field(description="cursor of the next page; null at the end")


class NewLabel(BaseModel):
    """A label to store."""

    a: str = Field(min_length=1, max_length=10_000, description="id of the first post")
    b: str = Field(min_length=1, max_length=10_000, description="id of the second post")
    same: bool = Field(description="whether the posts are the same")


@router.get("", name="duplicates.index")
async def index(
    request: Request, store: StoreDep, pagination: PaginationDep, order: Order = "newest"
) -> Response:
    """Show the clusters, and how many labels confirm them."""
    part = await _clusters(store, pagination, order)
    return page(
        request, "duplicates/index.html", fragment="clusters", clusters=part.clusters,
        next=part.next, pagination=pagination, order=order, form=Form(),
        precision=await labels.measured_precision(store.db),
    )  # fmt: skip


@router.get("/compare", name="duplicates.compare")
async def compare(request: Request, a: PostName = "", b: PostName = "") -> Response:
    """Show two posts side by side, or the form again if one of them is not found."""
    form = Form.of({"a": a, "b": b})
    with form.rejecting(""):
        compared = await _jobs(request).compare((a.strip(), b.strip()))
        return page(request, "duplicates/compare.html", compared=compared)
    return page(request, "duplicates/find.html", status=422, form=form)


@router.post("/label", name="duplicates.label")
async def put_label(request: Request, user: EditorDep, now: NowDep) -> Response:
    """Label two posts, and show them again."""
    form = await Form.read(request)
    new = form.parse(NewLabel)
    if new is not None:
        with form.rejecting("", (Busy, ConfigError)):
            await label_api(request, new, user, now)
            return redirect(request, "duplicates.compare", {"a": new.a, "b": new.b})
    return page(request, "duplicates/find.html", status=422, form=form)


@router.get("/{cluster}", name="duplicates.cluster")
async def show_cluster(
    request: Request,
    store: StoreDep,
    cluster: str,
    copy: Annotated[str, Query(alias="with", max_length=10_000)] = "",
) -> Response:
    """Show a cluster, and its original side by side with a copy."""
    details = await _cluster(store, cluster)
    chosen = copy or (details["members"][0]["id"] if details["members"] else "")
    compared = problem = None
    if chosen:
        try:
            compared = await _jobs(request).compare((details["original"]["id"], chosen))
        except ConfigError as error:
            problem = str(error)
    return page(
        request, "duplicates/cluster.html", cluster=details, chosen=chosen, problem=problem,
        labels=await report.labels_of(store.db, details), compared=compared,
    )  # fmt: skip


@api.get("", name="duplicates.api")
async def clusters(
    store: StoreDep, pagination: PaginationDep, order: Order = "newest"
) -> ClusterRows:
    """Return the clusters with copies."""
    return await _clusters(store, pagination, order)


@api.get("/compare", name="duplicates.api_compare")
async def compare_api(request: Request, a: PostName, b: PostName) -> Comparison:
    """Return two posts side by side, their similarity and the verdict."""
    return await _jobs(request).compare((a, b))


@api.get("/precision", name="duplicates.api_precision")
async def precision(store: StoreDep) -> MeasuredPrecision:
    """Return how many of the flagged pairs that people labeled are the same."""
    return await labels.measured_precision(store.db)


@api.put("/labels", name="duplicates.api_label")
async def label_api(request: Request, new: NewLabel, user: EditorDep, now: NowDep) -> Label:
    """Label two posts, and move one of them to another cluster if necessary."""
    request.state.audit = f"{'the same' if new.same else 'not the same'}: {new.a} and {new.b}"
    return await _jobs(request).label((new.a, new.b), now, same=new.same, by=user.name)


@api.get("/{cluster}", name="duplicates.api_cluster")
async def cluster_api(store: StoreDep, cluster: str) -> Cluster:
    """Return a cluster with its oldest 200 copies and its history."""
    return await _cluster(store, cluster)


async def _clusters(store: Store, pagination: PaginationDep, order: str) -> ClusterRows:
    read = queries.newest_clusters if order == NEWEST else queries.largest_clusters
    part = await read(store.db, pagination.limit, pagination.after)
    return ClusterRows(clusters=part.rows, next=cursor_of(part.last))


async def _cluster(store: Store, name: str) -> Cluster:
    try:
        details = await queries.cluster_of(store.db, ObjectId(name), MAX_MEMBERS)
    except InvalidId:
        details = None
    if details is None:
        raise not_found("Cluster")
    return details


def _jobs(request: Request) -> DuplicateJobs:
    jobs: DuplicateJobs = request.app.state.duplicate_jobs
    return jobs
