"""Check all pages of a site now, and delete a site with all that is stored of it.

Deleting a large site takes minutes: it continues after the response, and ends with the app; the
site is listed until it is done.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from crawler.errors import Busy, ConfigError, FreshetError
from crawler.reports.target import forget
from crawler.storage import notification_rules, sites
from crawler.storage.sites import Site
from crawler.storage.store import Store
from crawler.utils.process import end_tasks
from crawler.web import site_views
from crawler.web.auth import EditorDep
from crawler.web.dependencies import NowDep, StoreDep, WebDatabase
from crawler.web.pages import Form, page, redirect_to
from crawler.web.routes.sites import SiteDep, Started

logger = logging.getLogger(__name__)
router = APIRouter(prefix="/sites")
api = APIRouter(prefix="/sites", tags=["sites"])
# Time that a request waits for the end of a deletion.
PATIENCE_SECONDS = 5.0
SureQuery = Annotated[
    bool, Query(description="must be true: everything that is stored of the site is deleted")
]


class Removals:
    """Deletions in progress, by site."""

    def __init__(self, database: WebDatabase) -> None:
        self._database = database
        self._tasks: dict[str, asyncio.Task[dict[str, int]]] = {}

    async def remove(self, name: str) -> dict[str, int] | None:
        """Delete a site; return the number of documents by collection, or None if it takes longer.

        Raises Busy if it is being crawled.
        """
        task = self._tasks.get(name)
        if task is None:
            task = self._tasks[name] = asyncio.create_task(self._forget(name))
            task.add_done_callback(partial(self._ended, name))
        done, _ = await asyncio.wait([task], timeout=PATIENCE_SECONDS)
        return task.result() if done else None

    def _ended(self, name: str, task: asyncio.Task[dict[str, int]]) -> None:
        del self._tasks[name]
        # The request may have been answered long ago.
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("Site %s not deleted: %s", name, error)

    async def close(self) -> None:
        """End all deletions; what is left can be deleted later."""
        await end_tasks(*self._tasks.values())

    async def _forget(self, name: str) -> dict[str, int]:
        async with self._database.opened() as store:
            try:
                counts = await forget(store.db, store.config, name, delete=True)
            except ConfigError as error:
                raise Busy(str(error)) from None
            for rule in await notification_rules.of_site_only(store.db, name):
                await notification_rules.remove(store.db, rule)
            return counts


class Removed(BaseModel):
    """A deleted site."""

    documents: dict[str, int] | None = Field(
        description="number of deleted documents by collection; null if the deletion continues"
    )


@router.post("/{name:path}/check-all", name="sites.check_all")
async def check_all(
    request: Request, site: SiteDep, user: EditorDep, store: StoreDep, now: NowDep
) -> Response:
    """Start a crawl of all pages of a site, whether they are due or not."""
    form = await Form.read(request)
    await site_views.check_all(request.app, store, now, site.name, user.name)
    request.state.audit = site.name
    return redirect_to(request, form["back"])


@router.get("/{name:path}/remove", name="sites.remove")
async def remove_page(request: Request, site: SiteDep, store: StoreDep) -> Response:
    """Show what would be deleted, and ask for confirmation."""
    return await _remove_page(request, site, store, Form())


async def _remove_page(
    request: Request, site: Site, store: Store, form: Form, status: int = 200
) -> Response:
    counts = await forget(store.db, store.config, site.name, delete=False)
    rules = await notification_rules.of_site_only(store.db, site.name)
    title = (await sites.titles(store.db, [site.name])).get(site.name, site.name)
    return page(
        request, "sites/remove.html", status=status, site=site, counts=counts, form=form,
        rules=rules, title=title,
    )  # fmt: skip


@router.post("/{name:path}/remove", name="sites.do_remove")
async def remove(request: Request, site: SiteDep, _: EditorDep, store: StoreDep) -> Response:
    """Delete a site with all that is stored of it."""
    form = await Form.read(request)
    titles = await sites.titles(store.db, [site.name])
    if form["confirm"].strip() not in (site.name, titles.get(site.name, site.name)):
        form.reject("confirm", "Type the name of the site to confirm")
        return await _remove_page(request, site, store, form, 422)
    request.state.audit = site.name
    try:
        counts = await request.app.state.removals.remove(site.name)
    except FreshetError as error:
        form.reject("", str(error))
        return await _remove_page(request, site, store, form, 409)
    return page(request, "sites/removed.html", name=site.name, counts=counts)


@api.post("/{name:path}/check-all", name="sites.api_check_all", status_code=202)
async def check_all_api(
    request: Request, site: SiteDep, user: EditorDep, store: StoreDep, now: NowDep
) -> Started:
    """Start a crawl of all pages of a site, due or not, after the crawl in progress, if any."""
    crawl = await site_views.check_all(request.app, store, now, site.name, user.name)
    return Started(site=crawl.site, started=crawl.started, waits=crawl.waits)


@api.delete("/{name:path}", name="sites.api_remove")
async def remove_api(request: Request, site: SiteDep, _: EditorDep, sure: SureQuery) -> Removed:
    """Delete a site with all that is stored of it; 409 if it is being crawled."""
    if not sure:
        raise ConfigError("sure: must be true")
    request.state.audit = site.name
    return Removed(documents=await request.app.state.removals.remove(site.name))
