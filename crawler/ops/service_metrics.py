"""The service measured: its passes, and what it alone knows."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from crawler.errors import ConfigError
from crawler.ops.jobs import CHORES, FAILED
from crawler.ops.metrics_export import Export
from crawler.ops.report import Report
from crawler.storage.store import Store
from crawler.web.address import Address
from crawler.web.server import Told, served

logger = logging.getLogger(__name__)
NAME = "refresh"
OPTION = "--metrics"
PING_SECONDS = 2.0


class Measures(Collector):
    """Failures, also of passes that could not begin; replans and prunes."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        """Counters."""
        failures = CounterMetricFamily(
            "freshet_refresh_failures",
            "Passes of the service that failed, also those that could not begin.",
            labels=["spider"],
        )
        # A spider may be named twice, as its file too.
        failed: Counter[str] = Counter()
        for word, sums in self._report.sums.items():
            failed[self._report.names[word]] += sums["failed"]
        for name, n in failed.items():
            failures.add_metric([name], n)
        yield failures
        told = "Replans and prunes of the service, by how they ended."
        chores = CounterMetricFamily("freshet_refresh_chores", told, labels=["chore", "result"])
        for name in CHORES:
            chores.add_metric([name, "done"], self._report.chores[name])
            chores.add_metric([name, FAILED], self._report.chores[f"{name} {FAILED}"])
        yield chores


@asynccontextmanager
async def measured(
    store: Store,
    report: Report,
    folder: Path | None,
    address: Address | None,
    hosts: Collection[str],
) -> AsyncIterator[None]:
    """The service is measured while inside; told by HTTP where there is an address, else by a file.

    Raises ConfigError where the address cannot be had. The service does without a file.
    """
    export = _export(folder if address is None else None)
    if export is None:
        yield
        return
    export.measuring.registry.register(Measures(report))
    export.begin()
    try:
        if address is None:
            yield
            return
        told = Told(export.measuring.exposition, partial(store.trouble, PING_SECONDS))
        async with served(told, address, OPTION, hosts) as url:
            logger.info("metrics are at %smetrics", url)
            yield
    finally:
        export.end()


def _export(folder: Path | None) -> Export | None:
    try:
        return Export(folder, NAME)
    except ConfigError as error:
        logger.error("%s; no metrics are written", error)
        return None
