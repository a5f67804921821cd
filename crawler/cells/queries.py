"""Refresh queries: run on a database for reading alone, within limits of time, rows and bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any

from sqlalchemy import Connection, TextClause, bindparam, text
from sqlalchemy.engine import CursorResult, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from crawler.cells.dialects import opened
from crawler.cells.threads import in_thread
from crawler.cells.values import plain
from crawler.errors import QueryFailed
from crawler.extract.cells import Cell, Source

ROWS_AT_ONCE = 100
# What a database may take longer than the limit that it was told.
GRACE_SECONDS = 2.0
MOST_REASON_CHARACTERS = 250


class Queries:
    """The queries of one database."""

    def __init__(self, name: str, source: Source, most_bytes: int) -> None:
        self._name, self._source, self._most_bytes = name, source, most_bytes
        self._opened = opened(name, source)
        self._password = make_url(source.url).password
        self._at_work: set[Any] = set()

    async def result(self, cell: Cell) -> bytes:
        """The result as JSON: `columns` and `rows`; raises QueryFailed."""
        limit = self._source.seconds
        try:
            return await in_thread(lambda: self._result(cell), limit + GRACE_SECONDS)
        except TimeoutError:
            self._break_off()
            raise QueryFailed(f"no answer in {limit:g} s ({self._name})", hangs=True) from None
        except SQLAlchemyError as error:
            raise QueryFailed(self._in_words(error)) from None

    async def close(self) -> None:
        """Let the connections go; those that hang are not waited for."""
        with contextlib.suppress(TimeoutError):
            await in_thread(self._opened.engine.dispose, GRACE_SECONDS)

    def _result(self, cell: Cell) -> bytes:
        """In a thread of its own."""
        with self._connected() as connection:
            driver = connection.connection.driver_connection
            self._at_work.add(driver)
            try:
                return self._read(connection, cell)
            finally:
                self._at_work.discard(driver)
                connection.rollback()

    def _connected(self) -> Connection:
        """A connection; who waits long for none need not be asked again soon."""
        began = time.monotonic()
        try:
            return self._opened.engine.connect()
        except SQLAlchemyError as error:
            hangs = time.monotonic() - began > self._source.seconds / 2
            raise QueryFailed(self._in_words(error), hangs=hangs) from None

    def _read(self, connection: Connection, cell: Cell) -> bytes:
        self._opened.begin(connection, self._source.seconds)
        streaming = connection.execution_options(stream_results=True, max_row_buffer=ROWS_AT_ONCE)
        with streaming.execute(statement(cell), cell.parameters) as result:
            columns = list(result.keys())
            if twice := sorted({name for name in columns if columns.count(name) > 1}):
                raise QueryFailed(f"two columns are called {twice[0]!r}: name one with AS")
            rows = self._rows(result, cell.rows or self._source.rows)
        return json.dumps({"columns": columns, "rows": rows}, ensure_ascii=False).encode()

    def _rows(self, result: CursorResult[Any], most: int) -> list[list[Any]]:
        rows: list[list[Any]] = []
        size = 0
        for part in result.partitions(ROWS_AT_ONCE):
            some = [[plain(value) for value in row] for row in part]
            size += sum(len(str(value)) for row in some for value in row)
            rows += some
            if len(rows) > most:
                raise QueryFailed(
                    f"more than {most:,} rows (rows = {most} of the cell or database)"
                )
            if size > self._most_bytes:
                raise QueryFailed(f"more than {self._most_bytes:,} bytes (FRESHET_RESPONSE_MB)")
        return rows

    def _break_off(self) -> None:
        for driver in list(self._at_work):
            with contextlib.suppress(Exception):
                self._opened.break_off(driver)

    def _in_words(self, error: SQLAlchemyError) -> str:
        """The driver's own words; SQLAlchemy's would show the query and its parameters."""
        cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
        words = " ".join(str(cause).split()).partition(" (Background")[0]
        if self._password:
            words = words.replace(str(self._password), "***")
        return f"{type(cause).__name__}: {words}"[:MOST_REASON_CHARACTERS]


def statement(cell: Cell) -> TextClause:
    """The query, its parameters bound; a list of values is for `IN :name`."""
    lists = [name for name, value in cell.parameters.items() if isinstance(value, tuple)]
    return text(cell.sql or "").bindparams(*(bindparam(name, expanding=True) for name in lists))


async def all_closed(queries: list[Queries]) -> None:
    """Close several databases at once."""
    await asyncio.gather(*(one.close() for one in queries))
