"""Server-sent events: a response that sends what changes, until it has lasted long enough.

Browsers connect again after the end of a stream, with the session that is valid then.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from fastapi import HTTPException
from fastapi.encoders import jsonable_encoder
from starlette.responses import StreamingResponse

from crawler.errors import StorageError

# Each stream holds one of the server's connections.
MAX_STREAMS = 16
MAX_SECONDS = 300.0
INTERVAL_SECONDS = 1.0
# A comment in a stream without news shows proxies and the server that it is in use.
KEEP_SECONDS = 15.0
RETRY_MILLISECONDS = 2000
RETRY_LATER = {"Retry-After": "10"}


class Streams:
    """The streams of an app."""

    def __init__(self) -> None:
        self._count = 0
        self._stop = asyncio.Event()

    def end(self) -> None:
        """End all streams, as the app is about to stop."""
        self._stop.set()

    def response(
        self,
        event: str,
        read: Callable[[], Awaitable[Any]],
        interval_seconds: float = INTERVAL_SECONDS,
    ) -> StreamingResponse:
        """Return a stream that sends a value as JSON whenever it has changed.

        read: returns the value; while it raises StorageError, the former value stays

        Raises HTTPException (503) if there are too many streams.
        """
        if self._count >= MAX_STREAMS:
            problem = f"{MAX_STREAMS} live views are open. Close one, or reload this page later"
            raise HTTPException(503, problem, RETRY_LATER)
        return StreamingResponse(
            self._events(event, read, interval_seconds),
            media_type="text/event-stream",
            # Proxies such as nginx would collect the events.
            headers={"X-Accel-Buffering": "no"},
        )

    async def _events(
        self, event: str, read: Callable[[], Awaitable[Any]], interval_seconds: float
    ) -> AsyncIterator[str]:
        self._count += 1
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            yield f"retry: {RETRY_MILLISECONDS}\n\n"
            began = sent_at = time.monotonic()
            sent = ""
            while (now := time.monotonic()) - began < MAX_SECONDS and not self._stop.is_set():
                reading = asyncio.ensure_future(read())
                # Even a cancelled read may end with an error, which asyncio would log.
                reading.add_done_callback(lambda task: task.cancelled() or task.exception())
                try:
                    # A read of an unavailable or busy database must not delay the end of the app.
                    await asyncio.wait({reading, stopped}, return_when=asyncio.FIRST_COMPLETED)
                    if not reading.done():
                        break
                    value = jsonable_encoder(reading.result())
                    text = json.dumps(value, separators=(",", ":"))
                except StorageError:
                    text = sent
                finally:
                    reading.cancel()
                if text != sent:
                    sent, sent_at = text, now
                    yield f"event: {event}\ndata: {text}\n\n"
                elif now - sent_at >= KEEP_SECONDS:
                    sent_at = now
                    yield ": no news\n\n"
                await asyncio.wait({stopped}, timeout=interval_seconds)
        finally:
            stopped.cancel()
            self._count -= 1
