"""The callback that hubs send to: verifies tokens and signatures, stores deliveries.

The size of bodies is limited per request, and in total over the requests being received.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from twisted.web.server import Request, Site

from crawler.errors import FreshetError
from crawler.storage import websub
from crawler.storage.client import Database
from crawler.storage.outages import MongoRetry
from crawler.storage.websub import DeliveryResult, Feed
from crawler.utils.time import Clock
from crawler.web.server import IDLE_SECONDS, PLAIN_TEXT, Answer, Handler
from crawler.web.websub.hubs import AFTER_REFUSAL, lease_of, renewal
from crawler.web.websub.subscriptions import Tokens, in_one_line, is_signed

logger = logging.getLogger(__name__)
MAX_CHALLENGE_BYTES = 2048
MAX_CONTENT_TYPE_CHARACTERS = 200
# Deliveries that are verified and stored concurrently.
MAX_STORING = 4
# Total size of the bodies being received.
MAX_RECEIVING_BYTES = 64_000_000
UNCOMPRESSED = frozenset({"", "identity"})
NOT_FOUND = Answer(404, b"no such subscription\n")
GONE = Answer(410, b"this subscription has ended\n")
ACCEPTED = Answer(202)
TOO_LARGE = Answer(413, b"too large\n")
UNAVAILABLE = Answer(503, b"not now\n", PLAIN_TEXT | {"Retry-After": "60"})
BROKEN = Answer(500)
WRONG_METHOD = Answer(405, headers=PLAIN_TEXT | {"Allow": "GET, POST"})


@dataclass(frozen=True, slots=True)
class Delivery:
    """A hub's POST request. body: None if it exceeded the limit."""

    signature: str | None
    content_type: str
    encoding: str
    body: bytes | None


@dataclass(slots=True)
class Receiver:
    """Handles the requests of hubs; accepted deliveries are journaled before it responds.

    lease:     requested lease, assumed for hubs that do not state one
    max_bytes: maximum total size of stored deliveries that wait for a crawl
    """

    db: Database
    patience: MongoRetry
    clock: Clock
    tokens: Tokens
    lease: timedelta
    max_bytes: int
    counts: Counter[str]
    chance: random.Random = field(default_factory=random.Random)
    _storing: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_STORING))

    async def verify(self, token: str, query: Mapping[str, str]) -> Answer:
        """Confirm a subscription or its end to a hub, or record its refusal.

        Raises StorageError. query: parameters of the request
        """
        mode, topic = query.get("hub.mode"), query.get("hub.topic")
        if topic is None or not self._is_own(token):
            return NOT_FOUND
        if mode == "denied":
            return await self._denied(token, topic, query.get("hub.reason", ""))
        challenge = query.get("hub.challenge", "").encode()
        if not 0 < len(challenge) <= MAX_CHALLENGE_BYTES:
            return NOT_FOUND
        agreed, now = False, self.clock.now()
        if mode == "subscribe":
            lease = lease_of(query.get("hub.lease_seconds"), self.lease)
            again = renewal(lease, self.chance.random())
            agreed = await self.patience.read(
                lambda: websub.confirm(self.db, token, topic, now, lease, again)
            )
            if agreed:
                self.counts["confirmed"] += 1
                until = f"{now + lease:%Y-%m-%d %H:%M} UTC"
                logger.info("Subscription of %s confirmed until %s", topic, until)
        elif mode == "unsubscribe":
            agreed = await self.patience.read(
                lambda: websub.confirm_unsubscribe(self.db, token, topic, now)
            )
        return Answer(200, challenge) if agreed else NOT_FOUND

    async def deliver(self, token: str, delivery: Delivery) -> Answer:
        """Store a delivery; raises StorageError."""
        if not self._is_own(token):
            return NOT_FOUND
        feed = await self.patience.read(lambda: websub.of_token(self.db, token))
        if feed is None or feed.push["state"] == "ended":
            return GONE
        async with self._storing:
            return await self._receive(feed, delivery)

    def _is_own(self, token: str) -> bool:
        is_own = self.tokens.knows(token)
        self.counts["unknown"] += not is_own
        return is_own

    async def _denied(self, token: str, topic: str, reason: str) -> Answer:
        later, message = self.clock.now() + AFTER_REFUSAL, in_one_line(reason) or "denied"
        if not await self.patience.read(lambda: websub.deny(self.db, token, topic, message, later)):
            return NOT_FOUND
        self.counts["refused"] += 1
        logger.info("Subscription of %s refused by its hub: %s", topic, message)
        return Answer(200)

    async def _receive(self, feed: Feed, delivery: Delivery) -> Answer:
        now, token, body = self.clock.now(), feed.push["token"], delivery.body
        if body is None:
            await self.patience.read(lambda: websub.make_due(self.db, feed, now))
            self.counts["too_large"] += 1
            return TOO_LARGE
        if not is_signed(delivery.signature, body, feed.push["secret"]):
            # The same response as to valid deliveries, to reveal nothing about the signature.
            await self.patience.read(lambda: websub.count_ignored(self.db, feed.key, token))
            self.counts["ignored"] += 1
            return ACCEPTED
        if not body.strip() or delivery.encoding.lower() not in UNCOMPRESSED:
            # An empty ping, or a compressed body, which WebSub does not define: poll the feed.
            await self.patience.read(lambda: websub.make_due(self.db, feed, now))
            self.counts[DeliveryResult.POLLED] += 1
            return ACCEPTED
        kind = in_one_line(delivery.content_type)[:MAX_CONTENT_TYPE_CHARACTERS]
        kept = await self.patience.read(
            lambda: websub.store(self.db, feed, kind, body, now, self.max_bytes)
        )
        self.counts[kept] += 1
        return ACCEPTED


