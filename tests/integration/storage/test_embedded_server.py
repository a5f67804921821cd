"""The embedded MongoDB server is started once, reused, and repaired after a crash."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pymongo
import pytest

from crawler.config import Config
from crawler.errors import ServerError
from crawler.storage.embedded import EmbeddedServer, user_name
from crawler.utils.files import MAX_LOG_BYTES
from tests.integration.harness import Db, Freshet, Row

# `nobody` on most systems.
OTHER_USER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def data(mongo: EmbeddedServer) -> Iterator[Path]:
    """Yield a data folder for one test; the `mongo` fixture skips tests without a server."""
    folder = Path(tempfile.mkdtemp(prefix="fe-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def without_mongo_uri(data: Path, tmp_path: Path) -> Iterator[Freshet]:
    """Yield Freshet without MONGO_URI; stop its server at the end."""
    with Freshet(tmp_path, FRESHET_DATA_DIR=data) as freshet:
        yield freshet
    freshet("db", "stop")


def state(freshet: Freshet, action: str = "status") -> Row:
    """Return the JSON output of `scrapy db`."""
    result = freshet("db", action, "--json")
    assert result.err == ""
    return dict(json.loads(result.out))


def is_running(pid: int) -> bool:
    """Return true if a process is running; a zombie process has no command line."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def kill(pid: int) -> None:
    """Kill a mongod that this test started, and wait until it has ended."""
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def as_another_user(work: Callable[[], object]) -> str:
    """Return the error message of `work`, called in a process of another user."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        text = ""
        try:
            os.setgroups([])
            os.setgid(OTHER_USER)
            os.setuid(OTHER_USER)
            work()
        except ServerError as error:
            text = str(error)
        finally:
            os.write(writer, text.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as messages:
        text = messages.read()
    os.waitpid(pid, 0)
    return text


def write(uri: str, number: int) -> None:
    client: pymongo.MongoClient[Row]
    with pymongo.MongoClient(uri) as client:
        majority = client.get_default_database().notes.with_options(
            write_concern=pymongo.WriteConcern("majority", j=True)
        )
        majority.insert_one({"_id": number})


def numbers(uri: str) -> list[int]:
    client: pymongo.MongoClient[Row]
    with pymongo.MongoClient(uri) as client:
        return sorted(note["_id"] for note in client.get_default_database().notes.find())


def test_server_starts_reports_its_state_and_stops(without_mongo_uri: Freshet, data: Path) -> None:
    before = without_mongo_uri("db", "status")
    assert (before.code, before.out) == (1, f"not running; data in {data}\n")

    started = without_mongo_uri("db", "start")
    assert started.code == 0
    running = state(without_mongo_uri)
    assert running["running"] is True
    assert started.out == f"running: process {running['pid']}, {running['uri']}, data in {data}\n"
    assert without_mongo_uri("db", "uri").out == running["uri"] + "\n"
    assert numbers(running["uri"]) == []

    stopped = without_mongo_uri("db", "stop")
    assert (stopped.code, stopped.out) == (0, "stopped\n")
    assert not is_running(running["pid"])
    assert without_mongo_uri("db", "stop").code == 0, "a server that is not running is not an error"


def test_no_network_port_is_opened(without_mongo_uri: Freshet, data: Path) -> None:
    pid = state(without_mongo_uri, "start")["pid"]
    sockets = {str(f.readlink()) for f in Path(f"/proc/{pid}/fd").iterdir() if f.is_symlink()}
    listening = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    own = [row for row in listening if f"socket:[{row[9]}]" in sockets]
    assert own == []


def test_server_leaves_the_default_socket_to_other_servers(
    without_mongo_uri: Freshet, data: Path
) -> None:
    """With /tmp/mongodb-27017.sock of another user, mongod would not start; else it deletes it."""
    state(without_mongo_uri, "start")
    lines = (data / "mongod.log").read_text().splitlines()
    shown = [
        each["attr"]["address"] for each in map(json.loads, lines) if "Listening" in each["msg"]
    ]
    assert shown == [str(data / "mongod.sock")]


def test_server_may_open_as_many_files_as_the_system_allows(without_mongo_uri: Freshet) -> None:
    """Otherwise mongod aborts with many databases or collections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
    try:
        pid = state(without_mongo_uri, "start")["pid"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (hard, hard)


def test_second_start_keeps_the_process(without_mongo_uri: Freshet) -> None:
    first = state(without_mongo_uri, "start")
    assert state(without_mongo_uri, "start") == first


def test_concurrent_starts_run_one_process(without_mongo_uri: Freshet) -> None:
    starts = [without_mongo_uri.start("db", "start", "--json") for _ in range(3)]
    pids = set()
    for start in starts:
        out, err = start.communicate(timeout=60)
        assert start.returncode == 0, err
        pids.add(json.loads(out)["pid"])
    assert len(pids) == 1


def test_uri_command_starts_the_server(without_mongo_uri: Freshet) -> None:
    uri = without_mongo_uri("db", "uri").out.strip()
    assert numbers(uri) == []
    assert state(without_mongo_uri)["running"] is True


@pytest.mark.soak
def test_restart_after_kill_keeps_acknowledged_writes(
    without_mongo_uri: Freshet, data: Path
) -> None:
    first = state(without_mongo_uri, "start")
    write(first["uri"], 1)
    kill(first["pid"])
    assert (data / "mongod.sock").exists()
    assert (data / "mongod.pid").exists()
    assert state(without_mongo_uri)["running"] is False

    second = state(without_mongo_uri, "start")
    assert second["running"] is True
    assert second["pid"] != first["pid"]
    assert second["uri"] == first["uri"]
    assert numbers(second["uri"]) == [1], "acknowledged writes are still there"


def test_data_survives_a_stop_and_a_start(without_mongo_uri: Freshet) -> None:
    uri = state(without_mongo_uri, "start")["uri"]
    write(uri, 1)
    without_mongo_uri("db", "stop")
    assert numbers(without_mongo_uri("db", "uri").out.strip()) == [1]


@pytest.mark.soak
def test_prune_renames_large_logs(without_mongo_uri: Freshet, data: Path) -> None:
    state(without_mongo_uri, "start")
    logs = [data / "mongod.log", data / "cron.log"]
    for log in logs:
        with log.open("ab") as file:
            file.truncate(MAX_LOG_BYTES + 1)
    assert without_mongo_uri("prune", "--dry-run").code == 0
    assert min(log.stat().st_size for log in logs) > MAX_LOG_BYTES
    assert without_mongo_uri("prune").code == 0
    assert all(log.with_name(f"{log.name}.1").stat().st_size > MAX_LOG_BYTES for log in logs)
    deadline = time.monotonic() + 10
    while not logs[0].exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert logs[0].stat().st_size < MAX_LOG_BYTES
    assert not logs[1].exists()
    assert state(without_mongo_uri)["running"]


def test_pid_file_of_another_process_is_ignored(without_mongo_uri: Freshet, data: Path) -> None:
    (data / "mongod.pid").write_text(f"{os.getpid()}\n")
    assert without_mongo_uri("db", "stop").out == f"not running; data in {data}\n"
    assert state(without_mongo_uri, "start")["pid"] != os.getpid()


def test_long_folder_names_are_supported(mongo: EmbeddedServer, tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    freshet = Freshet(tmp_path, FRESHET_DATA_DIR=folder)
    try:
        assert numbers(freshet("db", "uri").out.strip()) == []
    finally:
        assert freshet("db", "stop").out == "stopped\n"


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o770])
def test_socket_folder_open_to_other_users_is_refused(
    mongo: EmbeddedServer, tmp_path: Path, mode: int
) -> None:
    folder = tmp_path / ("long" * 30)
    freshet = Freshet(tmp_path, FRESHET_DATA_DIR=folder)
    socket_folder = EmbeddedServer.of(Config.load(data_dir=folder, mongo_uri=None)).socket.parent
    assert socket_folder.parent != folder
    socket_folder.mkdir()
    socket_folder.chmod(mode)
    socket_file = socket_folder / "mongod.sock"
    socket_file.write_text("of someone else")
    try:
        result = freshet("db", "start")
        assert result.code == 1
        assert "is open to other users" in result.complaint
        assert str(socket_folder) in result.complaint
        assert socket_file.read_text() == "of someone else", "the folder was not changed"
    finally:
        freshet("db", "stop")
        socket_file.unlink(missing_ok=True)
        socket_folder.rmdir()


