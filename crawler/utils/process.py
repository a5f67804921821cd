"""Processes: the tasks, memory and identity of this one, and subprocesses that run jobs of an app.

The app sends orders with a JobProcess and receives progress and results, as lines of JSON. The
module that the subprocess runs calls `serve`.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import logging
import os
import platform
import signal
import socket
import sys
import threading
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from crawler import errors
from crawler.errors import FreshetError

logger = logging.getLogger(__name__)
# Time before a task is cancelled again; more than any task needs to clean up.
RETRY_SECONDS = 3.0
MAX_CANCELS = 5
# Thresholds of garbage collection: the usual ones, and those while libraries are loaded, when it is
# rarer but not disabled, because not every Scrapy command calls `collect_again`.
DEFAULTS, LOADING = gc.get_threshold(), (250_000, 5, 5)
PROC = Path("/proc")
# Fields after the name in /proc/PID/stat: the state, and when the process was started.
STATE, STARTED = 0, 19
ENDED = ("Z", "X")
# Blocks of at least this size are returned to the operating system when they are freed.
LARGE_BYTES = 1024 * 1024
# Options of mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
ROOT = Path(__file__).resolve().parents[2]
# Largest result: a budget curve of the most sites, or a simulation with the visits of each week.
MAX_LINE_BYTES = 32_000_000
# Time that a running job has to complete after the app has ended.
END_SECONDS = 2.0

# Exit code of a command that Ctrl-C or SIGTERM interrupted.
INTERRUPTED = 130
Say = Callable[[str], None]
Result = TypeVar("Result")


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended. Their results and errors are ignored.

    Tasks that have not ended after RETRY_SECONDS are cancelled again, because cancellations can get
    lost: PyMongo turns a cancellation during the reset of its connections into an error, and
    `asyncio.wait_for` in Python 3.11 can swallow one. A task that retries after errors would
    otherwise run forever.
    """
    for _ in range(MAX_CANCELS):
        pending = [task for task in tasks if not task.done()]
        if not pending:
            break
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=RETRY_SECONDS)
    for task in tasks:
        if not task.done():
            logger.warning(
                "Task did not end after %d cancellations: %s", MAX_CANCELS, task.get_name()
            )
        elif not task.cancelled():
            # Mark the exception as retrieved, or asyncio would log it.
            task.exception()


def interruptible(work: Coroutine[Any, Any, Result]) -> Result | None:
    """Run a coroutine and return its result; None if Ctrl-C or SIGTERM interrupted it."""

    async def run() -> Result:
        task = asyncio.current_task()
        if task is not None:
            # Signal handlers need Unix and the main thread.
            with suppress(NotImplementedError, RuntimeError, ValueError):
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        return None


def this_process() -> dict[str, Any]:
    """Return the fields that identify this process as an owner in documents."""
    pid = os.getpid()
    return {
        "host": socket.gethostname(), "pid": pid, "place": _place(), "began": process_state(pid)[1],
    }  # fmt: skip


