"""The server of `scrapy feeds push`: asks hubs and takes what they deliver, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections import Counter
from typing import Any

from twisted.internet.defer import maybeDeferred

from crawler import __version__
from crawler.config import Config
from crawler.fetch.guard import Named
from crawler.storage import leases, websub
from crawler.storage.client import Document
from crawler.storage.retry import Patience
from crawler.storage.store import Store
from crawler.utils import tasks
from crawler.utils.time import Clock
from crawler.web.server import open_port, run_in_reactor
from crawler.web.websub.callback import Callback, CallbackSite, Receiving
from crawler.web.websub.hubs import Hubs
from crawler.web.websub.options import Order
from crawler.web.websub.subscriptions import Asking, Tokens, leave

logger = logging.getLogger(__name__)
# BSON documents may have 16 MiB.
MOST_BODY_BYTES = 15_000_000
KEPT_BYTES = 500_000_000
# Enough for an embedded server to be started again, and hubs wait as long for an answer.
PATIENCE_SECONDS = 15.0
DRAIN_SECONDS = 10.0
LEAVE_SECONDS = 60.0
BUSY = "another scrapy feeds push is running"


def run(config: Config, order: Order) -> Document:
    """Serve to the end; a summary. Raises FreshetError."""
    _log_to_stderr()
    return run_in_reactor(_work(config, order))


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    own = logging.getLogger("crawler")
    own.addHandler(handler)
    own.setLevel(logging.INFO)


async def _work(config: Config, order: Order) -> Document:
    stop, began = _stop_at_signals(), time.monotonic()
    store = await Store.open(config)
    try:
        async with leases.held(store.db, config, leases.PUSH, BUSY):
            serving = await Serving.begin(store, order)
            await serving.until(stop)
            left = await serving.end(stop)
            states = await serving.asking.patience.read(lambda: websub.states(store.db))
    finally:
        await store.close()
    return {
        "callback": order.wanted.callback,
        "listening": serving.address,
        "seconds": round(time.monotonic() - began, 1),
        "unsubscribed": left,
        "counts": {name: n for name, n in sorted(serving.asking.counts.items()) if n},
        "subscriptions": states,
    }


def _stop_at_signals() -> asyncio.Queue[int]:
    """A queue that gets each signal to end."""
    loop, stop = asyncio.get_running_loop(), asyncio.Queue[int]()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.put_nowait, number)
    return stop


class Serving:
    """The two halves at work: asking hubs, and answering them."""

    def __init__(self, order: Order, asking: Asking, site: CallbackSite, listening: Any) -> None:
        self.order = order
        self.asking = asking
        self.site = site
        self.listening = listening
        host = listening.getHost()
        self.address = f"{host.host}:{host.port}"
        self.looking = asyncio.create_task(asking.work())

    @classmethod
    async def begin(cls, store: Store, order: Order) -> Serving:
        """Listen, then ask; raises ConfigError where the address cannot be had."""
        from twisted.internet import reactor

        asking, receiving = await _halves(store, order, reactor)
        config = store.config
        body_bytes = min(int(config.response_mb * 1024 * 1024), MOST_BODY_BYTES)
        site = CallbackSite(reactor, receiving, body_bytes, config.response_seconds)
        option = f"--bind {order.bind} --port {order.port}"
        listening = open_port(reactor, order.port, site, order.bind, option)
        serving = cls(order, asking, site, listening)
        logger.info("listening at %s for %s", serving.address, order.wanted.callback)
        return serving

    async def until(self, stop: asyncio.Queue[int]) -> None:
        """Return at a signal, or when the time is over."""
        try:
            async with asyncio.timeout(self.order.seconds):
                await stop.get()
        except TimeoutError:
            return

    async def end(self, stop: asyncio.Queue[int]) -> int:
        """Let what has begun end; how many subscriptions were given up."""
        await tasks.end(self.looking)
        left = 0
        if self.order.unsubscribe:
            left = await self._leave(stop)
        await self.asking.lanes.drain(DRAIN_SECONDS)
        await maybeDeferred(self.listening.stopListening).asFuture(asyncio.get_running_loop())
        callback = self.site.resource
        assert isinstance(callback, Callback)
        await callback.drain(DRAIN_SECONDS)
        return left

    async def _leave(self, stop: asyncio.Queue[int]) -> int:
        """Give all up; a second signal ends the waiting."""
        logger.info("giving all subscriptions up")
        leaving = asyncio.create_task(leave(self.asking, LEAVE_SECONDS))
        hurry = asyncio.create_task(stop.get())
        await asyncio.wait({leaving, hurry}, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        if not leaving.done():
            leaving.cancel()
            return 0
        return leaving.result()


async def _halves(store: Store, order: Order, reactor: Any) -> tuple[Asking, Receiving]:
    config = store.config
    clock, counts = Clock(config.clock_offset_hours), Counter[str]()
    patience = Patience(PATIENCE_SECONDS, store.revive)
    tokens = Tokens(await patience.read(lambda: websub.key(store.db)))
    # A run that was killed while it gave them up left these between two states.
    await patience.read(lambda: websub.stay(store.db, clock.now()))
    contact = f" (+{config.contact})" if config.contact else ""
    listed = Named.of(listed=config.private_hosts)
    hubs = Hubs(reactor, f"Freshet/{__version__}{contact}", listed)
    asking = Asking(store.db, patience, clock, hubs, tokens, order.wanted, counts)
    lease = order.wanted.lease
    receiving = Receiving(store.db, patience, clock, tokens, lease, KEPT_BYTES, counts)
    return asking, receiving
