"""The database read for metrics, now and then however often it is asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from crawler.errors import ConfigError, StorageError
from crawler.metrics import database, queues
from crawler.storage import figures
from crawler.storage.patience import Patience
from crawler.storage.store import Store
from crawler.utils import tasks
from crawler.utils.time import Clock

# A scrape waits no longer: Prometheus gives up after ten seconds.
PING_SECONDS, WAIT_SECONDS = 2.0, 5.0
# Reading may take a tenth of the time at most.
REST = 9.0
AGAIN_SECONDS = 5.0


class Fixed(Collector):
    """Metrics as they were read."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        """All of them."""
        yield from self._families


async def read(store: Store) -> list[Metric]:
    """All metrics of the database, and of passes that are shared; raises StorageError."""
    began, now = time.monotonic(), Clock(store.config.clock_offset_hours).now()
    found = await Patience(0, store.revive).read(lambda: figures.read(store.db, now))
    metrics = list(database.families(found))
    metrics += await _of_queues(store)
    seconds, took = time.monotonic() - began, "Seconds that reading all this took."
    metrics.append(_alone("freshet_database_read_seconds", took, seconds))
    when = "When all this was read."
    metrics.append(
        _alone("freshet_database_read_timestamp_seconds", when, Clock().now().timestamp())
    )
    return [*metrics, _up(1)]


async def _of_queues(store: Store) -> list[Metric]:
    """Nothing where Redis cannot be read: that says nothing of the database."""
    try:
        return await queues.read(store)
    except (StorageError, ConfigError):
        return []


def text_of(metrics: Sequence[Metric]) -> bytes:
    """Metrics in the text format."""
    registry = CollectorRegistry()
    registry.register(Fixed(metrics))
    return generate_latest(registry)


class Latest:
    """What was read last; a scrape that finds it old has it read anew.

    cache_seconds: how old it may be
    """

    def __init__(self, store: Store, cache_seconds: float) -> None:
        self._store = store
        self._cache_seconds = cache_seconds
        self._text: bytes | None = None
        self._next = 0.0
        self._reading: asyncio.Task[None] | None = None

    async def exposition(self) -> bytes | None:
        """The text, perhaps an old one where reading takes long; None before the first."""
        if await self.trouble() is not None:
            return text_of([_up(0)])
        if self._reading is None and time.monotonic() >= self._next:
            self._reading = asyncio.create_task(self._read())
        if self._reading is not None:
            done, _ = await asyncio.wait({self._reading}, timeout=WAIT_SECONDS)
            for reading in done:
                reading.result()
        return self._text

    async def trouble(self) -> str | None:
        """Why the database cannot be read, in a line; None if it can."""
        return await self._store.trouble(PING_SECONDS)

    async def close(self) -> None:
        """Let a reading that is under way go."""
        if self._reading is not None:
            await tasks.end(self._reading)

    async def _read(self) -> None:
        began = time.monotonic()
        try:
            self._text = text_of(await read(self._store))
        except StorageError:
            self._text = text_of([_up(0)])
            self._next = time.monotonic() + AGAIN_SECONDS
        else:
            took = time.monotonic() - began
            self._next = time.monotonic() + max(self._cache_seconds, REST * took)
        finally:
            self._reading = None


def _up(value: float) -> Metric:
    return _alone("freshet_database_up", "Whether MongoDB could be read.", value)


def _alone(name: str, told: str, value: float) -> Metric:
    return GaugeMetricFamily(name, told, value=value)
