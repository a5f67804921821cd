"""Kill workers and servers, or make servers unavailable, at random times of a run."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from tests.faults.fetches import Fault
from tests.faults.servers import Server
from tests.faults.worker_pool import WorkerPool
from tests.site.running import RunningQuick

WORKER = "worker"
# Shares of a run between which faults are injected: some work is done, and some is left.
FIRST_SHARE, LAST_SHARE = 0.03, 0.92
# Random delay after the page count is reached, so that a kill can hit a worker at any step.
JITTER_SECONDS = 0.1
SHORTEST_AWAY_SECONDS, LONGEST_AWAY_SECONDS = 0.2, 3.0
STILL_SECONDS = 240.0
Outage = Callable[[], AbstractContextManager[Any]]


def drawn(chance: random.Random, counts: Mapping[str, int]) -> list[tuple[float, str]]:
    """Draw the faults: the share of the run at which each is injected, and its name, in order."""
    names = [name for name, n in counts.items() for _ in range(n)]
    return sorted((chance.uniform(FIRST_SHARE, LAST_SHARE), name) for name in names)


class FaultInjector:
    """Inject faults into the workers and servers of a run; `faults` lists the injected faults.

    pages:   number of pages of the whole run
    servers: by the names that `drawn` received
    """

    def __init__(
        self,
        pool: WorkerPool,
        site: RunningQuick,
        pages: int,
        chance: random.Random,
        servers: Mapping[str, Server],
    ) -> None:
        self._pool, self._site, self._pages = pool, site, pages
        self._chance, self._servers = chance, servers
        self.faults: list[Fault] = []

    def kill(self, plan: list[tuple[float, str]]) -> bool:
        """Kill as planned; return False if the run stalls or no worker is left before the end."""
        for share, name in plan:
            if not self._reached(share):
                return False
            time.sleep(self._chance.uniform(0, JITTER_SECONDS))
            if name == WORKER:
                self._kill_worker()
            else:
                self._kill_server(name)
        return True

    def outage(self, name: str, way: Outage, share: float, seconds: float) -> bool:
        """Make a server unavailable for a time, starting at a share of the run."""
        if not self._reached(share):
            return False
        began = time.time()
        with way():
            self._pool.until(lambda: time.time() > began + seconds, seconds * 2)
        self.faults.append(Fault(name, began, time.time()))
        return bool(self._pool.alive)

    def _reached(self, share: float) -> bool:
        return self._pool.until(lambda: self._site.answers() >= share * self._pages, STILL_SECONDS)

    def _kill_worker(self) -> None:
        began = time.time()
        if worker := self._pool.kill_one(self._chance):
            self.faults.append(Fault(WORKER, began, worker.ended, worker.agent))

    def _kill_server(self, name: str) -> None:
        server, began = self._servers[name], time.time()
        server.kill()
        away = self._chance.uniform(SHORTEST_AWAY_SECONDS, LONGEST_AWAY_SECONDS)
        self._pool.until(lambda: time.time() > began + away, away * 2)
        server.start()
        self.faults.append(Fault(name, began, time.time()))
