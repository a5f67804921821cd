"""Processes that share a run through Redis: each page is fetched once, and the totals add up."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis as driver

from tests.integration.forked import Process
from tests.integration.harness import Db, Freshet, Pages, asked, outcomes, visits

pytestmark = pytest.mark.soak

ITEMS = 60
PATIENCE_SECONDS = 60
# The driver's result in seconds for a key without a TTL; it is -2 if the key does not exist.
LASTING = -1


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.02)


def shop(freshet: Freshet, pages: Pages, items: int = ITEMS, **keys: object) -> Path:
    """Write a site with list pages of ten items each, and its site definition."""
    lists = [f"/list/{n}" for n in range(items // 10)]
    pages.list("/index", lists)
    for n, path in enumerate(lists):
        pages.list(path, [f"/item/{n * 10 + k}" for k in range(10)])
        for k in range(10):
            pages.item(f"/item/{n * 10 + k}", f"Item {n * 10 + k}")
    defaults: dict[str, object] = {
        "start_urls": [f"{pages.url}/index"],
        "list_pages": "/list/",
        "item_pages": "/item/",
        "fields": {"title": "h1"},
    }
    return freshet.wrapper("shop", **(defaults | keys))


def keys_in(url: str, db: Db) -> list[str]:
    """Return the names of all Redis keys of a database's runs, except those that expire soon."""
    with driver.Redis.from_url(url) as client:
        keys = client.scan_iter(f"*freshet:{db.name}:*")
        # The delay of a host also applies to the next run.
        lasting = (key for key in keys if (ttl := client.ttl(key)) == LASTING or ttl > 1)
        return sorted(key.decode() for key in lasting)


def test_run_of_one_worker_equals_run_without_redis(
    freshet: Freshet, database: Db, pages: Pages, redis: str
) -> None:
    wrapper = shop(freshet, pages)
    done = freshet.crawl(wrapper, REDIS_URL=redis)
    assert set(asked(pages).values()) == {1}
    assert outcomes(database)["new"] == 1 + ITEMS // 10 + ITEMS
    (run,) = database.runs.find()
    assert run["counts"]["visits"] == 1 + ITEMS // 10 + ITEMS
    assert run["workers"] == 1
    assert keys_in(redis, database) == [], done.err


def start(freshet: Freshet, wrapper: Path, redis: str, count: int, **env: object) -> list[Process]:
    """Start `count` workers of one run."""
    words = ("crawl", "site", "-a", f"wrapper={wrapper}")
    return [freshet.start(*words, REDIS_URL=redis, **env) for _ in range(count)]


