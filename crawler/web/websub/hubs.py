"""Hubs: requests to them, how many at a time, and when a hub is asked again.

Requests are guarded against private networks, have time limits, and read only the beginning of an
answer; certificates are verified.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
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

from crawler.errors import FreshetError
from crawler.fetch.guard import Named, NotAllowed, addresses_for
from crawler.utils.process import end_tasks
from crawler.utils.urls import is_http

logger = logging.getLogger(__name__)
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
MAX_CHARACTERS = 2000
MAX_BYTES = 2048
MAX_REDIRECTS = 3
MAX_ADDRESSES = 2
# Concurrent tasks, in all and of one hub; and those that wait for their turn.
MAX_RUNNING, MAX_RUNNING_OF_HOST = 16, 2
MAX_WAITING, MAX_WAITING_OF_HOST = 1000, 200
# Between requests for a subscription without an answer that counts.
FIRST_PAUSE, MAX_PAUSE = timedelta(minutes=10), timedelta(days=1)
AFTER_REFUSAL = timedelta(days=7)
# Without any request to a hub that fails.
FIRST_HOLD, MAX_HOLD = timedelta(minutes=2), timedelta(hours=6)
MAX_DOUBLINGS = 16
# However long a hub's lease: a subscription has to prove now and then that it works.
MIN_LEASE, MAX_LEASE = timedelta(minutes=1), timedelta(days=30)
MIN_RENEWAL = timedelta(seconds=30)
RENEWED_AT = 2 / 3
MOVED = frozenset({307, 308})
BUSY = frozenset({429, 503})
NETWORK = (
    ConnectError, ConnectionClosed, OSError,
    RequestGenerationFailed, RequestTransmissionFailed, ResponseFailed,
)  # fmt: skip
Work = Callable[[], Awaitable[None]]


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
    """Sends forms to hubs, directly and never through a proxy: the guard has to see the address.

    reactor: Twisted's, on asyncio     user_agent: who asks
    listed:  hosts and ports that the user allows to be in private networks
    """

    reactor: Any
    user_agent: str
    listed: Named = field(default_factory=Named)
    answer_seconds: float = ANSWER_SECONDS

    async def post(self, hub: str, form: Mapping[str, str], feed: str) -> Reply:
        """Return the answer of `hub` to a form; raises HubFailed or NotAllowed.

        feed: URL of the feed that names the hub

        A hub named with http:// and no port is asked by https:// first, as the standard wishes.
        """
        try:
            async with asyncio.timeout(self.answer_seconds):
                parts = urlsplit(_checked(hub))
                if parts.scheme.lower() == "http" and parts.port is None:
                    secure = parts._replace(scheme="https").geturl()
                    with contextlib.suppress(HubFailed):
                        reply = await self._follow(secure, form, feed)
                        if reply.status < 400 or reply.status in BUSY:
                            return reply
                return await self._follow(hub, form, feed)
        except TimeoutError:
            raise HubFailed(f"no answer in {self.answer_seconds:g} s") from None

    async def _follow(self, hub: str, form: Mapping[str, str], feed: str) -> Reply:
        for _ in range(MAX_REDIRECTS + 1):
            reply, moved = await self._once(_checked(hub), form, feed)
            if moved is None:
                return reply
            further = urljoin(hub, moved)
            if hub.startswith("https:") and not further.startswith("https:"):
                raise HubFailed("redirects from https to http")
            hub = further
        raise HubFailed(f"more than {MAX_REDIRECTS} redirects")

    async def _once(self, hub: str, form: Mapping[str, str], feed: str) -> tuple[Reply, str | None]:
        """Return the answer without following a redirect, and where the redirect leads."""
        addresses = await addresses_for(hub, feed, self.listed)
        reason = ""
        for address in addresses[:MAX_ADDRESSES]:
            try:
                return await self._send(hub, address, form)
            except NETWORK as error:
                reason = _in_short(error)
        raise HubFailed(reason)

    async def _send(
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
        sent = agent.request(b"POST", hub.encode("ascii"), headers, body)
        response: Any = await sent.asFuture(loop)
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
        self._read += data[: MAX_BYTES - len(self._read)]
        if len(self._read) >= MAX_BYTES:
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


def _checked(hub: str) -> str:
    """The URL as it can be asked; raises NotAllowed."""
    try:
        url = safe_url_string(hub.strip())
        parts = urlsplit(url)
        bad = not is_http(url) or "@" in parts.netloc or not url.isascii() or parts.port == 0
    except ValueError:
        bad = True
    if bad or len(url) > MAX_CHARACTERS:
        raise NotAllowed("no http or https URL without a password")
    return url


def _header(response: Any, name: str) -> str | None:
    values = response.headers.getRawHeaders(name)
    return None if not values else str(values[0])[:MAX_CHARACTERS]


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


@dataclass(slots=True)
class TaskPool:
    """Runs tasks, few of each host and each key once at a time; errors end in the log."""

    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _waiting: Counter[str] = field(default_factory=Counter)
    _of_host: dict[str, asyncio.Semaphore] = field(default_factory=dict)
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_RUNNING))

    @property
    def are_full(self) -> bool:
        """Whether nothing more is taken for now."""
        return len(self._tasks) >= MAX_WAITING

    def offer(self, key: str, host: str, work: Work) -> bool:
        """Begin a piece of work; False if its key is at work or there is no room for it."""
        if key in self._tasks or self.are_full or self._waiting[host] >= MAX_WAITING_OF_HOST:
            return False
        self._waiting[host] += 1
        self._tasks[key] = asyncio.create_task(self._run(key, host, work))
        return True

    async def put(self, key: str, host: str, work: Work) -> None:
        """Begin a piece of work as soon as there is room for it."""
        while not self.offer(key, host, work):
            await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)

    async def drain(self, seconds: float) -> None:
        """Wait for what is at work, so long at most; what is not done then is cancelled."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks.values(), timeout=seconds)
        await end_tasks(*late)

    async def _run(self, key: str, host: str, work: Work) -> None:
        own = self._of_host.setdefault(host, asyncio.Semaphore(MAX_RUNNING_OF_HOST))
        try:
            async with own, self._places:
                await work()
        except FreshetError as error:
            logger.warning("%s: %s", key, error)
        except Exception:  # One piece of work must not end the others.
            logger.exception("%s: hub request failed", key)
        finally:
            del self._tasks[key]
            self._waiting[host] -= 1
            if not self._waiting[host]:
                del self._waiting[host], self._of_host[host]


