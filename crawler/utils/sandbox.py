"""Limit the time and memory of work on untrusted input.

A hostile page can keep C libraries busy for hours or make them allocate all memory. Nothing in the
same process can stop such a library, but the kernel can terminate a forked copy of the process.

`Sandbox` forks a subprocess with limits for each piece of work. `ProcessPool` keeps its processes,
which is faster and uses more than one processor. `is_heavy` finds the pages that need a sandbox.
`time_limit` interrupts Python code in this process.
"""

from __future__ import annotations

import asyncio
import math
import os
import pickle
import resource
import select
import signal
import socket
import stat
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from lxml import etree
from scrapy.http import Response, TextResponse

Result = TypeVar("Result")
# Concurrent subprocesses of one Sandbox.
MAX_PROCESSES = 2
MEGABYTE = 1024 * 1024
CHUNK_BYTES = MEGABYTE
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


class LimitExceeded(Exception):
    """The work exceeded a limit, or its subprocess crashed; `str()` is the reason."""


class Sandbox:
    """Runs work in subprocesses, at most MAX_PROCESSES at a time.

    seconds:   processor time for each piece of work
    megabytes: memory for each piece of work, in addition to the memory of this process
    """

    def __init__(self, seconds: float, megabytes: float) -> None:
        self._seconds, self._megabytes = seconds, megabytes
        self._slots = asyncio.Semaphore(MAX_PROCESSES)

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run the work in a subprocess, and return its result or raise its exception.

        Both must be picklable. Changes that the work makes to objects are lost. Raises
        LimitExceeded.
        """
        async with self._slots:
            pipe, write_end = os.pipe()
            pid = _forked(lambda: self._write_outcome(work, write_end))
            os.close(write_end)
            try:
                data, code = await asyncio.to_thread(
                    _read_result, pid, pipe, self._seconds * PATIENCE
                )
            except asyncio.CancelledError:
                # The thread may have waited for its end already.
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                raise
        if problem := self._problem(data, code):
            raise LimitExceeded(problem)
        result: Result = _result_in(data)
        return result

    def _write_outcome(self, work: Callable[[], Any], pipe: int) -> None:
        """Run the work in the subprocess, and write its outcome to the pipe."""
        _lower(resource.RLIMIT_CPU, math.ceil(self._seconds))
        _restrict(self._megabytes, signal.SIG_DFL)
        outcome = _outcome_of(work)
        with os.fdopen(pipe, "wb") as out:
            out.write(pickle.dumps(outcome))

    def _problem(self, data: bytes, code: int) -> str | None:
        if len(data) > MAX_RESULT_MB * MEGABYTE:
            return f"the result is larger than {MAX_RESULT_MB} MB"
        return _problem_of(code, self._seconds, self._megabytes)


class ProcessPool:
    """Calls a function in at most `processes` processes, each of which starts when it is needed.

    A process is a fork of this one: it has loaded the libraries, and has the function's state.

    work:      function of one argument; it has the state that it had when its process started
    seconds:   processor time for each call
    megabytes: memory of a process, in addition to the memory of this process

    Up to CALLS_AHEAD calls of each process are in progress, so that it begins the next call while
    this process is too busy to read its answer. Other calls wait.
    """

    def __init__(
        self, work: Callable[[Any], Any], processes: int, seconds: float, megabytes: float
    ) -> None:
        self._work, self._seconds, self._megabytes = work, seconds, megabytes
        self._most = processes
        self._slots = asyncio.Semaphore(processes * CALLS_AHEAD)
        self._processes: list[_Process] = []
        self._is_closed = False

    async def run(self, argument: Any) -> Any:
        """Return the function's result for an argument, or raise its exception.

        All of these must be picklable. Raises LimitExceeded.
        """
        async with self._slots:
            question = pickle.dumps(argument, pickle.HIGHEST_PROTOCOL)
            while (answer := await self._answer(question)) is None:
                pass
        return _result_in(answer)

    async def _answer(self, question: bytes) -> bytes | None:
        """Return the answer of a process; None if another call has ended the process."""
        process = self._chosen()
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
        if not process.waiting and (process.calls >= MAX_CALLS or self._is_closed):
            self._end(process)
        return answer

    def close(self) -> None:
        """End the processes; one that is busy ends after its calls."""
        self._is_closed = True
        for process in [each for each in self._processes if not each.waiting]:
            self._end(process)

    def _chosen(self) -> _Process:
        """Return an idle process, a new one, or the one with the fewest calls in progress."""
        usable = [each for each in self._processes if each.calls < MAX_CALLS]
        process = min(usable, key=lambda each: each.waiting, default=None)
        # Those that have reached MAX_CALLS end soon.
        if process is None or (process.waiting and len(self._processes) < self._most):
            ours, theirs = socket.socketpair()
            process = _Process(_forked(lambda: self._serve(theirs)), ours)
            theirs.close()
            self._processes.append(process)
        return process

    def _end(self, process: _Process) -> int:
        """Kill a process, and return its exit code."""
        if process in self._processes:
            self._processes.remove(process)
        return process.end()

    def _serve(self, channel: socket.socket) -> None:
        """Answer calls in the new process until the channel is closed."""
        # A signal to all processes of a crawl ends it gracefully: calls have to be completed.
        _restrict(self._megabytes, signal.SIG_IGN)
        _release_sockets(channel.fileno())
        with channel.makefile("rwb") as stream:
            while length := stream.read(LENGTH_BYTES):
                argument = pickle.loads(stream.read(int.from_bytes(length)))
                used = resource.getrusage(resource.RUSAGE_SELF)
                used_seconds = used.ru_utime + used.ru_stime
                _lower(resource.RLIMIT_CPU, math.ceil(used_seconds + self._seconds))
                outcome = _outcome_of(lambda: self._work(argument))  # noqa: B023 - called here
                answer = pickle.dumps(outcome, pickle.HIGHEST_PROTOCOL)
                del argument, outcome
                stream.write(len(answer).to_bytes(LENGTH_BYTES) + answer)
                stream.flush()


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

    async def ask(self, question: bytes, seconds: float) -> bytes:
        """Return the answer to a question, within `seconds` after the previous answer.

        Raises OSError or EOFError if the process ends during this call or takes longer, and
        _EndedByAnother.
        """
        self.calls, self.waiting = self.calls + 1, self.waiting + 1
        loop = asyncio.get_running_loop()
        try:
            try:
                async with self._sending:
                    self._check()
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


def _outcome_of(work: Callable[[], Result]) -> tuple[Result | None, Exception | None]:
    """Return the result of the work in a subprocess, or the exception to raise in its parent."""
    try:
        return work(), None
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - raised again in the parent process
        return None, error


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


def _restrict(megabytes: float, on_signal: signal.Handlers) -> None:
    """Limit the memory that this process may allocate in addition to its current memory.

    It writes no core file. on_signal: what SIGINT and SIGTERM do
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
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


