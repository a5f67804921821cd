"""Figures of the passes that several workers share, and of what killed their workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from crawler.redis.client import open_redis
from crawler.redis.standings import PassStanding, standings
from crawler.storage import dead
from crawler.storage.store import Store

WAIT_SECONDS = 2.0
GAUGES = {
    "freshet_queue_pending": ("Entries that wait for a worker.", "waiting"),
    "freshet_queue_leased": ("Entries that a worker has.", "leased"),
    "freshet_queue_workers": ("Workers of a pass.", "workers"),
}
DEAD = "Pages left for dead, as one worker after the other was lost with them."


async def read(store: Store) -> list[Metric]:
    """The gauges; those of passes where there is a Redis. Raises StorageError."""
    found: list[Metric] = [buried(await dead.by_spider(store.db))]
    if store.config.redis_url is not None:
        client = await open_redis(store.config.redis_url, WAIT_SECONDS, retry_seconds=0)
        try:
            found += families(await standings(client, store.db.name))
        finally:
            await client.aclose()
    return found


def families(passes: Sequence[PassStanding]) -> Iterator[Metric]:
    """The gauges of some passes."""
    for name, (told, field) in GAUGES.items():
        gauge = GaugeMetricFamily(name, told, labels=["spider"])
        for one in passes:
            gauge.add_metric([one.spider], getattr(one, field))
        yield gauge


def buried(counts: Mapping[str, int]) -> Metric:
    """The gauge of what was left for dead, by spider."""
    gauge = GaugeMetricFamily("freshet_dead_letters", DEAD, labels=["spider"])
    for spider, count in counts.items():
        gauge.add_metric([spider], count)
    return gauge
