"""The embedded MongoDB server: started once, found again, repaired after a crash."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pymongo
import pytest

from crawler.config import Config
from crawler.storage.embedded import MAX_LOG_BYTES, EmbeddedServer
from tests.integration.harness import Db, Freshet, Row


@pytest.fixture
def data(mongo: EmbeddedServer) -> Iterator[Path]:
    """Yield a data folder for one test; depends on `mongo` to be skipped with it."""
    folder = Path(tempfile.mkdtemp(prefix="fe-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def alone(data: Path, tmp_path: Path) -> Iterator[Freshet]:
    """Yield Freshet without MONGO_URI; stop its server at the end."""
    with Freshet(tmp_path, FRESHET_DATA_DIR=data) as freshet:
        yield freshet
    freshet("db", "stop")


def state(freshet: Freshet, action: str = "status") -> Row:
    """Return the JSON output of `scrapy db`."""
    result = freshet("db", action, "--json")
    assert result.err == ""
    return dict(json.loads(result.out))


def runs(pid: int) -> bool:
    """Return true if a process is running; a zombie process has no command line."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def kill(pid: int) -> None:
    """Kill a mongod that this test started, and wait until it has ended."""
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while runs(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


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


def test_it_starts_tells_its_state_and_stops(alone: Freshet, data: Path) -> None:
    before = alone("db", "status")
    assert (before.code, before.out) == (1, f"not running; data in {data}\n")

    started = alone("db", "start")
    assert started.code == 0
    running = state(alone)
    assert running["running"] is True
    assert started.out == f"running: process {running['pid']}, {running['uri']}, data in {data}\n"
    assert alone("db", "uri").out == running["uri"] + "\n"
    assert numbers(running["uri"]) == []

    stopped = alone("db", "stop")
    assert (stopped.code, stopped.out) == (0, "stopped\n")
    assert not runs(running["pid"])
    assert alone("db", "stop").code == 0, "a server that is not running is not an error"


def test_no_network_port_is_opened(alone: Freshet, data: Path) -> None:
    pid = state(alone, "start")["pid"]
    sockets = {str(f.readlink()) for f in Path(f"/proc/{pid}/fd").iterdir() if f.is_symlink()}
    listening = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    own = [row for row in listening if f"socket:[{row[9]}]" in sockets]
    assert own == []


def test_started_twice_it_is_one_process(alone: Freshet) -> None:
    first = state(alone, "start")
    assert state(alone, "start") == first


def test_started_twice_at_once_it_is_one_process(alone: Freshet) -> None:
    starts = [alone.start("db", "start", "--json") for _ in range(3)]
    pids = set()
    for start in starts:
        out, err = start.communicate(timeout=60)
        assert start.returncode == 0, err
        pids.add(json.loads(out)["pid"])
    assert len(pids) == 1


def test_uri_starts_it(alone: Freshet) -> None:
    uri = alone("db", "uri").out.strip()
    assert numbers(uri) == []
    assert state(alone)["running"] is True


def test_what_a_killed_server_leaves_behind_is_put_right(alone: Freshet, data: Path) -> None:
    first = state(alone, "start")
    write(first["uri"], 1)
    kill(first["pid"])
    assert (data / "mongod.sock").exists()
    assert (data / "mongod.pid").exists()
    assert state(alone)["running"] is False

    second = state(alone, "start")
    assert second["running"] is True
    assert second["pid"] != first["pid"]
    assert second["uri"] == first["uri"]
    assert numbers(second["uri"]) == [1], "acknowledged writes are still there"


def test_data_survives_a_stop_and_a_start(alone: Freshet) -> None:
    uri = state(alone, "start")["uri"]
    write(uri, 1)
    alone("db", "stop")
    assert numbers(alone("db", "uri").out.strip()) == [1]


def test_prune_renames_large_logs(alone: Freshet, data: Path) -> None:
    state(alone, "start")
    logs = [data / "mongod.log", data / "cron.log"]
    for log in logs:
        with log.open("ab") as file:
            file.truncate(MAX_LOG_BYTES + 1)
    assert alone("prune", "--dry-run").code == 0
    assert min(log.stat().st_size for log in logs) > MAX_LOG_BYTES
    assert alone("prune").code == 0
    assert all(log.with_name(f"{log.name}.1").stat().st_size > MAX_LOG_BYTES for log in logs)
    deadline = time.monotonic() + 10
    while not logs[0].exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert logs[0].stat().st_size < MAX_LOG_BYTES
    assert not logs[1].exists()
    assert state(alone)["running"]


def test_a_pid_file_with_the_number_of_another_process_harms_nobody(
    alone: Freshet, data: Path
) -> None:
    (data / "mongod.pid").write_text(f"{os.getpid()}\n")
    assert alone("db", "stop").out == f"not running; data in {data}\n"
    assert state(alone, "start")["pid"] != os.getpid()


def test_a_folder_with_a_long_name_is_no_obstacle(mongo: EmbeddedServer, tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    freshet = Freshet(tmp_path, FRESHET_DATA_DIR=folder)
    try:
        assert numbers(freshet("db", "uri").out.strip()) == []
    finally:
        assert freshet("db", "stop").out == "stopped\n"


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o600 | 0o070])
def test_a_socket_folder_that_others_can_enter_is_refused(
    mongo: EmbeddedServer, tmp_path: Path, mode: int
) -> None:
    folder = tmp_path / ("long" * 30)
    freshet = Freshet(tmp_path, FRESHET_DATA_DIR=folder)
    place = EmbeddedServer.of(Config.load(data_dir=folder, mongo_uri=None)).socket.parent
    assert place.parent != folder
    place.mkdir()
    place.chmod(mode)
    mine = place / "mongod.sock"
    mine.write_text("of someone else")
    try:
        result = freshet("db", "start")
        assert result.code == 1
        assert "is open to other users" in result.complaint
        assert str(place) in result.complaint
        assert mine.read_text() == "of someone else", "the folder was not changed"
    finally:
        freshet("db", "stop")
        mine.unlink(missing_ok=True)
        place.rmdir()


