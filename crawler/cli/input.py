"""Bytes of a file or of standard input as they come, unpacked."""

from __future__ import annotations

import asyncio
import bz2
import io
import lzma
import os
import select
import sys
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

from crawler.errors import ConfigError

STDIN = "-"
# So little of packed data that it fits into memory whatever it holds.
CHUNK_BYTES, PACKED_BYTES = 1 << 18, 1 << 14
BROKEN = (EOFError, zlib.error, lzma.LZMAError)


class Stream(Protocol):
    """One packed stream, as the standard library unpacks it."""

    @property
    def eof(self) -> bool:
        """Whether it has come to its end."""

    @property
    def unused_data(self) -> bytes:
        """What stands behind its end."""

    def decompress(self, data: bytes, /) -> bytes:
        """What can be unpacked with this."""


PACKED: dict[bytes, Callable[[], Stream]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(31),
    b"\xfd7zXZ\x00": lzma.LZMADecompressor,
    b"BZh": bz2.BZ2Decompressor,
}
REFUSED = {
    b"\x28\xb5\x2f\xfd": "packed by zstd (zstd -dc FILE | scrapy duplicates check -)",
    b"PK\x03\x04": "a zip archive (unzip -p FILE | scrapy duplicates check -)",
    b"\xff\xfe": "UTF-16, not UTF-8 (iconv -f utf-16 -t utf-8 FILE makes it so)",
    b"\xfe\xff": "UTF-16, not UTF-8 (iconv -f utf-16 -t utf-8 FILE makes it so)",
}


class Incoming:
    """A file that is read once. name: what to call it."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.name = name
        self._file = file
        try:
            self._descriptor: int | None = file.fileno()
        except io.UnsupportedOperation:
            self._descriptor = None

    def waits(self) -> bool:
        """Whether nothing more is there at this moment: its writer takes its time."""
        if self._descriptor is None:
            return False
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return not poll.poll(0)

    async def chunks(self) -> AsyncIterator[bytes]:
        """All that comes, unpacked; ConfigError where it cannot be read or is no text."""
        with explained(self.name):
            first = await self._read(PACKED_BYTES)
            for mark, what in REFUSED.items():
                if first.startswith(mark):
                    raise ConfigError(f"{self.name}: {what}")
            make = next((PACKED[mark] for mark in PACKED if first.startswith(mark)), None)
            unpack = _Plain() if make is None else _Packed(make)
            size = CHUNK_BYTES if make is None else PACKED_BYTES
            chunk = first
            while chunk:
                for part in unpack.of(chunk):
                    yield part
                chunk = await self._read(size)
            unpack.end()

    async def _read(self, size: int) -> bytes:
        """Some bytes; none at the end. Ctrl-C ends the wait for them."""
        if self._descriptor is None:
            return self._file.read(size)
        while True:
            await _readable(self._descriptor)
            try:
                return os.read(self._descriptor, size)
            except BlockingIOError:
                await asyncio.sleep(0)


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(descriptor, lambda: None if ready.done() else ready.set_result(None))
    except PermissionError:  # a file is readable at any time
        return
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


class _Plain:
    def of(self, data: bytes) -> Iterator[bytes]:
        yield data

    def end(self) -> None:
        pass


class _Packed:
    """Unpacks streams, one after the other."""

    def __init__(self, make: Callable[[], Stream]) -> None:
        self._make = make
        self._stream: Stream | None = None

    def of(self, data: bytes) -> Iterator[bytes]:
        while data:
            self._stream = self._stream or self._make()
            yield self._stream.decompress(data)
            if not self._stream.eof:
                return
            # Zeros may fill up the space behind a stream.
            data, self._stream = self._stream.unused_data.lstrip(b"\0"), None

    def end(self) -> None:
        if self._stream is not None:
            raise EOFError


@contextmanager
def opened_input(given: str) -> Iterator[Incoming]:
    """A file by its path, or standard input. Raises ConfigError where there is none."""
    if given == STDIN:
        if sys.stdin is None:
            raise ConfigError("standard input is closed")
        yield Incoming(sys.stdin.buffer, "standard input")
        return
    with ExitStack() as stack:
        with explained(given):
            file = stack.enter_context(Path(given).open("rb", buffering=0))
        yield Incoming(file, given)


@contextmanager
def explained(name: str) -> Iterator[None]:
    """What is wrong with a file, as the user's error."""
    try:
        yield
    except BROKEN:
        raise ConfigError(f"{name}: broken data (fetch or write the file again)") from None
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror or error}") from None
