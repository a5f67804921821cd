"""Relays to MongoDB that disconnect or pause at a given write."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bson

from tests.faults.relay import CHUNK_BYTES, Relay

HEADER = struct.Struct("<iiii")
OP_MSG = 2013
# After the message header: the flags, and the kind of the first section.
BEFORE_BODY = 5
WRITES = ("insert", "update", "delete", "aggregate")
Wanted = Callable[[str, str, dict[str, Any]], bool]


class Cutter(Relay):
    """Relay messages up to the `nth` write, then close all connections and refuse new ones.

    Writes are counted after `arm`.

    answers: the last write reaches the server, and only its answer is lost
    wanted:  predicate for the writes to count, by command, collection and message; None: all
    seen:    command and collection of each counted write
    """

    def __init__(
        self, socket: Path, nth: int, *, answers: bool, wanted: Wanted | None = None
    ) -> None:
        super().__init__(socket)
        self.seen: list[tuple[str, str]] = []
        self._nth, self._gets_there, self._wanted = nth, answers, wanted
        self._is_armed = False
        self._answered = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None

    def arm(self) -> None:
        """Start counting."""
        self._is_armed = True

    @property
    def is_cut(self) -> bool:
        """Return whether the last write has arrived."""
        return len(self.seen) >= self._nth

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Only the server's end is a Unix socket; the client's peer name is a tuple.
        if isinstance(writer.get_extra_info("peername"), tuple):
            while data := await reader.read(CHUNK_BYTES):
                await self._back(data, writer)
            return
        while True:
            try:
                head = await reader.readexactly(HEADER.size)
                rest = await reader.readexactly(HEADER.unpack(head)[0] - HEADER.size)
            except asyncio.IncompleteReadError:
                return
            if not await self._there(head, rest, writer):
                return

    async def _back(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        if self.is_cut:
            self._answered.set()
        else:
            writer.write(data)
            await writer.drain()

    async def _there(self, head: bytes, rest: bytes, writer: asyncio.StreamWriter) -> bool:
        """Forward a message to the server; return False after the last one."""
        if self.is_cut:
            return False
        is_last = self._counts(head, rest) and self.is_cut
        if not is_last or self._gets_there:
            writer.write(head + rest)
            await writer.drain()
        if is_last:
            if self._gets_there:
                await self._answered.wait()
            self._closing = asyncio.create_task(self._close())
        return not is_last

    def _counts(self, head: bytes, rest: bytes) -> bool:
        if not self._is_armed or HEADER.unpack(head)[3] != OP_MSG or rest[BEFORE_BODY - 1] != 0:
            return False
        size = struct.unpack_from("<i", rest, BEFORE_BODY)[0]
        body = bson.decode(rest[BEFORE_BODY : BEFORE_BODY + size])
        command = next(iter(body))
        if command not in WRITES or (command == "aggregate" and "$merge" not in str(body)):
            return False
        if self._wanted is not None and not self._wanted(command, body[command], body):
            return False
        self.seen.append((command, body[command]))
        return True


class Holder(Cutter):
    """Relay messages up to the `nth` write; hold this write and all later ones until `go_on`.

    The effect is the same as pausing the writing process.
    """

    def __init__(self, socket: Path, nth: int, wanted: Wanted | None = None) -> None:
        super().__init__(socket, nth, answers=True, wanted=wanted)
        self.held = threading.Event()
        self._goes_on = asyncio.Event()

    def __exit__(self, *_: object) -> None:
        # Otherwise, connections could not be closed.
        self.go_on()
        super().__exit__()

    def go_on(self) -> None:
        """Let all messages through."""
        self._loop.call_soon_threadsafe(self._goes_on.set)

    async def _back(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    async def _there(self, head: bytes, rest: bytes, writer: asyncio.StreamWriter) -> bool:
        if self.is_cut or (self._counts(head, rest) and self.is_cut):
            self.held.set()
            await self._goes_on.wait()
        writer.write(head + rest)
        await writer.drain()
        return True
