"""Resource usage of processes and servers over time: memory, descriptors, threads, keys."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import psutil

from tests.faults.servers import Mongo, Redis
from tests.faults.worker import BYTES_IN_MB, Worker


@dataclass(frozen=True, slots=True)
class Held:
    """Resource usage of a process. children_mb: memory of its child processes."""

    memory_mb: float
    descriptors: int
    threads: int
    children_mb: float


@dataclass(frozen=True, slots=True)
class Sample:
    """Resource usage at a time, in seconds from the beginning. held: by worker number."""

    seconds: float
    held: dict[int, Held]
    mongo_mb: float
    redis_mb: float
    keys: int


def sample(seconds: float, workers: Sequence[Worker], mongo: Mongo, redis: Redis | None) -> Sample:
    """Return the current resource usage, without the workers that have ended."""
    held = {}
    for worker in workers:
        with contextlib.suppress(psutil.Error):
            held[worker.number] = _held(psutil.Process(worker.pid))
    keys = 0
    if redis is not None:
        with redis.client() as client:
            keys = client.dbsize()
    redis_mb = 0.0 if redis is None else redis.memory_mb
    return Sample(seconds, held, mongo.memory_mb, redis_mb, keys)


def _held(process: psutil.Process) -> Held:
    children_mb = 0.0
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.Error):
            children_mb += child.memory_info().rss / BYTES_IN_MB
    with process.oneshot():
        memory_mb = process.memory_info().rss / BYTES_IN_MB
        return Held(memory_mb, process.num_fds(), process.num_threads(), children_mb)


@dataclass(frozen=True, slots=True)
class Trend:
    """The trend of a worker's resource usage.

    mb_per_hour, grown_mb: least-squares fit over the last half
    descriptors, threads:  medians of the second and of the last quarter, because those of a request
                           or a replan are only temporary
    """

    mean_mb: float
    mb_per_hour: float
    grown_mb: float
    descriptors: tuple[int, int]
    threads: tuple[int, int]


def trend(samples: Sequence[Sample], number: int) -> Trend:
    """Return the trend of the worker with this number."""
    own = [(one.seconds, one.held[number]) for one in samples if number in one.held]
    half = own[len(own) // 2 :]
    seconds = np.array([at for at, _ in half])
    memory = np.array([held.memory_mb for _, held in half])
    slope = float(np.polyfit(seconds, memory, 1)[0])
    held = [one for _, one in own]
    return Trend(
        float(memory.mean()),
        slope * 3600,
        slope * float(seconds[-1] - seconds[0]),
        _usual(held, lambda one: one.descriptors),
        _usual(held, lambda one: one.threads),
    )


def _usual(held: Sequence[Held], figure: Callable[[Held], int]) -> tuple[int, int]:
    quarter = len(held) // 4
    second, last = held[quarter : 2 * quarter], held[-quarter:]
    return round(median(map(figure, second))), round(median(map(figure, last)))
