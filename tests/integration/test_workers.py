"""Several processes share a pass through Redis: each page is fetched once, and the sums add up."""

from __future__ import annotations

from pathlib import Path

import redis as driver

from tests.integration.harness import Db, Freshet, Pages, asked, outcomes
from tests.integration.forked import Process

ITEMS = 60


def shop(freshet: Freshet, pages: Pages, items: int = ITEMS, **keys: object) -> Path:
    """A site of list pages of ten items each, and its wrapper."""
    lists = [f"/list/{n}" for n in range(items // 10)]
    pages.list("/index", lists)
    for n, path in enumerate(lists):
        pages.list(path, [f"/item/{n * 10 + k}" for k in range(10)])
        for k in range(10):
            pages.item(f"/item/{n * 10 + k}", f"Item {n * 10 + k}")
    said: dict[str, object] = {
        "start_urls": [f"{pages.url}/index"],
        "list_pages": "/list/",
        "item_pages": "/item/",
        "fields": {"title": "h1"},
    }
    return freshet.wrapper("shop", **(said | keys))


def keys_in(url: str, db: Db) -> list[str]:
    """Names of all keys that a database's passes have in Redis."""
    with driver.Redis.from_url(url) as client:
        return sorted(key.decode() for key in client.scan_iter(f"*freshet:{db.name}:*"))


def test_one_worker_makes_a_pass_as_a_process_alone_does(
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
    """So many workers of one pass."""
    words = ("crawl", "site", "-a", f"wrapper={wrapper}")
    return [freshet.start(*words, REDIS_URL=redis, **env) for _ in range(count)]


def ended(workers: list[Process]) -> list[str]:
    """What each said, once all have ended well."""
    said = [worker.communicate(timeout=60)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * len(workers), said
    return said


def test_three_workers_fetch_each_page_once_and_their_sums_add_up(
    freshet: Freshet, database: Db, pages: Pages, redis: str
) -> None:
    wrapper = shop(freshet, pages, 300, concurrency=2)
    said = ended(start(freshet, wrapper, redis, 3))
    fetched = 1 + 30 + 300
    assert set(asked(pages).values()) == {1}
    assert sum(asked(pages).values()) == fetched
    (run,) = database.runs.find()
    assert run["reason"] == "finished"
    assert run["workers"] == 3
    assert run["counts"]["visits"] == run["counts"]["new"] == fetched
    assert run["counts"]["discovered"] == fetched - 1
    assert database.visits.count_documents({}) == database.posts.count_documents({}) + 31 == fetched
    (summary,) = [line for log in said for line in log.splitlines() if "accuracy 100" in line]
    assert f"{fetched} fetched: {fetched} new" in summary
    assert keys_in(redis, database) == []
