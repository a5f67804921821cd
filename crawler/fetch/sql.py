"""Run the SQL queries of cells read-only, with limits on time, rows and bytes."""

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
from crawler.utils.exact_json import INT64, exact_number

# SQLite instructions between two checks of the time limit.
STEPS = 10_000
RECYCLE_SECONDS = 300
BATCH_ROWS = 100
# Time that a database gets to enforce its own statement timeout.
GRACE_SECONDS = 5.0
MAX_REASON_CHARACTERS = 250


@dataclass(frozen=True, slots=True)
class Backend:
    """Functions of a database that depend on its kind.

    set_timeout: sets the timeout in seconds of the queries of a new transaction
    interrupt:   frees a thread that waits for an answer on a driver connection
    """

    engine: Engine
    set_timeout: Callable[[Connection, float], None]
    interrupt: Callable[[Any], None]


def opened(name: str, source: Source) -> Backend:
    """Return a database without connecting to it; raises ConfigError if it is not supported."""
    try:
        url = make_url(source.url)
        if (kind := url.get_backend_name()) not in _KINDS:
            raise ConfigError(
                f"databases.{name}: unsupported kind of database: {kind!r}. "
                f"Supported: {', '.join(_KINDS)}"
            )
        return _KINDS[kind](url, source)
    except (ArgumentError, NoSuchModuleError, ImportError) as error:
        problem = "driver not installed" if isinstance(error, ImportError) else "invalid URL"
        cause = " ".join(str(error).split()).partition(" (Background")[0]
        raise ConfigError(f"databases.{name}: {problem}: {cause}") from None


def _postgresql(url: URL, source: Source) -> Backend:
    arguments = {"connect_timeout": max(2, math.ceil(source.seconds))}
    engine = _engine(url, source, connect_args=arguments)

    def set_timeout(connection: Connection, seconds: float) -> None:
        statement = text("SELECT set_config('statement_timeout', :limit, true)")
        connection.execute(statement, {"limit": f"{math.ceil(seconds * 1000)}ms"})

    def interrupt(driver: Any) -> None:
        # Shut down a copy of the socket: the waiting thread then reads the end of the connection.
        with socket.socket(fileno=os.dup(driver.fileno())) as dup_socket:
            dup_socket.shutdown(socket.SHUT_RDWR)

    read_only = engine.execution_options(postgresql_readonly=True)
    return Backend(read_only, set_timeout, interrupt)


def _sqlite(url: URL, source: Source) -> Backend:
    if not url.database or url.database == ":memory:":
        raise ConfigError("sqlite: missing file name. Example: sqlite:///path/to/file.db")
    address = f"file:{quote(str(Path(url.database).resolve()))}?mode=ro"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            address, uri=True, timeout=source.seconds, check_same_thread=False
        )
        connection.execute("PRAGMA query_only = ON")
        # SQLite does not check the encoding of texts.
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        return connection

    def set_timeout(connection: Connection, seconds: float) -> None:
        ends = time.monotonic() + seconds
        driver: Any = connection.connection.driver_connection
        driver.set_progress_handler(lambda: time.monotonic() > ends, STEPS)

    engine = _engine(url, source, creator=connect)
    return Backend(engine, set_timeout, sqlite3.Connection.interrupt)


def _engine(url: URL, source: Source, **more: Any) -> Engine:
    return create_engine(
        url,
        hide_parameters=True,
        pool_size=source.connections,
        max_overflow=0,
        pool_timeout=source.seconds,
        pool_pre_ping=True,
        pool_recycle=RECYCLE_SECONDS,
        **more,
    )


_KINDS: dict[str, Callable[[URL, Source], Backend]] = {
    "postgresql": _postgresql,
    "sqlite": _sqlite,
}


def plain(value: Any) -> Any:
    """Convert a value of a database driver to a JSON type.

    Times with an offset are converted to UTC. Decimals become numbers if a float represents them
    exactly, else strings. Bytes become hexadecimal strings.
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
    if abs(value) < INT64 and value == value.to_integral_value():
        return int(value)
    number = exact_number(value)
    return str(number) if isinstance(number, str) else number


Result = TypeVar("Result")


async def in_thread(call: Callable[[], Result], seconds: float) -> Result:
    """Return the result of a call in a thread; raises TimeoutError after `seconds`.

    After a timeout, the thread keeps running. It is a daemon thread, because the process would wait
    for the threads of an executor when it exits.
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
        except BaseException as error:  # noqa: BLE001 - passed on to the caller
            settled = partial(settle, error)
        # The event loop may be closed by now.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settled)

    Thread(target=work, name="query", daemon=True).start()
    async with asyncio.timeout(seconds):
        return await future


