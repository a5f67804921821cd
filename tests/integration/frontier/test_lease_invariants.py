"""Invariant of a shared run: each entry is completed and counted once, even if workers fail."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from crawler.frontier.leases import Worker
from crawler.frontier.redis_queue import LeasedQueue
from tests.integration.shared_run import LEASE_MS, SharedRun, nothing_to_feed, opened_run

WORKERS = ("ann", "ben", "cem")
ANY_WORKER = st.sampled_from(WORKERS)
VISIT = {"visits": 1.0}


class Workers(RuleBasedStateMachine):
    """Workers that lease, finish, miss renewals, crash, leave and rejoin in any order."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.shared = SharedRun(url)
        self.held: dict[str, list[str]] = {}
        self.fed: set[str] = set()
        self.done: set[str] = set()

    @initialize()
    def begin(self) -> None:
        for worker in WORKERS:
            self.enter_run(worker)

    @rule(worker=ANY_WORKER)
    def enter_run(self, worker: str) -> None:
        if worker not in self.shared.queues:
            self.shared.enter(worker)
            self.held[worker] = []

    @rule(worker=ANY_WORKER, first=st.integers(0, 30), count=st.integers(1, 8))
    def feed(self, worker: str, first: int, count: int) -> None:
        """Feed entries that may be pending or leased already, but never entries that are stored."""
        if (queue := self.shared.queues.get(worker)) is not None:
            names = (f"shop {n}" for n in range(first, first + count))
            entries = [name for name in names if name not in self.done]
            status, _, _ = self.shared.ask(queue.feed(100, [(name, "") for name in entries]))
            if status.feeds:
                self.fed |= set(entries)

    @rule(worker=ANY_WORKER, want=st.integers(0, 6), finished=st.integers(0, 6))
    def work(self, worker: str, want: int, finished: int) -> None:
        if (queue := self.shared.queues.get(worker)) is not None:
            done, self.held[worker] = self.held[worker][:finished], self.held[worker][finished:]
            completed = [(entry, VISIT) for entry in done]
            _, leases = self.shared.ask(queue.work(completed, want))
            self.done |= set(done)
            self.held[worker] += [lease.entry for lease in leases]

    @rule(worker=ANY_WORKER)
    def work_with_lost_response(self, worker: str) -> None:
        if (queue := self.shared.queues.get(worker)) is not None:
            self.shared.ask(queue.work([], 3))

    @rule(worker=ANY_WORKER)
    def miss_renewal(self, worker: str) -> None:
        self.shared.run_out(worker)

    @rule(worker=ANY_WORKER, sure=st.booleans(), back=st.booleans())
    def renew(self, worker: str, *, sure: bool, back: bool) -> None:
        if (queue := self.shared.queues.get(worker)) is not None:
            held = self.held[worker]
            _, lost = self.shared.ask(queue.renew(held, {}, sure=lambda: sure, back=back))
            self.held[worker] = [entry for entry in held if entry not in lost]

    @rule(worker=ANY_WORKER)
    def die(self, worker: str) -> None:
        if worker in self.shared.queues:
            self.shared.die(worker)

    @rule(worker=ANY_WORKER)
    def leave(self, worker: str) -> None:
        # The last worker would end the run.
        if len(self.shared.queues) > 1 and worker in self.shared.queues:
            self.shared.ask(self.shared.queues.pop(worker).leave({}))
            assert self.shared.of(worker) == []

    @invariant()
    def every_entry_is_in_one_place(self) -> None:
        places = [self.shared.names(key) for key in ("pending", "suspects", "leased")]
        assert sum(map(len, places)) == len(set().union(*places))
        assert self.fed - self.done <= set().union(*places)

    def teardown(self) -> None:
        """Let one worker complete all remaining entries and end the run."""
        for worker in list(self.shared.queues):
            self.shared.die(worker)
        queue, done = self.shared.enter("zoe"), list[str]()
        while True:
            completed = [(entry, VISIT) for entry in done]
            status, leases = self.shared.ask(queue.work(completed, 100))
            done = [lease.entry for lease in leases]
            self.done |= set(done)
            if status.is_empty:
                break
        assert self.done == self.fed
        sums, _, _, _ = self.shared.ask(queue.sums())
        assert sums.get("visits", 0) == len(self.fed)
        assert self.shared.ask(queue.feed(0, []))[0].feeds
        assert self.shared.ask(queue.close())
        self.shared.ask(queue.finish())
        assert list(self.shared.driver.scan_iter(f"{self.shared.key}*")) == []
        self.shared.close()