def retry_pause(attempts: int, chance: float) -> timedelta:
    """Return the pause after so many requests without an answer that counts: 10 minutes to a day.

    chance: in [0, 1), spreads those that failed together over a fifth of the time
    """
    return _doubled(FIRST_PAUSE, attempts, MAX_PAUSE) * (0.9 + 0.2 * chance)


def _doubled(first: timedelta, times: int, longest: timedelta) -> timedelta:
    factor: int = 2 ** min(max(times, 1) - 1, MAX_DOUBLINGS)
    return min(first * factor, longest)


def lease_of(named: str | None, wanted: timedelta) -> timedelta:
    """Return the lease of a hub's `hub.lease_seconds`; what was asked for if it is unreadable."""
    text = (named or "").strip()
    lease = timedelta(seconds=int(text[:9])) if text.isascii() and text.isdigit() else wanted
    return min(max(lease, MIN_LEASE), MAX_LEASE)


def renewal(lease: timedelta, chance: float) -> timedelta:
    """Return when a lease is renewed: after two thirds, up to a tenth of that sooner."""
    return max(lease * RENEWED_AT * (1 - 0.1 * chance), MIN_RENEWAL)


@dataclass(slots=True)
class HubBackoff:
    """HubBackoff by host; bounded by the number of hosts that fail."""

    chance: random.Random
    _until: dict[str, datetime] = field(default_factory=dict)
    _failures: Counter[str] = field(default_factory=Counter)

    def is_on_hold(self, host: str, now: datetime) -> bool:
        """Whether a host is left alone."""
        return self._until.get(host, now) > now

    def first_end(self, hosts: Iterable[str]) -> datetime:
        """When the first of these hosts, all on hold, may be asked again."""
        return min(self._until[host] for host in hosts)

    def failed(self, host: str, now: datetime) -> None:
        """Leave a host alone for a while; for longer if it goes on failing."""
        if self.is_on_hold(host, now):  # Several concurrent requests failed: that is one failure.
            return
        self._failures[host] += 1
        length = _doubled(FIRST_HOLD, self._failures[host], MAX_HOLD)
        self._until[host] = now + length * (0.9 + 0.2 * self.chance.random())

    def answered(self, host: str) -> None:
        """Note that a host works again."""
        self._failures.pop(host, None)

    def hold_until(self, host: str, until: datetime) -> None:
        """Leave a host alone until the time that it named."""
        self._until[host] = max(until, self._until.get(host, until))

    def refresh(self, stored: dict[str, datetime], now: datetime) -> None:
        """Forget the holds that are over; add those of the database."""
        own = {host: until for host, until in self._until.items() if until > now}
        self._until = stored | own
        # A host whose hold ended long ago, or that has no feed any more, is as good as new.
        if len(self._failures) > 2 * len(self._until) + 1000:
            self._failures = Counter({host: self._failures[host] for host in self._until})
