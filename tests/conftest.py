"""Fixtures for all tests: a MongoDB server, a database per test, Freshet, the demo site.

Tests of invariants try 20 examples, and 1,000 with `HYPOTHESIS_PROFILE=thorough`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pymongo
import pytest
from hypothesis import HealthCheck, settings

from crawler.config import Config
from crawler.errors import ServerError
from crawler.storage.embedded import EmbeddedServer
from tests.database_pool import Cleaner, DatabasePool
from tests.integration import forked
from tests.integration.harness import Db, Freshet, Pages
from tests.site import running
from tests.site.running import RunningSite

MEMORY = Path("/dev/shm")
AMPLE_BYTES = 8 << 30
# The marks of all tests of a module.
ALL_LONG = re.compile(rb"^pytestmark = .*mark\.soak\b", re.M)
# The modules that take longest start first, else one of them would run alone at the end.
LONGEST = (
    "integration/cli/test_demo.py",
    "integration/storage/test_outages.py",
    "integration/storage/test_fences.py",
    "integration/planning/test_replan_in_shards.py",
    "integration/cli/test_every_command.py",
    "integration/frontier/test_workers.py",
    "integration/web/test_web_input.py",
    "integration/frontier/test_traps.py",
    "integration/frontier/test_due_again.py",
    "integration/frontier/test_failed_runs.py",
    "integration/extract/test_run_warnings.py",
    "integration/browser/test_hostile_views.py",
    "integration/browser/test_new_user.py",
    "unit/fetch/test_worst_texts.py",
    "unit/cli/test_docs.py",
    "integration/storage/test_clocks.py",
    "integration/extract/test_sources.py",
    "integration/dedup/test_duplicates_experiment.py",
    "integration/ops/test_service_run.py",
    "integration/ops/test_doctor_deep.py",
    "integration/storage/test_crashes.py",
    "integration/planning/test_kernels.py",
    "integration/notify/test_kills.py",
)
# Items of the demo site: a crawl of its 200 takes a second.
SITE_ITEMS = 60
# Variable with the data folder of the server of a run.
MONGO_FOLDER = "TEST_MONGO_FOLDER"
Databases = Callable[[], AbstractContextManager[tuple[Db, str]]]
# The machine may be busy.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", unhurried, max_examples=20)
settings.register_profile("thorough", unhurried, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
# Before other conftests import modules of Freshet that read `sys.executable`.
forked.begin()
_of_this_process: list[Path] = []


def pytest_configure() -> None:
    """Fork the servers of tests/site the same way as commands; name the folder of MongoDB."""
    running.launch = forked.python
    # Worker processes inherit the environment.
    if MONGO_FOLDER not in os.environ:
        os.environ[MONGO_FOLDER] = str(_folder())
        _of_this_process.append(Path(os.environ[MONGO_FOLDER]))
    # Collection creates millions of objects that live until the end.
    gc.disable()


def pytest_collection(session: pytest.Session) -> None:
    """Import the modules first, in another order in each worker.

    In a new checkout, rewriting the assertions of a module takes longer than importing it. Whoever
    comes first stores the result for the others.
    """
    worker = getattr(session.config, "workerinput", None)
    if worker is None:
        return
    folders = (Path(arg) for arg in session.config.args)
    paths = [path.resolve() for folder in folders for path in sorted(folder.rglob("test_*.py"))]
    start = len(paths) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
    for path in paths[start:] + paths[:start]:
        name = ".".join(path.relative_to(running.ROOT).with_suffix("").parts)
        # Collection reports the errors.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            if not pytest_ignore_collect(path, session.config):
                importlib.import_module(name)


def pytest_collection_finish() -> None:
    """Exempt the collected tests and loaded modules from garbage collection.

    Without it, each collection, of which commands and pytest request hundreds, visits all of them.
    """
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Stop the process that forks commands, and MongoDB, after all workers have ended."""
    forked.end()
    for folder in _of_this_process:
        _server(folder).stop()
        shutil.rmtree(folder)
        del os.environ[MONGO_FOLDER]
    # C++ libraries report objects that the interpreter cannot collect at exit as leaks. Unfreeze
    # at exit only, because pytest collects garbage once more.
    atexit.register(gc.unfreeze)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return four times the number of processors: many tests wait for servers and clocks."""
    return 4 * (os.cpu_count() or 2)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip modules without tests to run, because each worker would load all of them.

    If only long tests run, these are modules without long tests. Otherwise, these are modules
    with only long tests.
    """
    if collection_path.suffix != ".py" or config.option.markexpr not in {"soak", "not soak"}:
        return None
    text = collection_path.read_bytes()
    if config.option.markexpr == "soak":
        return True if b"mark.soak" not in text else None
    return True if ALL_LONG.search(text) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest modules first."""
    places = {f"tests/{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


@pytest.fixture(scope="session")
def mongo() -> EmbeddedServer:
    """Run one embedded server for all tests of a run; skip the test if no server can run.

    The first worker that needs it starts it. Tests that kill, pause or fill one have their own.
    """
    server = _server(Path(os.environ[MONGO_FOLDER]))
    try:
        server.start()
    except ServerError as error:
        log = server.log.read_text()[-2000:] if server.log.exists() else ""
        if "mongod not found" in str(error) or "libcurl" in str(error):
            pytest.skip(str(error))
        pytest.fail(f"{error}\n{log}")
    # Tests have clocks of their own: what has not ended for them may have ended for the server.
    with pymongo.MongoClient(server.uri) as client:
        client.admin.command("setParameter", 1, ttlMonitorEnabled=False)
    return server


def _server(folder: Path) -> EmbeddedServer:
    return EmbeddedServer.of(Config.load(data_dir=folder, mongo_cache_gb=1, mongo_uri=None))


def _folder() -> Path:
    """Create the server's data folder, in memory if there is enough space.

    A database consists of a hundred files; on a disk, a test would spend half its time waiting.
    """
    ample = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > AMPLE_BYTES
    # pytest's folder is too long: a socket path can have at most 107 bytes.
    return Path(tempfile.mkdtemp(prefix="fm-", dir=MEMORY if ample else None))


@pytest.fixture(scope="session")
def cleaners() -> list[Cleaner]:
    """Return a list to which fixtures add functions that delete a database's data."""
    return []


