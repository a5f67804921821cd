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
from crawler.metrics.passes import OF_SPIDER, Passes
from crawler.session import Session

LAG_SECONDS = 1.0
SHORT = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
LAGS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5)
LONG = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


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
        build = self._build_info()
        build.labels(__version__).set(1)
        self._pass_seconds = self._histogram(
            "freshet_pass_duration_seconds", "Seconds that passes took.", LONG
        )
        self._batch_visits = self._histogram(
            "freshet_storage_batch_visits", "Visits stored in one batch.", SIZES
        )
        self._batch_seconds = self._histogram(
            "freshet_storage_batch_duration_seconds", "Seconds that storing a batch took.", SHORT
        )
        self._to_stored = self._histogram(
            "freshet_response_to_stored_seconds",
            "Seconds from the response to the moment when its visit was stored.",
            SHORT,
        )
        self._lag = Histogram(
            "freshet_reactor_lag_seconds",
            "How much too late the event loop comes, measured once a second.",
            buckets=LAGS,
            registry=self.registry,
        )

    def ended(self, session: Session, reason: str, seconds: float) -> None:
        """A pass has ended. reason: as Scrapy says it."""
        self.passes.end(session, reason)
        self._pass_seconds.labels(session.spider).observe(seconds)

    def batches(self, session: Session) -> Callable[[list[Visit], float], None]:
        """What is to hear of each stored batch of a pass, and of the seconds that it took."""
        sizes, took, since = (
            histogram.labels(session.spider)
            for histogram in (self._batch_visits, self._batch_seconds, self._to_stored)
        )

        def note(batch: list[Visit], seconds: float) -> None:
            sizes.observe(len(batch))
            took.observe(seconds)
            now = session.clock.now()
            for visit in batch:
                # Deliveries of hubs have waited for a pass.
                if visit.fetched.push is None:
                    since.observe((now - visit.fetched.at).total_seconds())

        return note

    async def watch_lag(self) -> None:
        """Measure until this is cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + LAG_SECONDS
            await asyncio.sleep(LAG_SECONDS)
            self._lag.observe(max(0.0, clock() - due))

    async def exposition(self) -> bytes:
        """All of it in the text format."""
        return generate_latest(self.registry)

    def _build_info(self) -> Gauge:
        return Gauge(
            "freshet_build_info", "The version that is at work.", ["version"],
            registry=self.registry,
        )  # fmt: skip

    def _histogram(self, name: str, told: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, told, [OF_SPIDER], buckets=buckets, registry=self.registry)
