"""The common part of web servers: reactor, sites with limits, responses, signals.

A command implements a `Handler` and runs one coroutine with `run_in_reactor`. All sites limit the
number of connections, in total and per address, and the time for receiving a request's headers and
its body.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any, TypeVar

from twisted.internet import asyncioreactor
from twisted.internet.defer import maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import connectionDone
from twisted.protocols.policies import WrappingFactory
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site

from crawler.errors import ConfigError

logger = logging.getLogger(__name__)
# Concurrent connections, in total and per address.
MAX_CONNECTIONS, MAX_PER_ADDRESS = 64, 32
# Time for receiving a request's headers from the first byte on, and then its body.
HEAD_SECONDS, BODY_SECONDS = 10.0, 60.0
# Time before a connection without a request is closed.
IDLE_SECONDS = 30
# Minimum time between log lines about closed connections.
LOG_SECONDS = 60.0
PLAIN_TEXT = {"Content-Type": "text/plain; charset=utf-8"}
ALWAYS = {"Server": "Freshet", "X-Content-Type-Options": "nosniff"}
Result = TypeVar("Result")


def run_in_reactor(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that needs Twisted's reactor; return its result or raise its error."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    asyncioreactor.install(loop)  # type: ignore[no-untyped-call]
    from twisted.internet import reactor as installed

    reactor: Any = installed
    task = loop.create_task(work)
    task.add_done_callback(lambda _: reactor.stop())
    reactor.run(installSignalHandlers=False)
    return task.result()


def stop_at_signals() -> asyncio.Event:
    """Install handlers of SIGINT and SIGTERM; return the event that they set."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


async def until_signal(stop: asyncio.Event, seconds: float | None = None) -> None:
    """Wait for a signal, up to a timeout; clear the event so that it can report the next signal."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
            stop.clear()


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response: status, body, and headers in addition to the common ones."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=lambda: PLAIN_TEXT)

    def send(self, request: Any) -> None:
        """Send the response to a request."""
        request.setResponseCode(self.status)
        headers = {**ALWAYS, "Content-Length": str(len(self.body)), **self.headers}
        if self.status == 304:
            del headers["Content-Length"]
        for name, value in headers.items():
            request.setHeader(name, value)
        if request.method != b"HEAD":
            request.write(self.body)
        request.finish()


class Handler(Resource):
    """A resource that responds to requests for all paths with the coroutine `answer`."""

    isLeaf = True  # noqa: N815 - Twisted's name
    # Log message for unexpected errors.
    failure = "Request failed"

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def answer(self, request: Any) -> Answer:
        """Return the response to a request; errors are logged and returned as status 500."""

    def render(self, request: Any) -> int:
        """Start handling a request."""
        task = asyncio.get_running_loop().create_task(self._render(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return NOT_DONE_YET

    async def drain(self, seconds: float) -> None:
        """Wait until all received requests are answered, for at most `seconds`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def _render(self, request: Any) -> None:
        gone: list[object] = []
        request.notifyFinish().addErrback(gone.append)
        try:
            answer = await self.answer(request)
        except Exception:  # Respond in any case: without a response, the client would wait.
            logger.exception("%s", self.failure)
            answer = Answer(500, b"internal error, see the log\n")
        if not gone:
            answer.send(request)


def host_of_request(request: Any) -> str:
    """Return the Host header of a request; empty if there is not exactly one."""
    hosts = request.requestHeaders.getRawHeaders(b"host", [])
    return hosts[0].decode("latin-1") if len(hosts) == 1 else ""


class Bodiless(Request):
    """A request whose body is discarded while it is received, instead of being buffered."""

    def gotLength(self, length: int | None) -> None:  # noqa: N802 - Twisted's name
        """Start a request with length 0, as Twisted would open a temporary file for a long body."""
        super().gotLength(0)  # type: ignore[no-untyped-call]

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """Discard a part of the body."""


