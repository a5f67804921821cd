"""Dashboards of cells: the list of pages, pages as they are now, and their files."""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
import re
from pathlib import Path
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, Field
from starlette.responses import RedirectResponse, Response

from crawler.storage import cells
from crawler.utils.terminal import complain
from crawler.web.dashboards.render import Cells, render, states
from crawler.web.dashboards.sources import STATES, Sources, find
from crawler.web.dependencies import WebDatabase
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


class Dashboards(BaseModel):
    """All dashboards."""

    dashboards: list[Dashboard]


@router.get("", name="dashboards.index")
async def index(request: Request) -> Response:
    """List the dashboards."""
    listed = await dashboards(request)
    folder = request.app.state.options.dashboards
    return page(
        request, "dashboards/index.html", dashboards=listed.dashboards, is_built_in=folder is None
    )


@api.get("", name="dashboards.api")
async def dashboards(request: Request) -> Dashboards:
    """Return the dashboards."""
    sources = await _sources(request)
    return Dashboards(dashboards=[Dashboard(path=path) for path in sorted(sources.pages)])


@router.get("/{path:path}", name="dashboards.file")
async def file(request: Request, path: str) -> Response:
    """Render a dashboard, or return a file that it uses."""
    sources = await _sources(request)
    name = f"{path}{INDEX}" if not path or path.endswith("/") else path
    if name in sources.pages:
        now = await _read(request)
        rendered = await asyncio.to_thread(render, name, sources.pages[name], sources.folder, now)
        if rendered.problem is not None:
            complain("web", f"dashboards: {rendered.problem}")
            raise HTTPException(500, rendered.problem)
        body = rendered.text.encode("utf-8", "replace")
    elif name == STATES:
        body = states(await _read(request, content=False))
    elif name in sources.files:
        body = await asyncio.to_thread(_content, sources.files[name])
    elif f"{name}/{INDEX}" in sources.pages:
        return RedirectResponse(f"{quote(name.rpartition('/')[2])}/", 301)
    elif not path:
        # The templates have no index.html: show the list of pages instead.
        return RedirectResponse(path_to(request, "dashboards.index"), 303)
    else:
        raise HTTPException(404, "dashboard not found")
    return _response(name, body, request.headers.get("if-none-match", ""))


async def _sources(request: Request) -> Sources:
    """Find the sources; raises ConfigError if the folder of templates is gone."""
    return await asyncio.to_thread(find, request.app.state.options.dashboards)


async def _read(request: Request, *, content: bool = True) -> Cells:
    database: WebDatabase = request.app.state.database
    async with database.opened() as store:
        stored = await cells.read(store.db, content=content)
    return Cells(stored, database.config.clock.now())


def _content(path: Path) -> bytes:
    """Return the content of a file of the templates folder; raises HTTPException."""
    try:
        with path.open("rb") as opened:
            body = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise HTTPException(404, error.strerror or "file not found") from None
    if len(body) > MAX_FILE_BYTES:
        raise HTTPException(404, "this file is too large for the web app")
    return body


def _response(name: str, body: bytes, etag: str) -> Response:
    """Return a body, or 304 if the browser has it. etag: the If-None-Match header."""
    own = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    kind = f"{kind}; charset=utf-8" if TEXTS.fullmatch(kind) else kind
    headers = {"ETag": own, "Content-Type": kind} | HEADERS
    return Response(b"" if own == etag else body, 304 if own == etag else 200, headers)
