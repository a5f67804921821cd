"""Calls that may block for ever, in threads that nobody waits for at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import Any, TypeVar

Result = TypeVar("Result")


async def in_thread(call: Callable[[], Result], seconds: float) -> Result:
    """The result of a call; TimeoutError where it takes longer, and then it is left to itself.

    The threads of an executor would be waited for when the process ends; these are not.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(error: BaseException | None, result: Any = None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        try:
            settled = partial(settle, None, call())
        except BaseException as error:  # noqa: BLE001 - whatever it is, who waits has to hear it
            settled = partial(settle, error)
        # The loop may have ended meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settled)

    Thread(target=work, name="query", daemon=True).start()
    async with asyncio.timeout(seconds):
        return await future
