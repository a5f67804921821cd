"""Requests to WebSub hubs: sending, concurrency, back-off.

Requests are not sent to private networks, have time limits, read only the beginning of a response,
and verify certificates.
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
# Concurrent requests, in total and per hub; and requests that wait for them to finish.
MAX_RUNNING, MAX_RUNNING_PER_HOST = 16, 2
MAX_WAITING, MAX_WAITING_PER_HOST = 1000, 200
# Pause before a subscription is requested again: after a failure (doubles), and after a refusal.
FIRST_PAUSE, MAX_PAUSE = timedelta(minutes=10), timedelta(days=1)
AFTER_REFUSAL = timedelta(days=7)
# Pause of all requests to a failing hub (doubles).
FIRST_HOLD, MAX_HOLD = timedelta(minutes=2), timedelta(hours=6)
MAX_DOUBLINGS = 16
# Limits on the leases of hubs: a renewal now and then proves that the subscription still works.
MIN_LEASE, MAX_LEASE = timedelta(minutes=1), timedelta(days=30)
MIN_RENEWAL = timedelta(seconds=30)
RENEWED_AT = 2 / 3
REDIRECTED = frozenset({307, 308})
BUSY = frozenset({429, 503})
NETWORK = (
    ConnectError, ConnectionClosed, OSError,
    RequestGenerationFailed, RequestTransmissionFailed, ResponseFailed,
)  # fmt: skip
Work = Callable[[], Awaitable[None]]


class HubFailed(Exception):
    """A hub did not respond; `str()` is the reason in a few words."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A hub's response: status, the beginning of the body, the Retry-After header."""

    status: int
    text: str
    retry_after: str | None


@dataclass(frozen=True, slots=True)
class Hubs:
    """Sends forms to hubs, bypassing proxies so that the guard can check the hub's address.

    reactor:    Twisted's asyncio reactor
    user_agent: the User-Agent header
    listed:     hosts and ports in private networks that the user allows
    """

    reactor: Any
    user_agent: str
    listed: Named = field(default_factory=Named)
    answer_seconds: float = ANSWER_SECONDS

    async def post(self, hub: str, form: Mapping[str, str], feed: str) -> Reply:
        """Send a form and return the hub's reply; raises HubFailed or NotAllowed.

        feed: URL of the feed that links to the hub

        If the hub's URL is http:// without a port, https:// is tried first, as WebSub recommends.
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
            raise HubFailed(f"no response within {self.answer_seconds:g} s") from None

    async def _follow(self, hub: str, form: Mapping[str, str], feed: str) -> Reply:
        for _ in range(MAX_REDIRECTS + 1):
            reply, location = await self._send_once(_checked(hub), form, feed)
            if location is None:
                return reply
            target = urljoin(hub, location)
            if hub.startswith("https:") and not target.startswith("https:"):
                raise HubFailed("redirects from https to http")
            hub = target
        raise HubFailed(f"more than {MAX_REDIRECTS} redirects")

    async def _send_once(
        self, hub: str, form: Mapping[str, str], feed: str
    ) -> tuple[Reply, str | None]:
        """Send a form; return the reply and the target of a redirect, if it is one."""
        addresses = await addresses_for(hub, feed, self.listed)
        reason = ""
        for address in addresses[:MAX_ADDRESSES]:
            try:
                return await self._send(hub, address, form)
            except NETWORK as error:
                reason = _reason(error)
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
        location = _header(response, "Location") if response.code in REDIRECTED else None
        return Reply(response.code, text, _header(response, "Retry-After")), location


@implementer(IAgentEndpointFactory)
class Pinned:
    """Connects to the address that the guard checked, instead of resolving the host again."""

    def __init__(self, reactor: Any, address: str) -> None:
        self._reactor = reactor
        self._address = address

    def endpointForURI(self, uri: Any) -> Any:  # noqa: N802 - Twisted's name
        """Return the endpoint for a URI."""
        kind = TCP6ClientEndpoint if ":" in self._address else TCP4ClientEndpoint
        endpoint: Any = kind(self._reactor, self._address, uri.port, timeout=int(CONNECT_SECONDS))
        if uri.scheme != b"https":
            return endpoint
        # TLS verifies the certificate for the host name, not for the pinned address.
        name = uri.host.decode("ascii").strip("[]")
        return wrapClientTLS(ssl.optionsForClientTLS(name), endpoint)


class Beginning(Protocol):
    """Reads the first MAX_BYTES of a body, then closes the connection."""

    def __init__(self) -> None:
        self.done: Deferred[str] = Deferred(self._cancel)
        self._read = b""

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """Keep the data up to the limit."""
        self._read += data[: MAX_BYTES - len(self._read)]
        if len(self._read) >= MAX_BYTES:
            self._finish()
            self._close()

    def connectionLost(self, reason: Failure | None = None) -> None:  # noqa: N802
        """Finish: the body has ended, or the connection was lost."""
        self._finish()

    def _finish(self) -> None:
        if not self.done.called:
            self.done.callback(self._read.decode("utf-8", "replace"))

    def _cancel(self, done: Deferred[str]) -> None:
        self._close()

    def _close(self) -> None:
        if self.transport is not None:
            self.transport.stopProducing()


def _checked(hub: str) -> str:
    """Return the URL, quoted; raises NotAllowed unless it is a valid URL of a hub."""
    try:
        url = safe_url_string(hub.strip())
        parts = urlsplit(url)
        bad = not is_http(url) or "@" in parts.netloc or not url.isascii() or parts.port == 0
    except ValueError:
        bad = True
    if bad or len(url) > MAX_CHARACTERS:
        raise NotAllowed("not a valid http or https URL, or it has a password")
    return url


def _header(response: Any, name: str) -> str | None:
    values = response.headers.getRawHeaders(name)
    return None if not values else str(values[0])[:MAX_CHARACTERS]


def _reason(error: BaseException) -> str:
    """Return the reason for a network error in one line."""
    reasons = getattr(error, "reasons", None)
    if reasons:
        return _reason(reasons[0].value)
    first = error.args[0] if error.args else None
    if isinstance(first, list) and first and isinstance(first[0], tuple):
        # OpenSSL's errors are lists of (library, function, reason).
        return f"TLS: {first[0][-1]}"
    return " ".join(str(error).split())[:200] or type(error).__name__


@dataclass(slots=True)
class TaskPool:
    """Runs tasks with limits in total and per host, and one task per key; logs errors."""

    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _waiting: Counter[str] = field(default_factory=Counter)
    _by_host: dict[str, asyncio.Semaphore] = field(default_factory=dict)
    _running: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_RUNNING))

    @property
    def is_full(self) -> bool:
        """Return whether the pool accepts no more tasks for now."""
        return len(self._tasks) >= MAX_WAITING

    def offer(self, key: str, host: str, work: Work) -> bool:
        """Start a task; return False if its key is already running or a limit is reached."""
        if key in self._tasks or self.is_full or self._waiting[host] >= MAX_WAITING_PER_HOST:
            return False
        self._waiting[host] += 1
        self._tasks[key] = asyncio.create_task(self._run(key, host, work))
        return True

    async def put(self, key: str, host: str, work: Work) -> None:
        """Start a task as soon as the limits allow."""
        while not self.offer(key, host, work):
            await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)

    async def drain(self, seconds: float) -> None:
        """Wait for all tasks, at most `seconds`; then cancel the unfinished ones."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks.values(), timeout=seconds)
        await end_tasks(*late)

    async def _run(self, key: str, host: str, work: Work) -> None:
        own = self._by_host.setdefault(host, asyncio.Semaphore(MAX_RUNNING_PER_HOST))
        try:
            async with own, self._running:
                await work()
        except FreshetError as error:
            logger.warning("Hub request failed for %s: %s", key, error)
        except Exception:  # One failing task must not affect the others.
            logger.exception("Hub request failed for %s", key)
        finally:
            del self._tasks[key]
            self._waiting[host] -= 1
            if not self._waiting[host]:
                del self._waiting[host], self._by_host[host]