@pytest.mark.soak
def test_each_entry_is_done_and_counted_once(redis: str) -> None:
    run_state_machine_as_test(
        partial(Workers, redis),
        settings=settings(max_examples=25, stateful_step_count=40, deadline=None),
    )


def test_leaving_worker_returns_leases_of_lost_responses(redis: str) -> None:
    with opened_run(redis) as shared:
        ann, ben = shared.enter("ann"), shared.enter("ben")
        shared.ask(ann.feed(9, [(f"shop {n}", "") for n in range(3)]))
        shared.ask(ann.work([], 9))
        shared.ask(ann.leave({}))
        _, leases = shared.ask(ben.work([], 9))
        assert sorted(lease.entry for lease in leases) == ["shop 0", "shop 1", "shop 2"]
        assert {lease.count for lease in leases} == {1}


def test_late_message_does_not_lease_completed_entry(redis: str) -> None:
    with opened_run(redis) as shared:
        ann = shared.enter("ann")
        shared.ask(ann.feed(9, [("shop 0", "")]))
        shared.ask(ann.work([], 1))
        late, ann._messages = ann._messages, count(100)
        status, _ = shared.ask(ann.work([("shop 0", VISIT)], 0))
        assert status.is_empty
        ann._messages = late
        status, lost = shared.ask(ann.renew(["shop 0"], {}, sure=lambda: True, back=False))
        assert (status.is_empty, lost) == (True, set())


def test_worker_at_capacity_waits_until_an_entry_is_done(redis: str) -> None:
    async def work(shared: SharedRun, queue: LeasedQueue) -> list[str]:
        worker = Worker(queue, shared.steady, LEASE_MS / 1000, 1, 3, dict, failures.append)
        worker.begin(nothing_to_feed)
        # A suspect is leased in addition to the entries that there is room for.
        first = [lease.entry for lease in await worker.next()]
        waiting = asyncio.ensure_future(worker.next())
        await asyncio.sleep(0.2)
        assert not waiting.done()
        for entry in first:
            worker.drop(entry)
        second = [lease.entry for lease in await waiting]
        await worker.leave(patient=False)
        return [*first, *second]

    failures: list[Exception] = []
    with opened_run(redis) as shared:
        ann = shared.enter("ann")
        shared.ask(ann.feed(9, [("shop 1", ""), ("shop 2", "")]))
        shared.driver.zadd(f"{shared.key}first:suspects", {"shop 0": 0})
        assert shared.ask(work(shared, ann)) == ["shop 0", "shop 1", "shop 2"]
    assert failures == []


def test_host_closed_during_a_report_is_reported_next(redis: str) -> None:
    async def work(shared: SharedRun, queue: LeasedQueue, patch: pytest.MonkeyPatch) -> set[str]:
        worker = Worker(queue, shared.steady, LEASE_MS / 1000, 1, 3, dict, failures.append)
        close_hosts = queue.close_hosts

        async def close_slowly(hosts: Iterable[str]) -> None:
            await close_hosts(hosts)
            worker.close_host("late.test")

        patch.setattr(queue, "close_hosts", close_slowly)
        worker.close_host("early.test")
        worker.begin(nothing_to_feed)
        waiting = asyncio.ensure_future(worker.next())
        for _ in range(50):
            if len(closed := await queue.closed_hosts()) == 2:
                break
            await asyncio.sleep(0.1)
        await worker.leave(patient=False)
        await waiting
        return closed

    failures: list[Exception] = []
    with opened_run(redis) as shared, pytest.MonkeyPatch.context() as patch:
        hosts = shared.ask(work(shared, shared.enter("ann"), patch))
    assert (hosts, failures) == ({"early.test", "late.test"}, [])
