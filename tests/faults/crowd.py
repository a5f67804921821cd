"""Workers of one pass, watched until all have ended."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Self

from tests.faults.sides import Side
from tests.faults.worker import Worker

LOOK_SECONDS = 0.05
# A side whose workers end by themselves again and again is not helped by another.
MOST_REPLACED = 50


class Crowd:
    """So many workers at work while the `with` block lasts; it kills what is left.

    replaces: one that ended with an exit code is replaced too, as a supervisor would do it
    workers:  all that there ever were, in the order of their start
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
        """Those at work."""
        return [worker for worker in self.workers if worker.code is None]

    @property
    def failed(self) -> list[Worker]:
        """Those that ended by themselves, and not well."""
        return [worker for worker in self.workers if worker.code and not worker.is_killed]

    @property
    def cpu_seconds(self) -> float:
        """Of all together, as of the last look."""
        return sum(worker.cpu_seconds for worker in self.workers)

    @property
    def peak_mb(self) -> float:
        """Of the largest."""
        return max(worker.peak_mb for worker in self.workers)

    def add(self) -> Worker:
        """One more at work."""
        self.workers.append(self._side.start(len(self.workers) + 1))
        return self.workers[-1]

    def kill_one(self, chance: random.Random) -> Worker | None:
        """Kill one with -9 and start another; None if none is left."""
        self.look()
        if not self.alive:
            return None
        worker = chance.choice(self.alive)
        worker.kill()
        self.add()
        return worker

    def look(self) -> None:
        """See what they have used, and who has ended."""
        for worker in self.alive:
            worker.look()
            if self._replaces and worker.code and len(self.failed) < MOST_REPLACED:
                self.add()

    def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Look until the condition holds; False if nobody is left or so much time has gone."""
        deadline = time.monotonic() + seconds
        while not condition():
            self.look()
            if not self.alive or time.monotonic() > deadline:
                return condition()
            time.sleep(LOOK_SECONDS)
        return True

    def finish(self, seconds: float) -> bool:
        """Wait until all have ended; False if they have not."""
        return self.until(lambda: not self.alive, seconds)