def retry_pause(attempts: int, chance: float) -> timedelta:
    """Return the pause after a number of failed requests: doubles from 10 minutes to a day.

    chance: in [0, 1), spreads requests that failed together over 20 % of the pause
    """
    return _doubled(FIRST_PAUSE, attempts, MAX_PAUSE) * (0.9 + 0.2 * chance)


def _doubled(first: timedelta, times: int, longest: timedelta) -> timedelta:
    factor: int = 2 ** min(max(times, 1) - 1, MAX_DOUBLINGS)
    return min(first * factor, longest)


def lease_of(named: str | None, wanted: timedelta) -> timedelta:
    """Parse a hub's `hub.lease_seconds`, within limits; the requested lease if it is invalid."""
    text = (named or "").strip()
    lease = timedelta(seconds=int(text[:9])) if text.isascii() and text.isdigit() else wanted
    return min(max(lease, MIN_LEASE), MAX_LEASE)


def renewal(lease: timedelta, chance: float) -> timedelta:
    """Return the time until a lease is renewed: two thirds of the lease, less up to 10 %."""
    return max(lease * RENEWED_AT * (1 - 0.1 * chance), MIN_RENEWAL)


@dataclass(slots=True)
class HubBackoff:
    """Pauses requests to failing hubs, by host; its size is bounded by the number of such hubs."""

    chance: random.Random
    _until: dict[str, datetime] = field(default_factory=dict)
    _failures: Counter[str] = field(default_factory=Counter)

    def is_on_hold(self, host: str, now: datetime) -> bool:
        """Return whether requests to a host are paused."""
        return self._until.get(host, now) > now

    def first_end(self, hosts: Iterable[str]) -> datetime:
        """Return when the first of these paused hosts may be requested again."""
        return min(self._until[host] for host in hosts)

    def failed(self, host: str, now: datetime) -> None:
        """Pause requests to a host; the pause doubles with each consecutive failure."""
        if self.is_on_hold(host, now):  # Concurrent failed requests count as one failure.
            return
        self._failures[host] += 1
        length = _doubled(FIRST_HOLD, self._failures[host], MAX_HOLD)
        self._until[host] = now + length * (0.9 + 0.2 * self.chance.random())

    def answered(self, host: str) -> None:
        """Forget the failures of a host that responded."""
        self._failures.pop(host, None)

    def hold_until(self, host: str, until: datetime) -> None:
        """Pause requests to a host until the time given in its Retry-After header."""
        self._until[host] = max(until, self._until.get(host, until))

    def refresh(self, stored: dict[str, datetime], now: datetime) -> None:
        """Remove pauses that have ended; add those stored in the database."""
        own = {host: until for host, until in self._until.items() if until > now}
        self._until = stored | own
        # Bound the memory: forget the failures of hosts that are not paused.
        if len(self._failures) > 2 * len(self._until) + 1000:
            self._failures = Counter({host: self._failures[host] for host in self._until})
