"""Requests subscriptions from hubs: for new feeds, for renewals, and again after failures.

Requests are not sent to private networks, have time limits, read only the beginning of a response,
and verify certificates. Requests to failing hubs are paused.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import random
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from urllib.parse import urlencode, urljoin, urlsplit

from scrapy.http import Response
from w3lib.url import safe_url_string

from crawler.errors import FreshetError
from crawler.fetch.downloader import retry_after
from crawler.fetch.guard import Named, NotAllowed, addresses_for
from crawler.fetch.post import Answer, post, reason_of
from crawler.storage import runs, websub
from crawler.storage.client import Database, MongoRetry
from crawler.storage.websub import Feed, HubRequest
from crawler.utils.process import end_tasks
from crawler.utils.terminal import printable
from crawler.utils.time import Clock
from crawler.utils.urls import host_of, is_http
from crawler.web.options import SubscriptionOptions

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


RANDOM_BYTES = 18
MARK_BYTES = 18
DIGESTS = frozenset({"sha1", "sha256", "sha384", "sha512"})
TOKEN = re.compile(r"[A-Za-z0-9_-]{48}")
# Temporary client errors: they do not mean that the hub refuses the subscription.
TEMPORARY = frozenset({408, 425, 429})
MAX_REASON_CHARACTERS = 200
# Interval between checks for missing confirmations.
CONFIRMATION_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Tokens:
    """Creates tokens and recognizes them, so that invalid ones are rejected without a query.

    key: 32 random bytes, stored in the database
    """

    key: bytes

    def new(self) -> str:
        """Return an unguessable token of 48 characters that are safe in a URL's path."""
        chance = secrets.token_bytes(RANDOM_BYTES)
        return urlsafe_b64encode(chance + self._mark(chance)).decode("ascii")

    def knows(self, token: str) -> bool:
        """Return whether `new` created this token; its feed may not exist anymore."""
        if not TOKEN.fullmatch(token):
            return False
        raw = urlsafe_b64decode(token)
        return hmac.compare_digest(self._mark(raw[:RANDOM_BYTES]), raw[RANDOM_BYTES:])

    def _mark(self, chance: bytes) -> bytes:
        return hmac.digest(self.key, chance, "sha256")[:MARK_BYTES]


def new_secret() -> str:
    """Return a key for signatures; hubs accept up to 200 bytes."""
    return secrets.token_hex(32)


def is_signed(header: str | None, body: bytes, secret: str) -> bool:
    """Return whether an X-Hub-Signature header (`sha256=…`) is valid for this body."""
    method, separator, signature = (header or "").strip().partition("=")
    method = method.strip().lower()
    if not separator or method not in DIGESTS:
        return False
    expected = hmac.digest(secret.encode(), body, method).hex()
    return hmac.compare_digest(expected.encode(), signature.strip().lower().encode())


