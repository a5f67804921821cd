"""Twisted's reactor for a command that serves: one coroutine is its whole life."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from twisted.internet import asyncioreactor

Result = TypeVar("Result")


def run_in_reactor(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine that needs Twisted's reactor; raises what it raises."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    asyncioreactor.install(loop)  # type: ignore[no-untyped-call]
    from twisted.internet import reactor as installed

    reactor: Any = installed
    task = loop.create_task(work)
    task.add_done_callback(lambda _: reactor.stop())
    reactor.run(installSignalHandlers=False)
    return task.result()
