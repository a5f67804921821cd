"""The server of `scrapy metrics serve`: tells the figures of the database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from crawler.config import Config
from crawler.ops.metrics_database import Latest
from crawler.storage.store import Store
from crawler.web.address import Address
from crawler.web.metrics import MetricsSource, served
from crawler.web.server import run_in_reactor, stop_at_signals, until_signal

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
    stop = stop_at_signals()
    store = await Store.open(config)
    latest = Latest(store, order.cache_seconds)
    source = MetricsSource(latest.exposition, latest.problem)
    try:
        async with served(source, order.address, OPTION, config.metrics_hosts) as url:
            say(f"{url}metrics")
            await until_signal(stop, order.seconds)
    finally:
        await latest.close()
        await store.close()
