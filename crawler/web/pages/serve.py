"""Looks at the cell base and the templates every second; builds what changed."""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
import re
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from twisted.internet.defer import maybeDeferred
from twisted.web.resource import Resource
from twisted.web.server import Site

from crawler.config import Config
from crawler.errors import FreshetError, StorageError
from crawler.fetch.guard import is_local
from crawler.storage import cells
from crawler.storage.client import Document
from crawler.storage.retry import Patience
from crawler.storage.store import Store
from crawler.utils import tasks
from crawler.utils.terminal import complain
from crawler.utils.time import Clock
from crawler.web.pages import sources
from crawler.web.pages.build import WRITTEN, Done, Record, build, decide, states, write_states
from crawler.web.pages.options import Listening, Places
from crawler.web.pages.render import Cells
from crawler.web.server import Bodiless, open_port, run_in_reactor, url_of

COMMAND = "pages"
LOOK_SECONDS = 1.0


class Watching:
    """The pages of a folder, kept up to date.

    written: pages written so far, one twice counts twice    pages: what became of each at last
    """

    def __init__(self, store: Store, order: Places) -> None:
        self.order = order
        self.written = 0
        self.pages: dict[str, str] = {}
        self._store = store
        self._clock = Clock(store.config.clock_offset_hours)
        # One call each time; that a server is away is borne here.
        self._once = Patience(-1, store.revive)
        self._stamp = sources.stamp(order.templates)
        self._sources = sources.find(order.templates)
        self._record = Record()
        self._states = b""
        self._problems: dict[str, str] = {}
        self._trouble = False
        self._building = asyncio.Lock()

    async def build(self, *, retry: bool = True) -> None:
        """Build what is due; raises FreshetError."""
        found = await self._read(content=True)
        async with self._building:
            done = await asyncio.to_thread(build, found, self._sources, self.order.out, retry=retry)
        self._record = Record.read(self.order.out)
        self._states = states(found)
        self._tell(done)

    async def work(self) -> None:
        """Look again and again; a trouble is told once and borne."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                self._look_for_templates()
                await self._look()
            except StorageError as error:
                self._bear(f"{error}; pages stay as they are until it is back")
                with suppress(FreshetError):
                    await self._store.revive()
            except FreshetError as error:
                self._bear(str(error))
            else:
                self._go_on()

    async def end(self, work: asyncio.Task[None]) -> None:
        """Stop looking; a build that has begun is ended first."""
        async with self._building:
            work.cancel()
        await tasks.end(work)

    def _look_for_templates(self) -> None:
        seen = sources.stamp(self.order.templates)
        if seen != self._stamp:
            self._sources = sources.find(self.order.templates)
            self._stamp = seen

    async def _look(self) -> None:
        """Contents are read only where a state says that there is something to build."""
        found = await self._read(content=False)
        work = (found, self._sources, self._record, self.order.out)
        plan = await asyncio.to_thread(decide, *work, retry=False)
        if not plan.empty or self._record.templates != self._sources.digest:
            await self.build(retry=False)
        elif (now := states(found)) != self._states:
            await asyncio.to_thread(write_states, self.order.out, now)
            self._states = now

    async def _read(self, *, content: bool) -> Cells:
        db = self._store.db
        found = await self._once.read(lambda: cells.read(db, content=content))
        return Cells(found, self._clock.now())

    def _tell(self, done: Done) -> None:
        """Count what was done; a page's problem is told when it is another one."""
        self.pages = done.pages
        self.written += list(done.pages.values()).count(WRITTEN)
        for path, problem in done.problems.items():
            if self._problems.get(path) != problem:
                complain(COMMAND, problem)
        failing = {path: line for path, line in self._problems.items() if path in self._failed()}
        self._problems = failing | done.problems

    def _failed(self) -> set[str]:
        return {path for path, built in self._record.pages.items() if built.failed}

    def _bear(self, said: str) -> None:
        if not self._trouble:
            complain(COMMAND, said)
        self._trouble = True

    def _go_on(self) -> None:
        if self._trouble:
            complain(COMMAND, "it goes on")
        self._trouble = False


INDEX = "index.html"
ALWAYS = {
    "Server": "Freshet",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": (
        "default-src 'self'; img-src * data:; style-src 'self' 'unsafe-inline'"
    ),
    "Cache-Control": "no-cache",
}
TEXTS = re.compile(r"text/.*|application/(json|javascript)")


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, body, and headers beside those that every answer has."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. hosts: all its Host headers    etag: If-None-Match."""

    method: str
    path: str
    hosts: tuple[str, ...]
    etag: str = ""


