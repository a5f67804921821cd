"""Shutdown of the web app: open streams and running computations do not delay it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from crawler.web import server
from crawler.web.options import WebOptions
from crawler.web.routes.board import Streams
from crawler.web.site_views import Figures
from tests.integration.harness import Freshet
from tests.integration.web.served import Served

STREAM = b"GET /api/v1/runs/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
# Includes time for the process to exit on a busy machine.
SECONDS = 2.0


async def never() -> Any:
    await asyncio.Event().wait()


async def nothing() -> dict[str, int]:
    return {}


def test_open_streams_do_not_delay_shutdown(freshet: Freshet) -> None:
    served = Served(freshet)
    clients = [served.connect() for _ in range(8)]
    for client in clients:
        client.sendall(STREAM)
        assert client.recv(100).startswith(b"HTTP/1.1 200")
    # A browser with an idle keep-alive connection.
    with httpx.Client(timeout=60) as browser:
        browser.get(served.url)
        began = time.monotonic()
        assert served.stop() == (0, "")
        assert time.monotonic() - began < SECONDS
    for client in clients:
        client.close()


@pytest.mark.parametrize("read", [nothing, never])
def test_stream_ends_even_if_its_value_cannot_be_read(
    read: Callable[[], Awaitable[Any]],
) -> None:
    async def work() -> float:
        streams, options = Streams(), WebOptions(port=0)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "lifespan":
                await receive()
                await send({"type": "lifespan.startup.complete"})
                await receive()
                await send({"type": "lifespan.shutdown.complete"})
                return
            await streams.response("runs", read)(scope, receive, send)

        listener = server.listen(options)
        async with server.served(app, options, listener, stopping=streams.end):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(STREAM)
            await reader.readuntil(b"retry")
            began = time.monotonic()
        seconds = time.monotonic() - began
        writer.close()
        return seconds

    assert asyncio.run(work()) < SECONDS


def test_running_computations_do_not_delay_shutdown() -> None:
    async def work() -> float:
        figures = Figures()
        assert await figures.get("slow", never) is None
        began = time.monotonic()
        await figures.close()
        return time.monotonic() - began

    assert asyncio.run(work()) < 1
