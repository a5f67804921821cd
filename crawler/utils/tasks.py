"""Tasks of the event loop: how they are ended."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

logger = logging.getLogger(__name__)
# Longer than a task needs to clean up after its cancellation.
AGAIN_SECONDS = 3.0
MAX_CANCELS = 5


async def end(*tasks: asyncio.Task[Any]) -> None:
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
