"""Web servers of commands: the reactor, sites with limits, answers, signals.

A command brings a `Handler` and runs one coroutine with `run_in_reactor`. The limits hold for all
sites: connections in all and of each address, and seconds for head and body of a request.
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
# Concurrent connections, in all and of one address.
MAX_CONNECTIONS, MAX_OF_ADDRESS = 64, 32
# From the first byte of a request to the end of its head, and from there to the end of its body.
HEAD_SECONDS, BODY_SECONDS = 10.0, 60.0
# Of a connection without a request.
IDLE_SECONDS = 30
# Between two log lines about closed connections.
QUIET_SECONDS = 60.0
PLAIN_TEXT = {"Content-Type": "text/plain; charset=utf-8"}
ALWAYS = {"Server": "Freshet", "X-Content-Type-Options": "nosniff"}
Result = TypeVar("Result")


def run_in_reactor(work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine that needs Twisted's reactor; raises what it raises."""
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
    """Return an event that SIGINT and SIGTERM set from now on."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop


async def until_signal(stop: asyncio.Event, seconds: float | None = None) -> None:
    """Wait for a signal, or for the end of the time; the event waits for the next signal then."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
            stop.clear()


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer: status, body, and headers beside those that every answer has."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=lambda: PLAIN_TEXT)

    def send(self, request: Any) -> None:
        """Answer a request."""
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
    """Answers each request for any path, a little later."""

    isLeaf = True  # noqa: N815 - Twisted's name
    # Logged with an error.
    failure = "a request failed"

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def answer(self, request: Any) -> Answer:
        """Return the answer to a request; an error is logged and answered with 500."""

    def render(self, request: Any) -> int:
        """Begin to answer a request."""
        task = asyncio.get_running_loop().create_task(self._render(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return NOT_DONE_YET

    async def drain(self, seconds: float) -> None:
        """Wait until the requests that were received are answered, for at most that long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def _render(self, request: Any) -> None:
        gone: list[object] = []
        request.notifyFinish().addErrback(gone.append)
        try:
            answer = await self.answer(request)
        except Exception:  # A client gets an answer, whatever happens.
            logger.exception("%s", self.failure)
            answer = Answer(500, b"internal error, see the log\n")
        if not gone:
            answer.send(request)


def host_of_request(request: Any) -> str:
    """Return the one Host header of a request; empty if there are several or none."""
    hosts = request.requestHeaders.getRawHeaders(b"host", [])
    return hosts[0].decode("latin-1") if len(hosts) == 1 else ""


class Bodiless(Request):
    """A request whose body is thrown away as it comes: it fills neither memory nor a folder."""

    def gotLength(self, length: int | None) -> None:  # noqa: N802 - Twisted's name
        """Begin a request; Twisted would open a file for a long body."""
        super().gotLength(0)  # type: ignore[no-untyped-call]

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """Throw a part of the body away."""


class Channel(HTTPChannel):
    """A connection on which the head and the body of a request each have their time to come in.

    address: who has connected
    since:   from when on the next request is waited for; None while one is answered
    """

    address = ""
    since: float | None = None
    is_closing = False
    site: Any
    _watch: Any = None

    def connectionMade(self) -> None:  # noqa: N802 - Twisted's name
        """Wait for the first request."""
        self.since = time.monotonic()
        super().connectionMade()  # type: ignore[no-untyped-call]

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """Read what came; each byte puts Twisted's own limit off."""
        if self._watch is None and self.since is not None:
            self._watch_for(HEAD_SECONDS)
        super().dataReceived(data)  # type: ignore[no-untyped-call]

    def allHeadersReceived(self) -> None:  # noqa: N802 - Twisted's name
        """Wait for the body."""
        self._watch_for(getattr(self.site, "request_seconds", BODY_SECONDS))
        super().allHeadersReceived()  # type: ignore[no-untyped-call]

    def allContentReceived(self) -> None:  # noqa: N802 - Twisted's name
        """Let the request be answered, which is no longer a matter of the sender's time."""
        self._stop_watch()
        self.since = None
        super().allContentReceived()  # type: ignore[no-untyped-call]

    def requestDone(self, request: Any) -> None:  # noqa: N802 - Twisted's name
        """Wait for the next request."""
        self.since = time.monotonic()
        super().requestDone(request)  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure = connectionDone) -> None:  # noqa: N802 - as above
        """Forget the watch."""
        self._stop_watch()
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def drop(self) -> None:
        """Close the connection now, whatever is still to be sent."""
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
    """Takes a bounded number of connections, in all and of each address.

    Beyond a bound the connection goes that has waited longest for a whole request, in all of those
    of the address that has the most of them; where there is none, the new connection is closed.
    """

    _quiet_until = 0.0

    def buildProtocol(self, addr: Any) -> Any:  # noqa: N802 - Twisted's name
        """A protocol for a connection; None closes it."""
        address = place_of(addr.host)
        channels = [protocol.wrappedProtocol for protocol in self.protocols]
        open_channels = [channel for channel in channels if not channel.is_closing]
        own = [channel for channel in open_channels if channel.address == address]
        bounded = own if len(own) >= MAX_OF_ADDRESS else open_channels
        is_full = len(own) >= MAX_OF_ADDRESS or len(open_channels) >= MAX_CONNECTIONS
        if is_full and not self._makes_room(bounded):
            return None
        protocol = super().buildProtocol(addr)
        protocol.wrappedProtocol.address = address
        return protocol

    def _makes_room(self, among: list[Channel]) -> bool:
        """Close one that waits for a request; False if all are being answered."""
        waiting = [channel for channel in among if channel.since is not None]
        if not waiting:
            return False
        counts = Counter(channel.address for channel in waiting)
        most = max(counts.values())
        oldest = [channel for channel in waiting if counts[channel.address] == most]
        min(oldest, key=lambda channel: channel.since or 0.0).drop()
        if (now := time.monotonic()) >= self._quiet_until:
            self._quiet_until = now + QUIET_SECONDS
            logger.warning(
                "%d concurrent connections: closing the oldest without a complete request",
                len(among),
            )
        return True


def place_of(host: str) -> str:
    """The address of a peer; of IPv6 the network, as each user has a whole one."""
    address = ip_address(host.partition("%")[0])
    if address.version == 4:
        return str(address)
    return str(address.ipv4_mapped or ip_network((int(address), 64), strict=False))


def open_port(reactor: Any, port: int, site: Any, bind: str, option: str) -> Any:
    """The listening port of a site; raises ConfigError, which names the option, where none can be.

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
    """Listen while inside; raises ConfigError, which names the option, where that is impossible."""
    listening = open_port(site.reactor, port, site, bind, option)
    try:
        yield listening
    finally:
        await stop_listening(listening)


async def stop_listening(listening: Any) -> None:
    """Close a port; its open connections stay."""
    await maybeDeferred(listening.stopListening).asFuture(asyncio.get_running_loop())


def site_of(handler: Handler) -> Site:
    """Return a site whose requests may have a body, but none is kept."""
    from twisted.internet import reactor

    return Site(  # type: ignore[no-untyped-call]
        handler,
        requestFactory=Bodiless,
        timeout=IDLE_SECONDS,
        reactor=reactor,
        parsePOSTFormSubmission=False,
    )


def url_of(listening: Any) -> str:
    """Where a listening port is found."""
    host = listening.getHost()
    name = f"[{host.host}]" if ":" in host.host else host.host
    return f"http://{name}:{host.port}/"
