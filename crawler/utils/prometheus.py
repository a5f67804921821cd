"""Metrics for Prometheus: families, the text format, and descriptions for the documentation.

Import this module only if metrics are needed, because prometheus_client is slow to import.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

# Pairs of label values and metric values.
Values = Iterable[tuple[Sequence[str], float]]


def gauge(name: str, text: str, labels: Sequence[str], values: Values) -> Metric:
    """Return a gauge family without the samples whose value is unknown (NaN)."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for label_values, value in values:
        if not math.isnan(value):
            family.add_metric(label_values, value)
    return family


def by_spider(name: str, text: str, values: Iterable[tuple[str, float]]) -> Metric:
    """Return a gauge family with the single label `spider`."""
    return gauge(name, text, ("spider",), (((spider,), value) for spider, value in values))


class Fixed(Collector):
    """A collector of metrics that were already read."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        yield from self._metrics


def text_of(metrics: Sequence[Metric]) -> bytes:
    """Return metrics in Prometheus's text format."""
    registry = CollectorRegistry()
    registry.register(Fixed(metrics))
    return generate_latest(registry)


class Described(NamedTuple):
    """A metric as Prometheus has it, with the names of its labels."""

    name: str
    type: str
    labels: tuple[str, ...]
    text: str


def described(families: Iterable[Metric], instruments: Mapping[str, object]) -> Iterator[Described]:
    """Describe metric families. instruments: sources of families, by the families' names."""
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = getattr(instruments.get(family.name, family), "_labelnames", ())
        yield Described(name, family.type, tuple(labels), family.documentation)
