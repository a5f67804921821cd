"""A second MongoDB server with its own options, stopped at the end."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pymongo
import pytest
from pymongo.errors import PyMongoError

from crawler.errors import ServerError
from crawler.storage.embedded import find_mongod
from tests.integration.harness import Row

START_SECONDS = 60
Client = pymongo.MongoClient[Row]


@contextmanager
def second_mongod(*options: str) -> Iterator[tuple[Client, str]]:
    """Run a server with fail points enabled; yield a client and its URI without a database."""
    memory = Path("/dev/shm")
    # pytest's folder is too long: a socket path can have at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix="fm2-", dir=memory if memory.is_dir() else None))
    socket, process = folder / "mongod.sock", None
    try:
        process = subprocess.Popen(
            [_mongod(folder), "--dbpath", str(folder), "--bind_ip", str(socket),
             "--nounixsocket", "--logpath", str(folder / "log"), "--wiredTigerCacheSizeGB", "0.25",
             "--setParameter", "enableTestCommands=1",
             "--setParameter", "diagnosticDataCollectionEnabled=false", *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        uri = f"mongodb://{quote(str(socket), safe='')}"
        client: Client
        with pymongo.MongoClient(uri, tz_aware=True, serverSelectionTimeoutMS=500) as client:
            _wait(client)
            yield client, uri
    finally:
        if process is not None:
            process.kill()
            process.wait()
        shutil.rmtree(folder)


def _mongod(folder: Path) -> str:
    try:
        return find_mongod(None, folder)
    except ServerError as error:
        pytest.skip(str(error))


def _wait(client: Client) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            client.admin.command("ping")
        except PyMongoError:
            assert time.monotonic() < deadline, "the server did not start"
        else:
            return
