"""Metrics of the service: those of its runs, and of its periodic jobs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

from prometheus_client import Gauge
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from crawler.errors import ConfigError
from crawler.ops.extensions import Metrics
from crawler.ops.metrics import FILE_TIME, FILE_TIME_HELP, Export, ProcessMetrics, counter
from crawler.ops.schedule import FAILED, JOB_NAMES
from crawler.ops.service_report import Report
from crawler.reports.metrics import Described, described
from crawler.storage.store import Store
from crawler.web.options import Address

logger = logging.getLogger(__name__)
# The service's name in file names, and the option for its address.
SERVICE, OPTION = "refresh", "--metrics"
PING_SECONDS = 2.0


class ServiceCollector(Collector):
    """Counts the service's failed runs, including those that could not start, and periodic jobs."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        """Yield the counters."""
        # Two jobs may run the same spider: one by its name, one by its file.
        failed: Counter[str] = Counter()
        for word, sums in self._report.sums.items():
            failed[self._report.names[word]] += sums["failed"]
        text = "Number of failed crawl runs of the service, including runs that could not start."
        values = (((name,), n) for name, n in failed.items())
        yield counter("freshet_refresh_failures", text, ["spider"], values)
        counts = self._report.periodic_jobs
        text, results = "Number of periodic jobs of the service, by result.", ("done", FAILED)
        each = (
            ((name, result), counts[name if result == "done" else f"{name} {FAILED}"])
            for name in JOB_NAMES
            for result in results
        )
        yield counter("freshet_refresh_jobs", text, ["task", "result"], each)


def of_processes() -> list[Described]:
    """Describe the metrics of crawls and of the service."""
    registry = ProcessMetrics().registry
    registry.register(ServiceCollector(Report([])))
    Gauge(FILE_TIME, FILE_TIME_HELP, registry=registry)
    # Families of gauges and histograms do not have their labels: their instruments do.
    instruments = {
        name: collector
        for collector, names in registry._collector_to_names.items()
        for name in names
    }
    return list(described(registry.collect(), instruments))


@asynccontextmanager
async def service_measured(
    store: Store, report: Report, address: Address | None
) -> AsyncIterator[None]:
    """Collect the service's metrics inside the context and serve them or write the file.

    Raises ConfigError if the address is unavailable. If the file cannot be written, logs an error
    and runs without metrics.
    """
    try:
        export = Export(store.config.metrics_dir if address is None else None, SERVICE)
    except ConfigError as error:
        logger.error("Metrics disabled: %s", error)
        yield
        return
    export.metrics.registry.register(ServiceCollector(report))
    export.begin()
    Metrics.of_process = export.metrics
    try:
        if address is None:
            yield
            return
        # Imported only if needed: FastAPI is slow to import.
        from crawler.web.metrics import MetricsSource, served

        problem = partial(store.problem, PING_SECONDS)
        source = MetricsSource(export.metrics.exposition, problem)
        async with served(source, address, OPTION, store.config.metrics_hosts) as url:
            logger.info("Serving metrics at %smetrics", url)
            yield
    finally:
        Metrics.of_process = None
        export.end()
