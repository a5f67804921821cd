"""The server of `scrapy metrics serve`: tells the figures of the database."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass

from crawler.config import Config
from crawler.ops.metrics_database import Latest
from crawler.storage.store import Store
from crawler.web.address import Address
from crawler.web.server import Told, run_in_reactor, served

OPTION = "--port"


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked for. seconds: None is until it is stopped."""

    address: Address
    cache_seconds: float
    seconds: float | None


def serve(config: Config, order: Order, say: Callable[[str], None]) -> None:
    """Serve to the end; raises FreshetError. say: hears the address."""
    run_in_reactor(_work(config, order, say))


async def _work(config: Config, order: Order, say: Callable[[str], None]) -> None:
    stop = _stop_at_signals()
    store = await Store.open(config)
    latest = Latest(store, order.cache_seconds)
    told = Told(latest.exposition, latest.trouble)
    try:
        async with served(told, order.address, OPTION, config.metrics_hosts) as url:
            say(f"{url}metrics")
            await _until(stop, order.seconds)
    finally:
        await latest.close()
        await store.close()


async def _until(stop: asyncio.Event, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return


def _stop_at_signals() -> asyncio.Event:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return stop
