"""Control this process: end asyncio tasks, tune garbage collection, return freed memory."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
from contextlib import suppress
from functools import cache
from typing import Any

logger = logging.getLogger(__name__)
# Time before a task is cancelled again; more than any task needs to clean up.
RETRY_SECONDS = 3.0
MAX_CANCELS = 5
# Thresholds of garbage collection: the usual ones, and those while libraries are loaded, when it is
# rarer but not disabled, because not every Scrapy command calls `collect_again`.
DEFAULTS, LOADING = gc.get_threshold(), (250_000, 5, 5)
# Blocks from this size on are returned when they are freed.
LARGE_BYTES = 1024 * 1024
# Options of mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


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


def spare_ending() -> None:
    """Exempt all objects from the collections at the end of the process, which is about to end."""
    gc.freeze()


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
