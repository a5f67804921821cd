"""Work in a subprocess: its result is returned, and exceeding a limit ends only the subprocess."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crawler.utils.sandbox import LimitExceeded, Sandbox

AMPLE_MB = 512


def done(work: Callable[[], Any], seconds: float = 5, megabytes: float = AMPLE_MB) -> Any:
    """Run `work` in a subprocess and return its result."""

    async def do() -> Any:
        return await Sandbox(seconds, megabytes).run(work)

    return asyncio.run(do())


def endlessly() -> None:
    """Use CPU time until the process is stopped."""
    while True:
        time.time()


@pytest.mark.parametrize("result", [None, "text", {"a": [1, 2]}, b"x" * 3_000_000])
def test_the_result_of_the_work_comes_back(result: object) -> None:
    assert done(lambda: result) == result


def test_the_work_is_done_in_another_process_and_changes_nothing_here() -> None:
    kept: list[int] = []
    assert done(lambda: kept.append(1) or os.getpid()) != os.getpid()
    assert kept == []


def test_an_error_of_the_work_is_raised_here() -> None:
    with pytest.raises(KeyError, match="missing"):
        done(lambda: {}["missing"])


def test_work_without_end_is_ended() -> None:
    with pytest.raises(LimitExceeded, match="takes longer than 1 s of processor time"):
        done(endlessly, seconds=1)


def test_work_that_waits_for_ever_is_ended() -> None:
    with pytest.raises(LimitExceeded, match=r"takes longer than 0.1 s"):
        done(lambda: time.sleep(60), seconds=0.1)


def test_work_that_takes_all_memory_is_ended() -> None:
    with pytest.raises(LimitExceeded, match="takes more than 64 MB of memory"):
        done(lambda: len(bytearray(200_000_000)), megabytes=64)


def test_work_that_breaks_its_process_breaks_no_other() -> None:
    with pytest.raises(LimitExceeded, match="subprocess terminated by SIGUSR1"):
        done(lambda: os.kill(os.getpid(), signal.SIGUSR1))


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_travel_is_said() -> None:
    with pytest.raises(LimitExceeded, match="could not be sent back"):
        done(threading.Lock)


def test_a_result_without_measure_is_not_taken() -> None:
    with pytest.raises(LimitExceeded, match="larger than 64 MB"):
        done(lambda: b"x" * 70_000_000, megabytes=1000)


def test_several_at_once_wait_for_a_place() -> None:
    async def all_of() -> list[int]:
        sandbox = Sandbox(5, AMPLE_MB)
        return await asyncio.gather(*(sandbox.run(lambda n=n: n) for n in range(6)))  # type: ignore[misc]

    assert asyncio.run(all_of()) == list(range(6))


def test_who_waits_no_longer_leaves_no_process_behind(tmp_path: Path) -> None:
    noted = tmp_path / "pid"

    def work() -> None:
        noted.write_text(str(os.getpid()))
        endlessly()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(Sandbox(60, AMPLE_MB).run(work), 1)

    asyncio.run(give_up())
    with pytest.raises(ProcessLookupError):
        os.kill(int(noted.read_text()), 0)
