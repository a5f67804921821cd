"""Asks hubs for subscriptions: new feeds, renewals, and what failed, each in its time."""

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
from crawler.fetch.guard import NotAllowed
from crawler.fetch.middlewares import retry_after
from crawler.storage import runs, websub
from crawler.storage.client import Database
from crawler.storage.retry import MongoRetry
from crawler.storage.websub import Feed, HubRequest
from crawler.utils.terminal import printable
from crawler.utils.time import Clock
from crawler.utils.urls import host_of
from crawler.web.websub.hubs import (
    AFTER_REFUSAL,
    FIRST_PAUSE,
    HubBackoff,
    HubFailed,
    Hubs,
    Reply,
    TaskPool,
    retry_pause,
)
from crawler.web.websub.options import SubscriptionOptions

logger = logging.getLogger(__name__)
RANDOM_BYTES = 18
MARK_BYTES = 18
DIGESTS = frozenset({"sha1", "sha256", "sha384", "sha512"})
TOKEN = re.compile(r"[A-Za-z0-9_-]{48}")
# Answers of a hub that say nothing about this subscription.
PASSING = frozenset({408, 425, 429})
MAX_REASON_CHARACTERS = 200
# Between two reads of the confirmations that are missing.
CONFIRMED_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Tokens:
    """Makes tokens and knows its own again, so that foreign ones cost no look into the database.

    key: 32 random bytes that stay with the database
    """

    key: bytes

    def new(self) -> str:
        """A token that nobody can guess: 48 characters, fit for a URL's path."""
        chance = secrets.token_bytes(RANDOM_BYTES)
        return urlsafe_b64encode(chance + self._mark(chance)).decode("ascii")

    def knows(self, token: str) -> bool:
        """Whether `new` made this token once; its feed may be gone since."""
        if not TOKEN.fullmatch(token):
            return False
        raw = urlsafe_b64decode(token)
        return hmac.compare_digest(self._mark(raw[:RANDOM_BYTES]), raw[RANDOM_BYTES:])

    def _mark(self, chance: bytes) -> bytes:
        return hmac.digest(self.key, chance, "sha256")[:MARK_BYTES]


def new_secret() -> str:
    """A key for signatures, shorter than the 200 bytes that hubs take."""
    return secrets.token_hex(32)


def is_signed(header: str | None, body: bytes, secret: str) -> bool:
    """Whether an X-Hub-Signature (`sha256=…`) is that of this body."""
    method, mark, given = (header or "").strip().partition("=")
    method = method.strip().lower()
    if not mark or method not in DIGESTS:
        return False
    expected = hmac.digest(secret.encode(), body, method).hex()
    return hmac.compare_digest(expected.encode(), given.strip().lower().encode())


