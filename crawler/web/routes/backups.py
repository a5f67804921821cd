"""Backups: make one, see its progress, list and delete those that the app has made."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import Annotated, Self

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field
from starlette.responses import FileResponse, Response

from crawler.errors import Busy
from crawler.web.auth import EditorDep
from crawler.web.backups import BackupJob, Backups, StoredBackup
from crawler.web.dependencies import NowDep, StoreDep
from crawler.web.pages import Form, not_found, page, redirect

router = APIRouter(prefix="/backups")
api = APIRouter(prefix="/backups", tags=["backups"])


def _backups(request: Request) -> Backups:
    backups: Backups = request.app.state.backups
    return backups


BackupsDep = Annotated[Backups, Depends(_backups)]


class BackupState(BaseModel):
    """The current or last backup since the start of the app."""

    name: str = Field(description="name of the file")
    by: str = Field(description="name of the user")
    started: datetime = Field(description="time at which it was started")
    running: bool = Field(description="whether it is still being made")
    progress: str = Field(description="what it does now; empty at the end")
    error: str = Field(description="why it failed; empty: it did not")

    @classmethod
    def of(cls, job: BackupJob) -> Self:
        """Return the state of a backup."""
        return cls(
            name=job.name, by=job.by, started=job.started, running=job.is_running,
            progress=job.progress, error=job.error,
        )  # fmt: skip


class StoredBackups(BaseModel):
    """The backups that the app has made."""

    folder: str = Field(description="folder of the files, on the machine of the app")
    backups: list[StoredBackup] = Field(description="backups, the newest first")
    latest: BackupState | None = Field(description="current or last backup; null: none yet")


@router.get("", name="backups.index")
async def index(request: Request, _: EditorDep, backups: BackupsDep) -> Response:
    """Show the backups and the progress of the current one."""
    return await _page(request, backups, Form())


async def _page(request: Request, backups: Backups, form: Form, status: int = 200) -> Response:
    return page(
        request, "backups/index.html", fragment="state", status=status, form=form,
        job=backups.job, stored=await backups.stored(), folder=str(backups.folder),
        quoted=shlex.quote,
    )  # fmt: skip


@router.post("", name="backups.start")
async def start(
    request: Request, user: EditorDep, store: StoreDep, now: NowDep, backups: BackupsDep
) -> Response:
    """Start a backup."""
    form = Form()
    with form.rejecting("", Busy):
        await start_api(request, user, store, now, backups)
        return redirect(request, "backups.index")
    return await _page(request, backups, form, 409)


@router.get("/file", name="backups.file")
async def download(request: Request, _: EditorDep, backups: BackupsDep, name: str) -> Response:
    """Download a backup."""
    if name not in {each.name for each in await backups.stored()}:
        raise not_found("Backup")
    request.state.audit = f"download {name}"
    return FileResponse(backups.folder / name, media_type="application/octet-stream", filename=name)


@router.post("/remove", name="backups.remove")
async def remove(request: Request, user: EditorDep, backups: BackupsDep) -> Response:
    """Delete a backup."""
    form = await Form.read(request)
    await remove_api(request, user, backups, form["name"])
    return redirect(request, "backups.index")


@api.get("", name="backups.api")
async def backups_api(_: EditorDep, backups: BackupsDep) -> StoredBackups:
    """Return the backups that the app has made, and the state of the current one."""
    latest = None if backups.job is None else BackupState.of(backups.job)
    return StoredBackups(folder=str(backups.folder), backups=await backups.stored(), latest=latest)


@api.post("", name="backups.api_start", status_code=202)
async def start_api(
    request: Request, user: EditorDep, _: StoreDep, now: NowDep, backups: BackupsDep
) -> BackupState:
    """Start a backup, which waits for crawls in progress; 409 while another one is being made."""
    job = backups.start(user.name, now)
    request.state.audit = job.name
    return BackupState.of(job)


@api.delete("/{name}", name="backups.api_remove", status_code=204)
async def remove_api(request: Request, _: EditorDep, backups: BackupsDep, name: str) -> None:
    """Delete a backup."""
    request.state.audit = name
    if not await backups.remove(name):
        raise not_found("Backup")
