"""Requests subscriptions from hubs: for new feeds, for renewals, and again after failures."""

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
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from scrapy.http import Response

from crawler.errors import FreshetError
from crawler.fetch.downloader import retry_after
from crawler.fetch.guard import NotAllowed
from crawler.fetch.post import Answer
from crawler.storage import runs, websub
from crawler.storage.client import Database, MongoRetry
from crawler.storage.websub import Feed, HubRequest
from crawler.utils.terminal import printable
from crawler.utils.time import Clock
from crawler.utils.urls import host_of
from crawler.web.options import SubscriptionOptions
from crawler.web.websub.hubs import (
    AFTER_REFUSAL,
    FIRST_PAUSE,
    HubBackoff,
    HubFailed,
    Hubs,
    TaskPool,
    retry_pause,
)

logger = logging.getLogger(__name__)
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
