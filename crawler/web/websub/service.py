"""The server of `scrapy feeds push`: asks hubs and takes what they deliver, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter

from crawler import __version__
from crawler.config import Config
from crawler.fetch.guard import Named
from crawler.storage import leases, websub
from crawler.storage.client import Document
from crawler.storage.retry import MongoRetry
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
from crawler.web.websub.options import Order
from crawler.web.websub.subscriptions import Subscriptions, Tokens, unsubscribe

logger = logging.getLogger(__name__)
# BSON documents may have 16 MiB.
MAX_BODY_BYTES = 15_000_000
# Of delivered documents that wait for a crawl.
MAX_STORED_BYTES = 500_000_000
# Enough for an embedded server to be started again, and hubs wait as long for an answer.
PATIENCE_SECONDS = 15.0
DRAIN_SECONDS = 10.0
UNSUBSCRIBE_SECONDS = 60.0
BUSY = "another scrapy feeds push is running"


def run(config: Config, order: Order) -> Document:
    """Serve to the end, and return a summary. Raises FreshetError."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    own = logging.getLogger("crawler")
    own.addHandler(handler)
    own.setLevel(logging.INFO)
    return run_in_reactor(_work(config, order))


async def _work(config: Config, order: Order) -> Document:
    stop, began = stop_at_signals(), time.monotonic()
    store = await Store.open(config)
    try:
        async with leases.held(store.db, config, leases.PUSH, BUSY):
            server = await PushServer.begin(store, order)
            await until_signal(stop, order.seconds)
            unsubscribed = await server.end(stop)
            subscriptions = server.subscriptions
            states = await subscriptions.patience.read(lambda: websub.states(store.db))
    finally:
        await store.close()
    return {
        "callback": order.subscriptions.callback,
        "listening": server.address,
        "seconds": round(time.monotonic() - began, 1),
        "unsubscribed": unsubscribed,
        "counts": {name: n for name, n in sorted(subscriptions.counts.items()) if n},
        "subscriptions": states,
    }


class PushServer:
    """The two halves of the server: the subscriptions, and the callback that answers hubs."""

    def __init__(
        self, order: Order, subscriptions: Subscriptions, callback: Callback, config: Config
    ) -> None:
        from twisted.internet import reactor

        self.order = order
        self.subscriptions = subscriptions
        self.callback = callback
        body_bytes = min(int(config.response_mb * 1024 * 1024), MAX_BODY_BYTES)
        site = CallbackSite(reactor, callback, body_bytes, config.response_seconds)
        option = f"--bind {order.bind} --port {order.port}"
        self.listening = open_port(reactor, order.port, site, order.bind, option)
        host = self.listening.getHost()
        self.address = f"{host.host}:{host.port}"
        self.asking = asyncio.create_task(subscriptions.work())
        logger.info("listening at %s for %s", self.address, order.subscriptions.callback)

    @classmethod
    async def begin(cls, store: Store, order: Order) -> PushServer:
        """Listen, then ask hubs; raises ConfigError where the address cannot be had."""
        from twisted.internet import reactor

        config, options, db = store.config, order.subscriptions, store.db
        clock, counts = Clock(config.clock_offset_hours), Counter[str]()
        patience = MongoRetry(PATIENCE_SECONDS, store.revive)
        tokens = Tokens(await patience.read(lambda: websub.token_key(db)))
        # A run that was killed while it unsubscribed left these between two states.
        await patience.read(lambda: websub.end_unconfirmed(db, clock.now()))
        contact = f" (+{config.contact})" if config.contact else ""
        listed = Named.of(listed=config.private_hosts)
        hubs = Hubs(reactor, f"Freshet/{__version__}{contact}", listed)
        subscriptions = Subscriptions(db, patience, clock, hubs, tokens, options, counts)
        receiver = Receiver(db, patience, clock, tokens, options.lease, MAX_STORED_BYTES, counts)
        return cls(order, subscriptions, Callback(receiver), config)

    async def end(self, stop: asyncio.Event) -> int:
        """Let what has begun end; return how many subscriptions were given up."""
        await end_tasks(self.asking)
        unsubscribed = 0
        if self.order.unsubscribe:
            unsubscribed = await self._unsubscribe(stop)
        await self.subscriptions.pool.drain(DRAIN_SECONDS)
        await stop_listening(self.listening)
        await self.callback.drain(DRAIN_SECONDS)
        return unsubscribed

    async def _unsubscribe(self, stop: asyncio.Event) -> int:
        """Give all subscriptions up; a second signal ends the waiting."""
        logger.info("unsubscribing from all hubs")
        leaving = asyncio.create_task(unsubscribe(self.subscriptions, UNSUBSCRIBE_SECONDS))
        signal = asyncio.create_task(stop.wait())
        await asyncio.wait({leaving, signal}, return_when=asyncio.FIRST_COMPLETED)
        signal.cancel()
        if not leaving.done():
            leaving.cancel()
            return 0
        return leaving.result()