def _read_result(pid: int, pipe: int, seconds: float) -> tuple[bytes, int]:
    """Return the output of a subprocess and its exit code.

    The subprocess is killed when it takes longer than `seconds` or writes too much.
    """
    data, deadline = bytearray(), time.monotonic() + seconds
    # select() would reject the numbers of files from 1,024 on.
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    try:
        while len(data) <= MAX_RESULT_MB * MEGABYTE:
            ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
            chunk = os.read(pipe, CHUNK_BYTES) if ready else None
            if not chunk:
                break
            data += chunk
        if not ready or chunk:
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(pipe)
    return bytes(data), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# Larger pages are heavy. 300 kB is enough for a tag with 80,000 attributes, which takes libxml2
# about 9 s to parse.
LARGE_BYTES = 300_000
ZIPPED_BYTES = 20_000
GZIP_MAGIC = b"\x1f\x8b"
MANY_TAGS = 20_000
# Any arrangement of this many tags is harmless: the selector `div div` takes 6 s at worst.
FEW_TAGS = 5_000
# True for pages with elements more than 50 levels deep. Hardly any real page exceeds 40 levels.
IS_DEEP = etree.XPath(f"boolean({'/*' * 51})")
# libxml2 drops the content of elements more than 2,048 levels deep.
MAX_DEPTH = 2_000
NO_MEMORY = etree.ErrorTypes.ERR_NO_MEMORY


def is_heavy(response: Response) -> bool:
    """Return True if a response may take long to parse, so that it needs a sandbox."""
    body = response.body
    if len(body) > (ZIPPED_BYTES if body.startswith(GZIP_MAGIC) else LARGE_BYTES):
        return True
    tags = body.count(b"<")
    if tags <= FEW_TAGS or not isinstance(response, TextResponse):
        return False
    if tags > MANY_TAGS:
        return True
    try:
        root = response.selector.root
    except ValueError:
        return True
    return isinstance(root, etree._Element) and bool(IS_DEEP(root))


def is_truncated(page: TextResponse) -> bool:
    """Return True if a page is nested so deeply that the parser drops some of its content."""
    try:
        node, depth = page.selector.root, 1
    except ValueError:  # parsel rejects a <base> with an invalid URL
        return False
    while isinstance(node, etree._Element) and len(node):
        node, depth = node[-1], depth + 1
    return depth >= MAX_DEPTH


def out_of_memory(error: Exception) -> bool:
    """Return True if a page could not be parsed because memory ran out."""
    in_lxml = isinstance(error, etree.ParseError) and getattr(error, "code", None) == NO_MEMORY
    return in_lxml or isinstance(error, MemoryError)


# Repeat the signal: its exception is lost when it is raised in a callback from C or a `__del__`.
REPEAT_SECONDS = 0.1


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