@dataclass(slots=True)
class Subscriptions:
    """Requests and renews the subscriptions of feeds when they are due."""

    db: Database
    patience: MongoRetry
    clock: Clock
    hubs: Hubs
    tokens: Tokens
    options: SubscriptionOptions
    counts: Counter[str]
    pool: TaskPool = field(default_factory=TaskPool)
    chance: random.Random = field(default_factory=random.Random)
    backoff: HubBackoff = field(init=False)

    def __post_init__(self) -> None:
        self.backoff = HubBackoff(self.chance)

    async def work(self) -> None:
        """Check for due subscriptions until cancelled, even while the database is unavailable."""
        while True:
            try:
                await self.check()
            except FreshetError as error:
                logger.warning("Check for due subscriptions failed, retrying: %s", error)
            await asyncio.sleep(self.options.check_seconds)

    async def check(self) -> None:
        """Start the requests that are due now, as far as the limits allow."""
        now = self.clock.now()
        await self.patience.read(lambda: websub.expire_leases(self.db, now))
        holds = await self.patience.read(lambda: runs.held_hosts(self.db, now))
        self.backoff.refresh(holds, now)
        await self.patience.read(lambda: self._offer_due(now))

    async def _offer_due(self, now: datetime) -> None:
        async for feed in websub.feeds_to_request(self.db, self.options.callback, now):
            hub = self._hub_of(feed, now)
            if hub is None:
                end = self.backoff.first_end(map(host_of, feed.hubs))
                later = end + timedelta(minutes=self.chance.random())
                await websub.postpone(self.db, feed.key, later)
            elif self.pool.is_full:
                return
            else:
                self.pool.offer(feed.key, host_of(hub), partial(self._request, feed))

    def _hub_of(self, feed: Feed, now: datetime) -> str | None:
        """Return the confirmed hub, else the next one in turn; None if all are paused."""
        turn = feed.push.get("attempts", 0) % len(feed.hubs)
        order = [*feed.hubs[turn:], *feed.hubs[:turn]]
        if feed.push.get("state") == "active" and feed.push["hub"] in order:
            order.insert(0, feed.push["hub"])
        return next((hub for hub in order if not self.backoff.is_on_hold(host_of(hub), now)), None)

    async def _request(self, feed: Feed) -> None:
        """Request a feed's subscription from its hub and record the result."""
        now = self.clock.now()
        hub = self._hub_of(feed, now)
        if hub is None:
            return  # The hub failed while this task was waiting; the next check postpones it.
        request = self._request_to(feed, hub)
        attempts = feed.push.get("attempts", 0) + 1
        again = now + retry_pause(attempts, self.chance.random())
        # Recorded before sending, because a hub may verify the request before it responds.
        if await self.patience.read(
            lambda: websub.record_request(self.db, feed, request, now, again)
        ):
            self.counts["requested"] += 1
            await self._send(feed, request)

    def _request_to(self, feed: Feed, hub: str) -> HubRequest:
        """Return a request; a renewal keeps its token and secret, another hub or topic does not."""
        push = feed.push
        if push.get("hub") == hub and push.get("topic") == feed.topic:
            token, secret = push["token"], push["secret"]
        else:
            token, secret = self.tokens.new(), new_secret()
        return HubRequest(hub, feed.topic, self.options.callback, token, secret)

    async def _send(self, feed: Feed, request: HubRequest) -> None:
        lease_seconds = int(self.options.lease.total_seconds())
        form = form_of(request, "subscribe") | {
            "hub.secret": request.secret, "hub.lease_seconds": str(lease_seconds),
        }  # fmt: skip
        try:
            reply = await self.hubs.post(request.hub, form, feed.url)
        except NotAllowed as error:
            await self._refused(feed, request, str(error))
        except HubFailed as error:
            self.backoff.failed(host_of(request.hub), self.clock.now())
            await self._failed(feed, request, str(error))
        else:
            await self._handle_reply(feed, request, reply)

    async def _handle_reply(self, feed: Feed, request: HubRequest, reply: Answer) -> None:
        reason, host = in_one_line(f"{reply.status} {reply.text}"), host_of(request.hub)
        if reply.status < 300:
            self.backoff.answered(host)
        elif 400 <= reply.status < 500 and reply.status not in TEMPORARY:
            self.backoff.answered(host)
            await self._refused(feed, request, reason)
        else:
            self.backoff.failed(host, self.clock.now())
            await self._apply_retry_after(host, reply)
            await self._failed(feed, request, reason)

    async def _failed(self, feed: Feed, request: HubRequest, reason: str) -> None:
        self.counts["failed"] += 1
        logger.info("Subscription request for %s to %s failed: %s", feed.url, request.hub, reason)
        write = partial(websub.record_failure, self.db, feed.key, request.token, reason)
        await self.patience.read(write)

    async def _refused(self, feed: Feed, request: HubRequest, reason: str) -> None:
        self.counts["refused"] += 1
        logger.info("Subscription of %s refused by %s: %s", feed.url, request.hub, reason)
        has_others = feed.push.get("attempts", 0) + 1 < len(feed.hubs)
        later = self.clock.now() + (FIRST_PAUSE if has_others else AFTER_REFUSAL)
        write = partial(websub.record_refusal, self.db, feed.key, request.token, reason, later)
        await self.patience.read(write)

    async def _apply_retry_after(self, host: str, reply: Answer) -> None:
        """Pause all requests to a host, including those of crawls, until its Retry-After time."""
        if (after := reply.headers.get("retry-after")) is None:
            return
        response = Response("http://hub", headers={"Retry-After": after[:MAX_REASON_CHARACTERS]})
        until = retry_after(response, self.clock.now())
        if until is not None:
            self.backoff.hold_until(host, until)
            await self.patience.read(lambda: runs.hold_host(self.db, host, until))


def form_of(request: HubRequest, mode: str) -> dict[str, str]:
    """Return the required fields of a request to a hub. mode: subscribe or unsubscribe."""
    return {
        "hub.mode": mode,
        "hub.topic": request.topic,
        "hub.callback": f"{request.callback}/{request.token}",
    }


def in_one_line(text: str) -> str:
    """Return untrusted text as one printable line of limited length, for the database and logs."""
    return printable(text[: 4 * MAX_REASON_CHARACTERS])[:MAX_REASON_CHARACTERS]


async def unsubscribe(subscriptions: Subscriptions, seconds: float) -> int:
    """End all subscriptions of this callback; return how many hubs confirmed in time.

    Unconfirmed subscriptions are ended as well: their hubs get status 410 for further deliveries.

    seconds: time for all confirmations
    """
    db, patience = subscriptions.db, subscriptions.patience
    callback = subscriptions.options.callback
    feeds = await patience.read(lambda: websub.start_unsubscribe(db, callback))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            for feed in feeds:
                host = host_of(feed.push["hub"])
                await subscriptions.pool.put(
                    feed.key, host, partial(_unsubscribe, subscriptions.hubs, feed)
                )
            # Polled from the database, because another process may receive the confirmations.
            while await patience.read(lambda: websub.count_unsubscribing(db)):  # noqa: ASYNC110
                await asyncio.sleep(CONFIRMATION_SECONDS)
    now = subscriptions.clock.now()
    return len(feeds) - await patience.read(lambda: websub.end_unconfirmed(db, now))


async def _unsubscribe(hubs: Hubs, feed: Feed) -> None:
    push = feed.push
    request = HubRequest(
        push["hub"], push["topic"], push["callback"], push["token"], push["secret"]
    )
    try:
        await hubs.post(request.hub, form_of(request, "unsubscribe"), feed.url)
    except (NotAllowed, HubFailed) as error:
        logger.info("Unsubscribing %s from %s failed: %s", feed.url, request.hub, error)
