"""The catalog of all metrics: name, type, labels and help text, for the documentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from prometheus_client import Gauge
from prometheus_client.core import Metric

from crawler.ops import metrics_database
from crawler.ops.metrics import FILE_TIME, FILE_TIME_HELP, ProcessMetrics, ServiceCollector
from crawler.ops.service import Report
from crawler.storage.stats import NUMBERS, Sample, Stats


class Described(NamedTuple):
    """A metric as Prometheus has it, with the names of its labels."""

    name: str
    type: str
    labels: tuple[str, ...]
    text: str


def of_processes() -> list[Described]:
    """Return the metrics of crawls and of the service."""
    registry = ProcessMetrics().registry
    registry.register(ServiceCollector(Report([])))
    Gauge(FILE_TIME, FILE_TIME_HELP, registry=registry)
    # Families of gauges and histograms do not have their labels: their instruments do.
    instruments = {
        name: collector
        for collector, names in registry._collector_to_names.items()
        for name in names
    }
    return list(_described(registry.collect(), instruments))


def of_database() -> list[Described]:
    """Return the metrics of the database and of shared runs."""
    columns = (*(name for name in NUMBERS if name != "seen"), "hours")
    sample = Sample((), np.zeros(0, np.int64), **{name: np.zeros(0) for name in columns})
    empty = Stats({}, Counter(), sample, {}, {})
    families = [
        *metrics_database.families(empty),
        *metrics_database.queue_families([]),
        metrics_database.dead_letters({}),
        *metrics_database.reading_families(0.0, 0.0),
        metrics_database.up(1),
    ]
    return list(_described(families, {}))


def _described(
    families: Iterable[Metric], instruments: Mapping[str, object]
) -> Iterator[Described]:
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = getattr(instruments.get(family.name, family), "_labelnames", ())
        yield Described(name, family.type, tuple(labels), family.documentation)
