"""How each kind of database is opened for reading alone, and how long it may take."""

from __future__ import annotations

import math
import os
import socket
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from crawler.errors import ConfigError
from crawler.extract.cells import Source

# Steps of SQLite's machine between two looks at the clock.
STEPS = 10_000
AGAIN_SECONDS = 300


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
        reason = "its driver is not installed" if isinstance(error, ImportError) else "no such URL"
        raise ConfigError(f"databases.{name}: {reason}: {_of_error(error)}") from None


def _postgresql(url: URL, source: Source) -> Opened:
    arguments = {"connect_timeout": max(2, math.ceil(source.seconds))}
    engine = _engine(url, source, connect_args=arguments)
    reading = engine.execution_options(postgresql_readonly=True)
    return Opened(reading, _limit_postgresql, _hang_up)


def _limit_postgresql(connection: Connection, seconds: float) -> None:
    limit = text("SELECT set_config('statement_timeout', :limit, true)")
    connection.execute(limit, {"limit": f"{math.ceil(seconds * 1000)}ms"})


def _hang_up(driver: Any) -> None:
    """End a connection under the thread that waits for it: it then reads the end."""
    with socket.socket(fileno=os.dup(driver.fileno())) as same:
        same.shutdown(socket.SHUT_RDWR)


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

    return Opened(
        _engine(url, source, creator=connect), _limit_sqlite, sqlite3.Connection.interrupt
    )


def _limit_sqlite(connection: Connection, seconds: float) -> None:
    ends = time.monotonic() + seconds
    driver: Any = connection.connection.driver_connection
    driver.set_progress_handler(lambda: time.monotonic() > ends, STEPS)


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


def _of_error(error: Exception) -> str:
    return " ".join(str(error).split()).partition(" (Background")[0]


_KINDS: dict[str, Callable[[URL, Source], Opened]] = {
    "postgresql": _postgresql,
    "sqlite": _sqlite,
}
