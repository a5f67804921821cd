"""MongoDB becomes unavailable during a run: its disk is full, or its process is stopped."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import string
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pymongo
import pytest
import redis

from crawler.config import Config
from crawler.storage.embedded import EmbeddedServer
from tests.faults.outages import CannotMount, SmallDisk
from tests.faults.servers import Mongo
from tests.integration.forked import Process
from tests.integration.harness import Db, Freshet, Pages, Row, asked, outcomes, visits
from tests.integration.redis_server import private_server, url_of

pytestmark = pytest.mark.soak

ITEMS = 120
# Characters per page: large pages make MongoDB allocate disk blocks constantly.
CHARACTERS = 40_000
DISK_MB = 500
# Enough for the server's journal. Less than all of the disk is filled faster, during a crawl.
FREE_MB = 360
# Writes must fail before the check of free space ends the run.
ENV = {"FRESHET_MIN_FREE_MB": 0, "FRESHET_COMMIT_SIZE": 5}
# Long enough for several retries.
RETRYING_SECONDS = 4
UNAVAILABLE, AVAILABLE = "MongoDB unavailable, retrying", "MongoDB available again after"


@pytest.fixture
def folder(mongo: EmbeddedServer) -> Iterator[Path]:
    """Yield a folder with a short path; the `mongo` fixture skips tests without a server."""
    made = Path(tempfile.mkdtemp(prefix="fo-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def disk(folder: Path) -> Iterator[SmallDisk]:
    with ExitStack() as stack:
        try:
            yield stack.enter_context(SmallDisk(folder / "disk", DISK_MB))
        except CannotMount as error:
            pytest.skip(f"no small disk to fill: {error}")


@contextmanager
def embedded(data: Path, home: Path, **env: object) -> Iterator[Freshet]:
    """Yield Freshet with its own embedded server."""
    server = EmbeddedServer.of(Config.load(data_dir=data, mongo_uri=None))
    with Freshet(home, FRESHET_DATA_DIR=data, **env) as freshet:
        yield freshet
    if (pid := server.pid()) is not None:
        os.kill(pid, signal.SIGCONT)
    server.stop()


@contextmanager
def opened(data: Path) -> Iterator[Db]:
    """Yield the database of an embedded server."""
    client: pymongo.MongoClient[Row]
    with pymongo.MongoClient(EmbeddedServer.of(Config.load(data_dir=data)).start()) as client:
        yield client.get_default_database()


def shop(freshet: Freshet, pages: Pages, **keys: object) -> Path:
    """Write a site of large items whose crawl takes a few seconds."""
    chance, paths = random.Random(1), [f"/item-{i}.html" for i in range(ITEMS)]
    for path in paths:
        text = "".join(chance.choices(string.ascii_letters + " ", k=CHARACTERS))
        pages.item(path, text)
    pages.list("/list.html", paths)
    return freshet.wrapper(
        "shop",
        start_urls=[f"{pages.url}/list.html"],
        item_pages=r"/item-\d+\.html$",
        fields={"title": "h1"},
        robots=False,
        **{"concurrency": 2, "delay_seconds": 0.05} | keys,
    )


def short(err: str) -> str:
    """Shorten log lines, which may contain page contents."""
    return "\n".join(line[:300] for line in err.splitlines())


def server_is_down(data: Path) -> bool:
    """Return true if no process of an embedded server is running."""
    return EmbeddedServer.of(Config.load(data_dir=data, mongo_uri=None)).pid() is None


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def read_log_until(crawl: Process, text: str) -> str:
    """Read the log of a crawl up to the line with this text, and return it."""
    assert crawl.stderr is not None
    log = ""
    while text not in log:
        line = crawl.stderr.readline()
        assert line, short(log)
        log += line
    return log


def check_all_stored_once(db: Db, pages: Pages) -> None:
    """Check that each page is requested once and stored once and completely."""
    assert outcomes(db) == {"new": ITEMS + 1}
    assert len({row["target"] for row in visits(db)}) == ITEMS + 1
    assert set(asked(pages).values()) == {1}
    assert db.posts.count_documents({}) == ITEMS
    assert db.versions.count_documents({}) == ITEMS + 1
    hashes = {row["_id"]: row["content_hash"] for row in db.posts.find()}
    for item_row in db.targets.find({"kind": "item"}):
        assert item_row["content_hash"] == hashes[item_row["_id"]]
        assert item_row["requested"] == 1


def test_full_disk_pauses_the_run_until_space_is_free(
    disk: SmallDisk, tmp_path: Path, pages: Pages
) -> None:
    disk.fill(but_megabytes=FREE_MB)
    with embedded(disk.folder, tmp_path, **ENV) as freshet:
        crawl = freshet.start("crawl", "site", "-a", f"wrapper={shop(freshet, pages)}")
        until(lambda: len(asked(pages)) > ITEMS / 4)
        with disk.full():
            err = read_log_until(crawl, UNAVAILABLE)
            time.sleep(RETRYING_SECONDS)
        err += crawl.communicate(timeout=120)[1]
        assert crawl.returncode == 0, short(err)
        assert err.count(UNAVAILABLE) == 1, short(err)
        assert err.count(AVAILABLE) == 1, short(err)
        # The first error is a rejected write or a stopped server, depending on timing.
        assert "cannot be stored" not in err
        with opened(disk.folder) as db:
            check_all_stored_once(db, pages)


def test_run_waits_for_a_server_without_disk_space(
    disk: SmallDisk, tmp_path: Path, pages: Pages
) -> None:
    with embedded(disk.folder, tmp_path, **ENV) as freshet:
        crawl = freshet.start("crawl", "site", "-a", f"wrapper={shop(freshet, pages)}")
        until(lambda: len(asked(pages)) > ITEMS / 4)
        server = Mongo(disk.folder)
        with disk.full():
            server.kill()
            disk.fill()
            err = read_log_until(crawl, UNAVAILABLE)
            time.sleep(RETRYING_SECONDS)
            assert server_is_down(disk.folder)
        err += crawl.communicate(timeout=120)[1]
        assert crawl.returncode == 0, short(err)
        with opened(disk.folder) as db:
            check_all_stored_once(db, pages)


def test_permanently_full_disk_ends_the_run_and_next_run_resumes(
    disk: SmallDisk, tmp_path: Path, pages: Pages
) -> None:
    with embedded(disk.folder, tmp_path, **ENV) as freshet:
        wrapper = shop(freshet, pages)
        words = ("crawl", "site", "-a", f"wrapper={wrapper}")
        crawl = freshet.start(*words, FRESHET_COMMIT_RETRY_SECONDS=3)
        until(lambda: len(asked(pages)) > ITEMS / 4)
        with disk.full():
            _, err = crawl.communicate(timeout=60)
        assert crawl.returncode == 1, short(err)
        errors = [line for line in err.splitlines() if " ERROR: " in line]
        assert len(errors) == 1, short(err)
        assert "MongoDB unavailable for" in errors[0]

        freshet.crawl(wrapper)
        with opened(disk.folder) as db:
            assert outcomes(db) == {"new": ITEMS + 1}
            assert db.posts.count_documents({}) == ITEMS


def test_stopped_server_pauses_the_run_and_is_reported(
    folder: Path, tmp_path: Path, pages: Pages
) -> None:
    with embedded(folder / "data", tmp_path, **ENV) as freshet:
        wrapper = shop(freshet, pages)
        crawl = freshet.start("crawl", "site", "-a", f"wrapper={wrapper}")
        until(lambda: len(asked(pages)) > ITEMS / 4)
        server = Mongo(folder / "data")
        pid = server.pid()
        with server.stopped():
            _check_commands_report_stopped_server(freshet, wrapper, folder / "data", pid)
            err = read_log_until(crawl, UNAVAILABLE)

        err += crawl.communicate(timeout=300)[1]
        assert crawl.returncode == 0, short(err)
        assert err.count(UNAVAILABLE) == err.count(AVAILABLE) == 1, short(err)
        assert f"mongod (process {pid}" in err
        with opened(folder / "data") as db:
            check_all_stored_once(db, pages)
        running = json.loads(freshet("db", "status", "--json").out)
        assert (running["running"], running["pid"], running["not_responding"]) == (True, pid, None)


def _check_commands_report_stopped_server(
    freshet: Freshet, wrapper: Path, data: Path, pid: int
) -> None:
    """Check the error messages of commands, which must not wait for the stopped server."""
    status = freshet("db", "status")
    assert status.code == 1
    assert status.out.startswith(f"mongod (process {pid}, data in {data})")
    assert "has not responded since" in status.out
    assert status.out.endswith(f"Continue it: kill -CONT {pid}\n")
    report = json.loads(freshet("db", "status", "--json").out)
    assert (report["running"], report["pid"]) == (False, pid)
    assert report["not_responding"] == status.out.strip(), "text and JSON report different messages"
    for words in (("db", "start"), ("db", "stop"), ("targets",)):
        result = freshet(*words)
        assert (result.code, status.out.strip() in result.complaint) == (1, True)
    other = freshet("crawl", "site", "-a", f"wrapper={wrapper}", "-a", "name=other")
    assert other.code == 1


def test_permanently_stopped_server_ends_the_run_with_one_error(
    folder: Path, tmp_path: Path, pages: Pages
) -> None:
    with embedded(folder / "data", tmp_path, **ENV) as freshet:
        wrapper = shop(freshet, pages)
        words = ("crawl", "site", "-a", f"wrapper={wrapper}")
        crawl = freshet.start(*words, FRESHET_COMMIT_RETRY_SECONDS=2)
        until(lambda: len(asked(pages)) > ITEMS / 4)
        server = Mongo(folder / "data")
        with server.stopped():
            _, err = crawl.communicate(timeout=300)
        assert crawl.returncode == 1, short(err)
        errors = [line for line in err.splitlines() if " ERROR: " in line]
        assert len(errors) == 1, short(err)
        assert "MongoDB unavailable for" in errors[0]
        assert "has not responded since" in errors[0]

        freshet.crawl(wrapper)
        with opened(folder / "data") as db:
            assert outcomes(db) == {"new": ITEMS + 1}


def test_redis_without_memory_pauses_the_run(freshet: Freshet, database: Db, pages: Pages) -> None:
    wrapper = shop(freshet, pages)
    with private_server() as server, redis.Redis.from_url(url_of(server)) as client:
        crawl = freshet.start(
            "crawl", "site", "-a", f"wrapper={wrapper}", REDIS_URL=url_of(server)
        )  # fmt: skip
        until(lambda: len(asked(pages)) > ITEMS / 4)
        client.config_set("maxmemory", 1)
        err = read_log_until(crawl, "unavailable, retrying")
        time.sleep(RETRYING_SECONDS / 2)
        client.config_set("maxmemory", 0)
        err += crawl.communicate(timeout=300)[1]
    assert crawl.returncode == 0, short(err)
    assert "available again after" in err
    assert outcomes(database) == {"new": ITEMS + 1}
    assert database.posts.count_documents({}) == ITEMS


def test_run_stops_cleanly_before_the_disk_is_full(
    disk: SmallDisk, tmp_path: Path, pages: Pages
) -> None:
    with embedded(disk.folder, tmp_path, **ENV) as freshet:
        wrapper = shop(freshet, pages, delay_seconds=0.2)
        words = ("crawl", "site", "-a", f"wrapper={wrapper}")
        crawl = freshet.start(*words, FRESHET_MIN_FREE_MB=100)
        until(lambda: len(asked(pages)) > 5)
        disk.fill(but_megabytes=50)
        _, err = crawl.communicate(timeout=60)
        assert crawl.returncode == 1, short(err)
        (error,) = [line for line in err.splitlines() if " ERROR: " in line]
        assert f"shop: the run ended early: data folder {disk.folder}: " in error
        assert "MB free, 100 MB needed (FRESHET_MIN_FREE_MB). Run scrapy prune, " in error
        with opened(disk.folder) as db:
            (run,) = db.runs.find()
            assert run["finished"]
            assert "the run ended early" in run["error"]
            assert run["counts"]["visits"] == len(asked(pages)) < ITEMS
            assert outcomes(db) == {"new": len(asked(pages))}, "fetched pages were not stored"

        immediately_after = freshet(*words, FRESHET_MIN_FREE_MB=100)
        assert immediately_after.code == 1
        disk.clear()
        shop(freshet, pages)
        assert freshet(*words, FRESHET_MIN_FREE_MB=100).code == 0
        with opened(disk.folder) as db:
            check_all_stored_once(db, pages)


def test_free_space_of_a_remote_server_is_checked(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    wrapper = shop(freshet, pages, delay_seconds=0.2)
    result = freshet.crawl(wrapper, code=1, FRESHET_MIN_FREE_MB=1e9)
    (error,) = [line for line in result.err.splitlines() if " ERROR: " in line]
    assert "shop: the run ended early: disk of MongoDB at mongodb://" in error
    assert "1000000000 MB needed" in error
    assert outcomes(database).keys() <= {"new"}
    assert outcomes(database).total() == len(asked(pages)) < ITEMS
