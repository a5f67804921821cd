"""Read files in chunks and decompressed; replace files atomically; write CSV without formulas."""

from __future__ import annotations

import asyncio
import bz2
import csv
import io
import json
import lzma
import os
import select
import sys
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from itemadapter import ItemAdapter
from scrapy.exporters import CsvItemExporter
from scrapy.item import Field

from crawler.errors import ConfigError

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    Decompressor = bz2.BZ2Decompressor | lzma.LZMADecompressor | zlib._Decompress

STDIN = "-"
# Compressed data is read in smaller chunks, so that even a decompression bomb fits into memory.
CHUNK_BYTES, COMPRESSED_CHUNK_BYTES = 1 << 18, 1 << 14
# Larger logs are renamed, and one older log is kept.
MAX_LOG_BYTES = 16 * 1024**2
CORRUPT_DATA = (EOFError, zlib.error, lzma.LZMAError)


@contextmanager
def atomic_replace(path: Path) -> Iterator[Path]:
    """Yield a temporary file in the same folder that replaces `path` when the block ends.

    Readers see the old content or the new one, never a partial file. If the block raises an error,
    the temporary file is deleted and `path` is unchanged. The temporary file has the suffix of
    `path`. Raises OSError.
    """
    draft = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    # O_EXCL, because in a shared folder another user could put a symbolic link in its place.
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        yield draft
        with draft.open("rb") as written:
            os.fsync(written.fileno())
        draft.replace(path)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Write the names of new files in a folder to the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rotate(path: Path) -> bool:
    """Rename a log larger than MAX_LOG_BYTES to `NAME.1`; return whether it was renamed.

    An existing `NAME.1` is replaced. Processes that have the file open continue with the renamed
    one. Raises OSError.
    """
    with suppress(FileNotFoundError):
        if path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_name(f"{path.name}.1"))
            return True
    return False


# Spreadsheets interpret cells with one of these prefixes as formulas. The last four are full-width
# forms.
FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def without_formula(text: str) -> str:
    """Put an apostrophe before a text that looks like a formula, except numbers such as -3.5."""
    if not text.startswith(FORMULAS):
        return text
    with suppress(ValueError):
        float(text)
        # float() accepts white space around a number, which a spreadsheet may not.
        if text == text.strip():
            return text
    return f"'{text}"


class SafeCsvExporter(CsvItemExporter):
    """Scrapy's CSV exporter for spreadsheets.

    A value that is a dict, such as a price, has a column for each of its keys (`price.amount`). An
    apostrophe precedes values that look like formulas. The columns are those of the site
    definition, not only those of the first item. A file that is appended to gets no second header.
    """

    @classmethod
    def from_crawler(cls, crawler: Crawler, file: io.BytesIO, *args: Any, **options: Any) -> Self:
        """Create the exporter with the columns of the spider, unless FEED_EXPORT_FIELDS is set."""
        columns = getattr(crawler.spider, "csv_columns", None)
        if columns and not options.get("fields_to_export"):
            options["fields_to_export"] = list(columns)
        if _begins_with(file, options.get("fields_to_export")):
            options.setdefault("include_headers_line", False)
        return cls(file, *args, **options)

    def export_item(self, item: Any) -> None:
        """Write an item as a row."""
        values = ItemAdapter(item)
        if any(isinstance(value, Mapping) for value in values.values()):
            item = dict(flattened(values, self.fields_to_export or ()))
        super().export_item(item)

    def serialize_field(self, field: Mapping[str, Any] | Field, name: str, value: Any) -> Any:
        """Return the value to write for a field."""
        value = super().serialize_field(field, name, value)
        return without_formula(value) if isinstance(value, str) else value


