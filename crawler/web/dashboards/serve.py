"""`scrapy dashboards serve`: serves pages; checks cells and templates every second and rebuilds."""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from typing_extensions import TypedDict

from crawler.config import Config
from crawler.errors import FreshetError, StorageError
from crawler.fetch.guard import is_local
from crawler.storage import cells
from crawler.storage.outages import MongoRetry
from crawler.storage.store import Store
from crawler.utils.process import end_tasks
from crawler.utils.terminal import complain
from crawler.utils.time import Clock
from crawler.web.dashboards import sources
from crawler.web.dashboards.build import WRITTEN, Record, build, decide, states, write_states
from crawler.web.dashboards.render import Cells
from crawler.web.dashboards.sources import Listening, Places
from crawler.web.server import (
    Answer,
    Handler,
    host_of_request,
    served,
    site_of,
    stop_at_signals,
    until_signal,
    url_of,
)

COMMAND = "dashboards"
CHECK_SECONDS = 1.0
INDEX = "index.html"
ALWAYS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src * data:; style-src 'self' 'unsafe-inline'"
    ),
    "Cache-Control": "no-cache",
}
# Media types whose files are served as UTF-8.
TEXTS = re.compile(r"text/.*|application/(json|javascript)")


class ServingReport(TypedDict):
    """Summary of a server of dashboards."""

    url: str
    """URL at which the dashboards were served."""
    out: str
    """Output folder."""
    seconds: float
    """Duration in seconds."""
    written: int
    """Number of pages written, counting each write."""
    pages: dict[str, str]
    """Last result by page: `written`, `unchanged`, `failed` or `removed`."""


