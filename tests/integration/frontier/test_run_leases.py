"""One run of a spider at a time on all machines: a lease in MongoDB."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.integration.forked import Process
from tests.integration.frontier.test_workers import shop, until
from tests.integration.harness import Db, Freshet, Pages, asked, visits
from tests.integration.holding import holding

pytestmark = pytest.mark.soak

FETCHED = 67
SLOW = {"concurrency": 1, "delay_seconds": 0.02}


def start(freshet: Freshet, wrapper: Path, machine: str, **env: object) -> Process:
    """Start a crawl with its own data folder, as on another machine."""
    words = ("crawl", "site", "-a", f"wrapper={wrapper}")
    return freshet.start(*words, FRESHET_DATA_DIR=freshet.folder / machine, **env)


def wait_for_exit(process: Process, code: int = 0) -> str:
    """Wait for a crawl to end with this exit code and return its log."""
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    return err


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def check_once(database: Db) -> None:
    """Check that each page was visited and logged once, and that no process holds the lease."""
    logged = Counter(row["target"] for row in visits(database))
    assert (len(logged), set(logged.values())) == (FETCHED, {1})
    assert database.targets.count_documents({"requested": 1}) == FETCHED
    (lease,) = database.leases.find()
    assert (lease["_id"], lease["holders"]) == ("crawl shop", [])


@contextmanager
def running_crawl(
    freshet: Freshet, database: Db, wrapper: Path, **env: object
) -> Iterator[Process]:
    """Yield a running crawl that has stored some pages and has more to visit."""
    process = start(freshet, wrapper, "first", **env)
    until(lambda: database.visits.count_documents({}) > 20)
    yield process


def test_only_one_of_concurrent_crawls_runs(freshet: Freshet, database: Db, pages: Pages) -> None:
    wrapper = shop(freshet, pages, 60, **SLOW)
    crawls = [start(freshet, wrapper, f"machine-{n}") for n in range(4)]
    logs = [wait_for_exit(crawl) for crawl in crawls]
    busy = [log for log in logs if "shop is already being crawled on " in log]
    assert len(busy) == 3
    assert set(asked(pages).values()) == {1}
    assert database.runs.count_documents({}) == 1
    check_once(database)


def test_run_after_kill_on_same_machine_begins_immediately(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    wrapper = shop(freshet, pages, 60, **SLOW)
    env = {"FRESHET_LEASE_SECONDS": 3600}
    with running_crawl(freshet, database, wrapper, **env) as killed:
        killed.kill()
        # It ends soon, but has not been reaped yet, as when cron starts the next run.
        until(lambda: not is_alive(killed.pid))
        wait_for_exit(start(freshet, wrapper, "second", **env))
        killed.communicate()
    check_once(database)


def test_expired_lease_of_another_machine_is_taken_over(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    wrapper = shop(freshet, pages, 60)
    with holding(freshet.env["MONGO_URI"], "crawl shop", elsewhere=True, seconds=4):
        refused = wait_for_exit(start(freshet, wrapper, "second"))
        assert refused.startswith(
            "scrapy crawl: shop is already being crawled on far (process 7) since "
        )
        assert not asked(pages)
        time.sleep(4)
        wait_for_exit(start(freshet, wrapper, "second"))
        check_once(database)


def test_a_site_that_is_being_crawled_is_not_deleted(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    freshet.crawl(shop(freshet, pages, 60))
    counted = {name: database[name].count_documents({}) for name in ("targets", "visits", "runs")}
    with holding(freshet.env["MONGO_URI"], "crawl shop", elsewhere=True, seconds=60):
        refused = freshet("forget", "shop", "--yes")
        assert refused.code == 1
        assert refused.complaint.startswith("scrapy forget: shop is being crawled on far ")
        assert refused.complaint.endswith(". Stop the run, or wait until it ends")
    assert counted == {name: database[name].count_documents({}) for name in counted}
    deleted = freshet("forget", "shop", "--yes")
    assert deleted.code == 0
    assert deleted.out.startswith(f"deleted {counted['targets']} targets, ")
    assert " 0 " not in deleted.out


def test_run_that_lost_its_lease_fails_without_further_writes(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    wrapper = shop(freshet, pages, 60, **SLOW)
    env = {"FRESHET_LEASE_SECONDS": 1}
    with running_crawl(freshet, database, wrapper, **env) as paused:
        os.kill(paused.pid, signal.SIGSTOP)
        time.sleep(1.2)
        in_flight = sum(asked(pages).values()) - len(visits(database))
        wait_for_exit(start(freshet, wrapper, "second", **env))
        os.kill(paused.pid, signal.SIGCONT)
        log = wait_for_exit(paused, code=1)
    errors = [line for line in log.splitlines() if " ERROR: " in line]
    assert len(errors) == 1, log
    (error,) = errors
    assert "crawl shop: this process did not renew its lease for 1 s, and another" in error
    assert "Traceback" not in log
    check_once(database)
    # The paused run may send as many requests again before a busy machine lets it find out.
    repeated = sum(asked(pages).values()) - FETCHED
    assert repeated <= 2 * in_flight + 2, "only targets in flight are repeated"


def test_run_with_expired_lease_continues_if_not_taken_over(
    freshet: Freshet, database: Db, pages: Pages
) -> None:
    wrapper = shop(freshet, pages, 60, **SLOW)
    with running_crawl(freshet, database, wrapper, FRESHET_LEASE_SECONDS=1) as paused:
        os.kill(paused.pid, signal.SIGSTOP)
        time.sleep(2)
        os.kill(paused.pid, signal.SIGCONT)
        wait_for_exit(paused)
    check_once(database)
    assert set(asked(pages).values()) == {1}


@pytest.mark.parametrize("first_shares", [True, False])
def test_runs_with_and_without_redis_exclude_each_other(
    freshet: Freshet, database: Db, pages: Pages, redis: str, first_shares: bool
) -> None:
    wrapper = shop(freshet, pages, 60, **SLOW)
    env = [{}, {"REDIS_URL": redis}]
    with running_crawl(freshet, database, wrapper, **env[first_shares]) as first:
        log = wait_for_exit(start(freshet, wrapper, "second", **env[not first_shares]))
        ending = "nothing to do" if first_shares else "not shared because it has no REDIS_URL"
        assert log.startswith("scrapy crawl: shop is already being crawled on ")
        assert log.endswith(f"{ending}\n")
        wait_for_exit(first)
    check_once(database)
    assert set(asked(pages).values()) == {1}


def test_workers_of_two_redis_servers_do_not_share_a_run(
    freshet: Freshet, database: Db, pages: Pages, redis: str
) -> None:
    wrapper = shop(freshet, pages, 60)
    with holding(freshet.env["MONGO_URI"], "crawl shop", elsewhere=True, shared="another"):
        log = wait_for_exit(start(freshet, wrapper, "second", REDIS_URL=redis))
    assert log.splitlines()[-1].endswith("; that run is shared through another Redis")
    assert not asked(pages)
    assert database.runs.count_documents({}) == 0
    wait_for_exit(start(freshet, wrapper, "second", REDIS_URL=redis))
    check_once(database)


def test_doctor_names_lease_holder(freshet: Freshet, database: Db, pages: Pages) -> None:
    wrapper = shop(freshet, pages, 10)
    wait_for_exit(start(freshet, wrapper, "first"))
    words = ("doctor", "--quick", "--spider", wrapper)
    assert "last run shop" in freshet(*words).out
    assert " running on far" not in freshet(*words).out
    with holding(freshet.env["MONGO_URI"], "crawl shop", elsewhere=True):
        assert "running on far (process 7) since " in freshet(*words, COLUMNS=300).out