def flattened(values: Mapping[str, Any], columns: Iterable[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yield names and values of columns: a dict as its values, or as JSON if it is a column."""
    for name, value in values.items():
        if not isinstance(value, Mapping):
            yield name, value
        elif name in columns:
            yield name, json.dumps(value, ensure_ascii=False, default=str)
        else:
            yield from ((f"{name}.{key}", part) for key, part in value.items())


def _begins_with(file: io.BytesIO, columns: Iterable[str] | None) -> bool:
    """Return whether a file that is appended to already has these columns as its header."""
    if not columns or not isinstance(name := getattr(file, "name", None), str):
        return False
    with suppress(OSError, ValueError):
        if file.tell():
            with Path(name).open(encoding="utf-8", newline="") as written:
                return next(csv.reader(written), None) == list(columns)
    return False


# Decompressors by the first bytes of a file of the format.
DECOMPRESSORS: dict[bytes, Callable[[], Decompressor]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(31),
    b"\xfd7zXZ\x00": lzma.LZMADecompressor,
    b"BZh": bz2.BZ2Decompressor,
}
UNSUPPORTED = {
    b"\x28\xb5\x2f\xfd": ("zstd is not supported. Run zstd -dc FILE | scrapy duplicates check -"),
    b"PK\x03\x04": (
        "zip archives are not supported. Run unzip -p FILE | scrapy duplicates check -"
    ),
    b"\xff\xfe": "UTF-16, not UTF-8. Convert it with iconv -f utf-16 -t utf-8 FILE",
    b"\xfe\xff": "UTF-16, not UTF-8. Convert it with iconv -f utf-16 -t utf-8 FILE",
}


class Incoming:
    """A file that is read once, from its beginning to its end. name: for messages."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.name = name
        self._file = file
        try:
            self._descriptor: int | None = file.fileno()
        except io.UnsupportedOperation:
            self._descriptor = None

    def waits(self) -> bool:
        """Return whether a read would block because the writer of a pipe has not written more."""
        if self._descriptor is None:
            return False
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return not poll.poll(0)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the decompressed data.

        Raises ConfigError if the file cannot be read or has an unsupported format.
        """
        with file_errors(self.name):
            first = await self._read(COMPRESSED_CHUNK_BYTES)
            for magic, problem in UNSUPPORTED.items():
                if first.startswith(magic):
                    raise ConfigError(f"{self.name}: {problem}")
            make = next(
                (DECOMPRESSORS[magic] for magic in DECOMPRESSORS if first.startswith(magic)), None
            )
            decoder = None if make is None else _Compressed(make)
            size = CHUNK_BYTES if make is None else COMPRESSED_CHUNK_BYTES
            chunk = first
            while chunk:
                for part in [chunk] if decoder is None else decoder.of(chunk):
                    yield part
                chunk = await self._read(size)
            if decoder is not None:
                decoder.end()

    async def _read(self, size: int) -> bytes:
        """Return at most `size` bytes, none at the end of the file.

        It waits for data in the event loop, so that Ctrl-C interrupts it.
        """
        if self._descriptor is None:
            return self._file.read(size)
        while True:
            await self._wait_until_readable(self._descriptor)
            try:
                return os.read(self._descriptor, size)
            except BlockingIOError:
                await asyncio.sleep(0)

    @staticmethod
    async def _wait_until_readable(descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        try:
            loop.add_reader(descriptor, lambda: None if ready.done() else ready.set_result(None))
        except PermissionError:  # epoll rejects regular files, which are always readable
            return
        try:
            await ready
        finally:
            loop.remove_reader(descriptor)


class _Compressed:
    """Decompresses a file, which may have several compressed streams in a row."""

    def __init__(self, make: Callable[[], Decompressor]) -> None:
        self._make = make
        self._stream: Decompressor | None = None

    def of(self, data: bytes) -> Iterator[bytes]:
        # Zero bytes may pad the end of a stream.
        while data := data if self._stream else data.lstrip(b"\0"):
            self._stream = self._stream or self._make()
            yield self._stream.decompress(data)
            if not self._stream.eof:
                return
            data, self._stream = self._stream.unused_data, None

    def end(self) -> None:
        if self._stream is not None:
            raise EOFError


@contextmanager
def opened_input(path: str) -> Iterator[Incoming]:
    """Open the file at a path, or standard input for `-`; raises ConfigError if that fails."""
    if path == STDIN:
        if sys.stdin is None:
            raise ConfigError("standard input is closed")
        yield Incoming(sys.stdin.buffer, "standard input")
        return
    with ExitStack() as stack:
        with file_errors(path):
            file = stack.enter_context(Path(path).open("rb", buffering=0))
        yield Incoming(file, path)


@contextmanager
def file_errors(name: str) -> Iterator[None]:
    """Raise errors about reading or writing a file as ConfigError with the file's name."""
    try:
        yield
    except CORRUPT_DATA:
        raise ConfigError(f"{name}: corrupt data. Download or write the file again") from None
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror or error}") from None
