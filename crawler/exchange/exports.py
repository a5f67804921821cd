"""Export tables to a folder or an object store: only new data, and each file as a whole.

Rows of a table with a time are in one file for each spider and UTC day, so a day is replaced
atomically. Visits and versions are only added: a day is read again if the database has more or
newer rows of it than its file, or if it is one of the last two days. Its new file also has the rows
of the old one that were deleted from the database. Posts change later, so all of them are read, but
files whose bytes would be the same are kept. A day without rows in the database stays as it was
exported. The other tables are replaced as a whole.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, aclosing, contextmanager, suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from urllib.parse import quote

import bson
from pydantic import TypeAdapter
from typing_extensions import TypedDict

from crawler.errors import ConfigError
from crawler.exchange.destinations import DRAFT, Destination
from crawler.exchange.formats import Format, Writer, documents_in, suffix_of, writer_of
from crawler.exchange.tables import SCHEMA, Table, iso, midnight
from crawler.storage.client import Database, Document
from crawler.storage.transfer import (
    Span,
    count_after,
    count_by_day,
    decoded,
    read_raw,
    spiders_of,
    stored_keys,
)
from crawler.utils.files import file_errors
from crawler.utils.process import Say, end_tasks
from crawler.utils.time import steady_seconds

P = ParamSpec("P")
T = TypeVar("T")
MANIFEST = "_freshet_export.json"
# Days that may have changed although the number of their rows is the same: today and yesterday.
RECENT = timedelta(days=1)
DAY = timedelta(days=1)
# After a crash, the files of at most this time are written again.
SAVE_SECONDS = 10.0


class FileEntry(TypedDict):
    """An exported file. schema: version of its columns; newest: time of its last row."""

    rows: int
    bytes: int
    sha256: str
    schema: int
    newest: str | None


class Manifest(TypedDict):
    """The files of a table. It has no times of exports, so equal exports have equal manifests."""

    format: str
    files: dict[str, FileEntry]


class TableExport(TypedDict):
    """The result of exporting a table."""

    table: str
    """Name of the table."""
    folder: str
    """Folder of its files."""
    files: int
    """Number of files that were written."""
    rows: int
    """Number of rows in these files."""
    bytes: int
    """Size of these files."""
    unchanged: int
    """Number of files that stayed as they were."""
    removed: int
    """Number of deleted files of spiders that are no longer in the database."""
    newest: datetime | None
    """Time of the newest exported row; null for tables without days."""


class ExportReport(TypedDict):
    """Result of an export."""

    to: str
    """Folder or URL, without passwords."""
    tables: list[TableExport]
    """Written files by table."""


@dataclass(frozen=True, slots=True)
class Request:
    """The options of an export.

    spiders: empty: all
    since:   read this time's day and all later days again; None: only new data
    now:     current time
    """

    file_format: Format
    compressed: bool
    spiders: tuple[str, ...]
    since: datetime | None
    now: datetime


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a table to read in order. rows: expected number, for the progress; 0: unknown."""

    span: Span
    rows: int = 0


@dataclass(frozen=True, slots=True)
class _Written:
    """A file that was written: its path, and its entry in the manifest."""

    path: str
    entry: FileEntry


