"""A crawling process that can be started, checked and killed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

import psutil

from tests.site import running

BYTES_IN_MB = 1024 * 1024
KILL_SECONDS = 10.0


class Process(running.Process, Protocol):
    """A process with an exit code."""

    def poll(self) -> int | None: ...


class Worker:
    """A process and its state. Times are Unix times.

    code:        its exit code; None while it runs
    is_killed:   it was killed by `kill`
    output:      its output, after it has ended
    cpu_seconds, peak_mb: as of the last check
    """

    def __init__(self, number: int, words: Sequence[str], env: Mapping[str, str], log: Path):
        self.number, self.log = number, log
        with log.open("w", encoding="utf-8") as stderr:
            self._process = cast(Process, running.launch("scrapy", words, env, stderr))
        self._seen = psutil.Process(self._process.pid)
        self.began, self.ended = time.time(), 0.0
        self.code: int | None = None
        self.is_killed, self.output = False, ""
        self.cpu_seconds = self.peak_mb = 0.0

    @property
    def agent(self) -> str:
        """Return the user agent that identifies the worker in the site's log."""
        return agent(self.number)

    @property
    def pid(self) -> int:
        """Return its process ID."""
        return self._process.pid

    def update(self) -> None:
        """Update the resource usage and the exit code."""
        if self.code is not None:
            return
        with contextlib.suppress(psutil.Error), self._seen.oneshot():
            self.cpu_seconds = cpu_seconds(self._seen)
            self.peak_mb = max(self.peak_mb, self._seen.memory_info().rss / BYTES_IN_MB)
        if (code := self._process.poll()) is not None:
            self._has_ended(code)

    def kill(self) -> None:
        """Kill the worker with SIGKILL and wait for its end; do nothing if it has ended."""
        self.update()
        if self.code is None:
            self.is_killed = True
            self._process.kill()
            self._has_ended(self._process.wait(KILL_SECONDS))

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.terminate()

    def _has_ended(self, code: int) -> None:
        self.code, self.ended = code, time.time()
        assert self._process.stdout is not None
        with self._process.stdout as printed:
            self.output = printed.read()


def agent(number: int) -> str:
    """Return the user agent of a worker."""
    return f"worker-{number}"


def cpu_seconds(process: psutil.Process) -> float:
    """Return the user and system time of a process so far."""
    used = process.cpu_times()
    return float(used.user + used.system)
