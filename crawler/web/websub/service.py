"""Receives pushed updates: in the web app, and in `scrapy feeds push`, which serves nothing else.

Both have the same callback, and request subscriptions under the same lease.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass

from typing_extensions import TypedDict

from crawler import __version__
from crawler.config import Config
from crawler.errors import Busy, FreshetError
from crawler.fetch.guard import Named
from crawler.storage import leases, websub
from crawler.storage.outages import MongoRetry
from crawler.storage.store import Store
from crawler.utils.process import end_tasks
from crawler.utils.time import Clock
from crawler.web.database import WebDatabase
from crawler.web.middleware import UNLIMITED
from crawler.web.options import WebOptions
from crawler.web.server import Limits, create_minimal_app, listen, run_in_reactor, served
from crawler.web.websub import callback
from crawler.web.websub.callback import Receiver
from crawler.web.websub.hubs import Hubs
from crawler.web.websub.options import PushOptions, SubscriptionOptions
from crawler.web.websub.subscriptions import Subscriptions, Tokens, unsubscribe

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
    """Number of subscriptions by state: `asked`, `active`, `refused` or `ended`."""


def run(config: Config, options: PushOptions) -> PushReport:
    """Run the server until it is stopped; return a summary. Raises FreshetError."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    own = logging.getLogger("crawler")
    own.addHandler(handler)
    own.setLevel(logging.INFO)
    return run_in_reactor(_work(config, options))


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
            app = create_minimal_app(
                web, [callback.router], any_host=True, uploads={"/": UNLIMITED}
            )
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
    """What requests subscriptions, and what receives deliveries, on one database."""

    subscriptions: Subscriptions
    receiver: Receiver

    @classmethod
    async def of(cls, store: Store, requested: SubscriptionOptions) -> Push:
        """Create both; raises StorageError. Needs Twisted's reactor."""
        from twisted.internet import reactor

        config, db = store.config, store.db
        clock, counts = Clock(config.clock_offset_hours), Counter[str]()
        patience = MongoRetry(PATIENCE_SECONDS, store.revive)
        tokens = Tokens(await patience.read(lambda: websub.token_key(db)))
        contact = f" (+{config.contact})" if config.contact else ""
        listed = Named.of(listed=config.private_hosts)
        hubs = Hubs(reactor, f"Freshet/{__version__}{contact}", listed)
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
        asking = asyncio.create_task(self.subscriptions.work())
        try:
            yield asking
        finally:
            await end_tasks(asking)

    async def unsubscribe(self, stop: asyncio.Event) -> int:
        """End all subscriptions; a second signal cancels the wait for the hubs' confirmations."""
        logger.info("Unsubscribing from all hubs")
        leaving = asyncio.create_task(unsubscribe(self.subscriptions, UNSUBSCRIBE_SECONDS))
        signaled = asyncio.create_task(stop.wait())
        await asyncio.wait({leaving, signaled}, return_when=asyncio.FIRST_COMPLETED)
        signaled.cancel()
        if not leaving.done():
            leaving.cancel()
            return 0
        return leaving.result()


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
        return (await self._found()).receiver

    @asynccontextmanager
    async def requesting(self) -> AsyncIterator[None]:
        """Request subscriptions inside the context, unless another process does."""
        asking = asyncio.create_task(self._request())
        try:
            yield
        finally:
            await end_tasks(asking)
            if self._push is not None:
                await self._push.subscriptions.pool.drain(DRAIN_SECONDS)

    async def _found(self) -> Push:
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
                push = await self._found()
                async with leases.held(push.subscriptions.db, config, leases.PUSH, BUSY):
                    self._last_problem = ""
                    async with push.requesting() as asking:
                        await asking
            except FreshetError as error:
                # The holder's times change with each attempt.
                problem = BUSY if isinstance(error, Busy) else str(error)
                if problem != self._last_problem:
                    logger.warning("Requesting subscriptions paused, retrying: %s", error)
                self._last_problem = problem
            await asyncio.sleep(self._requested.check_seconds)
