"""Process pools: results, errors, limits, and replacement of processes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from crawler.utils.sandbox import LimitExceeded, ProcessPool

MEGABYTE = 1024 * 1024


@asynccontextmanager
async def pool(work: Any, processes: int = 2, seconds: float = 5) -> AsyncIterator[ProcessPool]:
    """Open a pool, and close it."""
    processes_of_pool = ProcessPool(work, processes, seconds, 256)
    try:
        yield processes_of_pool
    finally:
        processes_of_pool.close()


def with_pid(argument: Any) -> tuple[int, Any]:
    """Return the process and the argument."""
    return os.getpid(), argument


def test_results_match_their_arguments() -> None:
    async def run() -> list[tuple[int, Any]]:
        async with pool(with_pid) as processes:
            arguments = ["x" * (n * 50_000) for n in range(20)]
            answers = await asyncio.gather(*map(processes.run, arguments))
            assert [answer for _, answer in answers] == arguments
            return answers

    pids = {pid for pid, _ in asyncio.run(run())}
    assert len(pids) == 2
    assert os.getpid() not in pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_exception_keeps_the_process() -> None:
    def work(argument: int) -> tuple[int, int]:
        if argument:
            raise ValueError("odd")
        return with_pid(argument)

    async def run() -> None:
        async with pool(work, processes=1) as processes:
            before = await processes.run(0)
            with pytest.raises(ValueError, match="odd"):
                await processes.run(1)
            assert await processes.run(0) == before

    asyncio.run(run())


def spin(_: Any) -> None:
    while True:
        pass


def allocate(_: Any) -> None:
    bytearray(512 * MEGABYTE)


def crash(_: Any) -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def enlarge(_: Any) -> bytes:
    return bytes(65 * MEGABYTE)


@pytest.mark.parametrize(
    ("work", "problem"),
    [
        (spin, "longer than 1 s of processor time"),
        (allocate, "more than 256 MB"),
        (crash, "SIGUSR1"),
        (enlarge, "larger than 64 MB"),
    ],
)
def test_exceeding_a_limit_fails_only_that_call(work: Any, problem: str) -> None:
    def either(argument: bool) -> Any:
        return work(argument) if argument else "fine"

    async def run() -> None:
        async with pool(either, processes=1, seconds=1) as processes:
            assert await processes.run(False) == "fine"
            with pytest.raises(LimitExceeded, match=problem):
                await processes.run(True)
            assert await processes.run(False) == "fine"

    asyncio.run(run())


def test_next_call_begins_while_the_answer_is_not_read() -> None:
    def timed(_: Any) -> tuple[float, float]:
        began = time.monotonic()
        time.sleep(0.05)
        return began, time.monotonic()

    async def run() -> list[tuple[float, float]]:
        async with pool(timed, processes=1) as processes:
            calls = [asyncio.ensure_future(processes.run(n)) for n in range(2)]
            await asyncio.sleep(0.02)
            time.sleep(0.3)  # noqa: ASYNC251 - as the work of this process does
            return await asyncio.gather(*calls)

    (_, first_ended), (second_began, _) = asyncio.run(run())
    assert second_began - first_ended < 0.1


@pytest.mark.parametrize("size", [0, 5 * MEGABYTE])
def test_call_that_ends_the_process_does_not_fail_the_one_behind_it(size: int) -> None:
    def work(argument: tuple[str, bytes]) -> str:
        name, _ = argument
        if name == "bad":
            time.sleep(0.05)
            crash(None)
        return name

    async def run() -> list[Any]:
        async with pool(work, processes=1) as processes:
            names = ["good", "bad", "better", "bad", "best"]
            calls = [processes.run((name, bytes(size))) for name in names]
            return await asyncio.gather(*calls, return_exceptions=True)

    first, bad, second, other_bad, third = asyncio.run(run())
    assert (first, second, third) == ("good", "better", "best")
    assert "SIGUSR1" in str(bad)
    assert "SIGUSR1" in str(other_bad)


def test_cancelled_call_does_not_fail_the_one_before_it() -> None:
    def slow(argument: float) -> float:
        time.sleep(argument)
        return argument

    async def run() -> None:
        async with pool(slow, processes=1) as processes:
            before, cancelled = (asyncio.ensure_future(processes.run(0.2)) for _ in range(2))
            await asyncio.sleep(0.05)
            cancelled.cancel()
            assert await before == 0.2
            with pytest.raises(asyncio.CancelledError):
                await cancelled

    asyncio.run(run())


def test_cancelled_call_does_not_answer_next_call() -> None:
    def slow(argument: float) -> float:
        time.sleep(argument)
        return argument

    async def run() -> None:
        async with pool(slow, processes=1) as processes:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(processes.run(0.5), 0.1)
            assert await processes.run(0.01) == 0.01

    asyncio.run(run())


def test_process_is_replaced_after_max_calls() -> None:
    async def run() -> list[int]:
        processes = ProcessPool(with_pid, 1, 5, 256, max_calls=3)
        try:
            return [(await processes.run(n))[0] for n in range(6)]
        finally:
            processes.close()

    pids = asyncio.run(run())
    assert len(set(pids[:3])) == len(set(pids[3:])) == 1
    assert pids[2] != pids[3]


def test_processes_do_not_keep_connections_open() -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        theirs.settimeout(5)
        async with pool(with_pid) as processes:
            await processes.run(None)
            ours.close()
            # The end of the connection arrives although a process was forked while it was open.
            assert theirs.recv(1) == b""
        theirs.close()

    asyncio.run(run())
