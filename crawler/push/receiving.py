"""What hubs hear at the callback: whether something was asked for, receipts for documents."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from crawler.push import times
from crawler.push.asking import in_one_line
from crawler.push.tokens import Tokens, is_signed
from crawler.storage import pushes, websub
from crawler.storage.client import Database
from crawler.storage.patience import Patience
from crawler.storage.pushes import Kept
from crawler.storage.websub import Feed
from crawler.utils.time import Clock

logger = logging.getLogger(__name__)
MOST_CHALLENGE = 2048
MOST_CONTENT_TYPE = 200
STORED_AT_ONCE = 4
PLAIN = frozenset({"", "identity"})


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer: status and plain text."""

    status: int
    text: bytes = b""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a hub posted; body: None if it was longer than the limit."""

    signature: str | None
    content_type: str
    encoding: str
    body: bytes | None


NOT_FOUND = Answer(404, b"no such subscription\n")
GONE = Answer(410, b"this subscription has ended\n")
ACCEPTED = Answer(202)
TOO_LARGE = Answer(413, b"too large\n")


@dataclass(slots=True)
class Receiving:
    """Answers hubs; everything it accepts is in the journal before it says so.

    lease:      what was asked for, for hubs that name none
    most_bytes: of delivered documents that wait for a crawl, for all feeds together
    """

    db: Database
    patience: Patience
    clock: Clock
    tokens: Tokens
    lease: timedelta
    most_bytes: int
    counts: Counter[str]
    chance: random.Random = field(default_factory=random.Random)
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(STORED_AT_ONCE))

    async def verify(self, token: str, query: Mapping[str, str]) -> Answer:
        """A hub asks whether something was asked for, or says that it refuses it.

        query: parameters of the request; raises StorageError
        """
        mode, topic = query.get("hub.mode"), query.get("hub.topic")
        if topic is None or not self._knows(token):
            return NOT_FOUND
        if mode == "denied":
            return await self._denied(token, topic, query.get("hub.reason", ""))
        challenge = query.get("hub.challenge", "").encode()
        if not 0 < len(challenge) <= MOST_CHALLENGE:
            return NOT_FOUND
        agreed = False
        if mode == "subscribe":
            agreed = await self._confirmed(token, topic, query.get("hub.lease_seconds"))
        elif mode == "unsubscribe":
            agreed = await self._left(token, topic)
        return Answer(200, challenge) if agreed else NOT_FOUND

    async def deliver(self, token: str, delivery: Delivery) -> Answer:
        """A hub sends a document; raises StorageError where it cannot be stored."""
        if not self._knows(token):
            return NOT_FOUND
        feed = await self.patience.read(lambda: websub.of_token(self.db, token))
        if feed is None or feed.push["state"] == "ended":
            return GONE
        async with self._places:
            return await self._received(feed, delivery)

    def _knows(self, token: str) -> bool:
        known = self.tokens.knows(token)
        self.counts["unknown"] += not known
        return known

    async def _confirmed(self, token: str, topic: str, named: str | None) -> bool:
        now, lease = self.clock.now(), times.lease(named, self.lease)
        renewal = times.renewal(lease, self.chance.random())
        agreed = await self.patience.read(
            lambda: websub.confirm(self.db, token, topic, now, lease, renewal)
        )
        if agreed:
            self.counts["confirmed"] += 1
            logger.info("%s: a hub sends it until %s", topic, f"{now + lease:%Y-%m-%d %H:%M} UTC")
        return agreed

    async def _left(self, token: str, topic: str) -> bool:
        now = self.clock.now()
        return await self.patience.read(lambda: websub.left(self.db, token, topic, now))

    async def _denied(self, token: str, topic: str, reason: str) -> Answer:
        later, said = self.clock.now() + times.AFTER_REFUSAL, in_one_line(reason) or "denied"
        known = await self.patience.read(lambda: websub.deny(self.db, token, topic, said, later))
        if not known:
            return NOT_FOUND
        self.counts["refused"] += 1
        logger.info("%s: its hub refuses: %s", topic, said)
        return Answer(200)

    async def _received(self, feed: Feed, delivery: Delivery) -> Answer:
        now, token, body = self.clock.now(), feed.push["token"], delivery.body
        if body is None:
            await self.patience.read(lambda: pushes.poll(self.db, feed, now))
            self.counts["too_large"] += 1
            return TOO_LARGE
        if not is_signed(delivery.signature, body, feed.push["secret"]):
            # Answered like any other, so that nobody learns from it how to sign.
            await self.patience.read(lambda: websub.ignored(self.db, feed.key, token))
            self.counts["ignored"] += 1
            return ACCEPTED
        kept = await self._kept(feed, delivery.content_type, delivery.encoding, body)
        self.counts[kept] += 1
        return ACCEPTED

    async def _kept(self, feed: Feed, content_type: str, encoding: str, body: bytes) -> Kept:
        now = self.clock.now()
        if not body.strip() or encoding.lower() not in PLAIN:
            # A mere ping, or packed in a way that the standard does not know.
            await self.patience.read(lambda: pushes.poll(self.db, feed, now))
            return Kept.POLLED
        kind = in_one_line(content_type)[:MOST_CONTENT_TYPE]
        return await self.patience.read(
            lambda: pushes.store(self.db, feed, kind, body, now, self.most_bytes)
        )
