"""Limit the time and memory of work on untrusted input.

A hostile page can keep C libraries busy for hours or make them allocate all memory. Nothing in the
same process can stop such a library, but the kernel can terminate a forked copy of the process.

`ProcessPool` calls a function in such processes, which it keeps for many calls or forks for each.
`time_limit` interrupts Python code in this process.
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
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

# Concurrent processes of a pool that forks for each call.
MAX_FORKS = 2
MEGABYTE = 1024 * 1024
MAX_RESULT_MB = 64
# Elapsed time allowed per second of processor time: on a busy machine, a process may only get a
# tenth of a processor.
PATIENCE = 10
OUT_OF_TIME = (-signal.SIGXCPU, -signal.SIGKILL)
OUT_OF_MEMORY = 3
LOST = "the result could not be sent back from the subprocess"
# Calls in progress per process of a pool.
CALLS_AHEAD = 2
# Maximum number of calls per process: libraries keep caches, and memory gets fragmented.
MAX_CALLS = 2_000
LENGTH_BYTES = 8
# Repeat the signal: its exception is lost when it is raised in a callback from C or a `__del__`.
REPEAT_SECONDS = 0.1


class LimitExceeded(Exception):
    """The work exceeded a limit, or its subprocess crashed; `str()` is the reason."""


class ProcessPool:
    """Calls a function in at most `processes` processes, each of which starts when it is needed.

    A process is a fork of this one: it has loaded the libraries, and has the function's state.

    work:      function of one argument; it has the state that it had when its process started
    seconds:   processor time for each call
    megabytes: memory of a process, in addition to the memory of this process
    max_calls: maximum number of calls of a process

    Up to CALLS_AHEAD calls of each process are in progress, so that it begins the next call while
    this process is too busy to read its answer. Other calls wait.
    """

    def __init__(
        self,
        work: Callable[[Any], Any],
        processes: int,
        seconds: float,
        megabytes: float,
        max_calls: int = MAX_CALLS,
    ) -> None:
        self._work, self._seconds, self._megabytes = work, seconds, megabytes
        self._most, self._max_calls = processes, max_calls
        self._slots = asyncio.Semaphore(processes * min(CALLS_AHEAD, max_calls))
        self._processes: list[_Process] = []
        self._is_closed = False

    @classmethod
    def forking(cls, seconds: float, megabytes: float) -> Self:
        """Return a pool of which each call is a function without arguments, run in a fork of now.

        Only results and exceptions must be picklable. Changes that the function makes to objects
        are lost.
        """
        return cls(lambda work: work(), MAX_FORKS, seconds, megabytes, max_calls=1)

    async def run(self, argument: Any) -> Any:
        """Return the function's result for an argument, or raise its exception.

        All of these must be picklable; the argument need not be if it is the first of its process.
        Raises LimitExceeded.
        """
        async with self._slots:
            while (answer := await self._answer(argument)) is None:
                pass
        return _result_in(answer)

    async def _answer(self, argument: Any) -> bytes | None:
        """Return the answer of a process; None if another call has ended the process."""
        process, question = self._chosen(argument)
        try:
            answer = await process.ask(question, self._seconds * PATIENCE)
        except _EndedByAnother:
            return None
        except (OSError, EOFError):  # includes TimeoutError
            problem = _problem_of(self._end(process), self._seconds, self._megabytes)
            raise LimitExceeded(problem or LOST) from None
        except BaseException:
            # Its answer must not be read as the answer to the next call.
            self._end(process)
            raise
        if not process.waiting and (process.calls >= self._max_calls or self._is_closed):
            self._processes.remove(process)
            # The end of a process takes milliseconds.
            await asyncio.to_thread(process.end)
        return answer

    def close(self) -> None:
        """End the processes; one that is busy ends after its calls."""
        self._is_closed = True
        for process in [each for each in self._processes if not each.waiting]:
            self._end(process)

    def _chosen(self, argument: Any) -> tuple[_Process, bytes | None]:
        """Return a process for a call, and what to send to it; None: a new one has the argument.

        It is an idle process, a new one, or the one with the fewest calls in progress.
        """
        usable = [each for each in self._processes if each.calls < self._max_calls]
        process = min(usable, key=lambda each: each.waiting, default=None)
        # Those that have had all of their calls end soon.
        if process is None or (process.waiting and len(self._processes) < self._most):
            ours, theirs = socket.socketpair()
            process = _Process(_forked(lambda: self._serve(theirs, argument)), ours)
            theirs.close()
            self._processes.append(process)
            return process, None
        return process, pickle.dumps(argument, pickle.HIGHEST_PROTOCOL)

    def _end(self, process: _Process) -> int:
        """Kill a process, and return its exit code."""
        if process in self._processes:
            self._processes.remove(process)
        return process.end()

    def _serve(self, channel: socket.socket, argument: Any) -> None:
        """Answer calls in the new process until the channel is closed. argument: of the first."""
        _restrict(self._megabytes)
        _release_sockets(channel.fileno())
        with channel.makefile("rwb") as stream:
            while True:
                used = resource.getrusage(resource.RUSAGE_SELF)
                used_seconds = used.ru_utime + used.ru_stime
                _lower(resource.RLIMIT_CPU, math.ceil(used_seconds + self._seconds))
                outcome = self._outcome_of(argument)
                answer = pickle.dumps(outcome, pickle.HIGHEST_PROTOCOL)
                del argument, outcome
                stream.write(len(answer).to_bytes(LENGTH_BYTES) + answer)
                stream.flush()
                if not (length := stream.read(LENGTH_BYTES)):
                    return
                argument = pickle.loads(stream.read(int.from_bytes(length)))

    def _outcome_of(self, argument: Any) -> tuple[Any, Exception | None]:
        """Return the result of a call in a new process, or the exception to raise in its parent."""
        try:
            return self._work(argument), None
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - raised again in the parent process
            return None, error


class _EndedByAnother(Exception):
    """Another call has ended the process, so this one needs a different process."""


class _Process:
    """A process of a pool, as seen by its parent. It answers calls in their order.

    calls, waiting: number of calls so far, and of those in progress
    """

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self._pid, self._channel = pid, channel
        self._channel.setblocking(False)
        self.calls = self.waiting = 0
        # These locks are acquired in the order of the calls.
        self._sending, self._receiving = asyncio.Lock(), asyncio.Lock()
        self._exit_code: int | None = None

    async def ask(self, question: bytes | None, seconds: float) -> bytes:
        """Return the answer to a question, within `seconds` after the previous answer.

        question: None: the process has it

        Raises OSError or EOFError if the process ends during this call or takes longer, and
        _EndedByAnother.
        """
        self.calls, self.waiting = self.calls + 1, self.waiting + 1
        loop = asyncio.get_running_loop()
        try:
            try:
                async with self._sending:
                    self._check()
                    if question is not None:
                        data = len(question).to_bytes(LENGTH_BYTES) + question
                        await loop.sock_sendall(self._channel, data)
            except OSError:
                # The process has ended: wait until the earlier calls have found out why.
                async with self._receiving:
                    raise
            async with self._receiving:
                self._check()
                async with asyncio.timeout(seconds):
                    return await self._received(loop)
        except (OSError, EOFError):
            self._check()
            raise
        finally:
            self.waiting -= 1
            if self._exit_code is not None and not self.waiting:
                self._channel.close()

    def _check(self) -> None:
        if self._exit_code is not None:
            raise _EndedByAnother

    async def _received(self, loop: asyncio.AbstractEventLoop) -> bytes:
        answer, n_bytes = bytearray(), LENGTH_BYTES
        while len(answer) < n_bytes:
            room = min(n_bytes - len(answer), MEGABYTE)
            if not (chunk := await loop.sock_recv(self._channel, room)):
                raise EOFError
            answer += chunk
            if n_bytes == LENGTH_BYTES and len(answer) >= LENGTH_BYTES:
                n_bytes += int.from_bytes(answer[:LENGTH_BYTES])
                if n_bytes > MAX_RESULT_MB * MEGABYTE:
                    raise LimitExceeded(f"the result is larger than {MAX_RESULT_MB} MB")
        return bytes(memoryview(answer)[LENGTH_BYTES:])

    def end(self) -> int:
        """Kill the process, unless it has ended, and return its exit code."""
        if self._exit_code is None:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._exit_code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            if self.waiting:
                # Wakes the calls in progress; the last of them closes the channel.
                with suppress(OSError):
                    self._channel.shutdown(socket.SHUT_RDWR)
            else:
                self._channel.close()
        return self._exit_code


def _release_sockets(but: int) -> None:
    """Release copies of connections, which would stay open when the parent closes them.

    Their numbers stay in use: objects of the parent may still close them.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in [int(file.name) for file in Path("/dev/fd").iterdir()]:
        with suppress(OSError):
            if number != but and stat.S_ISSOCK(os.fstat(number).st_mode):
                os.dup2(nothing, number)


