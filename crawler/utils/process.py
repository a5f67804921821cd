"""End asyncio tasks reliably, and tune garbage collection while libraries are loaded."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

logger = logging.getLogger(__name__)
# Time before a task is cancelled again; more than any task needs to clean up.
RETRY_SECONDS = 3.0
MAX_CANCELS = 5


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


# Python's default thresholds.
DEFAULTS = gc.get_threshold()
# Thresholds while libraries are loaded. Collection is rarer, but not disabled, because not every
# Scrapy command calls `collect_again`.
LOADING = (250_000, 5, 5)


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
