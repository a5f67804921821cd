"""Appends the responses of a crawl to the archive of its site, in a thread.

A response is handed to the operating system before its page is processed, so that a stored visit
always has its record, also if the process is killed. Every SYNC_SECONDS and when a file is full,
the file is synced to the disk: a power failure loses at most the records of that time.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from crawler import __version__
from crawler.archive.files import WarcFile, create, delete_oldest, folder_of, take_growing
from crawler.archive.records import Entry, Exchange, entry_of, file_info, line_of
from crawler.config import Config
from crawler.errors import ArchiveError
from crawler.items import Archived
from crawler.utils.text import count

Result = TypeVar("Result")
logger = logging.getLogger(__name__)
MEGABYTE = 1024**2
SYNC_SECONDS = 10.0
# The index of a file is sorted in memory: about 30 MB.
MAX_RECORDS = 100_000
# Files have at most this share of the limit of a site, so that deleting the oldest leaves most.
SHARE_OF_LIMIT = 0.25


class ArchiveWriter:
    """Writes the responses of one process to the archive of a site.

    It takes one response at a time from each request in progress, which waits until the response is
    written. So it never holds more responses than Scrapy has requests in progress.
    """

    def __init__(self, config: Config, site: str) -> None:
        self._folder, self._site = folder_of(config, site), site
        self._limit_bytes = config.max_archive_mb * MEGABYTE or math.inf
        share = self._limit_bytes * SHARE_OF_LIMIT
        self._file_bytes = min(config.archive_file_mb * MEGABYTE, share)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="archive")
        self._file: WarcFile | None = None
        self._descriptor = self._index = -1
        self._size = self._index_size = self._records = 0
        self._synced = time.monotonic()

    async def open(self) -> None:
        """Go on with the last file of the site, after repairing it; raises ArchiveError."""
        await self._run(self._open)

    def has(self, archived: Archived | None) -> bool:
        """Return whether a record still exists on this machine."""
        return archived is not None and (self._folder / archived.file).exists()

    async def write(self, exchange: Exchange, earlier: Archived | None) -> Archived:
        """Write a response, and return where it is. Raises ArchiveError.

        earlier: last full record of the same target; the body is not stored again if it is the same
        """
        if not self.has(earlier):
            earlier = None
        return await self._run(partial(self._write, exchange, earlier))

    async def close(self) -> None:
        """Sync and unlock the file; the next run goes on with it. Raises ArchiveError."""
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

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._delete_oldest()
        taken = take_growing(self._folder)
        if taken is not None:
            self._begin(*taken)
            self._records = sum(1 for _ in taken[0].lines())

    def _begin(self, file: WarcFile, descriptor: int) -> None:
        try:
            index = os.open(file.growing, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
        except OSError:
            os.close(descriptor)
            raise
        self._file, self._descriptor, self._index = file, descriptor, index
        self._size, self._index_size = os.fstat(descriptor).st_size, os.fstat(index).st_size
        self._records = 0

    def _write(self, exchange: Exchange, earlier: Archived | None) -> Archived:
        entry = entry_of(exchange, earlier)
        if self._file is not None and (
            self._size + len(entry.data) > self._file_bytes or self._records >= MAX_RECORDS
        ):
            self._finish()
        if self._file is None:
            self._begin(*create(self._folder, self._site, exchange.at))
            assert self._file is not None
        if not self._size:
            self._append(file_info(self._file.name, exchange.at, f"Freshet/{__version__}"))
        return self._store(entry, self._file)

    def _store(self, entry: Entry, file: WarcFile) -> Archived:
        start = self._size
        offset, length = start + entry.offset, len(entry.data) - entry.offset
        self._append(entry.data)
        line = str(line_of(entry, file.name, offset, length)).encode("ascii")
        try:
            _append_to(self._index, line, self._index_size)
        except OSError:
            # A repair looks for records without a line only after the last line.
            os.ftruncate(self._descriptor, start)
            self._size = start
            raise
        self._index_size += len(line)
        self._records += 1
        if time.monotonic() - self._synced > SYNC_SECONDS:
            self._sync()
        return Archived(
            file.name, offset, length, entry.at, entry.url, entry.digest, entry.is_revisit
        )

    def _append(self, data: bytes) -> None:
        _append_to(self._descriptor, data, self._size)
        self._size += len(data)

    def _sync(self) -> None:
        os.fdatasync(self._descriptor)
        self._synced = time.monotonic()

    def _finish(self) -> None:
        """Write the sorted index of the full file, and delete the oldest files over the limit."""
        self._leave(is_full=True)
        self._delete_oldest()

    def _leave(self, *, is_full: bool = False) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            self._sync()
            if is_full:
                # Before it is unlocked, as another process would go on with it.
                file.close()
        finally:
            os.close(self._index)
            # Also unlocks the file.
            os.close(self._descriptor)

    def _delete_oldest(self) -> None:
        # Room for the file that is about to be written.
        if deleted := delete_oldest(self._folder, self._limit_bytes - self._room):
            logger.warning(
                "%s: deleted the oldest %s of the archive, the first is %s: the archive exceeded "
                "FRESHET_MAX_ARCHIVE_MB (%.0f)",
                self._site, count(len(deleted), "file"), deleted[0], self._limit_bytes / MEGABYTE,
            )  # fmt: skip

    @property
    def _room(self) -> float:
        return self._file_bytes if self._limit_bytes < math.inf else 0.0


def _append_to(descriptor: int, data: bytes, size: int) -> None:
    """Append data to a file of this size; all or nothing. Raises OSError."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError:
        os.ftruncate(descriptor, size)
        raise