def _problem_of(code: int, seconds: float, megabytes: float) -> str | None:
    """Return the limit that a subprocess with this exit code exceeded; None for 0."""
    if code in OUT_OF_TIME:
        return f"takes longer than {seconds:g} s of processor time"
    if code == OUT_OF_MEMORY:
        return f"takes more than {megabytes:g} MB of memory"
    if code < 0:
        return f"subprocess terminated by {signal.Signals(-code).name}"
    return LOST if code else None


def _forked(work: Callable[[], None]) -> int:
    """Run the work in a fork of this process, and return the pid of the fork.

    `os._exit` always ends the fork here. Otherwise the copy of the crawl would continue.
    """
    with warnings.catch_warnings():
        # Python 3.12 warns that other threads may hold locks. The work does not need any.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except MemoryError:
        code = OUT_OF_MEMORY
    finally:
        os._exit(code)


def _result_in(data: bytes) -> Any:
    """Return the result of work in a subprocess, or raise its exception."""
    result, error = pickle.loads(data)
    if error is not None:
        raise error
    return result


def _restrict(megabytes: float) -> None:
    """Limit the memory that this process may allocate in addition to its current memory.

    It writes no core file.
    """
    # A signal to all processes of a crawl ends it gracefully: calls have to be completed.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _lower(resource.RLIMIT_CORE, 0)
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        # Without /proc, the size of the address space is unknown.
        return
    _lower(resource.RLIMIT_AS, pages * resource.getpagesize() + int(megabytes * MEGABYTE))