class Export:
    """The export of one table. Raises ConfigError if the destination has another format."""

    def __init__(
        self, db: Database, destination: Destination, table: Table, request: Request
    ) -> None:
        self._db, self.destination, self._table, self._request = db, destination, table, request
        self._suffix = suffix_of(request.file_format, compressed=request.compressed)
        self._manifest_path = f"{table.name}/{MANIFEST}"
        self._manifest = self._read_manifest()
        self._files = self._manifest["files"]
        self._saved_at, self._is_saved = steady_seconds(), True
        self._written: list[FileEntry] = []
        self._removed = 0
        # By the path of a file: `_id`s of its rows that were deleted from the database.
        self._deleted: dict[str, frozenset[Any]] = {}

    async def run(self, say: Say) -> TableExport:
        """Write the files that are new or changed. Raises ConfigError and StorageError.

        say: takes a line about the progress
        """
        name, request = self._table.name, self._request
        say(f"{name}: looking for new rows")
        await _in_thread(self._check_files)
        spiders = await spiders_of(self._db, name) if self._table.by_spider else []
        if request.spiders:
            spiders = [spider for spider in spiders if spider in request.spiders]
        parts = await self._parts(spiders)
        done, total = 0, sum(part.rows for part in parts)
        partitions = _Partitions(self._table, request, self, self.destination.max_moves)
        try:
            async with aclosing(_ahead(self._batches(parts))) as batches:
                async for part, batch in batches:
                    if batch:
                        done += await _in_thread(partitions.add, part.span.spider, batch)
                        say(f"{name}: {done:,} rows" + (f" of {total:,}" if total else ""))
                    else:
                        await _in_thread(partitions.finish)
            await _in_thread(partitions.finish_all)
        finally:
            partitions.discard()
        await _in_thread(self._finish, spiders)
        newest = max((entry["newest"] or "" for entry in self._files.values()), default="")
        return {
            "table": name,
            "folder": f"{self.destination.name}/{name}",
            "files": len(self._written),
            "rows": sum(entry["rows"] for entry in self._written),
            "bytes": sum(entry["bytes"] for entry in self._written),
            "unchanged": len(self._files) - len(self._written),
            "removed": self._removed,
            "newest": datetime.fromisoformat(newest) if newest else None,
        }

    def path_of(self, spider: str | None, day: date | None) -> str:
        """Return the path of a partition's file. Readers decode %XX in the names of folders."""
        folders = [self._table.name]
        if spider is not None:
            folders.append(f"spider={quote(spider, safe='')}")
        if day is not None:
            folders.append(f"day={day}")
        return "/".join([*folders, f"part-00000{self._suffix}"])

    def replace(self, draft: Path, place: ExitStack, written: _Written) -> _Written | None:
        """Move a complete draft to its path, unless the file there has the same bytes.

        Several threads may call it. Returns the file if it was moved.

        place: deletes the draft, if it is still there
        """
        with place:
            with file_errors(str(draft)), draft.open("rb") as file:
                written.entry["sha256"] = hashlib.file_digest(file, "sha256").hexdigest()
                written.entry["bytes"] = file.seek(0, os.SEEK_END)
            if self._files.get(written.path) == written.entry:
                return None
            self.destination.put(draft, written.path)
            return written

    def record(self, written: _Written | None) -> None:
        """Add a file that was moved to the manifest, which is saved at intervals."""
        if written is None:
            return
        self._files[written.path] = written.entry
        self._written.append(written.entry)
        self._is_saved = False
        if steady_seconds() - self._saved_at > SAVE_SECONDS:
            self._save()

    def _read_manifest(self) -> Manifest:
        place = f"{self.destination.name}/{self._manifest_path}"
        stored = self.destination.read(self._manifest_path)
        file_format = self._suffix.removeprefix(".")
        if stored is None:
            return {"format": file_format, "files": {}}
        try:
            manifest = TypeAdapter(Manifest).validate_json(stored)
            for path in manifest["files"]:
                first, *others = path.split("/")
                if first != self._table.name or ".." in others:
                    raise ValueError(path)
        except ValueError:
            raise ConfigError(
                f"{place}: not valid. Delete it to write all files of {self._table.name} again"
            ) from None
        if manifest["format"] != file_format:
            raise ConfigError(
                f"{place}: this folder has {self._table.name} as {manifest['format']!r}. Export to "
                f"another folder as {file_format!r}"
            )
        if any(entry["schema"] > SCHEMA for entry in manifest["files"].values()):
            raise ConfigError(
                f"{place}: written by a later version of Freshet. Upgrade Freshet, or export to "
                "another folder"
            )
        return manifest

    def _check_files(self) -> None:
        """Delete drafts of an interrupted export, and entries of missing or incomplete files."""
        sizes = self.destination.sizes(self._table.name)
        for path in sizes:
            if path.endswith(DRAFT):
                self.destination.remove(path)
        for path, entry in list(self._files.items()):
            if sizes.get(path) != entry["bytes"]:
                del self._files[path]
                self._is_saved = False

    async def _parts(self, spiders: list[str]) -> list[_Part]:
        """Return the parts to read, in the order in which the database has its documents."""
        table, since = self._table, self._request.since
        if not table.by_spider:
            return [_Part(Span(None))]
        if table.time is None:
            return [_Part(Span(spider)) for spider in spiders]
        start = None if since is None else midnight(since.date())
        if not table.is_log:
            return [_Part(Span(spider, table.time, start)) for spider in spiders]
        recent = (self._request.now - RECENT).date()
        parts: list[tuple[date, _Part]] = []
        for spider in spiders:
            counts = await count_by_day(self._db, table.name, spider, table.time, start)
            for day, rows in counts.items():
                span = Span(spider, table.time, midnight(day), midnight(day + DAY))
                path = self.path_of(spider, day)
                entry = self._files.get(path)
                if since is None and entry is not None and entry["schema"] == SCHEMA:
                    later = 0
                    if entry["newest"] is not None:
                        later = await count_after(self._db, table.name, span, entry["newest"])
                    if day < recent and rows <= entry["rows"] and not later:
                        continue
                    if rows - later < entry["rows"]:
                        keys = await _in_thread(self._keys_in, path)
                        stored = await stored_keys(self._db, table.name, keys)
                        self._deleted[path] = frozenset(keys) - stored
                parts.append((day, _Part(span, rows)))
        # All spiders of a day are adjacent on the disk, because they were stored together.
        return [part for _, part in sorted(parts, key=lambda each: (each[0], each[1].span.spider))]

    def _keys_in(self, path: str) -> list[Any]:
        """Return the `_id`s of the rows in a file."""
        with self._documents_in(path) as rows:
            return [row["_id"] for row in rows]

    def deleted_rows(self, path: str) -> AbstractContextManager[Iterator[Document]] | None:
        """Return the rows of a file that were deleted from the database; None without any."""
        deleted = self._deleted.get(path)
        return self._documents_in(path, deleted) if deleted else None

    @contextmanager
    def _documents_in(
        self, path: str, only: frozenset[Any] | None = None
    ) -> Iterator[Iterator[Document]]:
        """Yield the documents in a file, in its order. only: those with these `_id`s."""
        request = self._request
        with self.destination.opened(path) as file:

            def wanted() -> Iterator[Document]:
                try:
                    for row in documents_in(
                        file, self._table, request.file_format, compressed=request.compressed
                    ):
                        if only is None or row["_id"] in only:
                            yield row
                except (ValueError, TypeError, LookupError, EOFError, zlib.error):
                    raise ConfigError(
                        f"{self.destination.name}/{path}: damaged. Delete it to write it again"
                    ) from None

            yield wanted()

    async def _batches(self, parts: list[_Part]) -> AsyncGenerator[tuple[_Part, bytes]]:
        """Yield the raw batches of each part, and empty bytes at its end."""
        for part in parts:
            async for batch in read_raw(self._db, self._table.name, part.span, self._table.fields):
                yield part, batch
            yield part, b""

    def _finish(self, spiders: list[str]) -> None:
        """Remove files of spiders that are no longer stored, and save the manifest."""
        if self._table.time is None and self._table.by_spider and not self._request.spiders:
            for path in self._files.keys() - {self.path_of(spider, None) for spider in spiders}:
                self.destination.remove(path)
                del self._files[path]
                self._removed += 1
                self._is_saved = False
        if not self._is_saved:
            self._save()

    def _save(self) -> None:
        content = json.dumps(self._manifest, indent=1, sort_keys=True)
        self.destination.write(self._manifest_path, content.encode())
        self._saved_at, self._is_saved = steady_seconds(), True