class CallbackSite(Site):
    """A site with limits on bodies, which counts the bytes being received.

    body_bytes:      maximum size of a body
    request_seconds: maximum time for receiving a body
    """

    def __init__(
        self, reactor: Any, callback: Callback, body_bytes: int, request_seconds: float
    ) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            callback,
            requestFactory=CallbackRequest,
            timeout=IDLE_SECONDS,
            reactor=reactor,
            parsePOSTFormSubmission=False,
        )
        self.body_bytes = body_bytes
        self.request_seconds = request_seconds
        self.receiving_bytes = 0


class CallbackRequest(Request):
    """A request whose body is read up to the limits; the rest is discarded."""

    too_large = False
    too_busy = False
    _limits: CallbackSite
    _bytes = 0

    def gotLength(self, length: int | None) -> None:  # noqa: N802 - Twisted's name
        """Start counting the body, after the headers were received."""
        super().gotLength(length)  # type: ignore[no-untyped-call]
        channel: Any = self.channel
        self._limits = channel.site

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """Store a part of the body, unless a limit is exceeded."""
        limits = self._limits
        self.too_large |= self._bytes + len(data) > limits.body_bytes
        self.too_busy |= limits.receiving_bytes + len(data) > MAX_RECEIVING_BYTES
        if self.too_large or self.too_busy:
            self.release()
            return
        self._bytes += len(data)
        limits.receiving_bytes += len(data)
        super().handleContentChunk(data)  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Any) -> None:  # noqa: N802 - Twisted's name
        """Release the body when the hub disconnects."""
        self.release()
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def release(self) -> None:
        """Free the memory of the body and stop counting its bytes."""
        if self._bytes:
            self._limits.receiving_bytes -= self._bytes
            self._bytes = 0
            if self.content is not None:
                self.content.truncate(0)


class Callback(Handler):
    """The resource for all paths: a path's last part is the token, after any prefix of a proxy."""

    def __init__(self, receiver: Receiver) -> None:
        super().__init__()
        self._receiver = receiver

    async def answer(self, request: Any) -> Answer:
        """Return the response to a hub; never raises."""
        try:
            return await self._answer(request)
        except FreshetError as error:
            logger.warning("Hub request rejected with status 503: %s", error)
            return UNAVAILABLE
        except Exception:  # Like Handler, but the response does not mention the error.
            logger.exception("Hub request failed")
            return BROKEN
        finally:
            request.release()

    async def _answer(self, request: Any) -> Answer:
        token = request.path.rpartition(b"/")[2].decode("latin-1")
        if request.method == b"GET":
            query: dict[str, str] = {}
            # Ignore parameters that are repeated or not valid UTF-8.
            for name, values in request.args.items():
                if len(values) == 1:
                    with contextlib.suppress(UnicodeDecodeError):
                        query[name.decode("ascii")] = values[0].decode("utf-8")
            return await self._receiver.verify(token, query)
        if request.method != b"POST":
            return WRONG_METHOD
        if request.too_busy:
            return UNAVAILABLE
        body = None if request.too_large else request.content.read()
        delivery = Delivery(
            _header(request, "X-Hub-Signature"),
            _header(request, "Content-Type") or "",
            _header(request, "Content-Encoding") or "",
            body,
        )
        return await self._receiver.deliver(token, delivery)


def _header(request: Any, name: str) -> str | None:
    value: bytes | None = request.getHeader(name.encode("ascii"))
    return None if value is None else value.decode("latin-1")
