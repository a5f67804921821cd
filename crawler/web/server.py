"""Serves the web app with uvicorn in the running loop, and limits the resources of clients.

The server limits the number of connections, in total and per address; the time for the headers and
the body of a request, for reading a response and between requests; and the size of headers. The app
limits the size of bodies. The server installs neither signal handlers nor an event loop.

Processes that are not `scrapy web` serve their metrics or the WebSub callback with an app of
`create_minimal_app`: routers without pages, users and API, with the limits and headers of the web
app. Its errors are lines of plain text.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import time
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, TypeVar

import h11
import uvicorn
from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Scope
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from crawler.errors import ConfigError
from crawler.web.middleware import BodyLimit, Errors, ProxyAndHost, SecurityHeaders
from crawler.web.options import WebOptions, client_address

logger = logging.getLogger(__name__)
BACKLOG = 128
# Minimum time between log lines about closed connections.
LOG_SECONDS = 60.0
# Limit of minimal apps for routes without their own limit: none of these reads a body.
MAX_BODY_BYTES = 100_000
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the resources that clients may use.

    connections:  concurrent connections; proxies may have any number of them
    per_address:  concurrent connections of one address
    idle_seconds: before a connection without a request is closed
    head_seconds: for receiving the headers, from their first byte on
    body_seconds: for receiving the body
    read_seconds: for the client to continue reading when the buffers are full
    head_bytes:   size of the headers
    stop_seconds: for requests in progress after a signal
    """

    connections: int = 64
    per_address: int = 32
    idle_seconds: float = 30.0
    head_seconds: float = 10.0
    body_seconds: float = 60.0
    read_seconds: float = 60.0
    head_bytes: int = 32_768
    stop_seconds: int = 10


USUAL = Limits()