def ended(workers: list[Process]) -> list[str]:
    """Wait for all workers to succeed and return their logs."""
    logs = [worker.communicate(timeout=60)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * len(workers), logs
    return logs


def test_three_workers_fetch_each_page_once(
    freshet: Freshet, database: Db, pages: Pages, redis: str
) -> None:
    wrapper = shop(freshet, pages, 300, concurrency=2)
    logs = ended(start(freshet, wrapper, redis, 3))
    fetched = 1 + 30 + 300
    assert set(asked(pages).values()) == {1}
    assert sum(asked(pages).values()) == fetched
    (run,) = database.runs.find()
    assert run["reason"] == "finished"
    assert run["workers"] == 3
    assert run["counts"]["visits"] == run["counts"]["new"] == fetched
    assert run["counts"]["discovered"] == fetched - 1
    assert database.visits.count_documents({}) == database.posts.count_documents({}) + 31 == fetched
    (summary,) = [line for log in logs for line in log.splitlines() if "accuracy 100" in line]
    assert f"{fetched} visited: {fetched} new" in summary
    assert keys_in(redis, database) == []


def test_hourly_cap_of_a_site_holds_for_all_workers(
    freshet: Freshet, database: Db, pages: Pages, redis: str
) -> None:
    wrapper = shop(freshet, pages, requests_per_hour=25)
    now = datetime.now(UTC)
    begins = now.replace(minute=1, second=0, microsecond=0) - now
    for hour, total in ((0, 25), (1, 50), (2, 1 + ITEMS // 10 + ITEMS)):
        offset = (begins + timedelta(hours=hour)) / timedelta(hours=1)
        logs = ended(start(freshet, wrapper, redis, 3, FRESHET_CLOCK_OFFSET_HOURS=offset))
        assert sum(asked(pages).values()) == database.visits.count_documents({}) == total
        reached = "the site's cap of 25 requests an hour is reached" in "".join(logs)
        assert reached == (total < 1 + ITEMS // 10 + ITEMS)
    assert set(asked(pages).values()) == {1}


def test_leases_of_killed_worker_are_taken_over(
    freshet: Freshet, database: Db, pages: Pages, redis: str
) -> None:
    wrapper = shop(freshet, pages, 100, concurrency=1, delay_seconds=0.02)
    env = {"FRESHET_LEASE_SECONDS": 2}
    killed, survivor = start(freshet, wrapper, redis, 2, **env)
    until(lambda: database.visits.count_documents({}) > 20)
    killed.kill()
    ended([survivor])
    killed.communicate()
    (run,) = database.runs.find()
    assert run["reason"] == "finished"
    assert run["counts"]["visits"] == database.visits.count_documents({}) == 111
    assert set(Counter(row["target"] for row in visits(database)).values()) == {1}
    assert database.targets.count_documents({"requested": 1}) == 111
    # Only a request in flight at the time of the kill and pages that waited for their batch to be
    # stored are repeated.
    assert sum(asked(pages).values()) <= 111 + 3
    assert keys_in(redis, database) == []


def test_run_whose_workers_were_all_killed_is_taken_over(
    freshet: Freshet, database: Db, pages: Pages, redis: str
) -> None:
    wrapper = shop(freshet, pages, 60, concurrency=1, delay_seconds=0.02)
    env = {"FRESHET_LEASE_SECONDS": 1}
    (killed,) = start(freshet, wrapper, redis, 1, **env)
    until(lambda: database.visits.count_documents({}) > 20)
    killed.kill()
    killed.communicate()
    time.sleep(1.2)
    ended(start(freshet, wrapper, redis, 1, **env))
    (run,) = database.runs.find()
    assert run["counts"]["visits"] == database.visits.count_documents({}) == 67
    assert keys_in(redis, database) == []


def test_paused_worker_stores_no_visits_of_lost_leases(
    freshet: Freshet, database: Db, pages: Pages, redis: str
) -> None:
    wrapper = shop(freshet, pages, 60, concurrency=1, delay_seconds=0.05)
    env = {"FRESHET_LEASE_SECONDS": 1}
    paused, survivor = start(freshet, wrapper, redis, 2, **env)
    until(lambda: database.visits.count_documents({}) > 20)
    os.kill(paused.pid, signal.SIGSTOP)
    logs = ended([survivor])
    os.kill(paused.pid, signal.SIGCONT)
    paused.communicate(timeout=60)
    assert paused.returncode in (0, 1)
    assert "accuracy 100" in logs[0]
    assert database.visits.count_documents({}) == 67
    assert set(Counter(row["target"] for row in visits(database)).values()) == {1}


def test_run_with_expired_lease_is_counted_by_change_log(
    freshet: Freshet, database: Db, pages: Pages, redis: str
) -> None:
    wrapper = shop(freshet, pages, 40, concurrency=1, delay_seconds=0.03)
    workers = start(freshet, wrapper, redis, 2)
    until(lambda: database.visits.count_documents({}) > 10)
    base = f"{{freshet:{database.name}:shop}}:"
    with driver.Redis.from_url(redis) as client:
        # As if crashed workers had reported some of their visits twice.
        own = str(client.hget(f"{base}run", "id"), "ascii")
        client.hincrbyfloat(f"{base}{own}:counts", "visits", 3)
        client.hincrbyfloat(f"{base}{own}:counts", "item pages", 3)
        client.hincrby(f"{base}run", "expired", 1)
    ended(workers)
    (run,) = database.runs.find()
    counts = {name: n for name, n in run["counts"].items() if n}
    assert counts.pop("bytes") == sum(row["get_size"] for row in database.visits.find())
    assert counts == {
        "visits": 45, "new": 45, "list_pages": 5, "item_pages": 40, "discovered": 44, "targets": 45,
        "pages_with_links": 5, "links": 44, "list_links": 4, "item_links": 40, "items_read": 40,
    }  # fmt: skip


def test_sigterm_stops_one_worker_and_others_continue(
    freshet: Freshet, database: Db, pages: Pages, redis: str
) -> None:
    wrapper = shop(freshet, pages, 60, concurrency=1, delay_seconds=0.02)
    stopped, remaining = start(freshet, wrapper, redis, 2)
    until(lambda: database.visits.count_documents({}) > 20)
    os.kill(stopped.pid, signal.SIGTERM)
    logs = ended([stopped, remaining])
    assert "1 other worker is still running" in logs[0]
    assert re.search(r": \d+ visited by this worker, \d+ by all; ", logs[0])
    assert set(asked(pages).values()) == {1}
    (run,) = database.runs.find()
    assert (run["reason"], run["counts"]["visits"], run["workers"]) == ("finished", 67, 2)


def test_last_stopped_worker_stores_totals_and_next_run_continues(
    freshet: Freshet, database: Db, pages: Pages, redis: str
) -> None:
    wrapper = shop(freshet, pages, 60, concurrency=1, delay_seconds=0.05)
    (stopped,) = start(freshet, wrapper, redis, 1)
    until(lambda: database.visits.count_documents({}) > 10)
    os.kill(stopped.pid, signal.SIGTERM)
    ended([stopped])
    first = database.runs.find_one()
    assert first is not None
    assert first["reason"] == "shutdown"
    assert first["counts"]["visits"] == database.visits.count_documents({})
    assert keys_in(redis, database) == []
    ended(start(freshet, wrapper, redis, 1))
    assert set(asked(pages).values()) == {1}
    assert database.runs.count_documents({"reason": "finished"}) == 1


def test_workers_share_delay_and_concurrency_of_site(
    freshet: Freshet, database: Db, pages: Pages, redis: str
) -> None:
    wrapper = shop(freshet, pages, 20, concurrency=1, delay_seconds=0.1)
    began = time.monotonic()
    ended(start(freshet, wrapper, redis, 3, DOWNLOAD_DELAY_JITTER=0))
    # Each worker requests robots.txt.
    times = sorted(
        request["at"] for request in pages.requests() if request["path"] != "/robots.txt"
    )
    assert time.monotonic() - began > 22 * 0.05
    assert len(times) == 23
    assert times[-1] - times[0] > 22 * 0.1 * 0.7


def test_limits_apply_to_all_workers_together(
    freshet: Freshet, database: Db, pages: Pages, redis: str
) -> None:
    wrapper = shop(freshet, pages, 60)
    words = ("crawl", "site", "-a", f"wrapper={wrapper}", "-a", "limit=15")
    ended([freshet.start(*words, REDIS_URL=redis) for _ in range(2)])
    # On a slow machine, the second worker may start after the first run and make its own run.
    first, visited = database.runs.count_documents({}), sum(asked(pages).values())
    assert visited == database.visits.count_documents({}) == 15 * first
    ended(start(freshet, wrapper, redis, 2, FRESHET_HOST_REQUESTS=20))
    runs = database.runs.count_documents({}) - first
    assert sum(asked(pages).values()) - visited <= 20 * runs


POISON = """
import json
import os
import re
from spiders.wrapper import WrapperSpider


class Shop(WrapperSpider):
    name = "shop"
    start_urls = ["{url}/index"]
    list_pages = "/list/"
    item_pages = "/item/"
    concurrency = 4
    throttle = False

    def read_item(self, response):
        if response.url.endswith("/item/13"):
            os._exit(9)
        return {{"title": response.css("h1::text").get()}}
"""


def test_page_that_crashes_three_workers_is_dead_lettered(
    freshet: Freshet, database: Db, pages: Pages, redis: str, tmp_path: Path
) -> None:
    shop(freshet, pages, 40)
    (tmp_path / "poisoned.py").write_text(POISON.format(url=pages.url), encoding="utf-8")
    env: dict[str, object] = {"PYTHONPATH": tmp_path, "REDIS_URL": redis}
    env |= {"FRESHET_LEASE_SECONDS": 1, "FRESHET_LEASE_TRIES": 3}
    words = ("crawl", "shop", "-s", "SPIDER_MODULES=poisoned")
    codes = []
    while len(codes) < 8 and 0 not in codes:
        time.sleep(1.2 if codes else 0)
        codes.append(freshet(*words, **env).code)
    assert codes == [9, 9, 9, 0]
    assert database.posts.count_documents({}) == 39
    (row,) = json.loads(freshet("deadletters", "list", "--json").out)
    assert (row["url"], row["leases"]) == (f"{pages.url}/item/13", 3)
    (run,) = database.runs.find()
    assert run["counts"]["dead_lettered"] == 1
    assert keys_in(redis, database) == []

    assert freshet("crawl", "shop", "-s", "SPIDER_MODULES=poisoned", **env).code == 0
    assert freshet("deadletters", "retry", f"{pages.url}/item/13").out == "1 target due again\n"
    assert freshet("deadletters").out == "no dead letters\n"
    assert freshet(*words, **env).code == 9


def test_metrics_show_state_of_shared_run(
    freshet: Freshet, database: Db, pages: Pages, redis: str
) -> None:
    wrapper = shop(freshet, pages, 60, concurrency=1, delay_seconds=0.1)
    workers = start(freshet, wrapper, redis, 2)
    until(lambda: database.visits.count_documents({}) > 10)
    rows = json.loads(freshet("metrics", "--json", REDIS_URL=redis).out)
    for worker in workers:
        worker.kill()
        worker.communicate()
    figures = {row["name"]: row["value"] for row in rows if row["labels"] == {"spider": "shop"}}
    assert figures["freshet_queue_workers"] == 2
    assert figures["freshet_queue_leased"] > 0
    assert figures["freshet_queue_pending"] >= 0