class Channel(HTTPChannel):
    """A connection with time limits for receiving the headers and the body of a request.

    address: the client's address, see `client_address`
    since:   when the connection began to wait for a complete request; None while one is handled
    """

    address = ""
    since: float | None = None
    is_closing = False
    site: Any
    _watch: Any = None

    def connectionMade(self) -> None:  # noqa: N802 - Twisted's name
        """Start waiting for the first request."""
        self.since = time.monotonic()
        super().connectionMade()  # type: ignore[no-untyped-call]

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """Start the time limit with the first byte: Twisted's own restarts with every byte."""
        if self._watch is None and self.since is not None:
            self._watch_for(HEAD_SECONDS)
        super().dataReceived(data)  # type: ignore[no-untyped-call]

    def allHeadersReceived(self) -> None:  # noqa: N802 - Twisted's name
        """Start the time limit of the body."""
        self._watch_for(getattr(self.site, "request_seconds", BODY_SECONDS))
        super().allHeadersReceived()  # type: ignore[no-untyped-call]

    def allContentReceived(self) -> None:  # noqa: N802 - Twisted's name
        """Stop the time limit: the request is complete."""
        self._stop_watch()
        self.since = None
        super().allContentReceived()  # type: ignore[no-untyped-call]

    def requestDone(self, request: Any) -> None:  # noqa: N802 - Twisted's name
        """Start waiting for the next request."""
        self.since = time.monotonic()
        super().requestDone(request)  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: N802 - as above
        """Stop the time limit."""
        self._stop_watch()
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def drop(self) -> None:
        """Close the connection immediately, without sending buffered data."""
        self.is_closing = True
        transport: Any = self.transport
        transport.abortConnection()

    def _watch_for(self, seconds: float) -> None:
        self._stop_watch()
        self._watch = self.site.reactor.callLater(seconds, self.drop)

    def _stop_watch(self) -> None:
        if self._watch is not None and self._watch.active():
            self._watch.cancel()
        self._watch = None


class Bounded(WrappingFactory):
    """Limits the number of connections, in total and per address.

    When an address has too many connections, its connection that has waited longest for a complete
    request is closed. When there are too many in total, the one of the address with the most
    waiting connections is. If no connection is waiting, the new one is refused.
    """

    _next_log = 0.0

    def buildProtocol(self, addr: Any) -> Any:  # noqa: N802 - Twisted's name
        """Return the protocol of a new connection; None refuses it."""
        address = client_address(addr.host)
        channels = [protocol.wrappedProtocol for protocol in self.protocols]
        open_channels = [channel for channel in channels if not channel.is_closing]
        own = [channel for channel in open_channels if channel.address == address]
        candidates = own if len(own) >= MAX_PER_ADDRESS else open_channels
        is_full = len(own) >= MAX_PER_ADDRESS or len(open_channels) >= MAX_CONNECTIONS
        if is_full and not self._make_room(candidates):
            return None
        protocol = super().buildProtocol(addr)
        protocol.wrappedProtocol.address = address
        return protocol

    def _make_room(self, candidates: list[Channel]) -> bool:
        """Close a connection that waits for a request; return False if none does."""
        waiting = [channel for channel in candidates if channel.since is not None]
        if not waiting:
            return False
        counts = Counter(channel.address for channel in waiting)
        most = max(counts.values())
        oldest = [channel for channel in waiting if counts[channel.address] == most]
        min(oldest, key=lambda channel: channel.since or 0.0).drop()
        if (now := time.monotonic()) >= self._next_log:
            self._next_log = now + LOG_SECONDS
            logger.warning(
                "Too many connections (%d): closed the oldest without a complete request",
                len(candidates),
            )
        return True


def client_address(host: str) -> str:
    """Return the address by which connections are counted.

    For IPv6 this is the /64 network, because a single user usually has a whole one.
    """
    address = ip_address(host.partition("%")[0])
    if address.version == 4:
        return str(address)
    return str(address.ipv4_mapped or ip_network((int(address), 64), strict=False))


def open_port(reactor: Any, port: int, site: Any, bind: str, option: str) -> Any:
    """Listen for a site; return the listening port. Raises ConfigError, which names the option.

    bind: an IP address of this machine
    """
    site.protocol = Channel
    factory = Bounded(site)  # type: ignore[no-untyped-call]
    try:
        return reactor.listenTCP(port, factory, interface=bind)
    except (CannotListenError, OSError) as error:
        reason = getattr(error, "socketError", error)
        reason = getattr(reason, "strerror", None) or reason
        raise ConfigError(f"{option}: {reason}") from None


@asynccontextmanager
async def served(site: Any, port: int, bind: str, option: str) -> AsyncIterator[Any]:
    """Listen inside the context; raises ConfigError, which names the option, if that fails."""
    listening = open_port(site.reactor, port, site, bind, option)
    try:
        yield listening
    finally:
        await stop_listening(listening)


async def stop_listening(listening: Any) -> None:
    """Close a listening port; open connections stay open."""
    await maybeDeferred(listening.stopListening).asFuture(asyncio.get_running_loop())


def site_of(handler: Handler) -> Site:
    """Return a site that discards the bodies of requests."""
    from twisted.internet import reactor

    return Site(  # type: ignore[no-untyped-call]
        handler,
        requestFactory=Bodiless,
        timeout=IDLE_SECONDS,
        reactor=reactor,
        parsePOSTFormSubmission=False,
    )


def url_of(listening: Any) -> str:
    """Return the URL of a listening port."""
    host = listening.getHost()
    name = f"[{host.host}]" if ":" in host.host else host.host
    return f"http://{name}:{host.port}/"