@dataclass(slots=True)
class Subscriptions:
    """Keeps the feeds' subscriptions: reads what is due and asks hubs, until it is cancelled."""

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
        """Look for what is due, again and again; an absent database is waited for."""
        while True:
            try:
                await self.check()
            except FreshetError as error:
                logger.warning("%s", error)
            await asyncio.sleep(self.options.check_seconds)

    async def check(self) -> None:
        """Begin to ask the hubs that are to be asked now, as far as there is room."""
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
            elif self.pool.are_full:
                return
            else:
                self.pool.offer(feed.key, host_of(hub), partial(self._ask, feed))

    def _hub_of(self, feed: Feed, now: datetime) -> str | None:
        """The hub to ask: the confirmed one, else the next in turn; None if all are on hold."""
        turn = feed.push.get("attempts", 0) % len(feed.hubs)
        order = [*feed.hubs[turn:], *feed.hubs[:turn]]
        if feed.push.get("state") == "active" and feed.push["hub"] in order:
            order.insert(0, feed.push["hub"])
        return next((hub for hub in order if not self.backoff.is_on_hold(host_of(hub), now)), None)

    async def _ask(self, feed: Feed) -> None:
        """Ask a feed's hub and note what it says."""
        now = self.clock.now()
        hub = self._hub_of(feed, now)
        if hub is None:
            return  # Its hub failed while it waited for its turn; the next look puts it off.
        ask = self._ask_of(feed, hub)
        attempts = feed.push.get("attempts", 0) + 1
        again = now + retry_pause(attempts, self.chance.random())
        # Before the request: a hub may come to verify it before it answers.
        if await self.patience.read(lambda: websub.record_request(self.db, feed, ask, now, again)):
            self.counts["asked"] += 1
            await self._send(feed, ask)

    def _ask_of(self, feed: Feed, hub: str) -> HubRequest:
        """A renewal keeps token and secret; another hub or topic gets others."""
        push = feed.push
        if push.get("hub") == hub and push.get("topic") == feed.topic:
            token, secret = push["token"], push["secret"]
        else:
            token, secret = self.tokens.new(), new_secret()
        return HubRequest(hub, feed.topic, self.options.callback, token, secret)

    async def _send(self, feed: Feed, ask: HubRequest) -> None:
        lease_seconds = int(self.options.lease.total_seconds())
        form = form_of(ask, "subscribe") | {
            "hub.secret": ask.secret, "hub.lease_seconds": str(lease_seconds),
        }  # fmt: skip
        try:
            reply = await self.hubs.post(ask.hub, form, feed.url)
        except NotAllowed as error:
            await self._refused(feed, ask, str(error))
        except HubFailed as error:
            self.backoff.failed(host_of(ask.hub), self.clock.now())
            await self._failed(feed, ask, str(error))
        else:
            await self._heard(feed, ask, reply)

    async def _heard(self, feed: Feed, ask: HubRequest, reply: Reply) -> None:
        reason, host = in_one_line(f"{reply.status} {reply.text}"), host_of(ask.hub)
        if reply.status < 300:
            self.backoff.answered(host)
        elif 400 <= reply.status < 500 and reply.status not in PASSING:
            self.backoff.answered(host)
            await self._refused(feed, ask, reason)
        else:
            self.backoff.failed(host, self.clock.now())
            await self._obey(host, reply)
            await self._failed(feed, ask, reason)

    async def _failed(self, feed: Feed, ask: HubRequest, reason: str) -> None:
        self.counts["failed"] += 1
        logger.info("%s: hub %s: %s", feed.url, ask.hub, reason)
        write = partial(websub.record_failure, self.db, feed.key, ask.token, reason)
        await self.patience.read(write)

    async def _refused(self, feed: Feed, ask: HubRequest, reason: str) -> None:
        self.counts["refused"] += 1
        logger.info("%s: hub %s denied the subscription: %s", feed.url, ask.hub, reason)
        has_others = feed.push.get("attempts", 0) + 1 < len(feed.hubs)
        later = self.clock.now() + (FIRST_PAUSE if has_others else AFTER_REFUSAL)
        write = partial(websub.record_refusal, self.db, feed.key, ask.token, reason, later)
        await self.patience.read(write)

    async def _obey(self, host: str, reply: Reply) -> None:
        """A hub that names a time to come again is left alone until then, by crawls as well."""
        if reply.retry_after is None:
            return
        response = Response("http://hub", headers={"Retry-After": reply.retry_after})
        until = retry_after(response, self.clock.now())
        if until is not None:
            self.backoff.hold_until(host, until)
            await self.patience.read(lambda: runs.hold_host(self.db, host, until))


def form_of(ask: HubRequest, mode: str) -> dict[str, str]:
    """What every request to a hub says. mode: subscribe or unsubscribe."""
    return {
        "hub.mode": mode,
        "hub.topic": ask.topic,
        "hub.callback": f"{ask.callback}/{ask.token}",
    }


def in_one_line(text: str) -> str:
    """What a stranger says, fit for the database and the log."""
    return printable(text[: 4 * MAX_REASON_CHARACTERS])[:MAX_REASON_CHARACTERS]


async def unsubscribe(subscriptions: Subscriptions, seconds: float) -> int:
    """Ask the hubs to end what they deliver to this callback; return how many confirmed in time.

    seconds: for all of them; the others count as ended too, and hubs that go on are answered 410
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
            # Confirmations come in at the callback, perhaps at that of another process.
            while await patience.read(lambda: websub.count_leaving(db)):  # noqa: ASYNC110
                await asyncio.sleep(CONFIRMED_SECONDS)
    now = subscriptions.clock.now()
    return len(feeds) - await patience.read(lambda: websub.end_unconfirmed(db, now))


async def _unsubscribe(hubs: Hubs, feed: Feed) -> None:
    push = feed.push
    ask = HubRequest(push["hub"], push["topic"], push["callback"], push["token"], push["secret"])
    try:
        await hubs.post(ask.hub, form_of(ask, "unsubscribe"), feed.url)
    except (NotAllowed, HubFailed) as error:
        logger.info("%s: hub %s: %s", feed.url, ask.hub, error)
