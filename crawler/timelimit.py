"""A limit on the processor time of what runs in the main thread, such as a search that never ends.

The kernel sends a signal when the time is used up. Python's regular expressions look for signals
as they work, like all of Python's own code; a library in C goes on until it returns.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Again and again, as the first may come where nobody can hear it.
REPEAT_SECONDS = 0.1


class TooLong(Exception):
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
    """Raises TooLong when what stands in the block has used so many seconds of processor time.

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
            _end()
    except _Up:
        # It may have come before the timer was stopped.
        _end()
        raise TooLong(f"takes longer than {seconds:g} s of processor time") from None


def _begin(seconds: float) -> None:
    global _is_on  # noqa: PLW0603 - there is one timer in a process, and one who sets it
    if signal.getsignal(signal.SIGPROF) is not _signalled:
        signal.signal(signal.SIGPROF, _signalled)
    _is_on = True
    signal.setitimer(signal.ITIMER_PROF, seconds, REPEAT_SECONDS)


def _end() -> None:
    global _is_on  # noqa: PLW0603 - as above
    _is_on = False
    signal.setitimer(signal.ITIMER_PROF, 0)