def answer(root: Path, asked: Asked) -> Answer:
    """Answer from the folder `root`, whose path is resolved."""
    if len(asked.hosts) != 1 or not is_local(asked.hosts[0]):
        return _said(403, "only for this machine; say localhost")
    if asked.method not in ("GET", "HEAD"):
        return Answer(405, headers={"Allow": "GET, HEAD"})
    path = unquote(asked.path.partition("?")[0])
    parts = path.split("/")
    hidden = any(part.startswith(".") or "\\" in part or "\0" in part for part in parts)
    if not path.startswith("/") or hidden:
        return NOT_FOUND
    try:
        return _file(root, "/".join(parts[1:]), asked.etag)
    except (OSError, ValueError, RuntimeError):
        return NOT_FOUND


def _file(root: Path, name: str, etag: str) -> Answer:
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
    headers = {"ETag": own, "Content-Type": _kind(place.name)}
    return Answer(304, headers=headers) if own == etag else Answer(200, body, headers)


def _kind(name: str) -> str:
    found = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return f"{found}; charset=utf-8" if TEXTS.fullmatch(found) else found


def _said(status: int, text: str) -> Answer:
    return Answer(status, f"{text}\n".encode(), {"Content-Type": "text/plain; charset=utf-8"})


NOT_FOUND = _said(404, "no such page")


IDLE_SECONDS = 30


class Folder(Resource):
    """Answers each request from the files in a folder."""

    isLeaf = True  # noqa: N815 - Twisted's name

    def __init__(self, root: Path) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._root = root.resolve()

    def render(self, request: Any) -> bytes:
        """Answer a request."""
        found = answer(self._root, _asked(request))
        request.setResponseCode(found.status)
        headers = {**ALWAYS, **found.headers, "Content-Length": str(len(found.body))}
        if found.status == 304:
            del headers["Content-Length"]
        for name, value in headers.items():
            request.setHeader(name, value)
        return found.body


def listen(reactor: Any, order: Listening, root: Path) -> Any:
    """Begin to listen; raises ConfigError where the address cannot be had."""
    site = Site(  # type: ignore[no-untyped-call]
        Folder(root),
        requestFactory=Bodiless,
        timeout=IDLE_SECONDS,
        reactor=reactor,
        parsePOSTFormSubmission=False,
    )
    option = f"--bind {order.bind} --port {order.port}"
    return open_port(reactor, order.port, site, order.bind, option)


def _asked(request: Any) -> Asked:
    hosts = request.requestHeaders.getRawHeaders(b"host", [])
    return Asked(
        method=request.method.decode("latin-1"),
        path=request.uri.decode("latin-1"),
        hosts=tuple(host.decode("latin-1") for host in hosts),
        etag=(request.getHeader(b"if-none-match") or b"").decode("latin-1"),
    )


def serve(config: Config, order: Places, address: Listening) -> Document:
    """Serve to the end; a summary. Raises FreshetError."""
    return run_in_reactor(_work(config, order, address))


async def _work(config: Config, order: Places, address: Listening) -> Document:
    from twisted.internet import reactor

    stop, began = _stop_at_signals(), time.monotonic()
    store = await Store.open(config)
    try:
        watching = Watching(store, order)
        port = listen(reactor, address, order.out)
        url = url_of(port)
        try:
            await watching.build()
            complain(COMMAND, f"{url} shows {order.out}")
            await _until(stop, address.seconds, watching)
        finally:
            await maybeDeferred(port.stopListening).asFuture(asyncio.get_running_loop())
    finally:
        await store.close()
    return {
        "url": url,
        "out": str(order.out),
        "seconds": round(time.monotonic() - began, 1),
        "written": watching.written,
        "pages": watching.pages,
    }


def _stop_at_signals() -> asyncio.Event:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


async def _until(stop: asyncio.Event, seconds: float | None, watching: Watching) -> None:
    """Watch until a signal comes or the time is over."""
    ended = asyncio.create_task(stop.wait())
    work = asyncio.create_task(watching.work())
    done, _ = await asyncio.wait(
        {ended, work}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
    )
    ended.cancel()
    await watching.end(work)
    if work in done:
        work.result()