class Phase(Enum):
    """What a connection waits for: a request, the rest of its headers or body, or the app."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    RESPONSE = "response"


class _Flow(FlowControl):
    """Makes a client's next requests wait at the client, not in the memory of this process.

    Whenever an app asks for the body, uvicorn reads up to 256 kB more, even if thousands of
    requests wait already.
    """

    def __init__(self, transport: asyncio.Transport, conn: h11.Connection) -> None:
        super().__init__(transport)
        self._conn = conn

    def resume_reading(self) -> None:
        """Read on, unless enough data of the next requests waits."""
        if len(self._conn.trailing_data[0]) < HIGH_WATER_LIMIT:
            super().resume_reading()


class LimitedProtocol(H11Protocol):
    """A connection with limits on its time and memory.

    address: key by which connections are counted, see `options.client_address`
    since:   when the connection began to wait for a complete request; None while one is handled
    behind:  when the client stopped reading as fast as it is sent responses; None if it has them
    """

    options: ClassVar[WebOptions]
    limits: ClassVar[Limits]
    address = ""
    since: float | None = None
    behind: float | None = None
    _next_log: ClassVar[float] = 0.0
    _phase = Phase.RESPONSE
    _limit: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for the first request, or refuse the connection."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self.conn)
        host = self.client[0] if self.client else ""
        self.address = "" if self.options.trusts(host) else client_address(host)
        others: list[LimitedProtocol] = [
            other
            for other in self.connections
            if isinstance(other, LimitedProtocol) and other is not self
            and not other.transport.is_closing()
        ]  # fmt: skip
        own = [other for other in others if self.address and other.address == self.address]
        is_many = len(own) >= self.limits.per_address
        if is_many or len(others) >= self.limits.connections:
            victim = _waiting(own) if is_many else _waiting(others) or _crowding(others, len(own))
            _log_limit(f"closed a connection of {(victim or self).address or 'a proxy'}")
            if victim is None:
                transport.abort()
                return
            victim.drop()
        self._enter(Phase.IDLE)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limits."""
        for timer in (self._limit, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Start the time limit of the headers with the first byte, and of the body after them."""
        if self._phase is Phase.IDLE:
            self._enter(Phase.HEAD)
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        """Start waiting for the next request."""
        # A body that the app did not read may still arrive: its time limit continues.
        if self.conn.their_state is not h11.SEND_BODY:
            self._enter(Phase.IDLE)
        super().on_response_complete()
        self._follow()

    def pause_writing(self) -> None:
        """Start the time limit for the client to read."""
        super().pause_writing()
        # Not reset when the client reads a little: many responses may wait on one connection.
        self.behind = self.behind or time.monotonic()
        self._stalled = self.loop.call_later(self.limits.read_seconds, self.drop)

    def resume_writing(self) -> None:
        """Stop the time limit: the client reads."""
        if self._stalled is not None:
            self._stalled.cancel()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request, or close the connection if its response has begun."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.drop()
            return
        super().send_400_response(msg)
        if self.cycle is not None:
            # The app may be about to respond to the request, too.
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def drop(self) -> None:
        """Close the connection immediately, without sending buffered data."""
        self.transport.abort()

    def _follow(self) -> None:
        """Enter the phase that the parser is in."""
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            if self._phase is not Phase.BODY:
                self._enter(Phase.BODY)
        elif state is h11.IDLE:
            if self._phase is Phase.IDLE and self.conn.trailing_data[0]:
                self._enter(Phase.HEAD)
        elif self.cycle is not None and not self.cycle.response_complete:
            self._enter(Phase.RESPONSE)

    def _enter(self, phase: Phase) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
        if phase is Phase.IDLE and not self.transport.get_write_buffer_size():
            self.behind = None
        if phase is Phase.RESPONSE:
            self.since = None
        else:
            self.since = self.since or time.monotonic()
            seconds = getattr(self.limits, f"{phase.value}_seconds")
            self._limit = self.loop.call_later(seconds, self.drop)
        self._phase = phase


def _waiting(candidates: Iterable[LimitedProtocol]) -> LimitedProtocol | None:
    """Return the longest-waiting connection of the address with the most waiting connections.

    A connection waits for a request, or for its client to read. Returns None if none waits.
    """
    times = {each: since for each in candidates if (since := each.behind or each.since) is not None}
    counts = Counter(each.address for each in times)
    return min(times, key=lambda each: (-counts[each.address], times[each]), default=None)


def _crowding(candidates: Iterable[LimitedProtocol], own: int) -> LimitedProtocol | None:
    """Return a connection of the address with the most connections, if it has more than `own` + 1.

    A client that always sends requests, and reads the responses, never waits. Proxies, which may
    have any number of connections, have no address.
    """
    counts = Counter(each.address for each in candidates if each.address)
    address, most = max(counts.items(), key=lambda pair: pair[1], default=("", 0))
    if most <= own + 1:
        return None
    return next(each for each in candidates if each.address == address)


def _log_limit(what: str) -> None:
    if (now := time.monotonic()) >= LimitedProtocol._next_log:
        LimitedProtocol._next_log = now + LOG_SECONDS
        logger.warning("Too many connections: %s", what)


# What to do if an address cannot be listened on, by the number of the error.
HINTS = {
    errno.EADDRINUSE: ". Another program listens there; choose another port",
    errno.EACCES: ". Ports below 1024 need root; choose a higher one",
    errno.EADDRNOTAVAIL: ". This machine has no such address; 127.0.0.1 is itself, 0.0.0.0 all",
}


def listen(options: WebOptions, option: str | None = None) -> socket.socket:
    """Listen at the address of the options; raises ConfigError, which names the option.

    option: how the user gave the address; None: as `--host` and `--port`
    """
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        listener = socket.create_server(
            (options.host, options.port), family=family, backlog=BACKLOG
        )
    except OSError as error:
        hint = HINTS.get(error.errno or 0, "")
        if option is None:
            option = f"--host {options.host} --port {options.port}"
        # Python adds the address to the text of the error.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error
        raise ConfigError(f"{option}: {reason}{hint}") from None
    listener.setblocking(False)
    # Accepted connections inherit TCP_NODELAY, which asyncio sets only for sockets with a protocol
    # number. Otherwise, the body of a response waits 40 ms until the browser has acknowledged the
    # headers.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def url_of(listener: socket.socket, root_path: str = "") -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{root_path}/"


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Set `is_ready` when requests are accepted."""
        await super().startup(sockets)
        self.is_ready.set()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to the caller, which owns the loop."""
        yield


@asynccontextmanager
async def served(
    app: Any,
    options: WebOptions,
    listener: socket.socket,
    limits: Limits = USUAL,
    stopping: Callable[[], None] = lambda: None,
) -> AsyncIterator[Callable[[], None]]:
    """Serve an app inside the context, then finish the requests in progress.

    stopping: called before the server waits for requests in progress

    Yields a function that aborts the requests in progress, for a second signal.
    """
    protocol = type("Protocol", (LimitedProtocol,), {"options": options, "limits": limits})
    # Rejected requests of scanners are not worth a line each.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    settings = uvicorn.Config(
        app, http=protocol, ws="none", interface="asgi3", lifespan="on", log_config=None,
        access_log=False, server_header=False, proxy_headers=False,
        timeout_keep_alive=round(limits.idle_seconds),
        timeout_graceful_shutdown=limits.stop_seconds,
        h11_max_incomplete_event_size=limits.head_bytes,
    )  # fmt: skip
    server = _Server(settings)

    def hurry() -> None:
        server.force_exit = True

    serving = asyncio.create_task(server.serve([listener]))
    starting = asyncio.create_task(server.is_ready.wait())
    try:
        await asyncio.wait({serving, starting}, return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving
        yield hurry
    finally:
        starting.cancel()
        stopping()
        server.should_exit = True
        await serving


async def serve_until_signal(
    app: Any,
    options: WebOptions,
    listener: socket.socket,
    ready: Callable[[], None],
    stopping: Callable[[], None] = lambda: None,
) -> None:
    """Serve an app until SIGINT or SIGTERM; a second signal aborts the requests in progress.

    ready:    called when requests are accepted
    stopping: called at the first signal, to end responses that would never end otherwise
    """
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, stop.set)
    try:
        async with served(app, options, listener, stopping=stopping) as hurry:
            ready()
            await stop.wait()
            for number in numbers:
                loop.add_signal_handler(number, hurry)
    finally:
        with suppress(ValueError):
            for number in numbers:
                loop.remove_signal_handler(number)


def create_minimal_app(
    options: WebOptions,
    routers: Sequence[APIRouter],
    *,
    any_host: bool = False,
    uploads: Mapping[str, int] | None = None,
) -> FastAPI:
    """Return an app of some routers, whose routes need no user.

    any_host: accept all Host headers, because the routes check signatures
    uploads:  see `crawler.web.middleware.BodyLimit`
    """
    app = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.options = options

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        return PlainTextResponse(f"{error.detail}\n", error.status_code, error.headers)

    for router in routers:
        app.include_router(router)
    # The last one added is the outermost.
    app.add_middleware(BodyLimit, max_bytes=MAX_BODY_BYTES, uploads=uploads or {}, error_page=_line)
    if not any_host:
        app.add_middleware(ProxyAndHost, options=options, error_page=_line)
    app.add_middleware(Errors, error_page=_line)
    app.add_middleware(SecurityHeaders)
    return app


def _line(_: Scope, status: int, detail: str) -> Response:
    return PlainTextResponse(f"{detail}\n", status)
