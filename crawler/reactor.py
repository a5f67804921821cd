"""Twisted's reactor for a command that serves: one coroutine is its whole life; and its ports."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Coroutine
from ipaddress import ip_address, ip_network
from typing import Any, TypeVar

from twisted.internet import asyncioreactor
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import connectionDone
from twisted.protocols.policies import WrappingFactory
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel
from twisted.web.server import Request

from crawler.errors import ConfigError

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
