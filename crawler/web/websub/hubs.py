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
from urllib.parse import urlencode, urljoin, urlsplit

from w3lib.url import safe_url_string

from crawler.errors import FreshetError
from crawler.fetch.guard import Named, NotAllowed, addresses_for
from crawler.fetch.post import Answer, post, reason_of
from crawler.utils.process import end_tasks
from crawler.utils.urls import is_http

logger = logging.getLogger(__name__)
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
Work = Callable[[], Awaitable[None]]


class HubFailed(Exception):
    """A hub did not respond; `str()` is the reason in a few words."""


@dataclass(frozen=True, slots=True)
class Hubs:
    """Sends forms to hubs, bypassing proxies so that the guard can check the hub's address.

    user_agent: the User-Agent header
    listed:     hosts and ports in private networks that the user allows
    """

    user_agent: str
    listed: Named = field(default_factory=Named)
    answer_seconds: float = ANSWER_SECONDS

    async def post(self, hub: str, form: Mapping[str, str], feed: str) -> Answer:
        """Send a form and return the hub's answer; raises HubFailed or NotAllowed.

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

    async def _follow(self, hub: str, form: Mapping[str, str], feed: str) -> Answer:
        headers = {
            "user-agent": self.user_agent,
            "content-type": "application/x-www-form-urlencoded",
        }
        body = urlencode(form).encode("ascii")
        for _ in range(MAX_REDIRECTS + 1):
            url = _checked(hub)
            addresses = await addresses_for(url, feed, self.listed)
            try:
                answer = await post(url, headers, body, addresses[:MAX_ADDRESSES], MAX_BYTES)
            except OSError as error:
                raise HubFailed(reason_of(error)) from error
            location = answer.headers.get("location")
            if answer.status not in REDIRECTED or location is None:
                return answer
            hub = urljoin(url, location)
            if url.startswith("https:") and not hub.startswith("https:"):
                raise HubFailed("redirects from https to http")
        raise HubFailed(f"more than {MAX_REDIRECTS} redirects")


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
