"""Workers with nothing to lease wait for a message of the queue; they do not poll it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from crawler.frontier.leases import Feed, Worker
from crawler.frontier.redis_queue import LeasedQueue
from tests.integration.shared_run import LEASE_MS, SharedRun, nothing_to_feed, opened_run

# Much shorter than the time after which an idle worker tries again without a message.
PROMPT_SECONDS = 20.0
IDLE_SECONDS = 0.5
Message = Callable[[LeasedQueue], Coroutine[Any, Any, object]]


class WorkerPool:
    """Workers of a shared run.

    errors: exceptions that ended a worker
    """

    def __init__(self, shared: SharedRun, feed: Feed = nothing_to_feed) -> None:
        self._shared, self._feed = shared, feed
        self.errors: list[BaseException] = []

    def start(self, queue: LeasedQueue, max_leases: int = 16) -> Worker:
        """Start a worker that has joined."""
        seconds = self._shared.lease_ms / 1000
        worker = Worker(
            queue, self._shared.steady, seconds, max_leases, 3, dict, self.errors.append
        )
        worker.begin(self._feed)
        return worker


async def leased(worker: Worker) -> list[str]:
    """Return the next entries that a worker leases; raise TimeoutError unless promptly."""
    return [lease.entry for lease in await asyncio.wait_for(worker.next(), PROMPT_SECONDS)]


def scripts(shared: SharedRun) -> int:
    """Return the number of scripts that the server has run."""
    return int(shared.driver.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


def let_nothing_expire(shared: SharedRun) -> None:
    """Prevent idle workers from trying again without a message for a long time."""
    shared.driver.hset(f"{shared.key}run", "feeder_until", 10**15)


async def feed(queue: LeasedQueue) -> None:
    await queue.feed(9, [("shop 0", "")])


async def push(queue: LeasedQueue) -> None:
    await queue.push([("shop 0", "", 0, "{}")])


async def leased_while_idle(
    pool: WorkerPool, queue: LeasedQueue, message: Coroutine[Any, Any, object]
) -> list[str]:
    """Send a message while a worker is idle; return the entries that the worker leases."""
    worker = pool.start(queue)
    waiting = asyncio.ensure_future(leased(worker))
    await asyncio.sleep(IDLE_SECONDS)
    await message
    entries = await waiting
    await worker.leave(patient=True)
    return entries


@pytest.mark.parametrize("message", [feed, push])
def test_an_idle_worker_leases_an_entry_when_it_is_added(redis: str, message: Message) -> None:
    with opened_run(redis) as shared:
        pool, ann, ben = WorkerPool(shared), shared.enter("ann"), shared.enter("ben")
        let_nothing_expire(shared)
        assert shared.ask(leased_while_idle(pool, ben, message(ann))) == ["shop 0"]
        assert pool.errors == []


def test_only_worker_leases_entries_that_it_fed(redis: str) -> None:
    async def work() -> list[str]:
        async def feed_later() -> None:
            await asyncio.sleep(IDLE_SECONDS)
            await feed(ann)

        worker = WorkerPool(shared, feed_later).start(ann)
        entries = await leased(worker)
        await worker.leave(patient=True)
        return entries

    with opened_run(redis) as shared:
        ann = shared.enter("ann")
        assert shared.ask(work()) == ["shop 0"]


def test_idle_worker_leases_returned_entry(redis: str) -> None:
    async def work() -> list[str]:
        await feed(ann)
        await ann.work([], 9)
        worker = WorkerPool(shared).start(ben)
        waiting = asyncio.ensure_future(leased(worker))
        await asyncio.sleep(IDLE_SECONDS)
        await ann.leave({})
        entries = await waiting
        await worker.leave(patient=True)
        return entries

    with opened_run(redis) as shared:
        ann, ben = shared.enter("ann"), shared.enter("ben")
        let_nothing_expire(shared)
        assert shared.ask(work()) == ["shop 0"]


def test_idle_workers_lease_expired_entries_of_crashed_worker(redis: str) -> None:
    async def work() -> set[str]:
        names = {f"shop {n}" for n in range(6)}
        await ann.feed(9, [(name, "") for name in names])
        await ann.work([], 9)
        workers = [WorkerPool(shared).start(queue) for queue in (ben, cem)]
        entries: set[str] = set()
        while entries != names:
            waiting = [asyncio.ensure_future(leased(worker)) for worker in workers]
            done, late = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in late:
                task.cancel()
            entries.update(*(task.result() for task in done))
        for worker in workers:
            await worker.leave(patient=True)
        return entries

    # No worker sends a message that wakes another one: `ann` has crashed.
    with opened_run(redis, lease_ms=2000) as shared:
        ann, ben, cem = (shared.enter(name) for name in ("ann", "ben", "cem"))
        assert len(shared.ask(work())) == 6


def test_an_idle_worker_takes_over_from_a_crashed_feeder(redis: str) -> None:
    async def work() -> list[str]:
        async def feed_as_ben() -> None:
            await feed(ben)

        worker = WorkerPool(shared, feed_as_ben).start(ben)
        entries = await leased(worker)
        await worker.leave(patient=True)
        return entries

    with opened_run(redis) as shared:
        # The worker that opens the run is its feeder. Its role expires without messages.
        shared.enter("ann")
        ben = shared.enter("ben")
        seconds, _ = shared.driver.time()
        shared.driver.hset(f"{shared.key}run", "feeder_until", (seconds + 2) * 1000)
        assert shared.ask(work()) == ["shop 0"]


def test_all_idle_workers_notice_the_end_of_the_run(redis: str) -> None:
    async def work() -> list[list[str]]:
        workers = [WorkerPool(shared).start(queue) for queue in queues]
        waiting = asyncio.gather(*map(leased, workers))
        await asyncio.sleep(IDLE_SECONDS)
        assert await ann.close()
        ends = await waiting
        for worker in workers:
            await worker.leave(patient=True)
        return ends

    with opened_run(redis) as shared:
        ann = shared.enter("ann")
        queues = [shared.enter(f"worker {n}") for n in range(20)]
        let_nothing_expire(shared)
        assert shared.ask(work()) == [[]] * 20


def test_idle_workers_send_few_messages(redis: str) -> None:
    async def work() -> int:
        workers = [WorkerPool(shared).start(queue) for queue in queues]
        waiting = [asyncio.ensure_future(worker.next()) for worker in workers]
        await asyncio.sleep(IDLE_SECONDS)
        before = scripts(shared)
        await asyncio.sleep(2 * IDLE_SECONDS)
        sent = scripts(shared) - before
        for worker in workers:
            await worker.leave(patient=True)
        await asyncio.gather(*waiting)
        return sent

    with opened_run(redis) as shared:
        shared.enter("ann")
        queues = [shared.enter(f"worker {n}") for n in range(20)]
        let_nothing_expire(shared)
        assert shared.ask(work()) == 0


def test_each_of_many_entries_wakes_a_worker(redis: str) -> None:
    """Workers forward messages that they do not need, so no entry waits while others are idle."""

    async def work() -> list[list[str]]:
        workers = [WorkerPool(shared).start(queue, max_leases=1) for queue in queues]
        waiting = [asyncio.ensure_future(leased(worker)) for worker in workers]
        await asyncio.sleep(IDLE_SECONDS)
        names = [f"shop {n}" for n in range(10)]
        for name in names:
            await ann.feed(1, [(name, "")])
        entries = await asyncio.gather(*waiting)
        for worker in workers:
            await worker.leave(patient=True)
        return entries

    with opened_run(redis) as shared:
        ann = shared.enter("ann")
        queues = [shared.enter(f"worker {n}") for n in range(10)]
        let_nothing_expire(shared)
        assert sorted(shared.ask(work())) == [[f"shop {n}"] for n in range(10)]


def test_a_worker_passes_on_a_message_that_came_too_late(redis: str) -> None:
    async def work() -> list[str]:
        early, late = (WorkerPool(shared).start(queue) for queue in (ben, cem))
        await ann.feed(1, [("shop 0", "")])
        (entry,) = await leased(early)
        let_nothing_expire(shared)
        first = asyncio.ensure_future(leased(early))
        await asyncio.sleep(IDLE_SECONDS)
        # This entry comes without a message: `early` still waits for one after leasing the entry.
        shared.driver.zadd(f"{shared.key}first:pending", {"shop 1": 1})
        early.drop(entry)
        assert await first == ["shop 1"]
        second = asyncio.ensure_future(leased(late))
        await asyncio.sleep(IDLE_SECONDS)
        await ann.feed(1, [("shop 2", "")])
        entries = await second
        for worker in (early, late):
            await worker.leave(patient=True)
        return entries

    with opened_run(redis) as shared:
        ann, ben, cem = (shared.enter(name) for name in ("ann", "ben", "cem"))
        assert shared.ask(work()) == ["shop 2"]


def test_worker_polls_if_blpop_is_not_permitted(redis: str) -> None:
    with opened_run(redis) as shared:
        pool, ann, ben = WorkerPool(shared), shared.enter("ann"), shared.enter("ben")
        let_nothing_expire(shared)
        shared.driver.execute_command("ACL SETUSER default -blpop")
        try:
            assert shared.ask(leased_while_idle(pool, ben, feed(ann))) == ["shop 0"]
        finally:
            shared.driver.execute_command("ACL SETUSER default +blpop")


def test_empty_lease_request_returns_time_of_next_attempt(redis: str) -> None:
    with opened_run(redis) as shared:
        ann, ben = shared.enter("ann"), shared.enter("ben")
        status, _ = shared.ask(ben.work([], 1))
        # The feeder has to send a message within five seconds.
        assert 0 < status.quiet_seconds <= 5
        status, _ = shared.ask(ann.work([], 1))
        assert 5 < status.quiet_seconds <= LEASE_MS / 1000
        shared.ask(ann.feed(1, [("shop 0", "")]))
        status, leases = shared.ask(ann.work([], 1))
        assert (status.quiet_seconds, len(leases)) == (0, 1)
        shared.driver.zadd(f"{shared.key}first:leased", {"shop 0": 1}, xx=True)
        status, leases = shared.ask(ann.work([], 0))
        assert (status.quiet_seconds, leases) == (0, [])
