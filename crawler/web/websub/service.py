"""Receives pushed updates: in the web app, and in `scrapy feeds push`, which serves nothing else.

Both request subscriptions under the same lease, and have the same callback for hubs. The callback
verifies tokens and signatures, and stores deliveries. The size of bodies is limited per request,
and in total over the requests being received.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, Response
from typing_extensions import TypedDict

from crawler import __version__
from crawler.config import Config
from crawler.errors import Busy, FreshetError
from crawler.fetch.guard import Named
from crawler.storage import leases, websub
from crawler.storage.client import Database, MongoRetry
from crawler.storage.store import Store
from crawler.storage.websub import DeliveryResult, Feed
from crawler.utils.process import end_tasks
from crawler.utils.time import Clock
from crawler.web.auth import signed
from crawler.web.dependencies import WebDatabase
from crawler.web.middleware import UNLIMITED
from crawler.web.options import PushOptions, SubscriptionOptions, WebOptions
from crawler.web.server import Limits, create_minimal_app, listen, served
from crawler.web.websub.subscriptions import (
    AFTER_REFUSAL,
    Hubs,
    Subscriptions,
    Tokens,
    in_one_line,
    is_signed,
    lease_of,
    renewal,
    unsubscribe,
)

logger = logging.getLogger(__name__)
# A delivery is stored in one BSON document, which is limited to 16 MiB.
MAX_BODY_BYTES = 15_000_000
# Total size of stored deliveries that wait for a crawl.
MAX_STORED_BYTES = 500_000_000
# Time for retries while MongoDB is unavailable: enough to restart an embedded server, and short
# enough for hubs, which wait for the response.
PATIENCE_SECONDS = 15.0
DRAIN_SECONDS = 10.0
UNSUBSCRIBE_SECONDS = 60.0
BUSY = "another scrapy feeds push is running"
MAX_CHALLENGE_BYTES = 2048
MAX_CONTENT_TYPE_CHARACTERS = 200
# Deliveries that are verified and stored concurrently.
MAX_STORING = 4
# Total size of the bodies being received.
MAX_RECEIVING_BYTES = 64_000_000
UNCOMPRESSED = frozenset({"", "identity"})
router = APIRouter()


class PushReport(TypedDict):
    """Summary of a server that received pushed updates."""

    callback: str
    """Public URL of the callback."""
    listening: str
    """Host and port at which the server listened."""
    seconds: float
    """Duration in seconds."""
    unsubscribed: int
    """With `--unsubscribe`: number of ended subscriptions."""
    counts: dict[str, int]
    """Number of events by name."""
    subscriptions: dict[str, int]
    """Number of subscriptions by state: `requested`, `active`, `refused` or `ended`."""


def run(config: Config, options: PushOptions) -> PushReport:
    """Run the server until it is stopped; return a summary. Raises FreshetError."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    own = logging.getLogger("crawler")
    own.addHandler(handler)
    own.setLevel(logging.INFO)
    return asyncio.run(_work(config, options))


async def _work(config: Config, options: PushOptions) -> PushReport:
    loop, stop, began = asyncio.get_running_loop(), asyncio.Event(), time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    web = WebOptions(host=options.bind, port=options.port)
    limits = Limits(body_seconds=config.response_seconds)
    store = await Store.open(config)
    try:
        async with leases.held(store.db, config, leases.PUSH, BUSY):
            push = await Push.of(store, options.subscriptions)
            app = create_minimal_app(web, [router], any_host=True, uploads={"/": UNLIMITED})
            app.state.receiver = push.find_receiver
            listener = listen(web, f"--bind {options.bind} --port {options.port}")
            host, port = listener.getsockname()[:2]
            with closing(listener):
                async with served(app, web, listener, limits):
                    url = options.subscriptions.callback
                    logger.info("Listening at %s:%d, public URL %s", host, port, url)
                    async with push.requesting():
                        with suppress(TimeoutError):
                            async with asyncio.timeout(options.seconds):
                                await stop.wait()
                                # The next signal cancels the wait for the hubs' confirmations.
                                stop.clear()
                    unsubscribed = await push.unsubscribe(stop) if options.unsubscribe else 0
                    await push.subscriptions.pool.drain(DRAIN_SECONDS)
            patience = push.subscriptions.patience
            states = await patience.read(lambda: websub.states(store.db))
    finally:
        await store.close()
    return {
        "callback": options.subscriptions.callback,
        "listening": f"{host}:{port}",
        "seconds": round(time.monotonic() - began, 1),
        "unsubscribed": unsubscribed,
        "counts": {name: n for name, n in sorted(push.subscriptions.counts.items()) if n},
        "subscriptions": states,
    }