@pytest.fixture(scope="session")
def pool(mongo: EmbeddedServer, cleaners: list[Cleaner]) -> Iterator[DatabasePool]:
    """Return the databases of the process."""
    databases = DatabasePool(mongo.uri, cleaners)
    yield databases
    databases.close()


@pytest.fixture(scope="session")
def databases(pool: DatabasePool) -> Databases:
    """Return a factory of prepared databases and their URIs, each for one `with` block."""
    return pool.prepared


@pytest.fixture
def stored(request: pytest.FixtureRequest, pool: DatabasePool) -> Iterator[tuple[Db, str]]:
    """Yield a database for one test, and its URI.

    Its collections and indexes exist, except in tests with the marker `empty_database`.
    """
    empty = request.node.get_closest_marker("empty_database")
    with pool.empty() if empty else pool.prepared() as made:
        yield made


@pytest.fixture
def database(stored: tuple[Db, str]) -> Db:
    """Return a database without documents for one test."""
    return stored[0]


@pytest.fixture
def freshet(
    request: pytest.FixtureRequest, stored: tuple[Db, str], tmp_path: Path
) -> Iterator[Freshet]:
    """Run Freshet's commands on the test's database; DUPLICATES in a module turns comparison on."""
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
    """Run a small demo site with its clock at the start of its history."""
    with RunningSite("--log-big", items=SITE_ITEMS) as running:
        yield running


@pytest.fixture
def pages() -> Iterator[Pages]:
    """Serve files that the test writes, with ETags."""
    with Pages() as running:
        yield running
