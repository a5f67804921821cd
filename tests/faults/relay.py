"""A relay that can be closed: a TCP port in front of a server's Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

Result = TypeVar("Result")
CHUNK_BYTES = 1 << 16
ANSWER_SECONDS = 10.0


class Relay:
    """Relay data in a separate thread, for the duration of a `with` block.

    port: port on 127.0.0.1; it never changes
    """

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._passes = True
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Close all connections and refuse new ones."""
        self._run(self._close())
        try:
            yield
        finally:
            self._run(self._listen())

    @contextmanager
    def swallowing(self) -> Iterator[None]:
        """Accept connections but discard all data; close them at the end."""
        self._passes = False
        try:
            yield
        finally:
            self._passes = True
            self._run(self._cut())

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_SECONDS)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._cut()

    async def _cut(self) -> None:
        for writer in self._connections.values():
            writer.transport.abort()
        if self._connections:
            await asyncio.wait(list(self._connections))

    async def _connected(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = back
        try:
            # The server may be unavailable, and either side may disconnect.
            with contextlib.suppress(OSError):
                await (self._pass_on(near, back) if self._passes else _drink(near))
        finally:
            del self._connections[task]
            back.transport.abort()

    async def _pass_on(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, there = await asyncio.open_unix_connection(str(self._socket))
        both = [asyncio.create_task(self._pump(*way)) for way in ((near, there), (far, back))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            there.transport.abort()
            for way in both:
                way.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            if self._passes:
                writer.write(data)
                await writer.drain()


async def _drink(reader: asyncio.StreamReader) -> None:
    while await reader.read(CHUNK_BYTES):
        pass
