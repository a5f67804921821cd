"""Append the responses of a crawl to the archive of its site.

Responses wait until a batch of visits is about to be stored. Then they are compressed, and written
together. So a stored visit always has its record, even if the process is killed. Writing page by
page would be slower: the processor's caches would be cold for each page, and each page would switch
threads. Every SYNC_SECONDS and when a file is full, the file is synced to the disk: a power failure
loses at most the records of that time.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, TypeVar
from weakref import WeakValueDictionary

from crawler import __version__
from crawler.archive.files import WarcFile, create, delete_oldest, folder_of, take_growing
from crawler.archive.records import Archived, Entry, Exchange, entry_of, file_info, line_of
from crawler.config import Config
from crawler.errors import ArchiveError
from crawler.utils.text import count

Result = TypeVar("Result")
logger = logging.getLogger(__name__)
MEGABYTE = 1024**2
SYNC_SECONDS = 10.0
# The index of a file is sorted in memory: about 30 MB.
MAX_RESPONSES = 100_000
# Files have at most this share of the limit of a site, so that deleting the oldest leaves most.
SHARE_OF_LIMIT = 0.25
# The event loop compresses the waiting responses, which takes up to about 20 ms; the thread
# compresses the ones larger than LARGE_BYTES.
MAX_WAITING_BYTES, LARGE_BYTES = MEGABYTE, 65_536


class Archiving:
    """A response on its way into the archive, which has its place before its visit is stored.

    A subprocess that reads a page returns a copy of the Fetched, in which this is the same object.
    """

    __slots__ = ("__weakref__", "_number", "_place")
    _numbers: ClassVar[Iterator[int]] = itertools.count()
    _of_process: ClassVar[WeakValueDictionary[int, Archiving]] = WeakValueDictionary()

    def __init__(self) -> None:
        self._place: Archived | None = None
        self._number = next(self._numbers)
        self._of_process[self._number] = self

    @property
    def place(self) -> Archived:
        """Return where the response is; raises RuntimeError as long as it has no place."""
        if self._place is None:
            raise RuntimeError("the response is not in the archive yet")
        return self._place

    def set_place(self, place: Archived) -> None:
        """Note where the response is."""
        self._place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return _archiving, (self._number,)


def _archiving(number: int) -> Archiving:
    """Return the object of this process; in a process that lacks it, one to send back."""
    if (known := Archiving._of_process.get(number)) is not None:
        return known
    stand_in = Archiving.__new__(Archiving)
    stand_in._number, stand_in._place = number, None
    return stand_in


class ArchiveWriter:
    """Writes the responses of one process to the archive of a site.

    Each request in progress adds one response at a time. It waits for a write if more than
    MAX_WAITING_BYTES have not been written.
    """

    def __init__(self, config: Config, site: str) -> None:
        self._folder, self._site = folder_of(config, site), site
        self._limit_bytes = config.max_archive_mb * MEGABYTE or math.inf
        share = self._limit_bytes * SHARE_OF_LIMIT
        self._file_bytes = min(config.archive_file_mb * MEGABYTE, share)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="archive")
        # Used only by the event loop.
        self._waiting: deque[tuple[Exchange, Archived | None, Archiving]] = deque()
        self._waiting_bytes = 0
        self._flushing = asyncio.Lock()
        # The file in which responses get places, and its size with those that are not written yet.
        self._name: str | None = None
        self._size = self._responses = self._placed_bytes = 0
        # From the event loop to the thread: records with their lines of the index.
        self._placed: deque[tuple[bytes, str]] = deque()
        # Used by the thread.
        self._file: GrowingFile | None = None
        self._failure: OSError | None = None
        self._written_bytes = 0

    async def open(self) -> None:
        """Continue the last file of the site, after repairing it; raises ArchiveError."""
        if responses := await self._run(self._open):
            self._begin_places(responses)

    def has(self, archived: Archived | None) -> bool:
        """Return whether a record still exists on this machine."""
        return archived is not None and (self._folder / archived.file).exists()

    async def add(self, exchange: Exchange, earlier: Archived | None) -> Archiving:
        """Add a response, which gets its place with the next `flush`. Raises ArchiveError.

        earlier: last full record of the same target; the body is not stored again if it is the same
        """
        archiving = Archiving()
        self._waiting.append((exchange, earlier, archiving))
        self._waiting_bytes += exchange.size
        if self._waiting_bytes > MAX_WAITING_BYTES:
            await self.flush()
        return archiving

    async def flush(self) -> None:
        """Write all responses that were added before.

        Raises ArchiveError. If records were not written, no later one can be written either,
        because its place follows theirs.
        """
        async with self._flushing:
            for _ in range(len(self._waiting)):
                exchange, earlier, archiving = self._waiting[0]
                compress = partial(entry_of, exchange, earlier if self.has(earlier) else None)
                in_thread = exchange.size > LARGE_BYTES
                entry = await self._run(compress) if in_thread else compress()
                is_large = self._size + len(entry.data) > self._file_bytes
                is_full = self._responses >= MAX_RESPONSES or (self._responses and is_large)
                if self._name is None or is_full:
                    self._name = None
                    await self._run(partial(self._change_file, exchange.at))
                    self._begin_places(0)
                archiving.set_place(self._place(entry))
                # Not earlier: this task may be canceled while it waits.
                self._waiting.popleft()
                self._waiting_bytes -= exchange.size
            # The thread may still be writing for a canceled task.
            if self._written_bytes < self._placed_bytes:
                await self._run(self._write)

    async def close(self) -> None:
        """Write and sync everything, and unlock the file; the next run continues it.

        Raises ArchiveError, unless records could not be written before.
        """
        try:
            if self._failure is None:
                await self.flush()
        finally:
            try:
                await self._run(self._leave)
            finally:
                self._thread.shutdown(wait=False)

    async def _run(self, work: Callable[[], Result]) -> Result:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, work)
        except OSError as error:
            raise ArchiveError(
                f"{self._folder}: archive cannot be written: {error.strerror or error}. Free disk "
                "space or fix the permissions, or remove archive = true from the site definition"
            ) from None

    def _begin_places(self, responses: int) -> None:
        assert self._file is not None
        self._name, self._size = self._file.file.name, self._file.size
        self._responses = responses

    def _place(self, entry: Entry) -> Archived:
        assert self._name is not None
        offset, length = self._size + entry.offset, len(entry.data) - entry.offset
        line = str(line_of(entry, self._name, offset, length))
        self._placed.append((entry.data, line))
        self._size += len(entry.data)
        self._placed_bytes += len(entry.data)
        self._responses += 1
        return Archived(
            self._name, offset, length, entry.at, entry.url, entry.digest, entry.is_revisit
        )

    # The following methods run in the thread.

    def _open(self) -> int:
        """Take the last file, if it is not full; return the number of its responses."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._delete_oldest()
        if (taken := take_growing(self._folder)) is None:
            return 0
        self._file = GrowingFile(*taken)
        return sum(1 for _ in taken[0].lines())

    def _write(self) -> None:
        if self._failure is not None:
            raise self._failure
        # The event loop may add records meanwhile; they are in the next batch.
        batch = [self._placed.popleft() for _ in range(len(self._placed))]
        if not batch:
            return
        assert self._file is not None
        records = b"".join(data for data, _ in batch)
        try:
            self._file.append(records, "".join(line for _, line in batch).encode("ascii"))
        except OSError as error:
            self._failure = error
            raise
        self._written_bytes += len(records)

    def _change_file(self, now: datetime) -> None:
        """Finish the file, and delete the oldest files over the limit; begin the next file."""
        self._write()
        # A task that was canceled meanwhile may have begun a file already.
        if self._file is not None and self._file.has_responses:
            file, self._file = self._file, None
            file.close(is_full=True)
            self._delete_oldest()
        if self._file is None:
            self._file = GrowingFile(*create(self._folder, self._site, now))
        if not self._file.size:
            self._file.append(file_info(self._file.file.name, now, f"Freshet/{__version__}"), b"")

    def _leave(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _delete_oldest(self) -> None:
        # Room for the file that is about to be written.
        room = self._file_bytes if self._limit_bytes < math.inf else 0.0
        if deleted := delete_oldest(self._folder, self._limit_bytes - room):
            logger.warning(
                "%s: deleted the oldest %s of the archive, the first is %s: the archive exceeded "
                "FRESHET_MAX_ARCHIVE_MB (%.0f)",
                self._site, count(len(deleted), "file"), deleted[0], self._limit_bytes / MEGABYTE,
            )  # fmt: skip


class GrowingFile:
    """A file that this process has locked, and its index, open for appending.

    size: bytes of the records
    """

    def __init__(self, file: WarcFile, descriptor: int) -> None:
        try:
            self._index = os.open(file.growing, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        except OSError:
            os.close(descriptor)
            raise
        self.file, self._descriptor = file, descriptor
        self.size, self._index_size = os.fstat(descriptor).st_size, os.fstat(self._index).st_size
        self._synced = time.monotonic()

    @property
    def has_responses(self) -> bool:
        """Return whether the file has responses, not only the record about the file itself."""
        return self._index_size > 0

    def append(self, records: bytes, lines: bytes) -> None:
        """Append records and their lines of the index; all or nothing. Raises OSError."""
        _append_to(self._descriptor, records, self.size)
        try:
            _append_to(self._index, lines, self._index_size)
        except OSError:
            # A repair looks for records without a line only after the last line.
            os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(records)
        self._index_size += len(lines)
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self._sync()

    def close(self, *, is_full: bool = False) -> None:
        """Sync and unlock the file. is_full: write its sorted index. Raises OSError."""
        try:
            self._sync()
            if is_full:
                # Before the file is unlocked, because another process would continue it then.
                self.file.close()
        finally:
            os.close(self._index)
            # Also unlocks the file.
            os.close(self._descriptor)

    def _sync(self) -> None:
        os.fdatasync(self._descriptor)
        self._synced = time.monotonic()


def _append_to(descriptor: int, data: bytes, size: int) -> None:
    """Append data to a file of this size; all or nothing. Raises OSError."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError:
        os.ftruncate(descriptor, size)
        raise
