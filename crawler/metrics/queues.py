"""Figures of the queues that several workers share, where there are such queues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily, Metric


@dataclass(frozen=True, slots=True)
class Queue:
    """The queue of one spider's pass.

    pending: requests that wait     leased: requests that a worker has
    workers: at work                dead_letters: given up after too many tries
    """

    spider: str
    pending: int
    leased: int
    workers: int
    dead_letters: int


class Queues(Protocol):
    """Whoever knows the queues."""

    async def read(self) -> Sequence[Queue]:
        """One for each pass at work; raises StorageError where they cannot be read."""


GAUGES = {
    "freshet_queue_pending": ("Requests that wait for a worker.", "pending"),
    "freshet_queue_leased": ("Requests that a worker has.", "leased"),
    "freshet_queue_workers": ("Workers of a pass.", "workers"),
    "freshet_dead_letters": ("Requests given up after too many tries.", "dead_letters"),
}


def families(queues: Sequence[Queue]) -> Iterator[Metric]:
    """The gauges of some queues."""
    for name, (told, field) in GAUGES.items():
        gauge = GaugeMetricFamily(name, told, labels=["spider"])
        for queue in queues:
            gauge.add_metric([queue.spider], getattr(queue, field))
        yield gauge
