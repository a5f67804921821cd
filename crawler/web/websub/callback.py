"""The callback as a web server: few connections, bounded bodies, little time for each."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site

from crawler.errors import FreshetError
from crawler.storage import websub
from crawler.storage import websub as pushes
from crawler.storage.client import Database
from crawler.storage.retry import Patience
from crawler.storage.websub import Feed, Kept
from crawler.utils.time import Clock
from crawler.web.websub import hubs as times
from crawler.web.websub.subscriptions import Tokens, in_one_line, is_signed

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


# Of all requests that are being received together.
MOST_BYTES_AT_ONCE = 64_000_000
IDLE_SECONDS = 30
RETRY_SECONDS = "60"
AWAY = Answer(503, b"not now\n")
BROKEN = Answer(500)
WRONG_METHOD = Answer(405)


class CallbackSite(Site):
    """Knows the limits, and how many bytes are being received.

    body_bytes: longest body      request_seconds: longest time for a body to come in
    """

    def __init__(
        self, reactor: Any, receiving: Receiving, body_bytes: int, request_seconds: float
    ) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            Callback(receiving),
            requestFactory=CallbackRequest,
            timeout=IDLE_SECONDS,
            reactor=reactor,
            parsePOSTFormSubmission=False,
        )
        self.body_bytes = body_bytes
        self.request_seconds = request_seconds
        self.receiving_bytes = 0


class CallbackRequest(Request):
    """A request whose body is read as far as it is allowed to go; what is more is thrown away."""

    too_large = False
    too_busy = False
    _limits: CallbackSite
    _bytes = 0

    def gotLength(self, length: int | None) -> None:  # noqa: N802 - Twisted's name
        """The headers are in: the body is counted from now on."""
        super().gotLength(length)  # type: ignore[no-untyped-call]
        channel: Any = self.channel
        self._limits = channel.site

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """Keep a part of the body if it may be kept."""
        limits = self._limits
        self.too_large |= self._bytes + len(data) > limits.body_bytes
        self.too_busy |= limits.receiving_bytes + len(data) > MOST_BYTES_AT_ONCE
        if self.too_large or self.too_busy:
            self.let_go()
            return
        self._bytes += len(data)
        limits.receiving_bytes += len(data)
        super().handleContentChunk(data)  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Any) -> None:  # noqa: N802 - Twisted's name
        """The hub has gone."""
        self.let_go()
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def let_go(self) -> None:
        """The body is done with; its bytes are free for others."""
        if self._bytes:
            self._limits.receiving_bytes -= self._bytes
            self._bytes = 0
            if self.content is not None:
                self.content.truncate(0)


class Callback(Resource):
    """The one resource: the last part of a path is the token, whatever a proxy put before it."""

    isLeaf = True  # noqa: N815 - Twisted's name

    def __init__(self, receiving: Receiving) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._receiving = receiving
        self._tasks: set[asyncio.Task[None]] = set()

    def render(self, request: Request) -> int:
        """Answer a request, a little later."""
        task = asyncio.get_running_loop().create_task(self._handle(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return NOT_DONE_YET

    async def drain(self, seconds: float) -> None:
        """Wait until what was received is answered, so many seconds at most."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def _handle(self, request: Any) -> None:
        gone: list[object] = []
        request.notifyFinish().addErrback(gone.append)
        try:
            answer = await self._answer(request)
        except FreshetError as error:
            logger.warning("a hub is told to come again: %s", error)
            answer = AWAY
        except Exception:  # A hub gets an answer, whatever it is.
            logger.exception("a request of a hub failed")
            answer = BROKEN
        request.let_go()
        if not gone:
            _send(request, answer)

    async def _answer(self, request: Any) -> Answer:
        token = request.path.rpartition(b"/")[2].decode("latin-1")
        if request.method == b"GET":
            return await self._receiving.verify(token, _query(request))
        if request.method != b"POST":
            return WRONG_METHOD
        if request.too_busy:
            return AWAY
        body = None if request.too_large else request.content.read()
        delivery = Delivery(
            _header(request, "X-Hub-Signature"),
            _header(request, "Content-Type") or "",
            _header(request, "Content-Encoding") or "",
            body,
        )
        return await self._receiving.deliver(token, delivery)


def _query(request: Any) -> dict[str, str]:
    """Parameters that stand once, decoded; others are as good as absent."""
    query: dict[str, str] = {}
    for name, values in request.args.items():
        if len(values) == 1:
            try:
                query[name.decode("ascii")] = values[0].decode("utf-8")
            except UnicodeDecodeError:
                continue
    return query


def _header(request: Any, name: str) -> str | None:
    value: bytes | None = request.getHeader(name.encode("ascii"))
    return None if value is None else value.decode("latin-1")


def _send(request: Any, answer: Answer) -> None:
    request.setResponseCode(answer.status)
    request.setHeader("Server", "Freshet")
    request.setHeader("Content-Type", "text/plain; charset=utf-8")
    request.setHeader("X-Content-Type-Options", "nosniff")
    request.setHeader("Content-Length", str(len(answer.text)))
    if answer.status == 405:
        request.setHeader("Allow", "GET, POST")
    if answer.status == 503:
        request.setHeader("Retry-After", RETRY_SECONDS)
    request.write(answer.text)
    request.finish()
