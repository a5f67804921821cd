"""The queue of a run with a thousand workers: `make bench ARGS=--queue`.

The scripts are those of a crawl, and run in a real Valkey. The workers are objects in this process:
they lease entries, wait as if they fetched pages, complete them, and renew their leases. Some
crash, so that their leases expire.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.asyncio import BlockingConnectionPool
from redis.asyncio import Redis as Client
from rich.console import Console
from rich.table import Table
from scrapy import Spider

from crawler.frontier.leases import Worker
from crawler.frontier.lifecycle import Counts
from crawler.frontier.rate_limits import Permits
from crawler.frontier.redis_queue import Lease as EntryLease
from crawler.frontier.redis_queue import LeasedQueue, QueueStatus
from crawler.storage.client import in_batches
from crawler.storage.redis import RedisRetry
from tests.faults.ending import orderly
from tests.faults.servers import Redis

WORKERS, ENTRIES, HOSTS, DEAD = 1000, 20_000, 100, 20
LEASES, PAGE_SECONDS, LEASE_SECONDS = 16, 4.0, 30.0
CONNECTIONS, FED, SAMPLE = 50, 1000, 50
LONGEST_SECONDS, SOCKET_SECONDS = 150.0, 10.0
POLL_SECONDS = 0.1
# Counts for one crawled page.
VISIT = {"visits": 1.0, "new": 1, "item pages": 1, "bytes": 5321, "items read": 1}
# One host with fewer connections than workers.
RIVALS, CONNECTIONS_OF_HOST, HOST_SECONDS, ANSWER_SECONDS = 48, 16, 12.0, 0.05
PREFIX = "freshet:bench"


class ManyQueues:
    """The clients of all workers of one run, over a few connections."""

    def __init__(self, client: Client, spider: str, workers: int, lease_seconds: float) -> None:
        self.steady = RedisRetry(client, 30.0)
        key = f"{{{PREFIX}:{spider}}}:"
        self.queues = [
            LeasedQueue(
                self.steady, Spider(spider), key, f"worker-{n}", round(lease_seconds * 1000)
            )
            for n in range(workers)
        ]

    async def join(self) -> None:
        """Let all workers join the run; the first one prepares it."""
        for queue in self.queues:
            if (await queue.join("a run")).todo == "prepare":
                await queue.open("a run", 0)


@dataclass(slots=True)
class Scripts:
    """Server times of the scripts by name: p50 and p99 in microseconds."""

    client: Client
    rows: list[tuple[str, float, float]] = field(default_factory=list)

    async def measure(self, what: str, calls: Iterable[Awaitable[Any]]) -> list[Any]:
        """Call one script repeatedly, one call at a time; return the results."""
        await self.client.config_resetstat()
        results = [await call for call in calls]
        stats: Any = await self.client.info("latencystats")
        times = stats["latency_percentiles_usec_evalsha"]
        self.rows.append((what, float(times["p50"]), float(times["p99"])))
        return results


def _entry(number: int) -> str:
    host = f"www.shop-{number % HOSTS:03d}.example"
    return f"shop https://{host}/catalogue/item-{number:07d}.html"


async def _used_bytes(client: Client) -> int:
    return int((await client.info("memory"))["used_memory"])


async def _measure_scripts(
    client: Client, workers: int, entries: int
) -> tuple[Scripts, list[float]]:
    """Measure each script with all workers in the run; also return the bytes of an entry.

    There are two sizes: of a queued entry and of a leased entry.
    """
    run, scripts = ManyQueues(client, "scripts", workers, 3600.0), Scripts(client)
    await run.join()
    few, half = run.queues[:SAMPLE], LEASES // 2
    names = [(_entry(n), "") for n in range(entries)]
    bytes_used = [await _used_bytes(client)]
    parts = in_batches(names, FED)
    await scripts.measure(f"add {FED:,} entries", (few[0].feed(FED, part) for part in parts))
    bytes_used.append(await _used_bytes(client))
    leased = await scripts.measure(
        f"lease {LEASES} entries", (queue.work([], LEASES) for queue in run.queues)
    )
    bytes_used.append(await _used_bytes(client))
    held = [[lease.entry for lease in leases] for _, leases in leased]
    count = sum(map(len, held))
    await scripts.measure(
        f"renew {LEASES} leases",
        (
            queue.renew(names, {}, sure=lambda: True, back=False)
            for queue, names in zip(run.queues, held, strict=True)
        ),
    )
    await scripts.measure(
        f"complete {half} entries and lease {half}",
        (
            queue.work([(name, VISIT) for name in names[:half]], half)
            for queue, names in zip(run.queues, held, strict=True)
        ),
    )
    await scripts.measure(
        f"renew {LEASES} leases after an outage",
        (queue.renew([], {}, sure=lambda: True, back=True) for queue in few),
    )
    await scripts.measure("leave", (queue.leave({}) for queue in run.queues[SAMPLE:]))
    await few[0].finish()
    queued = (bytes_used[1] - bytes_used[0]) / entries
    # Leasing an entry removes it from the queue and frees its memory there.
    return scripts, [queued, queued + (bytes_used[2] - bytes_used[1]) / count]


@dataclass(slots=True)
class Seen:
    """What the workers of a simulated run observed.

    holders: entry -> worker that works on it
    doubled: entries leased to a worker while another worker certainly held them
    leased:  number of leases of each entry
    lease_ms, complete_ms: times of calls that lease or complete entries
    by_host: pages of each host after half of the run
    by_worker: pages of each worker
    times:     of the completed pages, in seconds
    ends:      when each worker noticed the end of the run, on the same clock
    counted:   pages of the run by the counts in Redis
    """

    holders: dict[str, SimulatedWorker] = field(default_factory=dict)
    doubled: set[str] = field(default_factory=set)
    leased: Counter[str] = field(default_factory=Counter)
    done: set[str] = field(default_factory=set)
    lease_ms: list[float] = field(default_factory=list)
    complete_ms: list[float] = field(default_factory=list)
    by_host: Counter[str] = field(default_factory=Counter)
    by_worker: Counter[int] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    counted: float = 0.0


class SimulatedWorker:
    """A worker whose pages take random times."""

    def __init__(
        self, number: int, queue: LeasedQueue, run: ManyQueues, entries: Sequence[str], seen: Seen
    ) -> None:
        self._number, self._queue, self._entries, self._seen = number, queue, entries, seen
        self._worker = Worker(
            queue, run.steady, LEASE_SECONDS, LEASES, 5, dict[str, float], self._failed
        )
        self.error: BaseException | None = None
        self.is_dead = False

    async def run(self) -> None:
        """Work until the run is over or this worker crashes."""
        work = self._queue.work

        async def timed(
            done: Sequence[tuple[str, Counts]], want: int
        ) -> tuple[QueueStatus, list[EntryLease]]:
            began = time.perf_counter()
            result = await work(done, want)
            ms = (time.perf_counter() - began) * 1000
            if result[1]:
                self._seen.lease_ms.append(ms)
            if done:
                self._seen.complete_ms.append(ms)
            return result

        self._queue.work = timed  # type: ignore[method-assign]
        call_later, worker = asyncio.get_running_loop().call_later, self._worker
        if (await worker.join()).todo == "prepare":
            await self._queue.open("a run", 0)
        worker.begin(self._feed)
        while leases := await worker.next():
            for lease in leases:
                self._take(lease.entry)
                call_later(random.expovariate(1 / PAGE_SECONDS), self._finish, lease.entry)
        if self.is_dead:
            return
        self._seen.ends.append(time.perf_counter())
        if (await worker.leave(patient=True))[0]:
            counts, _, _, _ = await self._queue.sums()
            self._seen.counted = counts.get("visits", 0)
            await self._queue.finish()

    @property
    def is_sure(self) -> bool:
        """Return whether this worker certainly still holds its leases."""
        return self._worker.is_sure

    def die(self) -> None:
        """Stop immediately, as if killed."""
        self.is_dead = True
        self._seen.by_worker.pop(self._number, None)
        self._worker.stop()

    def _take(self, entry: str) -> None:
        holder = self._seen.holders.get(entry)
        # Other workers may take over from a worker that is late on a busy machine.
        if holder is not None and not holder.is_dead and holder.is_sure:
            self._seen.doubled.add(entry)
        self._seen.holders[entry] = self
        self._seen.leased[entry] += 1

    def _finish(self, entry: str) -> None:
        if self.is_dead:
            return
        seen = self._seen
        if seen.holders.get(entry) is self:
            del seen.holders[entry]
        seen.done.add(entry)
        seen.by_worker[self._number] += 1
        seen.times.append(time.perf_counter())
        if len(seen.done) <= len(self._entries) / 2:
            seen.by_host[entry.split("/")[2]] += 1
        self._worker.drop(entry, VISIT)

    async def _feed(self) -> None:
        """Add entries while the queue has room, as the feeder of a run does."""
        for part in in_batches(self._entries, FED):
            while await self._is_full():  # noqa: ASYNC110
                await asyncio.sleep(POLL_SECONDS)
            new = [(entry, "") for entry in part if entry not in self._seen.done]
            await self._queue.feed(FED, new)
        while not await self._queue.close():  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        await self._worker.poll()

    async def _is_full(self) -> bool:
        status, _, _ = await self._queue.feed(0, [])
        return status.waiting > LEASES * status.workers

    def _failed(self, error: BaseException) -> None:
        self.error = error


@dataclass(slots=True)
class Simulated:
    """The results of a simulated run. cpu_share: of the server; calls: of scripts."""

    seen: Seen
    seconds: float
    cpu_share: float
    calls: int
    errors: list[BaseException]


async def _simulate(client: Client, server: Redis, workers: int, entries: int) -> Simulated:
    """Let all workers crawl; DEAD of them crash."""
    names, seen = [_entry(n) for n in range(entries)], Seen()
    random.shuffle(names)
    run = ManyQueues(client, "shop", workers, LEASE_SECONDS)
    crowd = [SimulatedWorker(n, queue, run, names, seen) for n, queue in enumerate(run.queues)]
    await client.config_resetstat()
    began, used = time.perf_counter(), server.cpu_seconds
    tasks = [asyncio.create_task(worker.run()) for worker in crowd]
    for worker in random.sample(crowd, min(DEAD, workers // 2)):
        await asyncio.sleep(random.uniform(0, 20 / DEAD))
        worker.die()
    _, late = await asyncio.wait(tasks, timeout=LONGEST_SECONDS)
    for worker in crowd if late else ():
        worker.die()
    seconds = time.perf_counter() - began
    share = (server.cpu_seconds - used) / seconds
    calls = (await client.info("commandstats"))["cmdstat_evalsha"]["calls"]
    errors = [worker.error for worker in crowd if worker.error is not None]
    return Simulated(seen, seconds, share, calls, errors)


async def _share_host(client: Client) -> tuple[Counter[int], int]:
    """Let workers send requests to one host; return their counts and the highest concurrency."""
    steady, sent, now_running, most = RedisRetry(client, 30.0), Counter[int](), 0, 0
    permits = [Permits(steady, PREFIX, f"worker-{n}", LEASE_SECONDS) for n in range(RIVALS)]
    until = time.perf_counter() + HOST_SECONDS

    async def crawl(number: int) -> None:
        nonlocal now_running, most
        while time.perf_counter() < until:
            permit = await permits[number].take("www.shop.example", CONNECTIONS_OF_HOST, 0.0, 60.0)
            now_running += 1
            most = max(most, now_running)
            await asyncio.sleep(ANSWER_SECONDS)
            now_running -= 1
            permits[number].give(permit)
            sent[number] += 1

    await asyncio.gather(*(crawl(number) for number in range(RIVALS)))
    await asyncio.gather(*(of_worker.close() for of_worker in permits))
    return sent, most


def fairness(counts: Iterable[float]) -> float:
    """Return Jain's index: 1 if all counts are equal, 1/n if only one is not 0."""
    values = list(counts)
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))