def test_a_link_in_place_of_the_socket_folder_is_refused(
    mongo: EmbeddedServer, tmp_path: Path
) -> None:
    folder, other = tmp_path / ("long" * 30), tmp_path / "other"
    other.mkdir(mode=0o700)
    place = EmbeddedServer.of(Config.load(data_dir=folder, mongo_uri=None)).socket.parent
    place.symlink_to(other)
    try:
        result = Freshet(tmp_path, FRESHET_DATA_DIR=folder)("db", "start")
        assert (result.code, "is not a folder of this user" in result.complaint) == (1, True)
    finally:
        place.unlink()


def test_a_folder_that_cannot_be_written_is_said_in_one_line(
    alone: Freshet, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "data"
    for command in (("db", "start"), ("crawl", "books"), ("targets",)):
        result = alone(*command, FRESHET_DATA_DIR=folder)
        assert result.code == 1
        assert result.complaint == (
            f"scrapy {command[0]}: data folder {folder}: Not a directory "
            "(set FRESHET_DATA_DIR to a folder you can write)"
        )


def test_a_mongod_that_is_not_there_is_said_in_one_line(alone: Freshet) -> None:
    for command in (("db", "start"), ("crawl", "books"), ("targets",)):
        result = alone(*command, FRESHET_MONGOD="/nonexistent")
        assert result.code == 1
        assert result.complaint == (
            f"scrapy {command[0]}: FRESHET_MONGOD: program not found: '/nonexistent'"
        )


def test_a_mongod_that_will_not_start_is_said_in_one_line(alone: Freshet, data: Path) -> None:
    result = alone("db", "start", FRESHET_MONGOD="/bin/false")
    assert result.code == 1
    assert result.complaint.endswith(f"mongod did not start. See its log: {data}/mongod.log")


def test_with_a_mongo_uri_there_is_nothing_to_start(freshet: Freshet) -> None:
    result = freshet("db", "start", MONGO_URI="mongodb://me:secret@example.org/x")
    assert result.code == 1
    assert "MONGO_URI is set (mongodb://example.org/x)" in result.complaint
    assert "secret" not in result.err


@pytest.mark.empty_database
def test_a_database_of_a_later_freshet_is_refused(freshet: Freshet, database: Db) -> None:
    database.meta.insert_one({"_id": "schema", "version": 99})
    for command in (("crawl", "books"), ("targets",), ("history", "http://a.test/")):
        result = freshet(*command)
        assert result.code == 1
        assert "has data version 99, this Freshet supports up to" in result.complaint
    assert database.list_collection_names() == ["meta"], "and is left as it was"
