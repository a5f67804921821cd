"""The runs of `make bench ARGS=--faults`, each with its own database and Redis."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymongo

from tests.faults.fault_injector import FaultInjector, Outage, drawn
from tests.faults.fetches import Fetches, fetches
from tests.faults.invariants import Invariants
from tests.faults.relay import Relay
from tests.faults.servers import Mongo, Redis, Server
from tests.faults.sides import FreshetSide, PlainSide, Side
from tests.faults.worker_pool import WorkerPool
from tests.site.quick import Pages
from tests.site.running import RunningQuick

FRESHET, PLAIN = "Freshet", "scrapy-redis"
REDIS, MONGO = Redis.name, Mongo.name
LONGEST_SECONDS = 900.0
OUTAGE_SHARE = 0.3
STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the benchmark.

    workers, redis: number of workers on one Redis; without Redis, one worker at a time
    kills:          number of kills of workers and servers, by name
    outage_seconds: length of each outage, for each server and kind; 0: no outages
    env:            additional variables of Freshet's workers
    """

    workers: int
    kills: dict[str, int]
    outage_seconds: float
    pages: int
    redis: bool = True
    seed: int = 0
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scenario:
    """The faults of a run: kills by name, or one kind of outage of one server."""

    name: str
    kills: dict[str, int] = field(default_factory=dict)
    away: str = ""
    way: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """The results of a run. broken: violated invariants; plain scrapy-redis is not checked."""

    side: str
    scenario: str
    faults: int
    seconds: float
    found: Fetches
    stored: int
    lost: int
    doubled: int
    broken: list[str]

    def __str__(self) -> str:
        counts = f"{self.seconds:.0f} s, {self.found.again} again, {self.lost} lost"
        return f"{self.side}, {self.scenario}: {counts}; broken: {self.broken or 'nothing'}"


class FaultyRuns:
    """Runs on one site and one mongod, each with its own database and Redis."""

    def __init__(self, options: Options, folder: Path, site: RunningQuick, mongo: Mongo) -> None:
        self._options, self._folder, self._site, self._mongo = options, folder, site, mongo
        self._count = 0

    def line(self, scenario: Scenario, *, plain: bool) -> Line:
        """Run a scenario and check its results."""
        self._count += 1
        name = f"k{self._count}"
        folder = self._folder / name
        folder.mkdir()
        self._site.clear_log()
        chance = random.Random(f"{self._options.seed} {scenario.name}")
        with Redis(folder) as redis, self._database(name) as uri:
            self._servers: dict[str, Server] = {REDIS: redis, MONGO: self._mongo}
            if plain:
                side = PlainSide(folder, self._site.url, redis, mongo_uri=uri)
                return self._plain(scenario, side, chance)
            with self._way(scenario, redis, name) as (mongo_uri, redis_url, way):
                ours = FreshetSide(
                    folder, self._site.url, mongo_uri, redis_url, **self._options.env
                )
                return self._freshet(scenario, ours, uri, chance, way)

    def _freshet(
        self,
        scenario: Scenario,
        side: FreshetSide,
        uri: str,
        chance: random.Random,
        way: Outage | None,
    ) -> Line:
        began = time.monotonic()
        with WorkerPool(side, self._options.workers if self._options.redis else 1) as pool:
            injector = self._injector(pool, chance)
            if way is None:
                has_struck = injector.kill(_drawn(FRESHET, scenario, chance))
            else:
                seconds = self._options.outage_seconds
                has_struck = injector.outage(scenario.away, way, OUTAGE_SHARE, seconds)
            has_ended = pool.finish(LONGEST_SECONDS)
        found = fetches(self._site.requests(), injector.faults)
        broken = [] if has_struck else ["the run stalled, or ended before the last fault"]
        broken += [] if has_ended else [f"not all ended within {LONGEST_SECONDS:g} s"]
        broken += self._violations(uri, found, pool)
        return self._line(FRESHET, scenario, side, injector, began, broken)

    def _plain(self, scenario: Scenario, side: PlainSide, chance: random.Random) -> Line:
        began = time.monotonic()
        with WorkerPool(side, self._options.workers, replaces=True) as pool:
            injector = self._injector(pool, chance)
            injector.kill(_drawn(PLAIN, scenario, chance))
            pool.finish(LONGEST_SECONDS)
        return self._line(PLAIN, scenario, side, injector, began, [])

    def _injector(self, pool: WorkerPool, chance: random.Random) -> FaultInjector:
        return FaultInjector(pool, self._site, self._options.pages, chance, self._servers)

    def _line(
        self,
        name: str,
        scenario: Scenario,
        side: Side,
        injector: FaultInjector,
        began: float,
        broken: list[str],
    ) -> Line:
        stored = Counter(side.stored())
        return Line(
            name,
            scenario.name,
            len(injector.faults),
            time.monotonic() - began,
            fetches(self._site.requests(), injector.faults),
            len(stored),
            self._options.pages - len(stored),
            stored.total() - len(stored),
            broken,
        )

    def _violations(self, uri: str, found: Fetches, pool: WorkerPool) -> list[str]:
        with pymongo.MongoClient[dict[str, Any]](uri, tz_aware=True) as client:
            pages, shared = Pages(self._options.pages), self._options.redis
            invariants = Invariants(
                client.get_default_database(), self._site.url, pages, shared=shared
            )
            return invariants.check(found, pool.workers)

    @contextmanager
    def _way(
        self, scenario: Scenario, redis: Redis, database: str
    ) -> Iterator[tuple[str, str | None, Outage | None]]:
        """Yield the URI of MongoDB, the URL of Redis, and the context manager of the outage."""
        uri, url = self._mongo.uri(database), redis.url if self._options.redis else None
        server: Server = redis if scenario.away == REDIS else self._mongo
        with ExitStack() as opened:
            if scenario.way in ("", STOPPED):
                yield uri, url, server.stopped if scenario.way else None
                return
            relay = opened.enter_context(Relay(server.socket))
            if scenario.away == REDIS:
                url = f"redis://127.0.0.1:{relay.port}/0"
            else:
                uri = f"mongodb://127.0.0.1:{relay.port}/{database}"
            yield uri, url, getattr(relay, scenario.way)

    @contextmanager
    def _database(self, name: str) -> Iterator[str]:
        uri = self._mongo.uri(name)
        yield uri
        with pymongo.MongoClient[dict[str, Any]](uri) as client:
            client.drop_database(name)


def _drawn(side: str, scenario: Scenario, chance: random.Random) -> list[tuple[float, str]]:
    """Draw the times and kinds of faults; print them, because a seed does not show them."""
    plan = drawn(chance, scenario.kills)
    moments = " ".join(f"{what}@{share:.3f}" for share, what in plan)
    print(f"{side}, {scenario.name}: {moments}", flush=True)
    return plan
