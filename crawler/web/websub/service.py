"""The server of `scrapy feeds push`: requests subscriptions and receives deliveries."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter

from typing_extensions import TypedDict

from crawler import __version__
from crawler.config import Config
from crawler.fetch.guard import Named
from crawler.storage import leases, websub
from crawler.storage.outages import MongoRetry
from crawler.storage.store import Store
from crawler.utils.process import end_tasks
from crawler.utils.time import Clock
from crawler.web.server import (
    open_port,
    run_in_reactor,
    stop_at_signals,
    stop_listening,
    until_signal,
)
from crawler.web.websub.callback import Callback, CallbackSite, Receiver
from crawler.web.websub.hubs import Hubs
from crawler.web.websub.options import PushOptions
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
    stop, began = stop_at_signals(), time.monotonic()
    store = await Store.open(config)
    try:
        async with leases.held(store.db, config, leases.PUSH, BUSY):
            server = await PushServer.begin(store, options)
            await until_signal(stop, options.seconds)
            unsubscribed = await server.end(stop)
            subscriptions = server.subscriptions
            states = await subscriptions.patience.read(lambda: websub.states(store.db))
    finally:
        await store.close()
    return {
        "callback": options.subscriptions.callback,
        "listening": server.address,
        "seconds": round(time.monotonic() - began, 1),
        "unsubscribed": unsubscribed,
        "counts": {name: n for name, n in sorted(subscriptions.counts.items()) if n},
        "subscriptions": states,
    }


class PushServer:
    """Runs the task that requests subscriptions, and the callback that receives deliveries."""

    def __init__(
        self, options: PushOptions, subscriptions: Subscriptions, callback: Callback, config: Config
    ) -> None:
        from twisted.internet import reactor

        self.options = options
        self.subscriptions = subscriptions
        self.callback = callback
        body_bytes = min(int(config.response_mb * 1024 * 1024), MAX_BODY_BYTES)
        site = CallbackSite(reactor, callback, body_bytes, config.response_seconds)
        option = f"--bind {options.bind} --port {options.port}"
        self.listening = open_port(reactor, options.port, site, options.bind, option)
        host = self.listening.getHost()
        self.address = f"{host.host}:{host.port}"
        self.asking = asyncio.create_task(subscriptions.work())
        callback_url = options.subscriptions.callback
        logger.info("Listening at %s, public URL %s", self.address, callback_url)

    @classmethod
    async def begin(cls, store: Store, options: PushOptions) -> PushServer:
        """Start listening, then requesting; raises ConfigError if the address is unavailable."""
        from twisted.internet import reactor

        config, db = store.config, store.db
        clock, counts = Clock(config.clock_offset_hours), Counter[str]()
        patience = MongoRetry(PATIENCE_SECONDS, store.revive)
        tokens = Tokens(await patience.read(lambda: websub.token_key(db)))
        # Subscriptions that an earlier process was ending when it was killed.
        await patience.read(lambda: websub.end_unconfirmed(db, clock.now()))
        contact = f" (+{config.contact})" if config.contact else ""
        listed = Named.of(listed=config.private_hosts)
        hubs = Hubs(reactor, f"Freshet/{__version__}{contact}", listed)
        requested = options.subscriptions
        subscriptions = Subscriptions(db, patience, clock, hubs, tokens, requested, counts)
        receiver = Receiver(db, patience, clock, tokens, requested.lease, MAX_STORED_BYTES, counts)
        return cls(options, subscriptions, Callback(receiver), config)

    async def end(self, stop: asyncio.Event) -> int:
        """Shut down after finishing work in progress; return the number of ended subscriptions."""
        await end_tasks(self.asking)
        unsubscribed = 0
        if self.options.unsubscribe:
            unsubscribed = await self._unsubscribe(stop)
        await self.subscriptions.pool.drain(DRAIN_SECONDS)
        await stop_listening(self.listening)
        await self.callback.drain(DRAIN_SECONDS)
        return unsubscribed

    async def _unsubscribe(self, stop: asyncio.Event) -> int:
        """End all subscriptions; a second signal cancels the wait for the hubs' confirmations."""
        logger.info("Unsubscribing from all hubs")
        leaving = asyncio.create_task(unsubscribe(self.subscriptions, UNSUBSCRIBE_SECONDS))
        signal = asyncio.create_task(stop.wait())
        await asyncio.wait({leaving, signal}, return_when=asyncio.FIRST_COMPLETED)
        signal.cancel()
        if not leaving.done():
            leaving.cancel()
            return 0
        return leaving.result()
