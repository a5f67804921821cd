"""Dashboards of cells: the list of built pages, and their files."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from crawler.web.dashboards.build import Record
from crawler.web.dashboards.files import file_response
from crawler.web.pages import page, path_to

router = APIRouter(prefix="/dashboards")
api = APIRouter(prefix="/dashboards", tags=["dashboards"])


class Dashboard(BaseModel):
    """A page made of cells."""

    path: str = Field(description="path of the page, relative to /dashboards/")
    cells: int = Field(description="number of cells that the page reads")
    written: bool = Field(description="whether the page exists; false if no build succeeded yet")
    failed: bool = Field(
        description="whether the last build of the page failed, so that an earlier version is shown"
    )


class Dashboards(BaseModel):
    """All dashboards."""

    dashboards: list[Dashboard]


@router.get("", name="dashboards.index")
async def index(request: Request) -> Response:
    """List the built dashboards."""
    return page(
        request, "dashboards/index.html", dashboards=await _built(request),
        is_current=request.app.state.options.builds is not None,
    )  # fmt: skip


@api.get("", name="dashboards.api")
async def dashboards(request: Request) -> Dashboards:
    """Return the built dashboards."""
    return Dashboards(dashboards=await _built(request))


@router.get("/{path:path}", name="dashboards.file")
async def file(request: Request, path: str) -> Response:
    """Return a file of the built dashboards."""
    etag = request.headers.get("if-none-match", "")
    response = await asyncio.to_thread(file_response, _folder(request), path, etag)
    if response.status_code == 404 and not path:
        # Templates without an index.html: the list of pages leads on.
        return Response(status_code=303, headers={"Location": path_to(request, "dashboards.index")})
    return response


def _folder(request: Request) -> Path:
    folder: Path = request.app.state.dashboards
    return folder


async def _built(request: Request) -> list[Dashboard]:
    record = await asyncio.to_thread(Record.read, _folder(request))
    return [
        Dashboard(
            path=path,
            cells=sum(map(len, built.cells.values())),
            written=built.written,
            failed=built.failed,
        )
        for path, built in sorted(record.pages.items())
    ]