def _lower(limit: int, value: int) -> None:
    """Set a soft resource limit, up to the hard limit (negative if there is none)."""
    _, hard = resource.getrlimit(limit)
    resource.setrlimit(limit, (value if hard < 0 else min(value, hard), hard))


class TimeLimitExceeded(Exception):
    """A block took longer than its `time_limit`."""


class _TimeIsUp(BaseException):
    """Raised by the timer. Not an Exception, so that no `except Exception` swallows it."""


_is_active = False


def _on_timer(number: int, frame: FrameType | None) -> None:
    if _is_active:
        raise _TimeIsUp
    signal.setitimer(signal.ITIMER_PROF, 0)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeLimitExceeded when the block has used this many seconds of processor time.

    The limit only applies in the main thread, because Python handles signals there. Within another
    time limit, only the outer limit applies.
    """
    global _is_active  # noqa: PLW0603 - a process has only one profiling timer
    if _is_active or threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGPROF) is not _on_timer:
        signal.signal(signal.SIGPROF, _on_timer)
    _is_active = True
    signal.setitimer(signal.ITIMER_PROF, seconds, REPEAT_SECONDS)
    try:
        try:
            yield
        finally:
            _stop_timer()
    except _TimeIsUp:
        # The signal may have interrupted the first call.
        _stop_timer()
        raise TimeLimitExceeded(f"takes longer than {seconds:g} s of processor time") from None


def _stop_timer() -> None:
    global _is_active  # noqa: PLW0603 - see time_limit
    _is_active = False
    signal.setitimer(signal.ITIMER_PROF, 0)
