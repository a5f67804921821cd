"""SIGTERM: requests in flight get a limited time; targets without a response stay due."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator

import pytest

from tests.integration.frontier.test_workers import until
from tests.integration.harness import Db, Freshet, Pages


@pytest.fixture
def silent() -> Iterator[str]:
    """Yield the URL of a server that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"


@pytest.mark.parametrize("shared", [False, True])
def test_target_without_response_stays_due(
    freshet: Freshet, database: Db, pages: Pages, silent: str, redis: str, shared: bool
) -> None:
    pages.list("/index", [])
    starts = [f"{pages.url}/index", silent]
    wrapper = freshet.wrapper("shop", start_urls=starts, item_pages="/item/", robots=False)
    env = {"REDIS_URL": redis} if shared else {}
    words = ("crawl", "site", "-a", f"wrapper={wrapper}")
    crawl = freshet.start(*words, FRESHET_GRACE_SECONDS=1, **env)
    until(lambda: database.visits.count_documents({}) == 1)
    began = time.monotonic()
    os.kill(crawl.pid, signal.SIGTERM)
    log = crawl.communicate(timeout=60)[1]
    assert crawl.returncode == 0, log
    assert 0.8 < time.monotonic() - began < 20
    assert "requests in flight were dropped" in log
    assert "1 still due because the run was stopped\n" in log
    assert database.visits.count_documents({}) == 1
    (left,) = database.targets.find({"visited_at": None})
    assert left["url"] == silent
    (run,) = database.runs.find()
    assert (run["reason"], run["counts"]["due"]) == ("shutdown", 1)
