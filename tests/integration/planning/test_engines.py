"""Engines stop when one of their processes is killed, at any moment."""

import os
import signal
import sys
import threading

import pytest

from crawler.planning.engines import EngineError, InFiles, processes

SOURCES, KILLED = 400, 3
ROUNDS = 8
MAX_SECONDS = 60


def read(count: int, number: int) -> list[int]:
    """Return a number for each shard, or kill this process."""
    if number == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    return [number] * count


@pytest.mark.soak
def test_killed_process_stops_all_steps() -> None:
    ended = 0

    def run() -> None:
        nonlocal ended
        for _ in range(ROUNDS):
            sources = [(read, number) for number in range(SOURCES)]
            with pytest.raises(EngineError, match="was killed"), processes(2) as engine:
                engine.read(sources, 1, InFiles)
            ended += 1

    interval = sys.getswitchinterval()
    # The pool's thread notices the kill while this thread submits work or waits.
    sys.setswitchinterval(1e-6)
    try:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(MAX_SECONDS)
    finally:
        sys.setswitchinterval(interval)
    assert ended == ROUNDS
