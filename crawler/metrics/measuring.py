"""What is measured of a process at work: one registry, with labels by spider."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from crawler import __version__
from crawler.items import Visit
from crawler.metrics.carrying import BUILD
from crawler.metrics.passes import OF_SPIDER, Passes
from crawler.session import Session

LAG_EVERY_SECONDS = 1.0
SHORT = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
LONG = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600)
LAGS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
TO_STORED = "Seconds from the response to the moment when its visit was stored."
LAG = "How much too late the event loop comes, measured once a second."


class Measuring:
    """The registry of a process, and what is put into it."""

    def __init__(self) -> None:
        # When each counter was made is of no use where counters outlive processes.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.passes = Passes()
        self.registry.register(self.passes)
        # Under its usual name it would clash with that of node_exporter.
        ProcessCollector(namespace="freshet", registry=self.registry)
        version = Gauge(BUILD, "The version at work.", ["version"], registry=self.registry)
        version.labels(__version__).set(1)
        self._took = self._of("pass_duration_seconds", "Seconds that passes took.", LONG)
        self._sizes = self._of("storage_batch_visits", "Visits stored in one batch.", SIZES)
        told = "Seconds that storing a batch took."
        self._storing = self._of("storage_batch_duration_seconds", told, SHORT)
        self._to_stored = self._of("response_to_stored_seconds", TO_STORED, SHORT)
        self._lag = self._of("reactor_lag_seconds", LAG, LAGS, by_spider=False)

    def ended(self, session: Session, reason: str, seconds: float) -> None:
        """A pass has ended. reason: as Scrapy says it."""
        self.passes.end(session, reason)
        self._took.labels(session.spider).observe(seconds)

    def batches(self, session: Session) -> Callable[[list[Visit], float], None]:
        """What is to hear of each stored batch of a pass, and of the seconds that it took."""
        of_batch = (self._sizes, self._storing, self._to_stored)
        sizes, storing, to_stored = (each.labels(session.spider) for each in of_batch)

        def note(batch: list[Visit], seconds: float) -> None:
            sizes.observe(len(batch))
            storing.observe(seconds)
            now = session.clock.now()
            for visit in batch:
                # Deliveries of hubs have waited for a pass.
                if visit.fetched.push is None:
                    to_stored.observe((now - visit.fetched.at).total_seconds())

        return note

    async def watch_lag(self) -> None:
        """Measure until this is cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + LAG_EVERY_SECONDS
            await asyncio.sleep(LAG_EVERY_SECONDS)
            self._lag.observe(max(0.0, clock() - due))

    async def exposition(self) -> bytes:
        """All of it in the text format."""
        return generate_latest(self.registry)

    def _of(
        self, name: str, told: str, buckets: tuple[float, ...], *, by_spider: bool = True
    ) -> Histogram:
        labels, name = [OF_SPIDER] if by_spider else [], f"freshet_{name}"
        return Histogram(name, told, labels, buckets=buckets, registry=self.registry)
