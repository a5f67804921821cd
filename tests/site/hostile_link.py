"""One request to the hostile server, and what may be sent for it: any bytes at all."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable

HTML = "text/html; charset=utf-8"
# As much as a client takes in one go; the server waits until it has.
PIECE_BYTES = 65_536


class Link:
    """A request with the connection on which it came.

    sent: bytes written so far      ended: no further request can follow on this connection
    """

    def __init__(self, head: str, writer: asyncio.StreamWriter) -> None:
        lines = head.split("\r\n")
        self.target = lines[0].split(" ")[1]
        # To a proxy whole URLs are sent.
        self.path = re.sub(r"^http://[^/]*", "", self.target).partition("?")[0]
        headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        self.host = headers.get("Host", "")
        self.address, self.port = writer.get_extra_info("sockname")[:2]
        self.sent = 0
        self.ended = False
        self._writer = writer

    async def raw(self, data: bytes) -> None:
        """Send these bytes; raises OSError where the client has gone."""
        self._writer.write(data)
        self.sent += len(data)
        await self._writer.drain()
        # Where nothing has to wait, `drain` lets nobody else do anything.
        await asyncio.sleep(0)

    async def head(self, *headers: str, status: str = "200 OK", kind: str = HTML) -> None:
        """Send a status line and headers, and the end of them."""
        lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", *headers, "", ""]
        await self.raw("\r\n".join(lines).encode("latin-1"))

    async def whole(self, body: bytes, *headers: str, kind: str = HTML) -> None:
        """Send a good answer."""
        await self.head(f"Content-Length: {len(body)}", *headers, kind=kind)
        await self.raw(body)

    async def page(self, html: str, *headers: str) -> None:
        """Send a good page."""
        await self.whole(f"<!DOCTYPE html><main>{html}</main>".encode(), *headers)

    async def forever(self, pieces: Iterable[bytes]) -> None:
        """Send all of them, as fast as they are taken; then nothing more."""
        self.ended = True
        for piece in pieces:
            await self.raw(piece)

    async def drip(self, text: bytes, seconds: float = 1.0) -> None:
        """Send byte by byte, for as long as anyone waits."""
        self.ended = True
        for byte in text:
            await self.raw(bytes([byte]))
            await asyncio.sleep(seconds)

    def close(self) -> None:
        """End the connection after what was sent."""
        self.ended = True


Misbehaviour = Callable[[Link, str], Awaitable[None]]