def test_symlinked_socket_folder_is_refused(mongo: EmbeddedServer, tmp_path: Path) -> None:
    folder, other = tmp_path / ("long" * 30), tmp_path / "other"
    other.mkdir(mode=0o700)
    socket_folder = EmbeddedServer.of(Config.load(data_dir=folder, mongo_uri=None)).socket.parent
    socket_folder.symlink_to(other)
    try:
        result = Freshet(tmp_path, FRESHET_DATA_DIR=folder)("db", "start")
        assert (result.code, "is not a folder of this user" in result.complaint) == (1, True)
    finally:
        socket_folder.unlink()


def test_unwritable_folder_is_a_one_line_error(without_mongo_uri: Freshet, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "data"
    for command in (("db", "start"), ("crawl", "books"), ("targets",)):
        result = without_mongo_uri(*command, FRESHET_DATA_DIR=folder)
        assert result.code == 1
        assert result.complaint == (
            f"scrapy {command[0]}: data folder {folder}: Not a directory "
            "(set FRESHET_DATA_DIR to a folder you can write)"
        )


@needs_root
def test_server_of_another_user_is_named(without_mongo_uri: Freshet, data: Path) -> None:
    pid = state(without_mongo_uri, "start")["pid"]
    data.chmod(0o755)
    server = EmbeddedServer.of(Config.load(data_dir=data, mongo_uri=None))
    message = (
        f"mongod (process {pid}, data in {data}) belongs to user root, and no other user can "
        "connect to it: run the command as root, or set FRESHET_DATA_DIR to a folder of your own"
    )
    assert as_another_user(server.start) == message
    assert as_another_user(server.stop) == message
    assert is_running(pid)


@needs_root
def test_data_folder_of_another_user_is_named(mongo: EmbeddedServer, data: Path) -> None:
    data.chmod(0o755)
    server = EmbeddedServer.of(Config.load(data_dir=data, mongo_uri=None))
    assert as_another_user(server.start) == (
        f"data folder {data} belongs to user root: run the command as root, or set "
        "FRESHET_DATA_DIR to a folder of your own"
    )


@needs_root
@pytest.mark.parametrize("left", ["start.lock", "db/WiredTiger.turtle"])
def test_files_that_sudo_left_are_named(mongo: EmbeddedServer, data: Path, left: str) -> None:
    (data / "db").mkdir()
    for path in (data, data / "db"):
        os.chown(path, OTHER_USER, OTHER_USER)
    (data / left).touch(mode=0o600)
    server = EmbeddedServer.of(Config.load(data_dir=data, mongo_uri=None))
    assert as_another_user(server.start) == (
        f"data folder {data}: {data / left} belongs to user root. "
        f"Run: sudo chown -R {user_name(OTHER_USER)} {data}"
    )


def test_missing_mongod_is_a_one_line_error(without_mongo_uri: Freshet) -> None:
    for command in (("db", "start"), ("crawl", "books"), ("targets",)):
        result = without_mongo_uri(*command, FRESHET_MONGOD="/nonexistent")
        assert result.code == 1
        assert result.complaint == (
            f"scrapy {command[0]}: FRESHET_MONGOD: program not found: '/nonexistent'"
        )


def test_failing_mongod_is_a_one_line_error(without_mongo_uri: Freshet, data: Path) -> None:
    result = without_mongo_uri("db", "start", FRESHET_MONGOD="/bin/false")
    assert result.code == 1
    assert result.complaint.endswith(f"mongod did not start. See its log: {data}/mongod.log")


def test_full_disk_is_named_if_mongod_fails(without_mongo_uri: Freshet, data: Path) -> None:
    (data / "mongod.log").write_text("WiredTiger error: No space left on device\n")
    result = without_mongo_uri("db", "start", FRESHET_MONGOD="/bin/false")
    assert result.code == 1
    assert result.complaint == (
        f"scrapy db: mongod cannot run: the disk of {data} is full. Free some space"
    )


def test_start_is_refused_if_mongo_uri_is_set(freshet: Freshet) -> None:
    result = freshet("db", "start", MONGO_URI="mongodb://me:secret@example.org/x")
    assert result.code == 1
    assert "MONGO_URI is set (mongodb://example.org/x)" in result.complaint
    assert "secret" not in result.err


@pytest.mark.empty_database
def test_newer_database_is_refused(freshet: Freshet, database: Db) -> None:
    database.meta.insert_one({"_id": "schema", "version": 99})
    for command in (("crawl", "books"), ("targets",), ("history", "http://a.test/")):
        result = freshet(*command)
        assert result.code == 1
        assert "has data version 99, this Freshet supports up to" in result.complaint
    assert database.list_collection_names() == ["meta"], "the database was modified"
