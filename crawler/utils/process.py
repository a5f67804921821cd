"""What a process does in the background: tasks that are ended, and memory that is collected."""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import Any

logger = logging.getLogger(__name__)
# Longer than a task needs to clean up after its cancellation.
AGAIN_SECONDS = 3.0
MAX_CANCELS = 5


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait until they have ended; their results and errors are dropped.

    A task is cancelled again after AGAIN_SECONDS: PyMongo turns a cancellation that meets the reset
    of its connections into an error, and `asyncio.wait_for` of Python 3.11 can lose one. Without
    that, a task that retries errors would go on for good.
    """
    for _ in range(MAX_CANCELS):
        pending = [task for task in tasks if not task.done()]
        if not pending:
            break
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=AGAIN_SECONDS)
    for task in tasks:
        if not task.done():
            logger.warning("a task does not end: %s", task.get_name())
        elif not task.cancelled():
            task.exception()


# What Python sets at its start.
USUAL = gc.get_threshold()
# New objects before a collection while libraries are loaded, and collections before an older
# generation is included. It stays on: not every command of Scrapy calls `collect_again`.
LOADING = (50_000, 2, 2)


def spare_loading() -> None:
    """Run the collector seldom until `collect_again` is called."""
    gc.set_threshold(*LOADING)


def collect_again() -> None:
    """Run the collector as usual from now on, and keep what is loaded out of its way."""
    # Without a collection before it: that would look at all of it once more.
    gc.freeze()
    gc.set_threshold(*USUAL)
