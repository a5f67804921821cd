"""Refresh queries: run on a database for reading alone, within limits of time, rows and bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import socket
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from datetime import time as day_time
from decimal import Decimal
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, Engine, TextClause, bindparam, create_engine, text
from sqlalchemy.engine import URL, CursorResult, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from crawler.errors import ConfigError, QueryFailed
from crawler.extract.cells import Cell, Source

# Steps of SQLite's machine between two looks at the clock.
STEPS = 10_000
AGAIN_SECONDS = 300
ROWS_AT_ONCE = 100
# What a database may take longer than the limit that it was told.
GRACE_SECONDS = 2.0
MOST_REASON_CHARACTERS = 250


@dataclass(frozen=True, slots=True)
class Opened:
    """A database that can be read.

    begin:     limits the queries of a new transaction to so many seconds
    break_off: frees a thread that waits for an answer on a connection of the driver
    """

    engine: Engine
    begin: Callable[[Connection, float], None]
    break_off: Callable[[Any], None]


def opened(name: str, source: Source) -> Opened:
    """The database; nothing is asked of it yet. ConfigError where it cannot be."""
    try:
        url = make_url(source.url)
        if (kind := url.get_backend_name()) not in _KINDS:
            raise ConfigError(
                f"databases.{name}: {kind} cannot be opened for reading alone by Freshet "
                f"(it can: {', '.join(_KINDS)})"
            )
        return _KINDS[kind](url, source)
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        problem = "its driver is not installed" if isinstance(error, ImportError) else "no such URL"
        cause = " ".join(str(error).split()).partition(" (Background")[0]
        raise ConfigError(f"databases.{name}: {problem}: {cause}") from None


def _postgresql(url: URL, source: Source) -> Opened:
    arguments = {"connect_timeout": max(2, math.ceil(source.seconds))}
    engine = _engine(url, source, connect_args=arguments)

    def limit(connection: Connection, seconds: float) -> None:
        statement = text("SELECT set_config('statement_timeout', :limit, true)")
        connection.execute(statement, {"limit": f"{math.ceil(seconds * 1000)}ms"})

    def hang_up(driver: Any) -> None:
        # End the connection under the thread that waits for it: it then reads the end.
        with socket.socket(fileno=os.dup(driver.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)

    return Opened(engine.execution_options(postgresql_readonly=True), limit, hang_up)


def _sqlite(url: URL, source: Source) -> Opened:
    if not url.database or url.database == ":memory:":
        raise ConfigError("sqlite: a file has to be named: sqlite:///path/to/file.db")
    address = f"file:{quote(str(Path(url.database).resolve()))}?mode=ro"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            address, uri=True, timeout=source.seconds, check_same_thread=False
        )
        connection.execute("PRAGMA query_only = ON")
        return connection

    def limit(connection: Connection, seconds: float) -> None:
        ends = time.monotonic() + seconds
        driver: Any = connection.connection.driver_connection
        driver.set_progress_handler(lambda: time.monotonic() > ends, STEPS)

    return Opened(_engine(url, source, creator=connect), limit, sqlite3.Connection.interrupt)


def _engine(url: URL, source: Source, **more: Any) -> Engine:
    return create_engine(
        url,
        hide_parameters=True,
        pool_size=source.connections,
        max_overflow=0,
        pool_timeout=source.seconds,
        pool_pre_ping=True,
        pool_recycle=AGAIN_SECONDS,
        **more,
    )


_KINDS: dict[str, Callable[[URL, Source], Opened]] = {
    "postgresql": _postgresql,
    "sqlite": _sqlite,
}


def plain(value: Any) -> Any:
    """A value of a database driver as text, number, list or dict.

    Times with an offset are in UTC; decimals are numbers where a float holds them exactly as they
    are written, else text; bytes are hexadecimal.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Decimal):
        return _number(value)
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
    if isinstance(value, date | day_time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return _bytes_or_collection(value)


def _bytes_or_collection(value: Any) -> Any:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).hex()
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(entry) for entry in value]
    return str(value)


def _number(value: Decimal) -> int | float | str:
    if not value.is_finite():
        return str(value)
    if value == value.to_integral_value() and abs(value) < 2**63:
        return int(value)
    as_float = float(value)
    exact = math.isfinite(as_float) and Decimal(repr(as_float)) == value
    return as_float if exact else str(value)


Result = TypeVar("Result")


async def in_thread(call: Callable[[], Result], seconds: float) -> Result:
    """The result of a call; TimeoutError where it takes longer, and then it is left to itself.

    The threads of an executor would be waited for when the process ends; these are not.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(error: BaseException | None, result: Any = None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        try:
            settled = partial(settle, None, call())
        except BaseException as error:  # noqa: BLE001 - whatever it is, who waits has to hear it
            settled = partial(settle, error)
        # The loop may have ended meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settled)

    Thread(target=work, name="query", daemon=True).start()
    async with asyncio.timeout(seconds):
        return await future


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
            batch = [[plain(value) for value in row] for row in part]
            size += sum(len(str(value)) for row in batch for value in row)
            rows += batch
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


async def all_closed(databases: list[Queries]) -> None:
    """Close several databases at once."""
    await asyncio.gather(*(database.close() for database in databases))
