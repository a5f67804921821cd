"""Dashboards of cells: the list of built pages, and their files."""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
import re
from pathlib import Path
from urllib.parse import quote

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import PlainTextResponse, Response

from crawler.web.dashboards.build import Record
from crawler.web.pages import page, path_to

router = APIRouter(prefix="/dashboards")
api = APIRouter(prefix="/dashboards", tags=["dashboards"])
INDEX = "index.html"
# Larger files are not dashboards; they would be read into memory.
MAX_FILE_BYTES = 20_000_000
# Templates are the operator's own code, so they may have inline styles, and scripts from
# files. Images load from the hosts that cells name.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src * data:; style-src 'self' 'unsafe-inline'; "
        "form-action 'none'; frame-ancestors 'none'; base-uri 'none'; object-src 'none'"
    ),
    "Cache-Control": "no-cache",
}
# Media types whose files are served as UTF-8.
TEXTS = re.compile(r"text/.*|application/(json|javascript)")


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
    response = await asyncio.to_thread(file_response, request.app.state.dashboards, path, etag)
    if response.status_code == 404 and not path:
        # The templates have no index.html: show the list of pages instead.
        return Response(status_code=303, headers={"Location": path_to(request, "dashboards.index")})
    return response


async def _built(request: Request) -> list[Dashboard]:
    record = await asyncio.to_thread(Record.read, request.app.state.dashboards)
    return [
        Dashboard(
            path=path,
            cells=sum(map(len, built.cells.values())),
            written=built.written,
            failed=built.failed,
        )
        for path, built in sorted(record.pages.items())
    ]


def file_response(root: Path, path: str, etag: str = "") -> Response:
    """Return the response to a request for a file of a folder.

    path: decoded, relative to the folder
    etag: the If-None-Match header
    """
    hidden = any(part.startswith(".") or "\\" in part or "\0" in part for part in path.split("/"))
    try:
        response = None if hidden else _read(root.resolve(), path, etag)
    except (OSError, ValueError, RuntimeError):
        response = None
    if response is None:
        response = PlainTextResponse("no such page\n", 404)
    response.headers.update(HEADERS)
    return response


def _read(root: Path, name: str, etag: str) -> Response | None:
    """Return a file of the folder; raises OSError, ValueError or RuntimeError for bad paths."""
    place = (root / name.lstrip("/")).resolve()
    if not place.is_relative_to(root):
        return None
    if place.is_dir():
        if name and not name.endswith("/"):
            return Response(status_code=301, headers={"Location": f"{quote(place.name)}/"})
        place /= INDEX
    elif name.endswith("/"):
        return None
    with place.open("rb") as file:
        body = file.read(MAX_FILE_BYTES + 1)
    if len(body) > MAX_FILE_BYTES:
        return PlainTextResponse("this file is too large for the web app\n", 404)
    own = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
    kind = mimetypes.guess_type(place.name)[0] or "application/octet-stream"
    kind = f"{kind}; charset=utf-8" if TEXTS.fullmatch(kind) else kind
    headers = {"ETag": own, "Content-Type": kind}
    return Response(b"" if own == etag else body, 304 if own == etag else 200, headers)
