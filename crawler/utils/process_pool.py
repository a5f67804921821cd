"""Call a function in processes that stay, with the limits of a sandbox.

A process is a fork of this one: it has loaded the libraries, and has the function's state. That is
faster than a `Sandbox`, which forks for each piece of work, and uses more than one processor.
"""

from __future__ import annotations

import asyncio
import math
import os
import pickle
import resource
import signal
import socket
import stat
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from crawler.utils.sandbox import (
    LOST,
    MAX_RESULT_MB,
    MEGABYTE,
    OUT_OF_MEMORY,
    PATIENCE,
    LimitExceeded,
    limit_memory,
    lower,
    outcome_of,
    problem_of,
)

# A process ends after so many calls: libraries keep caches, and memory gets fragmented.
MAX_CALLS = 2_000
LENGTH_BYTES = 8


class ProcessPool:
    """Calls a function in at most `processes` processes, each of which starts when it is needed.

    work:      function of one argument; it has the state that it had when its process started
    seconds:   processor time for each call
    megabytes: memory of a process, in addition to the memory of this process

    A call waits for a free process, so that at most `processes` calls are in progress.
    """

    def __init__(
        self, work: Callable[[Any], Any], processes: int, seconds: float, megabytes: float
    ) -> None:
        self._work, self._seconds, self._megabytes = work, seconds, megabytes
        self._slots = asyncio.Semaphore(processes)
        self._idle: list[_Process] = []
        self._is_closed = False

    async def run(self, argument: Any) -> Any:
        """Return the function's result for an argument, or raise its exception.

        All of these must be picklable. Raises LimitExceeded.
        """
        async with self._slots:
            process = self._idle.pop() if self._idle else self._started()
            try:
                async with asyncio.timeout(self._seconds * PATIENCE):
                    answer = await process.ask(pickle.dumps(argument, pickle.HIGHEST_PROTOCOL))
            except (OSError, EOFError):  # includes TimeoutError
                problem = problem_of(process.end(), self._seconds, self._megabytes)
                raise LimitExceeded(problem or LOST) from None
            except BaseException:
                # Its answer must not become that to the next call.
                process.end()
                raise
            if process.calls < MAX_CALLS and not self._is_closed:
                self._idle.append(process)
            else:
                process.end()
        result, error = pickle.loads(answer)
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """End the processes; one that is busy ends after its call."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().end()

    def _started(self) -> _Process:
        ours, theirs = socket.socketpair()
        with warnings.catch_warnings():
            # Python 3.12 warns that other threads may hold locks. The work does not need any.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            self._serve(theirs)
        theirs.close()
        return _Process(pid, ours)

    def _serve(self, channel: socket.socket) -> NoReturn:
        """Answer calls in the new process until the channel is closed, then exit."""
        code = 1
        try:
            # A signal to all processes of a crawl ends it in order: calls have to be completed.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            _release_sockets(channel.fileno())
            lower(resource.RLIMIT_CORE, 0)
            limit_memory(self._megabytes)
            with channel.makefile("rwb") as stream:
                while length := stream.read(LENGTH_BYTES):
                    argument = pickle.loads(stream.read(int.from_bytes(length)))
                    used = resource.getrusage(resource.RUSAGE_SELF)
                    used_seconds = used.ru_utime + used.ru_stime
                    lower(resource.RLIMIT_CPU, math.ceil(used_seconds + self._seconds))
                    outcome = outcome_of(lambda: self._work(argument))  # noqa: B023 - called here
                    answer = pickle.dumps(outcome, pickle.HIGHEST_PROTOCOL)
                    del argument, outcome
                    stream.write(len(answer).to_bytes(LENGTH_BYTES) + answer)
                    stream.flush()
            code = 0
        except MemoryError:
            code = OUT_OF_MEMORY
        finally:
            os._exit(code)


class _Process:
    """A process of a pool, as seen by its parent. calls: number of calls so far."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self._pid, self._channel = pid, channel
        self._channel.setblocking(False)
        self.calls = 0

    async def ask(self, question: bytes) -> bytes:
        """Return the answer to a question; raises OSError or EOFError if the process ends."""
        self.calls += 1
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._channel, len(question).to_bytes(LENGTH_BYTES) + question)
        answer, n_bytes = bytearray(), LENGTH_BYTES
        while len(answer) < n_bytes:
            if not (chunk := await loop.sock_recv(self._channel, MEGABYTE)):
                raise EOFError
            answer += chunk
            if n_bytes == LENGTH_BYTES and len(answer) >= LENGTH_BYTES:
                n_bytes += int.from_bytes(answer[:LENGTH_BYTES])
                if n_bytes > MAX_RESULT_MB * MEGABYTE:
                    raise LimitExceeded(f"the result is larger than {MAX_RESULT_MB} MB")
        return bytes(memoryview(answer)[LENGTH_BYTES:])

    def end(self) -> int:
        """Kill the process, unless it has ended, and return its exit code."""
        self._channel.close()
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def _release_sockets(but: int) -> None:
    """Release copies of connections, which would stay open when the parent closes them.

    Their numbers stay in use: objects of the parent may still close them.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in [int(file.name) for file in Path("/dev/fd").iterdir()]:
        with suppress(OSError):
            if number != but and stat.S_ISSOCK(os.fstat(number).st_mode):
                os.dup2(nothing, number)
