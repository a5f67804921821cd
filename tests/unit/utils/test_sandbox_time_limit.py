"""CPU time limits: endless work is stopped, and later work is not affected."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from collections.abc import Callable

import pytest

from crawler.utils.sandbox import TimeLimitExceeded, time_limit

# The time doubles with each character.
ENDLESS = (r"(\w+/?)+$", f"/{'a' * 60}!")


def endless() -> None:
    """Run an endless search, and start it again after each error."""
    while True:
        with contextlib.suppress(Exception):
            re.search(*ENDLESS)


def limited(work: Callable[[], object], seconds: float) -> None:
    """Run `work` under a time limit."""
    with time_limit(seconds):
        work()


def test_endless_search_is_stopped() -> None:
    with pytest.raises(TimeLimitExceeded, match=r"takes longer than 0.2 s of processor time"):
        limited(lambda: re.search(*ENDLESS), 0.2)


def test_time_limit_cannot_be_suppressed() -> None:
    with pytest.raises(TimeLimitExceeded):
        limited(endless, 0.2)


def test_work_in_time_is_not_affected() -> None:
    with time_limit(60):
        value = 1
    assert value == 1
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_error_within_time_limit_is_raised() -> None:
    with pytest.raises(KeyError), time_limit(60):
        raise KeyError
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_late_signal_after_the_block_is_ignored() -> None:
    with pytest.raises(TimeLimitExceeded):
        limited(endless, 0.05)
    signal.raise_signal(signal.SIGPROF)
    ends = time.process_time() + 0.3
    while time.process_time() < ends:
        pass


def test_other_threads_have_no_limit() -> None:
    done = []

    def work() -> None:
        with time_limit(0.01):
            ends = time.thread_time() + 0.1
            while time.thread_time() < ends:
                pass
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
