"""Redis outages during a shared run: the run waits; nothing is lost or repeated."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from datetime import datetime, timedelta

import pytest

from tests.integration.frontier.test_workers import ended, keys_in, shop, start, until
from tests.integration.harness import Db, Freshet, Pages, asked, visits
from tests.integration.redis_server import private_server, url_of

ENV = {"FRESHET_LEASE_SECONDS": 1}
FETCHED = 67
RETRY_SECONDS = 4


def check(database: Db, pages: Pages, url: str, again: int) -> None:
    """Check that each page is stored once; up to `again` pages may have been fetched twice."""
    (run,) = database.runs.find()
    assert (run["reason"], run["counts"]["visits"]) == ("finished", FETCHED)
    assert set(Counter(row["target"] for row in visits(database)).values()) == {1}
    assert len(asked(pages)) == database.visits.count_documents({}) == FETCHED
    assert sum(asked(pages).values()) <= FETCHED + again
    assert keys_in(url, database) == []


@pytest.mark.soak
def test_run_continues_after_redis_restart_with_append_only_file(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    wrapper = shop(freshet, pages, 60, concurrency=1, delay_seconds=0.05)
    with private_server(appendonly="yes", appendfsync="everysec") as server:
        workers = start(freshet, wrapper, url_of(server), 2, **ENV)
        until(lambda: database.visits.count_documents({}) > 20)
        server.terminate()
        time.sleep(2)
        server.start(60)
        logs = ended(workers)
        assert all("unavailable, retrying" in log and "available again" in log for log in logs)
        check(database, pages, url_of(server), 0)


@pytest.mark.soak
def test_run_continues_after_redis_pause_longer_than_a_lease(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    wrapper = shop(freshet, pages, 60, concurrency=1, delay_seconds=0.05)
    with private_server() as server:
        workers = start(freshet, wrapper, url_of(server), 2, **ENV)
        until(lambda: database.visits.count_documents({}) > 20)
        assert server._process is not None
        os.kill(server._process.pid, signal.SIGSTOP)
        time.sleep(3)
        os.kill(server._process.pid, signal.SIGCONT)
        ended(workers)
        check(database, pages, url_of(server), 0)


@pytest.mark.soak
def test_run_fails_if_redis_loses_data_and_next_run_continues(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    wrapper = shop(freshet, pages, 60, concurrency=1, delay_seconds=0.05)
    with private_server(save="") as server:
        (worker,) = start(freshet, wrapper, url_of(server), 1, **ENV)
        until(lambda: database.visits.count_documents({}) > 20)
        server.terminate()
        server.start(60)
        log = worker.communicate(timeout=60)[1]
        assert worker.returncode == 1
        assert "Redis lost it" in log
        ended(start(freshet, wrapper, url_of(server), 1, **ENV))
    assert database.visits.count_documents({}) == FETCHED
    assert set(Counter(row["target"] for row in visits(database)).values()) == {1}


@pytest.mark.soak
def test_pages_do_not_fail_if_redis_stays_unavailable(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    wrapper = shop(freshet, pages, 60, concurrency=4, delay_seconds=0.05)
    with private_server(appendonly="yes") as server:
        # With a lease of 1 s, the worker would lose it before it could store anything.
        env = {"FRESHET_COMMIT_RETRY_SECONDS": RETRY_SECONDS, "FRESHET_LEASE_SECONDS": 30}
        (worker,) = start(freshet, wrapper, url_of(server), 1, **env)
        until(lambda: database.visits.count_documents({}) > 20)
        server.terminate()
        log = worker.communicate(timeout=60)[1]
        assert worker.returncode == 1
        errors = [line for line in log.splitlines() if " ERROR: " in line]
        assert len(errors) == 1, log
        assert "Connection refused (is it running?). Check REDIS_URL" in errors[0]
        # Four requests that wait for the host must not wait for Redis again, one after the other.
        failed_at = datetime.fromisoformat(errors[0][:19])
        assert datetime.now() - failed_at < timedelta(seconds=4 * RETRY_SECONDS)  # noqa: DTZ005
        assert database.visits.distinct("outcome") == ["new"]
        server.start(60)
        ended(start(freshet, wrapper, url_of(server), 1, **ENV))
    assert set(Counter(row["target"] for row in visits(database)).values()) == {1}
    assert database.visits.distinct("outcome") == ["new"]