def has_ended(place: str, pid: int, began: str) -> bool:
    """Return whether a process is known to have ended; False for one on another machine."""
    if place != _place():
        return False
    if began:
        # The pid alone does not identify the process: the system reuses pids.
        state, started = process_state(pid)
        if started:
            return started != began or state in ENDED
        # It has ended, or /proc hides it (option `hidepid`) because it belongs to another user.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def _place() -> str:
    """Return the boot and pid namespace of this process, in which its pid is valid."""
    try:
        booted = (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{booted} {(PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return platform.node()


def process_state(pid: int) -> tuple[str, str]:
    """Return state and start time of a process; both empty if /proc does not show it."""
    try:
        stat = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", ""
    # The process name before the state may hold spaces and parentheses.
    fields = stat.rpartition(")")[2].split()
    return fields[STATE], fields[STARTED]


def report_interrupts(program: str | None = None) -> None:
    """Print one line, not a traceback, if Ctrl-C ends this process; it then ends by SIGINT.

    Before, asyncio cancels the tasks of the command, which release leases and remove drafts.

    program: name in the line; None: the command of Scrapy in the arguments
    """
    if program is None:
        program = " ".join(["scrapy", *(word for word in sys.argv[1:2] if word.isalpha())])
    usual = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            usual(kind, error, trace)
        # None if the process was started without a standard error.
        elif sys.stderr is not None:
            # To a terminal, which has just shown ^C, on a line of its own.
            start = "\n" if sys.stderr.isatty() else ""
            sys.stderr.write(f"{start}{program}: interrupted\n")

    sys.excepthook = hook


def spare_loading() -> None:
    """Run garbage collection rarely until `collect_again` is called, to load libraries faster.

    All objects loaded so far are exempt: Scrapy alone has a hundred thousand.
    """
    gc.freeze()
    gc.set_threshold(*LOADING)


def collect_again() -> None:
    """Restore normal garbage collection, and exempt all objects loaded so far."""
    # Without gc.collect() first: it would traverse all loaded objects once more.
    gc.freeze()
    gc.set_threshold(*DEFAULTS)


@cache
def return_large_blocks() -> None:
    """Make the C library return large blocks to the operating system when they are freed.

    By default the GNU C library raises its threshold with each freed block, so that later blocks
    fragment the heap. Call this only before work with large blocks: other processes run faster with
    the default.
    """
    with suppress(AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        # Setting one threshold stops the library from adapting the other.
        library.mallopt(M_TRIM_THRESHOLD, 8 * LARGE_BYTES)


class JobCrashed(Exception):
    """Raised if the subprocess ended without a result; the log has the details."""


class JobProcess:
    """Sends orders to a subprocess, `python -m MODULE`, one at a time.

    idle_seconds:  the subprocess starts with the first order, and ends this long after the last one
    grace_seconds: time that a job has to complete when it is cancelled
    """

    def __init__(
        self, module: str, idle_seconds: float = 0.0, grace_seconds: float = END_SECONDS
    ) -> None:
        self.process: Process | None = None
        self._module = module
        self._idle_seconds, self._grace_seconds = idle_seconds, grace_seconds
        self._lock = asyncio.Lock()
        self._idle: asyncio.Task[None] | None = None

    async def run(self, order: str, seconds: float, say: Say = lambda _: None) -> Any:
        """Send an order, and return its result.

        order: JSON in one line
        say:   receives each text of progress

        Raises the FreshetError of the job, TimeoutError after `seconds`, JobCrashed, and ValueError
        if the result is larger than MAX_LINE_BYTES.
        """
        async with self._lock:
            if self._idle is not None:
                self._idle.cancel()
            try:
                async with asyncio.timeout(seconds):
                    message = await self._answer(order, say)
            except BaseException:
                # The answer to this order must not be read as the answer to the next one.
                await self._end(self._grace_seconds)
                raise
            if self._idle_seconds:
                self._idle = asyncio.create_task(self._end_when_idle())
            else:
                await self._end(END_SECONDS)
        if "error" in message:
            raise getattr(errors, message["type"], FreshetError)(message["error"])
        return message["result"]

    async def close(self) -> None:
        """End the subprocess, after a running job."""
        if self._idle is not None:
            await end_tasks(self._idle)
        async with self._lock:
            await self._end(END_SECONDS)

    async def _answer(self, order: str, say: Say) -> dict[str, Any]:
        """Send an order, and return the message that ends its job."""
        if self.process is None or self.process.returncode is not None:
            paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
            # In its own session: Ctrl+C at a terminal reaches only the app, which ends the job.
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", self._module, stdin=PIPE, stdout=PIPE, limit=MAX_LINE_BYTES,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}, start_new_session=True,
            )  # fmt: skip
        source, sink = self.process.stdout, self.process.stdin
        assert source is not None
        assert sink is not None
        with suppress(ConnectionError):
            sink.write(order.encode() + b"\n")
            await sink.drain()
            while line := await source.readline():
                message: dict[str, Any] = await asyncio.to_thread(json.loads, line)
                if "progress" not in message:
                    return message
                say(message["progress"])
        raise JobCrashed("the job ended unexpectedly; see the log")

    async def _end_when_idle(self) -> None:
        await asyncio.sleep(self._idle_seconds)
        async with self._lock:
            await self._end(END_SECONDS)

    async def _end(self, seconds: float) -> None:
        """End the subprocess; it is killed if it has not ended after `seconds`."""
        process, self.process = self.process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), seconds)
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def serve(run: Callable[[bytes, Say], Awaitable[Any]]) -> None:
    """Run the orders on standard input until its end, and write their messages to standard output.

    run: returns the result of an order, as JSON values and times; its second argument receives
         texts of progress

    Errors other than FreshetError end the process. A job that is running when the input ends has
    END_SECONDS to complete.
    """
    orders: asyncio.Queue[bytes] = asyncio.Queue(1)
    reading = (asyncio.get_running_loop(), orders)
    threading.Thread(target=_read_orders, args=reading, daemon=True).start()
    while order := await orders.get():
        try:
            _send({"result": await run(order, lambda text: _send({"progress": text}))})
        except FreshetError as error:
            _send({"error": str(error), "type": type(error).__name__})


def _read_orders(loop: asyncio.AbstractEventLoop, orders: asyncio.Queue[bytes]) -> None:
    # Unbuffered: a thread that waits for a buffered reader can crash the interpreter at its exit.
    with open(0, "rb", buffering=0, closefd=False) as source:
        for line in source:
            asyncio.run_coroutine_threadsafe(orders.put(line), loop).result()
    asyncio.run_coroutine_threadsafe(orders.put(b""), loop)
    time.sleep(END_SECONDS)
    os._exit(1)


def _send(message: dict[str, Any]) -> None:
    """Write a message as a line of JSON, with times in ISO 8601."""
    sys.stdout.write(json.dumps(message, default=lambda at: at.isoformat()) + "\n")
    sys.stdout.flush()
