"""Counters that outlive their process: they go on from where the last one left them.

A crawl that cron starts counts from 0 and may end between two scrapes. Prometheus takes a counter
that falls for one that began anew, and would miss most of what such crawls do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from crawler.metrics.passes import LAST_SUCCESS

SUMS = ("counter", "histogram")
# Gauges that a process does not know of those before it.
GAUGES = (LAST_SUCCESS,)
BUILD = "freshet_build_info"
OF_PROCESS = "freshet_process_"
Key = tuple[str, frozenset[tuple[str, str]]]
Past = dict[str, dict[Key, Sample]]


def past_of(families: Iterable[Metric], version: str) -> Past:
    """What is carried on, by family; nothing from another version, whose buckets may differ."""
    found = {family.name: family for family in families}
    build = found.get(BUILD)
    if build is None or version not in {one.labels.get("version") for one in build.samples}:
        return {}
    return {
        name: {_key(sample): sample for sample in family.samples}
        for name, family in found.items()
        if family.type in SUMS or name in GAUGES
    }


class Carried(Collector):
    """A registry with the past added to it, and a label that tells whose it is.

    process: the value of that label, on every series
    """

    def __init__(self, registry: CollectorRegistry, past: Past, process: str) -> None:
        self._registry = registry
        self._past = past
        self._process = process
        self.is_over = False

    def collect(self) -> Iterator[Metric]:
        """All families; of a process that is over, without what only a living one has."""
        for family in self._registry.collect():
            if not (self.is_over and _is_of_the_living(family)):
                yield self._carried(family)

    def _carried(self, family: Metric) -> Metric:
        before = dict(self._past.get(family.name, {}))
        whole = Metric(family.name, family.documentation, family.type)
        for sample in family.samples:
            own = sample._replace(labels={"process": self._process, **sample.labels})
            was = before.pop(_key(own), None)
            if was is not None and family.type in SUMS:
                own = own._replace(value=own.value + was.value)
            whole.samples.append(own)
        # Of spiders that this process has not begun.
        whole.samples.extend(before.values())
        return whole


def _is_of_the_living(family: Metric) -> bool:
    return family.type == "gauge" and family.name.startswith(OF_PROCESS)


def _key(sample: Sample) -> Key:
    return sample.name, frozenset(sample.labels.items())
