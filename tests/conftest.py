"""Fixtures for all tests: a real MongoDB, a database each, Freshet as a process, the demo site."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pymongo
import pytest

from crawler.config import Config
from crawler.errors import ServerError
from crawler.storage.embedded import EmbeddedServer
from tests.integration import forked
from tests.integration.harness import Db, Freshet, Pages, Row
from tests.site import running
from tests.site.running import RunningSite

MEMORY = Path("/dev/shm")
AMPLE_BYTES = 8 << 30
Databases = Callable[[], AbstractContextManager[tuple[Db, str]]]


def pytest_configure() -> None:
    """Servers start as commands do."""
    running.launch = forked.python


def pytest_unconfigure() -> None:
    """Nothing is started any more."""
    forked.end()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Twice as many as there are processors: tests wait for servers and clocks as a rule."""
    return (os.cpu_count() or 2) * 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need a MongoDB server."""
    for item in items:
        if "mongo" in getattr(item, "fixturenames", ()):
            item.add_marker("mongo")


@pytest.fixture(scope="session")
def mongo() -> Iterator[EmbeddedServer]:
    """One embedded server for all tests of a process; skips where none can run."""
    folder = _folder()
    server = EmbeddedServer.of(Config.load(data_dir=folder, mongo_cache_gb=0.25, mongo_uri=None))
    try:
        server.start()
    except ServerError as error:
        said = server.log.read_text()[-2000:] if server.log.exists() else ""
        shutil.rmtree(folder)
        if "mongod not found" in str(error) or "libcurl" in str(error):
            pytest.skip(str(error))
        pytest.fail(f"{error}\n{said}")
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder)


def _folder() -> Path:
    """Where the server keeps its data; in memory, if that is ample.

    A database is a hundred files, and on a disk a test would wait half its time for them.
    """
    ample = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > AMPLE_BYTES
    # A socket's path may have 107 bytes, so not in pytest's folder.
    return Path(tempfile.mkdtemp(prefix="fm-", dir=MEMORY if ample else None))


@pytest.fixture(scope="session")
def databases(mongo: EmbeddedServer) -> Databases:
    """A maker of databases with their URIs, each dropped at the end of its `with` block."""

    @contextmanager
    def make() -> Iterator[tuple[Db, str]]:
        name = f"t{uuid.uuid4().hex}"
        uri = f"{mongo.uri.rpartition('/')[0]}/{name}"
        client: pymongo.MongoClient[Row]
        with pymongo.MongoClient(uri, tz_aware=True) as client:
            try:
                yield client.get_default_database(), uri
            finally:
                client.drop_database(name)

    return make


@pytest.fixture
def stored(databases: Databases) -> Iterator[tuple[Db, str]]:
    """A database of the test's own, and its URI."""
    with databases() as made:
        yield made


@pytest.fixture
def database(stored: tuple[Db, str]) -> Db:
    """A database of the test's own, empty at first."""
    return stored[0]


@pytest.fixture
def freshet(
    request: pytest.FixtureRequest, stored: tuple[Db, str], tmp_path: Path
) -> Iterator[Freshet]:
    """Runs Freshet's commands on the test's database; a module's DUPLICATES has posts compared."""
    compared = getattr(request.module, "DUPLICATES", "off")
    env = {
        "MONGO_URI": stored[1],
        "FRESHET_DATA_DIR": tmp_path / "data",
        "FRESHET_DUPLICATES": compared,
    }
    with Freshet(tmp_path, **env) as runner:
        yield runner


@pytest.fixture
def site() -> Iterator[RunningSite]:
    """The demo site; its clock stands at the start of its history."""
    with RunningSite("--log-big") as running:
        yield running


@pytest.fixture
def pages() -> Iterator[Pages]:
    """A site of files that the test writes; with ETags."""
    with Pages() as running:
        yield running
