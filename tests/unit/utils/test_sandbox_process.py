"""A fork for each call: results, errors, and limits that end only the subprocess."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from crawler.utils.sandbox import LimitExceeded, ProcessPool

AMPLE_MB = 512
SELECT_FILES, MANY_FILES = 1024, 1200


def run_in_sandbox(work: Callable[[], Any], seconds: float = 5, megabytes: float = AMPLE_MB) -> Any:
    """Run `work` in a subprocess and return its result."""

    async def do() -> Any:
        return await ProcessPool.forking(seconds, megabytes).run(work)

    return asyncio.run(do())


def loop_forever() -> None:
    """Use CPU time until the process is stopped."""
    while True:
        time.time()


@pytest.mark.parametrize("result", [None, "text", {"a": [1, 2]}, b"x" * 3_000_000])
def test_returns_result(result: object) -> None:
    assert run_in_sandbox(lambda: result) == result


def test_runs_in_another_process_without_side_effects() -> None:
    values: list[int] = []
    assert run_in_sandbox(lambda: values.append(1) or os.getpid()) != os.getpid()
    assert values == []


def test_runs_in_a_process_with_many_open_files() -> None:
    """Crawls of many hosts have that many connections; select() rejects numbers from 1,024 on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < MANY_FILES:
        pytest.skip("too few files may be opened")
    with ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, MANY_FILES), hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        nothing = stack.enter_context(Path(os.devnull).open("rb"))
        while nothing.fileno() < SELECT_FILES:
            nothing = stack.enter_context(Path(os.devnull).open("rb"))
        assert run_in_sandbox(lambda: "done") == "done"


def test_raises_error_of_subprocess() -> None:
    with pytest.raises(KeyError, match="missing"):
        run_in_sandbox(lambda: {}["missing"])


@pytest.mark.soak
def test_endless_work_is_stopped() -> None:
    with pytest.raises(LimitExceeded, match="takes longer than 1 s of processor time"):
        run_in_sandbox(loop_forever, seconds=1)


def test_sleeping_work_is_stopped() -> None:
    with pytest.raises(LimitExceeded, match=r"takes longer than 0.1 s"):
        run_in_sandbox(lambda: time.sleep(60), seconds=0.1)


def test_work_above_memory_limit_is_stopped() -> None:
    with pytest.raises(LimitExceeded, match="takes more than 64 MB of memory"):
        run_in_sandbox(lambda: len(bytearray(200_000_000)), megabytes=64)


def test_crash_ends_only_the_subprocess() -> None:
    with pytest.raises(LimitExceeded, match="subprocess terminated by SIGUSR1"):
        run_in_sandbox(lambda: os.kill(os.getpid(), signal.SIGUSR1))


@pytest.mark.filterwarnings("ignore")
def test_unpicklable_result_is_an_error() -> None:
    with pytest.raises(LimitExceeded, match="could not be sent back"):
        run_in_sandbox(threading.Lock)


def test_rejects_too_large_result() -> None:
    with pytest.raises(LimitExceeded, match="larger than 64 MB"):
        run_in_sandbox(lambda: b"x" * 70_000_000, megabytes=1000)


def test_concurrent_runs_wait_for_a_slot() -> None:
    async def all_of() -> list[int]:
        sandbox = ProcessPool.forking(5, AMPLE_MB)
        return await asyncio.gather(*(sandbox.run(lambda n=n: n) for n in range(6)))  # type: ignore[misc]

    assert asyncio.run(all_of()) == list(range(6))


def test_cancelled_run_leaves_no_process(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    def work() -> None:
        pid_file.write_text(str(os.getpid()))
        loop_forever()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ProcessPool.forking(60, AMPLE_MB).run(work), 1)

    asyncio.run(give_up())
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