def run(workers: int, entries: int) -> int:
    """Measure and print the results; return 1 if an entry was lost or handed out twice."""
    with (
        orderly(),
        tempfile.TemporaryDirectory(prefix="fq-") as name,
        Redis(Path(name)) as server,
    ):
        return asyncio.run(_run(server, workers, entries))


async def _run(server: Redis, workers: int, entries: int) -> int:
    # Each idle worker waits on its own connection, for part of the socket timeout.
    pool = BlockingConnectionPool.from_url(
        server.url, max_connections=workers + CONNECTIONS, timeout=None, protocol=2,
        socket_timeout=SOCKET_SECONDS,
    )  # fmt: skip
    async with Client(connection_pool=pool) as client:
        scripts, (queued, leased) = await _measure_scripts(client, workers, entries)
        _show_scripts(scripts, workers)
        print(f"Memory: {queued:.0f} bytes per queued entry, {leased:.0f} per leased entry")
        result = await _simulate(client, server, workers, entries)
        problems = _problems(result, entries)
        _show(result, workers)
        sent, most = await _share_host(client)
    print(
        f"One host with {CONNECTIONS_OF_HOST} connections and {RIVALS} workers: at most {most} "
        f"requests at a time; Jain's index over workers {fairness(sent.values()):.2f}"
    )
    if most > CONNECTIONS_OF_HOST:
        problems.append(f"{most} concurrent requests to a host")
    for problem in problems:
        print(f"FAILED: {problem}")
    return 1 if problems else 0


