"""Twisted's reactor for a command that serves: one coroutine is its whole life; and its ports."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any, TypeVar

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
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
from crawler.fetch.guard import is_in_network, is_local, is_loopback
from crawler.web.address import Address

logger = logging.getLogger(__name__)
# At once, in all and of one address.
MAX_CONNECTIONS, MAX_OF_ADDRESS = 64, 32
# From the first byte of a request to the end of its head, and from there to the end of its body.
HEAD_SECONDS, BODY_SECONDS = 10.0, 60.0
# Between two log lines about closed connections.
QUIET_SECONDS = 60.0
Result = TypeVar("Result")


def run_in_reactor(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine that needs Twisted's reactor; raises what it raises."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    asyncioreactor.install(loop)  # type: ignore[no-untyped-call]
    from twisted.internet import reactor as installed

    reactor: Any = installed
    task = loop.create_task(work)
    task.add_done_callback(lambda _: reactor.stop())
    reactor.run(installSignalHandlers=False)
    return task.result()


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
        there = [one for one in self._channels() if not one.is_closing]
        own = [one for one in there if one.address == address]
        bounded = own if len(own) >= MAX_OF_ADDRESS else there
        is_full = len(own) >= MAX_OF_ADDRESS or len(there) >= MAX_CONNECTIONS
        if is_full and not self._makes_room(bounded):
            return None
        protocol = super().buildProtocol(addr)
        protocol.wrappedProtocol.address = address
        return protocol

    def _channels(self) -> list[Channel]:
        return [one.wrappedProtocol for one in self.protocols]

    def _makes_room(self, among: list[Channel]) -> bool:
        """Close one that waits for a request; False if all are being answered."""
        waiting = [one for one in among if one.since is not None]
        if not waiting:
            return False
        counts = Counter(one.address for one in waiting)
        most = max(counts.values())
        those = [one for one in waiting if counts[one.address] == most]
        min(those, key=lambda one: one.since or 0.0).drop()
        if (now := time.monotonic()) >= self._quiet_until:
            self._quiet_until = now + QUIET_SECONDS
            logger.warning(
                "%d connections at once: the oldest without a whole request are closed", len(among)
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


def url_of(listening: Any) -> str:
    """Where a listening port is found."""
    host = listening.getHost()
    name = f"[{host.host}]" if ":" in host.host else host.host
    return f"http://{name}:{host.port}/"


IDLE_SECONDS = 30
TEXT = "text/plain; charset=utf-8"
INDEX = b"Freshet: /metrics /-/healthy /-/ready\n"


@dataclass(frozen=True, slots=True)
class Told:
    """What there is to tell.

    metrics: in the text format; None: nothing yet
    trouble: why the process cannot do its work, in a line; None if it can
    """

    metrics: Callable[[], Awaitable[bytes | None]]
    trouble: Callable[[], Awaitable[str | None]]


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, body and what kind of text it is."""

    status: int
    body: bytes
    kind: str = TEXT


async def answer(told: Told, method: str, path: str) -> Answer:
    """Return the answer to a request; may raise what `told` raises."""
    if method not in ("GET", "HEAD"):
        return Answer(405, b"GET, please\n")
    if path == "/metrics":
        text = await told.metrics()
        if text is None:
            return Answer(503, b"the first reading is not done yet\n")
        return Answer(200, text, CONTENT_TYPE_PLAIN_0_0_4)
    if path == "/-/ready":
        trouble = await told.trouble()
        return Answer(503, f"{trouble}\n".encode()) if trouble else Answer(200, b"ready\n")
    if path == "/-/healthy":
        return Answer(200, b"healthy\n")
    return Answer(200, INDEX) if path == "/" else Answer(404, INDEX)


class Telling(Resource):
    """Answers each request, a little later."""

    isLeaf = True  # noqa: N815 - Twisted's name

    def __init__(self, told: Told, address: Address, hosts: Collection[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._told = told
        self._is_private = is_loopback(address.host)
        self._hosts = hosts
        self._tasks: set[asyncio.Task[None]] = set()

    def render(self, request: Any) -> int:
        """Begin to answer.

        Other names than those of this machine come from web pages whose name was pointed here.
        """
        hosts = request.requestHeaders.getRawHeaders(b"host", [])
        host = hosts[0].decode("latin-1") if len(hosts) == 1 else ""
        if self._is_private and not is_local(host):
            _send(request, Answer(403, b"only for this machine; say localhost\n"))
            return NOT_DONE_YET
        if not self._is_private and not is_in_network(host, self._hosts):
            _send(request, Answer(403, b"unknown host name; add it to FRESHET_METRICS_HOSTS\n"))
            return NOT_DONE_YET
        task = asyncio.get_running_loop().create_task(self._answer(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return NOT_DONE_YET

    async def _answer(self, request: Any) -> None:
        gone: list[object] = []
        request.notifyFinish().addErrback(gone.append)
        method = request.method.decode("latin-1")
        try:
            found = await answer(self._told, method, request.path.decode("latin-1"))
        except Exception:  # Whoever asks gets an answer, whatever it is.
            logger.exception("metrics cannot be told")
            found = Answer(500, b"an error, see the log\n")
        if not gone:
            _send(request, found)


@asynccontextmanager
async def served(
    told: Told, address: Address, option: str, hosts: Collection[str]
) -> AsyncIterator[str]:
    """The URL where it is told while inside; raises ConfigError, which names the option.

    hosts: further names by which it may be asked for
    """
    from twisted.internet import reactor

    said = f"{option} {address.host}:{address.port}"
    port = open_port(
        reactor, address.port, _site(reactor, told, address, hosts), address.host, said
    )
    try:
        yield url_of(port)
    finally:
        await maybeDeferred(port.stopListening).asFuture(asyncio.get_running_loop())


def _site(reactor: Any, told: Told, address: Address, hosts: Collection[str]) -> Site:
    return Site(  # type: ignore[no-untyped-call]
        Telling(told, address, hosts),
        requestFactory=Bodiless,
        timeout=IDLE_SECONDS,
        reactor=reactor,
        parsePOSTFormSubmission=False,
    )


def _send(request: Any, found: Answer) -> None:
    request.setResponseCode(found.status)
    request.setHeader("Server", "Freshet")
    request.setHeader("Content-Type", found.kind)
    request.setHeader("Content-Length", str(len(found.body)))
    request.setHeader("X-Content-Type-Options", "nosniff")
    if found.status == 405:
        request.setHeader("Allow", "GET, HEAD")
    if request.method != b"HEAD":
        request.write(found.body)
    request.finish()