@dataclass(frozen=True, slots=True)
class Push:
    """The requester of subscriptions and the receiver of deliveries, on one database."""

    subscriptions: Subscriptions
    receiver: Receiver

    @classmethod
    async def of(cls, store: Store, requested: SubscriptionOptions) -> Push:
        """Create both; raises StorageError."""
        config, db = store.config, store.db
        clock, counts = config.clock, Counter[str]()
        patience = MongoRetry(PATIENCE_SECONDS, store.revive)
        tokens = Tokens(await patience.read(lambda: websub.token_key(db)))
        contact = f" (+{config.contact})" if config.contact else ""
        listed = Named.of(listed=config.private_hosts)
        hubs = Hubs(f"Freshet/{__version__}{contact}", listed)
        subscriptions = Subscriptions(db, patience, clock, hubs, tokens, requested, counts)
        body_bytes = min(int(config.response_mb * 1024 * 1024), MAX_BODY_BYTES)
        receiver = Receiver(
            db, patience, clock, tokens, requested.lease, MAX_STORED_BYTES, body_bytes, counts
        )
        return cls(subscriptions, receiver)

    async def find_receiver(self) -> Receiver:
        """Return the receiver, for the callback."""
        return self.receiver

    @asynccontextmanager
    async def requesting(self) -> AsyncIterator[asyncio.Task[None]]:
        """Request subscriptions inside the context; the caller holds the lease.

        Yields the task, which never ends on its own. Raises StorageError.
        """
        db, now = self.subscriptions.db, self.subscriptions.clock.now()
        # Subscriptions that an earlier process was ending when it was killed.
        await self.subscriptions.patience.read(lambda: websub.end_unconfirmed(db, now))
        request_task = asyncio.create_task(self.subscriptions.work())
        try:
            yield request_task
        finally:
            await end_tasks(request_task)

    async def unsubscribe(self, stop: asyncio.Event) -> int:
        """End all subscriptions; a second signal cancels the wait for the hubs' confirmations."""
        logger.info("Unsubscribing from all hubs")
        unsubscribing = asyncio.create_task(unsubscribe(self.subscriptions, UNSUBSCRIBE_SECONDS))
        signaled = asyncio.create_task(stop.wait())
        await asyncio.wait({unsubscribing, signaled}, return_when=asyncio.FIRST_COMPLETED)
        signaled.cancel()
        if not unsubscribing.done():
            unsubscribing.cancel()
            return 0
        return unsubscribing.result()


class PushOfApp:
    """The receiver in the web app, whose database may be unavailable at the start."""

    def __init__(self, database: WebDatabase, requested: SubscriptionOptions) -> None:
        self._database = database
        self._requested = requested
        self._push: Push | None = None
        self._creating = asyncio.Lock()
        self._last_problem = ""

    async def find_receiver(self) -> Receiver:
        """Return the receiver, for the callback; raises StorageError."""
        return (await self._ensure_push()).receiver

    @asynccontextmanager
    async def requesting(self) -> AsyncIterator[None]:
        """Request subscriptions inside the context, unless another process does."""
        request_task = asyncio.create_task(self._request())
        try:
            yield
        finally:
            await end_tasks(request_task)
            if self._push is not None:
                await self._push.subscriptions.pool.drain(DRAIN_SECONDS)

    async def _ensure_push(self) -> Push:
        async with self._creating:
            if self._push is None:
                async with self._database.opened() as store:
                    self._push = await Push.of(store, self._requested)
            return self._push

    async def _request(self) -> None:
        """Request subscriptions while this process holds the lease, until cancelled."""
        config = self._database.config
        while True:
            try:
                push = await self._ensure_push()
                async with leases.held(push.subscriptions.db, config, leases.PUSH, BUSY):
                    self._last_problem = ""
                    async with push.requesting() as request_task:
                        await request_task
            except FreshetError as error:
                # The holder's times change with each attempt.
                problem = BUSY if isinstance(error, Busy) else str(error)
                if problem != self._last_problem:
                    logger.warning("Requesting subscriptions paused, retrying: %s", error)
                self._last_problem = problem
            await asyncio.sleep(self._requested.check_seconds)


