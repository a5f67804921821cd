"""The workers of a run, watched until all of them have ended."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Self

from tests.faults.sides import Side
from tests.faults.worker import Worker

LOOK_SECONDS = 0.05
# If the workers exit again and again, a replacement does not help.
MAX_REPLACED = 50


class WorkerPool:
    """Keep a pool of workers running in a `with` block; kill the remaining ones at its end.

    replaces: also replace a worker that exits with an error, as a supervisor would
    workers:  all workers ever started, in order of start
    """

    def __init__(self, side: Side, count: int, *, replaces: bool = False) -> None:
        self._side, self._count, self._replaces = side, count, replaces
        self.workers: list[Worker] = []

    def __enter__(self) -> Self:
        self._side.begin()
        try:
            for _ in range(self._count):
                self.add()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()

    @property
    def alive(self) -> list[Worker]:
        """Return the running workers."""
        return [worker for worker in self.workers if worker.code is None]

    @property
    def failed(self) -> list[Worker]:
        """Return the workers that exited with an error without being killed."""
        return [worker for worker in self.workers if worker.code and not worker.is_killed]

    @property
    def cpu_seconds(self) -> float:
        """Return the CPU seconds of all workers, as of the last check."""
        return sum(worker.cpu_seconds for worker in self.workers)

    @property
    def peak_mb(self) -> float:
        """Return the peak memory of the largest worker."""
        return max(worker.peak_mb for worker in self.workers)

    def add(self) -> Worker:
        """Start another worker."""
        self.workers.append(self._side.start(len(self.workers) + 1))
        return self.workers[-1]

    def kill_one(self, chance: random.Random) -> Worker | None:
        """Kill a worker with SIGKILL and start another; return None if no worker is running."""
        self.update()
        if not self.alive:
            return None
        worker = chance.choice(self.alive)
        worker.kill()
        self.add()
        return worker

    def update(self) -> None:
        """Update the resource usage and exit codes of the workers."""
        for worker in self.alive:
            worker.update()
            if self._replaces and worker.code and len(self.failed) < MAX_REPLACED:
                self.add()

    def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Check until the condition holds; return False if no worker is left or the time is up."""
        deadline = time.monotonic() + seconds
        while not condition():
            self.update()
            if not self.alive or time.monotonic() > deadline:
                return condition()
            time.sleep(LOOK_SECONDS)
        return True

    def finish(self, seconds: float) -> bool:
        """Wait until all workers have ended; return False if the time is up."""
        return self.until(lambda: not self.alive, seconds)
