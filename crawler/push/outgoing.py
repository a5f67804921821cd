"""Requests to hubs: guarded, with time limits, certificates verified, nothing read but a little."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

from twisted.internet import ssl
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP6ClientEndpoint, wrapClientTLS
from twisted.internet.error import ConnectError, ConnectionClosed
from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure
from twisted.web.client import (
    Agent,
    FileBodyProducer,
    RequestGenerationFailed,
    RequestTransmissionFailed,
    ResponseFailed,
)
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgentEndpointFactory
from w3lib.url import safe_url_string
from zope.interface import implementer  # type: ignore[import-untyped]

from crawler.addresses import Named
from crawler.push.guard import NotAllowed, addresses_for
from crawler.utils.urls import is_http

CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
MOST_CHARACTERS = 2000
MOST_BYTES = 2048
MOST_REDIRECTS = 3
MOST_ADDRESSES = 2
MOVED = frozenset({307, 308})
BUSY = frozenset({429, 503})
NETWORK = (
    ConnectError, ConnectionClosed, OSError,
    RequestGenerationFailed, RequestTransmissionFailed, ResponseFailed,
)  # fmt: skip


class HubFailed(Exception):
    """A hub gave no answer; `str()` says why in a few words."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A hub's answer: status, the beginning of its text, its Retry-After header."""

    status: int
    text: str
    retry_after: str | None


@dataclass(frozen=True, slots=True)
class Hubs:
    """Sends forms to hubs. It asks them directly, never through a proxy: the guard has to see whom.

    reactor: Twisted's, on asyncio     user_agent: who asks
    listed:  hosts and ports that the user allows to be in private networks
    """

    reactor: Any
    user_agent: str
    listed: Named = field(default_factory=Named)
    answer_seconds: float = ANSWER_SECONDS

    async def post(self, hub: str, form: Mapping[str, str], feed: str) -> Reply:
        """The answer of `hub` to a form; raises HubFailed or NotAllowed.

        feed: URL of the feed that names the hub

        A hub named with http:// and no port is asked by https:// first, as the standard wishes.
        """
        try:
            async with asyncio.timeout(self.answer_seconds):
                if (secure := _secured(_checked(hub))) is not None:
                    with contextlib.suppress(HubFailed):
                        reply = await self._followed(secure, form, feed)
                        if reply.status < 400 or reply.status in BUSY:
                            return reply
                return await self._followed(hub, form, feed)
        except TimeoutError:
            raise HubFailed(f"no answer in {self.answer_seconds:g} s") from None

    async def _followed(self, hub: str, form: Mapping[str, str], feed: str) -> Reply:
        for _ in range(MOST_REDIRECTS + 1):
            reply, moved = await self._once(_checked(hub), form, feed)
            if moved is None:
                return reply
            further = urljoin(hub, moved)
            if hub.startswith("https:") and not further.startswith("https:"):
                raise HubFailed("redirects from https to http")
            hub = further
        raise HubFailed(f"more than {MOST_REDIRECTS} redirects")

    async def _once(self, hub: str, form: Mapping[str, str], feed: str) -> tuple[Reply, str | None]:
        addresses = await addresses_for(hub, feed, self.listed)
        reason = ""
        for address in addresses[:MOST_ADDRESSES]:
            try:
                return await self._sent(hub, address, form)
            except NETWORK as error:
                reason = _in_short(error)
        raise HubFailed(reason)

    async def _sent(
        self, hub: str, address: str, form: Mapping[str, str]
    ) -> tuple[Reply, str | None]:
        pinned = Pinned(self.reactor, address)
        agent = Agent.usingEndpointFactory(  # type: ignore[no-untyped-call]
            self.reactor, pinned
        )
        headers = Headers({
            "User-Agent": [self.user_agent],
            "Content-Type": ["application/x-www-form-urlencoded"],
        })  # fmt: skip
        body = FileBodyProducer(  # type: ignore[no-untyped-call]
            BytesIO(urlencode(form).encode("ascii"))
        )
        loop = asyncio.get_running_loop()
        asked = agent.request(b"POST", hub.encode("ascii"), headers, body)
        response: Any = await asked.asFuture(loop)
        beginning = Beginning()
        response.deliverBody(beginning)
        text = await beginning.done.asFuture(loop)
        moved = _header(response, "Location") if response.code in MOVED else None
        return Reply(response.code, text, _header(response, "Retry-After")), moved


@implementer(IAgentEndpointFactory)
class Pinned:
    """Connects to one address, whatever the URL's host resolves to by then; TLS wants its name."""

    def __init__(self, reactor: Any, address: str) -> None:
        self._reactor = reactor
        self._address = address

    def endpointForURI(self, uri: Any) -> Any:  # noqa: N802 - Twisted's name
        """The endpoint for a URI of Twisted's."""
        kind = TCP6ClientEndpoint if ":" in self._address else TCP4ClientEndpoint
        endpoint: Any = kind(self._reactor, self._address, uri.port, timeout=int(CONNECT_SECONDS))
        if uri.scheme != b"https":
            return endpoint
        # The certificates that this machine trusts, and the host's name in the hub's.
        name = uri.host.decode("ascii").strip("[]")
        return wrapClientTLS(ssl.optionsForClientTLS(name), endpoint)


class Beginning(Protocol):
    """Reads the beginning of a body and lets the connection go then."""

    def __init__(self) -> None:
        self.done: Deferred[str] = Deferred(self._cancel)
        self._read = b""

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """Keep what is still wanted."""
        self._read += data[: MOST_BYTES - len(self._read)]
        if len(self._read) >= MOST_BYTES:
            self._finish()
            self._let_go()

    def connectionLost(self, reason: Failure | None = None) -> None:  # noqa: N802
        """The body has ended, one way or the other."""
        self._finish()

    def _finish(self) -> None:
        if not self.done.called:
            self.done.callback(self._read.decode("utf-8", "replace"))

    def _cancel(self, done: Deferred[str]) -> None:
        self._let_go()

    def _let_go(self) -> None:
        if self.transport is not None:
            self.transport.stopProducing()


def _secured(hub: str) -> str | None:
    """An http:// hub's https:// address; None where it has one, or a port of its own."""
    parts = urlsplit(hub)
    if parts.scheme.lower() != "http" or parts.port is not None:
        return None
    return parts._replace(scheme="https").geturl()


def _checked(hub: str) -> str:
    """The URL as it can be asked; raises NotAllowed."""
    try:
        url = safe_url_string(hub.strip())
        parts = urlsplit(url)
        bad = not is_http(url) or "@" in parts.netloc or not url.isascii() or parts.port == 0
    except ValueError:
        bad = True
    if bad or len(url) > MOST_CHARACTERS:
        raise NotAllowed("no http or https URL without a password")
    return url


def _header(response: Any, name: str) -> str | None:
    values = response.headers.getRawHeaders(name)
    return None if not values else str(values[0])[:MOST_CHARACTERS]


def _in_short(error: BaseException) -> str:
    """The reason of a network error, in one line."""
    reasons = getattr(error, "reasons", None)
    if reasons:
        return _in_short(reasons[0].value)
    first = error.args[0] if error.args else None
    if isinstance(first, list) and first and isinstance(first[0], tuple):
        # OpenSSL's errors are lists of (library, function, reason).
        return f"TLS: {first[0][-1]}"
    return " ".join(str(error).split())[:200] or type(error).__name__
