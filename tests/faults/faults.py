"""Inject faults of all kinds at random times into runs, then check the invariants of the database.

Pages change between fetches. Each worker has its own relays to MongoDB and Redis, so that one
worker can be disconnected while the others continue, and its own clock, up to ten minutes off from
the others. To add a kind of fault, add a function to FAULTS.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

import psutil
from pymongo import AsyncMongoClient

from crawler.storage.health import check
from tests.faults.clocks import STEP_SECONDS, WrongClock, can_move, step
from tests.faults.outages import CannotMount, SmallDisk, disk_full, server_stopped
from tests.faults.relay import Relay
from tests.faults.servers import Mongo, Redis, Server
from tests.faults.sides import FreshetSide
from tests.faults.worker import Worker
from tests.faults.worker_pool import WorkerPool
from tests.integration.harness import Row
from tests.site.running import RunningQuick

LEASE_SECONDS = 2.0
# Pauses are longer than a lease; disconnections may be shorter or longer than a worker's retries.
ASLEEP_SECONDS = (LEASE_SECONDS + 0.5, LEASE_SECONDS + 2.5)
CUT_SECONDS = (0.05, 6.0)
# A server notices a full disk only when it needs the next block.
FULL_SECONDS = (2.0, 6.0)
PATIENCE_SECONDS = 3.0
DISK_MB, CACHE_GB = 500, 0.25
# Clock errors of the workers, in order of start.
OFF_SECONDS = (-STEP_SECONDS, 0.0, STEP_SECONDS)
# Shares of a run: few targets exist at the beginning, and none are left at the end.
SHARES = (0.1, 0.9)
ROUND_SECONDS = 240.0
ROUNDS_A_FAULT = 3
# All targets are due again after this time.
HOURS_A_ROUND = 200
ENV = {
    "FRESHET_DUPLICATES": "characters",
    "FRESHET_LEASE_SECONDS": str(LEASE_SECONDS),
    # Injected faults must not count against the page that the worker was fetching.
    "FRESHET_LEASE_TRIES": "100",
    "FRESHET_COMMIT_RETRY_SECONDS": str(PATIENCE_SECONDS),
    "FRESHET_COMMIT_SIZE": "20",
    # Writes must fail because of the full disk, not because of the check of free space.
    "FRESHET_MIN_FREE_MB": "0",
}
LEFT_ALONE = re.compile(r"is already being crawled on .*; nothing to do$")


class RelayedSide(FreshetSide):
    """Freshet's workers, each with its own relays to the servers and its own clock.

    ways, clocks: the relays and clocks by worker number; hours: offset of all clocks
    """

    def __init__(self, folder: Path, url: str, mongo: Mongo, redis: Redis | None) -> None:
        super().__init__(folder, url, mongo.uri("faults"), redis and redis.url, **ENV)
        self._mongo, self._redis = mongo, redis
        self._relays = ExitStack()
        self._started = 0
        self.ways: dict[int, dict[str, Relay]] = {}
        self.clocks: dict[int, WrongClock] = {}
        self.hours = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._relays.close()

    def start(self, number: int) -> Worker:
        self._started += 1
        number = self._started
        ways = {"MongoDB": self._relays.enter_context(Relay(self._mongo.socket))}
        env = {"MONGO_URI": f"mongodb://127.0.0.1:{ways['MongoDB'].port}/faults"}
        if self._redis is not None:
            ways["Redis"] = self._relays.enter_context(Relay(self._redis.socket))
            env["REDIS_URL"] = f"redis://127.0.0.1:{ways['Redis'].port}/0"
        self.ways[number] = ways
        if can_move():
            off = OFF_SECONDS[number % len(OFF_SECONDS)]
            self.clocks[number] = WrongClock(self._folder, f"worker-{number}", off)
            env |= self.clocks[number].env
        self._env |= env | {"FRESHET_CLOCK_OFFSET_HOURS": str(self.hours)}
        return super().start(number)


class Faults:
    """Runs with faults on one database, and the invariants violated by them.

    workers: share one Redis if it is given; otherwise each runs on its own
    disk:    the disk of MongoDB, if it can be filled
    found:   number of injected faults by kind
    wrong:   problems noticed during the runs
    """

    def __init__(
        self,
        folder: Path,
        site: RunningQuick,
        mongo: Mongo,
        redis: Redis | None,
        disk: SmallDisk | None,
        seed: int,
    ) -> None:
        self.side = RelayedSide(folder, site.url, mongo, redis)
        self.chance = random.Random(seed)
        self.found: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.pool: WorkerPool
        self.site, self._uri = site, mongo.uri("faults")
        self._pages = site.items
        self.disk = disk
        self.servers: dict[str, Server] = {"MongoDB": mongo}
        if redis is not None:
            self.servers["Redis"] = redis

    @property
    def kinds(self) -> list[str]:
        """Return the kinds of faults that can be injected here."""
        is_alone = "Redis" not in self.servers
        can = {"second crawl": is_alone, "full disk": self.disk is not None, "clock": can_move()}
        return [kind for kind in FAULTS if can.get(kind, not is_alone or "Redis" not in kind)]

    def run(self, kinds: Sequence[str], workers: int) -> list[str]:
        """Run until all faults are injected, then once without faults; return the violations."""
        left = self.chance.sample(kinds, len(kinds))
        with self.side:
            # A run may end before all its faults are injected.
            for _ in range(ROUNDS_A_FAULT * len(kinds)):
                self._round(left, workers)
                if not left:
                    break
            ended = self._round([], workers)
        messages = [] if ended else [f"the last run did not end within {ROUND_SECONDS:g} s"]
        messages += [f"faults not injected: {left}"] if left else []
        return self.wrong + messages + asyncio.run(self._broken())

    def _round(self, left: list[str], workers: int) -> bool:
        """Run once with as many of these faults as possible; return whether the run has ended."""
        self.site.clear_log()
        self.side.hours += HOURS_A_ROUND
        shares = sorted(self.chance.uniform(*SHARES) for _ in left)
        with WorkerPool(self.side, workers, replaces=True) as self.pool:
            for share in shares:
                wanted = share * self._pages
                self.pool.until(lambda n=wanted: self.site.answers() >= n, ROUND_SECONDS)
                time.sleep(self.chance.uniform(0, 0.1))
                self.pool.update()
                if not self.pool.alive:
                    break
                if FAULTS[left[0]](self):
                    self.found[left.pop(0)] += 1
            return self.pool.finish(ROUND_SECONDS)

    def worker(self) -> Worker | None:
        """Return a random running worker, or None."""
        self.pool.update()
        return self.chance.choice(self.pool.alive) if self.pool.alive else None

    def has_requested(self, worker: Worker) -> bool:
        """Return whether a worker has requested a page in this run."""
        log = self.site.log
        return log.exists() and f'"{worker.agent}"' in log.read_text(encoding="utf-8")

    async def _broken(self) -> list[str]:
        client: AsyncMongoClient[Row]
        async with AsyncMongoClient(self._uri, tz_aware=True) as client:
            db = client.get_default_database()
            report = await check(db)
            items = await db.posts.count_documents({})
            open_runs = await db.runs.count_documents({"finished": None})
        messages = [
            f"{invariant}: {one.count} ({one.examples})"
            for invariant, one in report.broken.items()
            if one.count
        ]
        messages += [f"{items} posts of {self._pages} items"] if items != self._pages else []
        return messages + ([f"{open_runs} runs without an end"] if open_runs else [])


def kill(faults: Faults) -> bool:
    """Kill a worker and start another."""
    return faults.pool.kill_one(faults.chance) is not None


def stop(faults: Faults) -> bool:
    """Pause a worker for longer than its lease; if it is the only one, start another."""
    worker = faults.worker()
    if worker is None:
        return False
    # The worker may exit just before the pause, but nothing else kills the worker.
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(worker.pid)
        process.suspend()
        try:
            if len(faults.pool.alive) == 1:
                faults.pool.add()
            asleep_until = time.monotonic() + faults.chance.uniform(*ASLEEP_SECONDS)
            faults.pool.until(lambda: time.monotonic() > asleep_until, ROUND_SECONDS)
        finally:
            process.resume()
    return True


def clock(faults: Faults) -> bool:
    """Change the clock of a worker while it runs."""
    worker = faults.worker()
    if worker is None:
        return False
    step([faults.side.clocks[worker.number]], faults.chance)
    return True


def second_crawl(faults: Faults) -> bool:
    """Without Redis, start a concurrent crawl of the same spider, which must do nothing."""
    faults.pool.until(lambda: len(faults.pool.alive) == 1, ROUND_SECONDS)
    first = faults.worker()
    if first is None or not faults.pool.until(lambda: faults.has_requested(first), ROUND_SECONDS):
        return False
    second = faults.side.start(0)
    while second.code is None and first.code is None:
        time.sleep(0.05)
        second.update()
        faults.pool.update()
    if second.code is None:
        # The first crawl ended in the meantime, so the second one has to do the work.
        faults.pool.workers.append(second)
        return False
    lines = second.log.read_text(encoding="utf-8").splitlines()
    messages = [line for line in lines if "this machine's clock is" not in line]
    if (
        second.code
        or len(messages) != 1
        or not LEFT_ALONE.search(messages[0])
        or faults.has_requested(second)
    ):
        faults.wrong.append(f"a second crawl ended with {second.code}: {messages[-3:]}")
    return True


def full_disk(faults: Faults) -> bool:
    """Fill the disk of MongoDB; if the server exits, restart it when there is space again."""
    if faults.disk is None:
        return False
    disk_full(faults.disk, faults.chance.uniform(*FULL_SECONDS))
    faults.servers["MongoDB"].start()
    return True


def _cut(server: str) -> Callable[[Faults], bool]:
    def cut(faults: Faults) -> bool:
        worker = faults.worker()
        if worker is None:
            return False
        way = faults.side.ways[worker.number][server]
        outage = way.refusing if faults.chance.random() < 0.7 else way.swallowing
        until = time.monotonic() + faults.chance.uniform(*CUT_SECONDS)
        with outage():
            faults.pool.until(lambda: time.monotonic() > until, ROUND_SECONDS)
        return True

    return cut


def _killed(name: str) -> Callable[[Faults], bool]:
    def killed(faults: Faults) -> bool:
        server = faults.servers[name]
        server.kill()
        time.sleep(faults.chance.uniform(0.1, 1.0))
        server.start()
        return True

    return killed


def _stopped(name: str) -> Callable[[Faults], bool]:
    def stopped(faults: Faults) -> bool:
        server_stopped(faults.servers[name], faults.chance.uniform(*CUT_SECONDS))
        return True

    return stopped


# The kinds of faults by name; see `Faults.kinds` for their requirements.
FAULTS: dict[str, Callable[[Faults], bool]] = {
    "kill": kill,
    "stop": stop,
    "clock": clock,
    "second crawl": second_crawl,
    "full disk": full_disk,
    "cut MongoDB": _cut("MongoDB"),
    "cut Redis": _cut("Redis"),
    "kill MongoDB": _killed("MongoDB"),
    "kill Redis": _killed("Redis"),
    "stop MongoDB": _stopped("MongoDB"),
    "stop Redis": _stopped("Redis"),
}


@contextmanager
def prepared(
    folder: Path,
    items: int,
    workers: int,
    seed: int,
    *,
    delay_ms: int = 150,
    small_disk: bool = True,
) -> Iterator[Faults]:
    """Start a site, the servers and a database for runs with faults, in a folder with a short name.

    delay_ms:   delay of each answer, so that a run does not end before its faults
    small_disk: put MongoDB on its own disk, if one can be mounted
    """
    with ExitStack() as stack:
        disk = None
        if small_disk:
            with suppress(CannotMount):
                disk = stack.enter_context(SmallDisk(folder / "m", DISK_MB))
        mongo = stack.enter_context(Mongo(folder / "m", CACHE_GB, min_free_mb=0))
        redis = stack.enter_context(Redis(folder)) if workers > 1 else None
        changes = ("--changes-seconds", "1", "--rewrites")
        site = RunningQuick(items, *changes, "--delay-ms", str(delay_ms))
        yield Faults(folder, stack.enter_context(site), mongo, redis, disk, seed)