async def serve(config: Config, places: Places, address: Listening) -> ServingReport:
    """Serve until a signal or the timeout; return a summary. Raises FreshetError."""
    stop, began = stop_at_signals(), time.monotonic()
    store = await Store.open(config)
    try:
        pages = Pages(store, places)
        site = site_of(Folder(places.out))
        option = f"--bind {address.bind} --port {address.port}"
        async with served(site, address.port, address.bind, option) as listening:
            url = url_of(listening)
            await pages.build()
            complain(COMMAND, f"{url} shows {places.out}")
            ended = asyncio.create_task(until_signal(stop, address.seconds))
            work = asyncio.create_task(pages.work())
            done, _ = await asyncio.wait({ended, work}, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            await pages.end(work)
            if work in done:
                work.result()
    finally:
        await store.close()
    return {
        "url": url,
        "out": str(places.out),
        "seconds": round(time.monotonic() - began, 1),
        "written": pages.written,
        "pages": pages.pages,
    }


class Pages:
    """Keeps the pages of a folder up to date.

    written: number of pages written so far, counting each write
    pages:   last result by page
    """

    def __init__(self, store: Store, places: Places) -> None:
        self.places = places
        self.written = 0
        self.pages: dict[str, str] = {}
        self._store = store
        self._clock = Clock(store.config.clock_offset_hours)
        # Reads are not retried here: `work` handles an unavailable server.
        self._no_retry = MongoRetry(-1, store.revive)
        self._stamp = sources.stamp(places.templates)
        self._sources = sources.find(places.templates)
        self._record = Record()
        self._states = b""
        self._problems: dict[str, str] = {}
        self._is_failing = False
        self._building = asyncio.Lock()

    async def build(self, *, retry: bool = True) -> None:
        """Build the pages that are due; raises FreshetError."""
        stored = await self._read(content=True)
        async with self._building:
            work = (stored, self._sources, self.places.out)
            done = await asyncio.to_thread(build, *work, retry=retry)
        self._record = Record.read(self.places.out)
        self._states = states(stored)
        self.pages = done.pages
        self.written += list(done.pages.values()).count(WRITTEN)
        # Print the problem of a page only once, unless it changes.
        for path, problem in done.problems.items():
            if self._problems.get(path) != problem:
                complain(COMMAND, problem)
        failed = {path for path, built in self._record.pages.items() if built.failed}
        failing = {path: line for path, line in self._problems.items() if path in failed}
        self._problems = failing | done.problems

    async def work(self) -> None:
        """Check every second until cancelled; print the first of consecutive errors."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                await self._check()
            except StorageError as error:
                self._warn(f"{error}; updates paused until MongoDB is available")
                with suppress(FreshetError):
                    await self._store.revive()
            except FreshetError as error:
                self._warn(str(error))
            else:
                if self._is_failing:
                    complain(COMMAND, "recovered, updates resumed")
                self._is_failing = False

    async def end(self, work: asyncio.Task[None]) -> None:
        """Stop checking, after the build in progress has ended."""
        async with self._building:
            work.cancel()
        await end_tasks(work)

    async def _check(self) -> None:
        """Build the pages that are due; reads the contents of cells only if a state has changed."""
        stamp = sources.stamp(self.places.templates)
        if stamp != self._stamp:
            self._sources = sources.find(self.places.templates)
            self._stamp = stamp
        stored = await self._read(content=False)
        work = (stored, self._sources, self._record, self.places.out)
        plan = await asyncio.to_thread(decide, *work, retry=False)
        if not plan.empty or self._record.templates != self._sources.digest:
            await self.build(retry=False)
        elif (now := states(stored)) != self._states:
            await asyncio.to_thread(write_states, self.places.out, now)
            self._states = now

    async def _read(self, *, content: bool) -> Cells:
        db = self._store.db
        stored = await self._no_retry.read(lambda: cells.read(db, content=content))
        return Cells(stored, self._clock.now())

    def _warn(self, message: str) -> None:
        if not self._is_failing:
            complain(COMMAND, message)
        self._is_failing = True


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a file. host: the Host header; etag: the If-None-Match header."""

    method: str
    path: str
    host: str
    etag: str = ""


class Folder(Handler):
    """Serves the files of a folder."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._root = root.resolve()

    async def answer(self, request: Any) -> Answer:
        """Return the response to a request."""
        page_request = PageRequest(
            method=request.method.decode("latin-1"),
            path=request.uri.decode("latin-1"),
            host=host_of_request(request),
            etag=(request.getHeader(b"if-none-match") or b"").decode("latin-1"),
        )
        response = answer(self._root, page_request)
        return Answer(response.status, response.body, {**ALWAYS, **response.headers})


NOT_FOUND = Answer(404, b"no such page\n")


def answer(root: Path, request: PageRequest) -> Answer:
    """Return the response to a request for a file of `root`, a resolved path."""
    if not is_local(request.host):
        return Answer(403, b"available only on this machine; use localhost\n")
    if request.method not in ("GET", "HEAD"):
        return Answer(405, headers={"Allow": "GET, HEAD"})
    path = unquote(request.path.partition("?")[0])
    parts = path.split("/")
    hidden = any(part.startswith(".") or "\\" in part or "\0" in part for part in parts)
    if not path.startswith("/") or hidden:
        return NOT_FOUND
    try:
        return _read(root, "/".join(parts[1:]), request.etag)
    except (OSError, ValueError, RuntimeError):
        return NOT_FOUND


def _read(root: Path, name: str, etag: str) -> Answer:
    """Return a file of the folder; raises OSError, ValueError or RuntimeError for bad paths."""
    place = (root / name.lstrip("/")).resolve()
    if not place.is_relative_to(root):
        return NOT_FOUND
    if place.is_dir():
        if name and not name.endswith("/"):
            return Answer(301, headers={"Location": f"{quote(place.name)}/"})
        place /= INDEX
    elif name.endswith("/"):
        return NOT_FOUND
    body = place.read_bytes()
    own = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
    kind = mimetypes.guess_type(place.name)[0] or "application/octet-stream"
    kind = f"{kind}; charset=utf-8" if TEXTS.fullmatch(kind) else kind
    headers = {"ETag": own, "Content-Type": kind}
    return Answer(304, headers=headers) if own == etag else Answer(200, body, headers)
