"""Gauges made at once from values that are known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

Values = Iterable[tuple[Sequence[str], float]]


def gauge(name: str, told: str, labels: Sequence[str], values: Values) -> Metric:
    """A gauge. values: of the labels, and the gauge's; NaN, which nobody knows, is left out."""
    family = GaugeMetricFamily(name, told, labels=labels)
    for of, value in values:
        if not math.isnan(value):
            family.add_metric(of, value)
    return family


def by_spider(name: str, told: str, values: Iterable[tuple[str, float]]) -> Metric:
    """A gauge with the one label `spider`."""
    return gauge(name, told, ("spider",), (((spider,), value) for spider, value in values))
