"""Work in a process of its own, which may take so much time and memory and no more.

A page can keep libraries in C busy for hours, or make them take all memory, and nothing in their
own process can stop them. A copy of this process (fork) is ended by the kernel.
"""

from __future__ import annotations

import asyncio
import math
import os
import pickle
import resource
import select
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

from lxml import etree
from scrapy.http import Response, TextResponse

Result = TypeVar("Result")
MAX_PROCESSES = 2
MEGABYTE = 1024 * 1024
CHUNK_BYTES = MEGABYTE
MAX_RESULT_MB = 64
# A busy machine gives a process a tenth of its time.
PATIENCE = 10
OUT_OF_TIME = (-signal.SIGXCPU, -signal.SIGKILL)
OUT_OF_MEMORY = 3


class LimitExceeded(Exception):
    """The work took more than it may, or broke its process; `str()` says so."""


class Sandbox:
    """Does work in other processes, a few at a time.

    seconds:   of processor time
    megabytes: of memory, besides what this process has
    """

    def __init__(self, seconds: float, megabytes: float) -> None:
        self._seconds, self._megabytes = seconds, megabytes
        self._places = asyncio.Semaphore(MAX_PROCESSES)

    async def do(self, work: Callable[[], Result]) -> Result:
        """The result of some work, or its exception, which travel as a pickle; raises LimitExceeded.

        What the work changes in its process stays there.
        """
        async with self._places:
            pid, pipe = self._begin(work)
            try:
                data, code = await asyncio.to_thread(_end, pid, pipe, self._seconds * PATIENCE)
            except asyncio.CancelledError:
                os.kill(pid, signal.SIGKILL)
                raise
        if problem := self._problem(data, code):
            raise LimitExceeded(problem)
        result, error = pickle.loads(data)
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return] # a pickle is anything

    def _begin(self, work: Callable[[], Any]) -> tuple[int, int]:
        """Start the process; its number, and where to read what comes of it."""
        here, there = os.pipe()
        with warnings.catch_warnings():
            # Python 3.12 warns of locks that other threads may hold; the work needs none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            self._work(work, there)
        os.close(there)
        return pid, here

    def _work(self, work: Callable[[], Any], pipe: int) -> NoReturn:
        """In the new process: nothing of the crawl may go on in it, whatever happens."""
        code = 1
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            _lower(resource.RLIMIT_CPU, math.ceil(self._seconds))
            _lower(resource.RLIMIT_CORE, 0)
            if (own_bytes := _own_bytes()) is not None:
                _lower(resource.RLIMIT_AS, own_bytes + int(self._megabytes * MEGABYTE))
            with os.fdopen(pipe, "wb") as out:
                out.write(pickle.dumps(_done(work)))
            code = 0
        except MemoryError:
            code = OUT_OF_MEMORY
        finally:
            os._exit(code)

    def _problem(self, data: bytes, code: int) -> str | None:
        if len(data) > MAX_RESULT_MB * MEGABYTE:
            return f"what is read of it is larger than {MAX_RESULT_MB} MB"
        if code in OUT_OF_TIME:
            return f"takes longer than {self._seconds:g} s of processor time"
        if code == OUT_OF_MEMORY:
            return f"takes more than {self._megabytes:g} MB of memory"
        if code < 0:
            return f"its reader was ended by {signal.Signals(-code).name}"
        return "what is read of it cannot be handed over" if code else None