class Queries:
    """Runs the queries of one database."""

    def __init__(self, name: str, source: Source, max_bytes: int) -> None:
        self._name, self._source, self._max_bytes = name, source, max_bytes
        self._backend = opened(name, source)
        self._password = make_url(source.url).password
        self._active: set[Any] = set()

    async def result(self, cell: Cell) -> bytes:
        """Return the result of a cell's query as JSON (`columns`, `rows`); raises QueryFailed."""
        limit = self._source.seconds
        try:
            return await in_thread(lambda: self._result(cell), limit + GRACE_SECONDS)
        except TimeoutError:
            self._interrupt()
            reason = f"no response from database {self._name} within {limit:g} s"
            raise QueryFailed(reason, hangs=True) from None
        except SQLAlchemyError as error:
            raise QueryFailed(self._reason(error)) from None

    async def close(self) -> None:
        """Close the connections; abandon those that do not close within GRACE_SECONDS."""
        with contextlib.suppress(TimeoutError):
            await in_thread(self._backend.engine.dispose, GRACE_SECONDS)

    def _result(self, cell: Cell) -> bytes:
        """Run a query in the current thread."""
        with self._connected() as connection:
            driver = connection.connection.driver_connection
            self._active.add(driver)
            try:
                return self._read(connection, cell)
            finally:
                self._active.discard(driver)
                connection.rollback()

    def _connected(self) -> Connection:
        """Return a connection; a slow failure counts as a hang, so that the run gives up."""
        began = time.monotonic()
        try:
            return self._backend.engine.connect()
        except SQLAlchemyError as error:
            hangs = time.monotonic() - began > self._source.seconds / 2
            raise QueryFailed(self._reason(error), hangs=hangs) from None

    def _read(self, connection: Connection, cell: Cell) -> bytes:
        self._backend.set_timeout(connection, self._source.seconds)
        streaming = connection.execution_options(stream_results=True, max_row_buffer=BATCH_ROWS)
        with streaming.execute(statement(cell), cell.parameters) as result:
            columns = list(result.keys())
            if twice := sorted({name for name in columns if columns.count(name) > 1}):
                raise QueryFailed(f"duplicate column name: {twice[0]!r}. Rename one with AS")
            rows = self._rows(result, cell.rows or self._source.rows)
        return json.dumps({"columns": columns, "rows": rows}, ensure_ascii=False).encode()

    def _rows(self, result: CursorResult[Any], max_rows: int) -> list[list[Any]]:
        rows: list[list[Any]] = []
        size = 0
        for part in result.partitions(BATCH_ROWS):
            batch = [[plain(value) for value in row] for row in part]
            size += sum(len(str(value)) for row in batch for value in row)
            rows += batch
            if len(rows) > max_rows:
                raise QueryFailed(
                    f"more than {max_rows:,} rows (rows = {max_rows} in the cell or database)"
                )
            if size > self._max_bytes:
                raise QueryFailed(f"more than {self._max_bytes:,} bytes (FRESHET_RESPONSE_MB)")
        return rows

    def _interrupt(self) -> None:
        for driver in list(self._active):
            with contextlib.suppress(Exception):
                self._backend.interrupt(driver)

    def _reason(self, error: SQLAlchemyError) -> str:
        """Return the driver's message; SQLAlchemy's contains the query and its parameters."""
        cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
        message = " ".join(str(cause).split()).partition(" (Background")[0]
        if self._password:
            message = message.replace(str(self._password), "***")
        return f"{type(cause).__name__}: {message}"[:MAX_REASON_CHARACTERS]


def statement(cell: Cell) -> TextClause:
    """Return a cell's query with bound parameters; a list becomes the values of `IN :name`."""
    lists = [name for name, value in cell.parameters.items() if isinstance(value, tuple)]
    return text(cell.sql or "").bindparams(*(bindparam(name, expanding=True) for name in lists))


async def all_closed(databases: list[Queries]) -> None:
    """Close several databases concurrently."""
    await asyncio.gather(*(database.close() for database in databases))