@dataclass(frozen=True, slots=True)
class Answer:
    """A response to a hub, as plain text."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> Response:
        """Return the HTTP response."""
        return PlainTextResponse(self.body, self.status, dict(self.headers))


NOT_FOUND = Answer(404, b"no such subscription\n")
GONE = Answer(410, b"this subscription has ended\n")
ACCEPTED = Answer(202)
TOO_LARGE = Answer(413, b"too large\n")
UNAVAILABLE = Answer(503, b"not now\n", {"Retry-After": "60"})
BROKEN = Answer(500)


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

    lease:           requested lease, assumed for hubs that do not state one
    max_bytes:       maximum total size of stored deliveries that wait for a crawl
    body_bytes:      maximum size of a body
    receiving_bytes: size of all bodies that are being received and handled
    """

    db: Database
    patience: MongoRetry
    clock: Clock
    tokens: Tokens
    lease: timedelta
    max_bytes: int
    body_bytes: int
    counts: Counter[str]
    receiving_bytes: int = 0
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


class _Body:
    """The body of a request while it is received and handled, read up to the limits.

    Bytes that exceed a limit are discarded, so that the hub can read the response.

    too_large: whether this body exceeded its limit
    too_busy:  whether all bodies together exceeded their limit
    """

    def __init__(self, receiver: Receiver) -> None:
        self.too_large = self.too_busy = False
        self._receiver = receiver
        self._parts: list[bytes] = []
        self._bytes = 0

    async def read(self, request: Request) -> bytes | None:
        """Receive the body and return it; None if it exceeded a limit."""
        async for part in request.stream():
            total = self._receiver.receiving_bytes + len(part)
            self.too_large |= self._bytes + len(part) > self._receiver.body_bytes
            self.too_busy |= total > MAX_RECEIVING_BYTES
            if self.too_large or self.too_busy:
                self.release()
                continue
            self._bytes += len(part)
            self._receiver.receiving_bytes = total
            self._parts.append(part)
        return None if self.too_large or self.too_busy else b"".join(self._parts)

    def release(self) -> None:
        """Free the memory of the body and stop counting its bytes."""
        self._receiver.receiving_bytes -= self._bytes
        self._bytes = 0
        self._parts.clear()


@router.get("/{path:path}", name="websub.verify")
@signed
async def verify(request: Request, path: str) -> Response:
    """Answer a hub that confirms a subscription or its end, or refuses it."""
    if getattr(request.state, "was_head", False):
        return Answer(405, headers={"Allow": "GET, POST"}).response()
    parameters = parse_qs(
        request.scope["query_string"].decode("latin-1"),
        keep_blank_values=True, encoding="utf-8", errors="surrogateescape",
    )  # fmt: skip
    # Parameters that are repeated or not valid UTF-8 are ignored.
    query = {}
    for name, values in parameters.items():
        if len(values) == 1:
            with suppress(UnicodeEncodeError):
                query[name] = values[0].encode().decode()
    return await _respond(request, lambda receiver: receiver.verify(_token(path), query))


@router.post("/{path:path}", name="websub.deliver")
@signed
async def deliver(request: Request, path: str) -> Response:
    """Store a delivery of a hub."""

    async def work(receiver: Receiver) -> Answer:
        body = _Body(receiver)
        try:
            content = await body.read(request)
            if body.too_busy:
                return UNAVAILABLE
            delivery = Delivery(
                request.headers.get("x-hub-signature"),
                request.headers.get("content-type", ""),
                request.headers.get("content-encoding", ""),
                content,
            )
            return await receiver.deliver(_token(path), delivery)
        finally:
            body.release()

    return await _respond(request, work)


def _token(path: str) -> str:
    """Return the token, the last part of a path; a proxy may add parts before it."""
    return path.rpartition("/")[2]


async def _respond(request: Request, work: Callable[[Receiver], Awaitable[Answer]]) -> Response:
    """Return the response to a hub; never raises."""
    try:
        find: Callable[[], Awaitable[Receiver]] = request.app.state.receiver
        answer = await work(await find())
    except FreshetError as error:
        logger.warning("Hub request rejected with status 503: %s", error)
        answer = UNAVAILABLE
    except ClientDisconnect:
        # The hub has disconnected, so nobody reads the response.
        answer = BROKEN
    except Exception:  # The response does not mention the error, and hubs try again.
        logger.exception("Hub request failed")
        answer = BROKEN
    return answer.response()
