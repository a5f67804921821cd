"""A request to the hostile server, and methods that send arbitrary bytes in response."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable

HTML = "text/html; charset=utf-8"
# As much as a client reads at a time; the server waits until the client has read it.
PIECE_BYTES = 65_536


class Link:
    """A request with its connection.

    sent:  number of bytes written so far
    ended: no further request can follow on this connection
    """

    def __init__(self, head: str, writer: asyncio.StreamWriter) -> None:
        lines = head.split("\r\n")
        self.target = lines[0].split(" ")[1]
        # A client sends absolute URLs to a proxy.
        self.path = re.sub(r"^http://[^/]*", "", self.target).partition("?")[0]
        headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        self.host = headers.get("Host", "")
        self.address, self.port = writer.get_extra_info("sockname")[:2]
        self.sent = 0
        self.ended = False
        self._writer = writer

    async def raw(self, data: bytes) -> None:
        """Send these bytes; raises OSError if the client has disconnected."""
        self._writer.write(data)
        self.sent += len(data)
        await self._writer.drain()
        # If there is nothing to wait for, `drain` does not yield to other tasks.
        await asyncio.sleep(0)

    async def head(self, *headers: str, status: str = "200 OK", kind: str = HTML) -> None:
        """Send a status line and headers, including the empty line at the end."""
        lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", *headers, "", ""]
        await self.raw("\r\n".join(lines).encode("latin-1"))

    async def whole(self, body: bytes, *headers: str, kind: str = HTML) -> None:
        """Send a valid answer."""
        await self.head(f"Content-Length: {len(body)}", *headers, kind=kind)
        await self.raw(body)

    async def page(self, html: str, *headers: str) -> None:
        """Send a valid page."""
        await self.whole(f"<!DOCTYPE html><main>{html}</main>".encode(), *headers)

    async def forever(self, pieces: Iterable[bytes]) -> None:
        """Send all pieces as fast as the client reads them; the connection then ends."""
        self.ended = True
        for piece in pieces:
            await self.raw(piece)

    async def drip(self, text: bytes, seconds: float = 1.0) -> None:
        """Send byte by byte until the client disconnects."""
        self.ended = True
        for byte in text:
            await self.raw(bytes([byte]))
            await asyncio.sleep(seconds)

    def close(self) -> None:
        """Close the connection after the pending data."""
        self.ended = True


Misbehaviour = Callable[[Link, str], Awaitable[None]]