def _done(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return work(), None
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - who asked for it gets it
        return None, error


def _lower(limit: int, value: int) -> None:
    _, most = resource.getrlimit(limit)
    resource.setrlimit(limit, (value if most < 0 else min(value, most), most))


def _own_bytes() -> int | None:
    """Bytes of addresses that this process has; None where the system does not say it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return None
    return pages * resource.getpagesize()


def _end(pid: int, pipe: int, seconds: float) -> tuple[bytes, int]:
    """What a process writes, and its exit code; it is ended where it takes too long or too much."""
    data, ends = bytearray(), time.monotonic() + seconds
    try:
        while len(data) <= MAX_RESULT_MB * MEGABYTE:
            ready, _, _ = select.select([pipe], [], [], max(0.0, ends - time.monotonic()))
            chunk = os.read(pipe, CHUNK_BYTES) if ready else None
            if not chunk:
                break
            data += chunk
        if not ready or chunk:
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(pipe)
    return bytes(data), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# 300 kB have room for 80,000 attributes of one tag, which take libxml2 about 9 s.
LARGE_BYTES = 300_000
ZIPPED_BYTES = 20_000
GZIP_MAGIC = b"\x1f\x8b"
MANY_TAGS = 20_000
# So many may stand in any way: `div div` takes 6 s at worst.
FEW_TAGS = 5_000
# Of real pages hardly one is deeper than 40.
IS_DEEP = etree.XPath(f"boolean({'/*' * 51})")
# libxml2 reads no further than 2,048.
MAX_DEPTH = 2_000
NO_MEMORY = etree.ErrorTypes.ERR_NO_MEMORY


def is_heavy(response: Response) -> bool:
    """Whether reading a response may take long; False for nearly all."""
    body = response.body
    if len(body) > (ZIPPED_BYTES if body.startswith(GZIP_MAGIC) else LARGE_BYTES):
        return True
    tags = body.count(b"<")
    if tags <= FEW_TAGS or not isinstance(response, TextResponse):
        return False
    return tags > MANY_TAGS or _is_deep(response)


def is_truncated(page: TextResponse) -> bool:
    """Whether a page is nested so deeply that the rest of it is lost."""
    try:
        node, depth = page.selector.root, 1
    except ValueError:  # a base that is no URL
        return False
    while isinstance(node, etree._Element) and len(node):
        node, depth = node[-1], depth + 1
    return depth >= MAX_DEPTH


def out_of_memory(error: Exception) -> bool:
    """Whether an error while a page was read says that there was no memory left."""
    of_lxml = isinstance(error, etree.ParseError) and getattr(error, "code", None) == NO_MEMORY
    return of_lxml or isinstance(error, MemoryError)


def _is_deep(page: TextResponse) -> bool:
    try:
        root = page.selector.root
    except ValueError:
        return True
    return isinstance(root, etree._Element) and bool(IS_DEEP(root))


# Again and again, as the first may come where nobody can hear it.
REPEAT_SECONDS = 0.1


class TimeLimitExceeded(Exception):
    """What was to be done took longer than it may."""


class _Up(BaseException):
    """The time is up; no `except Exception` on the way keeps it."""


_is_on = False


def _signalled(number: int, frame: FrameType | None) -> None:
    if _is_on:
        raise _Up
    signal.setitimer(signal.ITIMER_PROF, 0)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeLimitExceeded when what stands in the block has used so many seconds of processor time.

    In other threads than the main one there is no limit, as signals do not reach them; within
    another limit that one holds.
    """
    if _is_on or threading.current_thread() is not threading.main_thread():
        yield
        return
    _begin(seconds)
    try:
        try:
            yield
        finally:
            _end_timelimit()
    except _Up:
        # It may have come before the timer was stopped.
        _end_timelimit()
        raise TimeLimitExceeded(f"takes longer than {seconds:g} s of processor time") from None


def _begin(seconds: float) -> None:
    global _is_on  # noqa: PLW0603 - there is one timer in a process, and one who sets it
    if signal.getsignal(signal.SIGPROF) is not _signalled:
        signal.signal(signal.SIGPROF, _signalled)
    _is_on = True
    signal.setitimer(signal.ITIMER_PROF, seconds, REPEAT_SECONDS)


def _end_timelimit() -> None:
    global _is_on  # noqa: PLW0603 - as above
    _is_on = False
    signal.setitimer(signal.ITIMER_PROF, 0)
