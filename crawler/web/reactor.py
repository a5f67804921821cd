"""Runs a coroutine in Twisted's reactor, for requests to hubs, which use Twisted's agent."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_in_reactor(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that needs Twisted's reactor; return its result or raise its error."""
    from twisted.internet import asyncioreactor

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    asyncioreactor.install(loop)  # type: ignore[no-untyped-call]
    from twisted.internet import reactor as installed

    reactor: Any = installed
    task = loop.create_task(work)
    task.add_done_callback(lambda _: reactor.stop())
    reactor.run(installSignalHandlers=False)
    return task.result()