def _problems(result: Simulated, entries: int) -> list[str]:
    seen = result.seen
    checks = {
        f"{entries - len(seen.done):,} entries were not completed": len(seen.done) != entries,
        f"{len(seen.doubled):,} entries were leased to two workers": seen.doubled,
        f"{seen.counted:,.0f} of {entries:,} pages were counted": seen.counted != entries,
        **{f"a worker failed: {error}": True for error in result.errors[:3]},
    }
    return [problem for problem, is_wrong in checks.items() if is_wrong]


def _show_scripts(scripts: Scripts, workers: int) -> None:
    table = Table(f"script, with {workers:,} workers", "p50, µs", "p99, µs")
    for what, p50, p99 in scripts.rows:
        table.add_row(what, f"{p50:.0f}", f"{p99:.0f}")
    Console().print(table)


def _show(result: Simulated, workers: int) -> None:
    seen, pages = result.seen, len(result.seen.done)
    again = sum(count > 1 for count in seen.leased.values())
    of_core = pages / (result.seconds * result.cpu_share)
    middle = seen.times[pages // 10 : pages * 9 // 10]
    rate = len(middle) / (middle[-1] - middle[0])
    print(
        f"{workers:,} workers: {pages:,} pages in {result.seconds:.0f} s, "
        f"{rate:,.0f} pages/s in the middle, {result.calls / result.seconds:,.0f} scripts/s, "
        f"{result.calls / pages:.2f} scripts a page; the server used {result.cpu_share:.0%} of a "
        f"core, so a full core serves {of_core:,.0f} pages/s"
    )
    for name, ms in (("Lease", seen.lease_ms), ("Complete", seen.complete_ms)):
        quantiles = statistics.quantiles(ms, n=100)
        print(f"{name}: p50 {quantiles[49]:.0f} ms, p99 {quantiles[98]:.0f} ms in the client")
    if len(seen.ends) > 1:
        ends = statistics.quantiles(seen.ends, n=100)
        print(
            f"Workers noticed the end of the run {ends[49] - seen.times[-1]:.2f} s (p50) and "
            f"{ends[98] - seen.times[-1]:.2f} s (p99) after the last page"
        )
    print(
        f"{again:,} entries were leased again, as {DEAD} workers ended. Jain's index at half time "
        f"over hosts {fairness(seen.by_host.values()):.3f}, over workers "
        f"{fairness(seen.by_worker.values()):.2f}"
    )