class _Partitions:
    """Writes ordered rows into a file for each partition; one file is open at a time.

    Complete files are moved by other threads, because waiting for the disk or the network takes
    longer than writing most files.
    """

    def __init__(self, table: Table, request: Request, export: Export, max_moves: int) -> None:
        self._table, self._request, self._export = table, request, export
        self._stack = ExitStack()
        self._open: tuple[str | None, date | None] | None = None
        self._writer: Writer | None = None
        self._path, self._draft = "", Path()
        self._rows, self._newest = 0, None
        # Rows of the day's former file that were deleted from the database, and the next of them.
        self._deleted: Iterator[Document] = iter(())
        self._next_deleted: Document | None = None
        self._max_moves, self._pool = max_moves, ThreadPoolExecutor(max_moves)
        self._moving: deque[Future[_Written | None]] = deque()

    def add(self, spider: str | None, batch: bytes) -> int:
        """Write a batch, and return the number of its rows."""
        documents, sizes = decoded(batch)
        for start, stop, day in self._days(documents):
            if (spider, day) != self._open:
                self.finish()
                self._begin(spider, day)
            self._write(*self._with_deleted(documents[start:stop], sizes[start:stop]))
        return len(documents)

    def _write(self, rows: Sequence[Document], sizes: Sequence[int]) -> None:
        assert self._writer is not None
        with file_errors(str(self._draft)):
            self._writer.write(rows, sizes)
        self._rows += len(rows)
        self._newest = None if self._table.time is None else rows[-1][self._table.time]

    def _with_deleted(
        self, rows: Sequence[Document], sizes: Sequence[int]
    ) -> tuple[Sequence[Document], Sequence[int]]:
        """Add the rows of the former file that precede the last of these rows, and their sizes."""
        if self._next_deleted is None:
            return rows, sizes
        merged, merged_sizes = [], []
        order = itemgetter(self._table.time, "_id")
        for row, size in zip(rows, sizes, strict=True):
            while (gone := self._next_deleted) is not None and order(gone) < order(row):
                merged.append(gone)
                merged_sizes.append(len(bson.encode(gone)))
                self._next_deleted = next(self._deleted, None)
            merged.append(row)
            merged_sizes.append(size)
        return merged, merged_sizes

    def finish(self) -> None:
        """Complete the open file, if there is one, and begin to move it to its place."""
        if self._writer is None:
            return
        while (row := self._next_deleted) is not None:
            self._write([row], [len(bson.encode(row))])
            self._next_deleted = next(self._deleted, None)
        with file_errors(str(self._draft)):
            self._writer.close()
        newest = None if self._newest is None else iso(self._newest)
        entry: FileEntry = {
            "rows": self._rows, "bytes": 0, "sha256": "", "schema": SCHEMA, "newest": newest,
        }  # fmt: skip
        self._writer = self._open = None
        self._wait(self._max_moves - 1)
        written, place = _Written(self._path, entry), self._stack.pop_all()
        self._moving.append(self._pool.submit(self._export.replace, self._draft, place, written))

    def finish_all(self) -> None:
        """Wait until all files are in their places. Raises ConfigError."""
        self.finish()
        self._wait(0)

    def discard(self) -> None:
        """Delete the open file, if there is one, and wait until no file is being moved."""
        if self._writer is not None:
            with suppress(OSError):
                self._writer.close()
        self._writer = self._open = self._next_deleted = None
        self._stack.close()
        self._pool.shutdown()

    def _wait(self, left: int) -> None:
        """Wait until at most `left` files are being moved."""
        while len(self._moving) > left:
            self._export.record(self._moving.popleft().result())

    def _begin(self, spider: str | None, day: date | None) -> None:
        self._open, self._rows = (spider, day), 0
        self._path = self._export.path_of(spider, day)
        self._draft = self._stack.enter_context(self._export.destination.draft(self._path))
        request = self._request
        with file_errors(str(self._draft)):
            self._writer = writer_of(
                self._draft, self._table, request.file_format, compressed=request.compressed
            )
        if (deleted := self._export.deleted_rows(self._path)) is not None:
            self._deleted = self._stack.enter_context(deleted)
            self._next_deleted = next(self._deleted, None)

    def _days(self, documents: Sequence[Document]) -> Iterator[tuple[int, int, date | None]]:
        """Yield start, stop and day of the documents of each day. documents: ordered by time."""
        time = self._table.time
        start = 0
        while start < len(documents):
            if time is None:
                yield start, len(documents), None
                return
            day = documents[start][time].date()
            stop = bisect_right(documents, day, start, key=lambda row: row[time].date())
            yield start, stop, day
            start = stop


async def _in_thread(call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Return the result of a call in a thread. If it is cancelled, wait until the call ends.

    Otherwise a file could be closed while the thread is still writing it.
    """
    running = asyncio.ensure_future(asyncio.to_thread(call, *args, **options))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


async def _ahead(items: AsyncGenerator[T]) -> AsyncGenerator[T]:
    """Yield items; while one of them is being used, the next one is read."""
    reading = asyncio.ensure_future(anext(items))
    try:
        while True:
            try:
                item = await reading
            except StopAsyncIteration:
                return
            reading = asyncio.ensure_future(anext(items))
            yield item
    finally:
        await end_tasks(reading)
        await items.aclose()
