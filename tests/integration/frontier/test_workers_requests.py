"""Custom requests of spiders, feeds and cells in a shared run."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest
import redis as driver

from crawler.frontier.frontiers import MAX_LOGGED
from tests.integration.frontier.test_workers import ended, keys_in, shop, start, until
from tests.integration.harness import Db, Freshet, Pages, asked
from tests.integration.pushing import wait_for

pytestmark = pytest.mark.soak

# Each item page leads to a details page; `read_details` logs its content.
SPIDER = """
from scrapy import Request
from spiders.wrapper import WrapperSpider


class Shop(WrapperSpider):
    name = "shop"
    start_urls = ["{url}/index"]
    item_pages = "/item/"
    fields = {{"title": "h1"}}
    concurrency = 4
    throttle = False

    async def parse_target(self, response):
        async for fetched in super().parse_target(response):
            yield fetched
        if "/item/" in response.url:
            yield Request(
                response.url.replace("item", "details"), self.read_details,
                headers={{"Accept-Language": "it"}}, cb_kwargs={{"of": response.url}}, meta={meta},
            )
            yield Request("{url}/shared", self.read_details, cb_kwargs={{"of": "all"}})

    def read_details(self, response, of):
        assert response.request.headers.get("Accept-Language") == b"it" or of == "all"
        self.logger.info("details of %s: %s", of, response.css("h1::text").get())
"""
# By the meta of the requests: number of requests offered to all workers.
SHARED = {"detailed": 40, "objects": 20, "bodies": 40}


@pytest.fixture
def words(pages: Pages, tmp_path: Path) -> tuple[str, ...]:
    """Write spiders that make their own requests; return the start of the crawl command."""
    pages.list("/index", [f"/item/{n}" for n in range(20)])
    pages.item("/shared", "Shared")
    for n in range(20):
        pages.item(f"/item/{n}", f"Item {n}")
        pages.item(f"/details/{n}", f"Details {n}")
    pages.item("/good", "Good")
    metas = {"detailed": "{'dont_redirect': True}", "objects": "{'n': object()}"}
    for module, meta in (metas | {"bodies": "{'of': {'a': [1, 'é']}}"}).items():
        spider = SPIDER.format(url=pages.url, meta=meta)
        (tmp_path / f"{module}.py").write_text(spider, encoding="utf-8")
    return ("crawl", "shop", "-s")


@pytest.mark.parametrize("module", SHARED)
def test_custom_requests_are_made_once(
    freshet: Freshet, database: Db, pages: Pages, redis: str, words: tuple[str, ...],
    tmp_path: Path, module: str,
) -> None:  # fmt: skip
    env = {"PYTHONPATH": tmp_path, "REDIS_URL": redis}
    workers = [freshet.start(*words, f"SPIDER_MODULES={module}", **env) for _ in range(2)]
    log = "".join(ended(workers))
    paths = asked(pages)
    # Requests with an object in their meta cannot be shared and stay with their worker.
    assert sum(map(int, re.findall(r"'scheduler/enqueued/redis': (\d+)", log))) == SHARED[module]
    assert paths.pop("/shared") == 1
    assert set(paths.values()) == {1}
    assert len(paths) == 41
    assert log.count("details of") == 21
    assert database.visits.count_documents({}) == 21
    assert keys_in(redis, database) == []


def test_invalid_requests_in_redis_are_dropped(
    freshet: Freshet, database: Db, pages: Pages, redis: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    evil = tmp_path / "evil"
    good = {"url": f"{pages.url}/good", "callback": "read_details", "cb_kwargs": {"of": "all"}}
    parts: list[dict[str, object]] = [
        {"_class": "subprocess.Popen", "args": ["touch", str(evil)], "callback": "call"},
        {"url": f"file://{tmp_path}/detailed.py"},
        {"url": "http://other.example/"},
        {"callback": "no_such"},
        {"callback": None},
        {"callback": "begin", "cb_kwargs": {}},
        {"callback": "parse_target", "cb_kwargs": {}},
        {"errback": "begin"},
        {"headers": 7},
    ]
    strange = [json.dumps(good | part).encode() for part in parts]
    strange += [
        b'{"url":' + b"[" * 100_000,
        pickle.dumps(good),
        b'{"url": "' + b"x" * 1_000_000,
        b'{"url": "\xff"}',
    ]
    strange += strange[: MAX_LOGGED - len(strange)]
    env = {"PYTHONPATH": tmp_path, "REDIS_URL": redis}
    more = ("SPIDER_MODULES=detailed", "-s", "DOWNLOAD_DELAY=0.1")
    worker = freshet.start(*words, *more, **env)
    with driver.Redis.from_url(redis) as client:
        until(lambda: database.visits.count_documents({}) > 0)
        base = f"{{freshet:{database.name}:shop}}:"
        run = str(client.hget(f"{base}run", "id"), "ascii")
        for n, body in enumerate(strange):
            name = b"evil \xff %d" % n
            client.hset(f"{base}{run}:bodies", name, body)
            client.zadd(f"{base}{run}:pending", {name: 0})
        client.hset(f"{base}{run}:bodies", "good", json.dumps(good))
        client.zadd(f"{base}{run}:pending", {"good": 0})
        client.zadd(f"{base}{run}:pending", {"other http://127.0.0.1/": 0})
    (log,) = ended([worker])
    assert log.count("Invalid request in Redis dropped by shop") == len(strange) == MAX_LOGGED
    assert "more are not logged" in log
    assert not evil.exists()
    assert asked(pages)["/good"] == 1
    assert database.visits.count_documents({}) == 21
    assert database.runs.find_one({}, sort=[("started", -1)])["counts"].get("error", 0) == 0
    assert keys_in(redis, database) == []


def test_cells_of_one_page_are_read_in_one_request(
    freshet: Freshet, database: Db, pages: Pages, redis: str, tmp_path: Path
) -> None:
    for n in range(4):
        pages.file(f"/page/{n}", "".join(f"<p id=c{k}>{k}</p>" for k in range(5)))
    lines = ['name = "parts"', "throttle = false"]
    for n in range(4):
        for k in range(5):
            lines += [f"[cells.c{n}{k}]", f'url = "{pages.url}/page/{n}"', f'css = "#c{k}"']
    wrapper = tmp_path / "parts.toml"
    wrapper.write_text("\n".join(lines), encoding="utf-8")
    ended(start(freshet, wrapper, redis, 2))
    assert set(asked(pages).values()) == {1}
    assert database.visits.count_documents({}) == 20
    assert database.visits.count_documents({"shared_fetch": True}) == 16
    (run,) = database.runs.find()
    assert run["counts"]["visits"] == 20
    assert keys_in(redis, database) == []


def test_services_on_several_machines_share_runs(
    freshet: Freshet, database: Db, pages: Pages, redis: str, tmp_path: Path
) -> None:
    wrapper = shop(freshet, pages, 60, concurrency=2)
    words = ("refresh", "run", wrapper, "--json")
    services = [
        freshet.start(*words, REDIS_URL=redis, FRESHET_DATA_DIR=tmp_path / f"machine{n}")
        for n in range(2)
    ]
    wait_for(lambda: database.visits.count_documents({}) == 67)
    for service in services:
        service.terminate()
    reports = [json.loads(service.communicate(timeout=60)[0]) for service in services]
    assert set(asked(pages).values()) == {1}
    assert sum(row["visits"] for report in reports for row in report["spiders"]) == 67
    assert sum(row["failed"] for report in reports for row in report["spiders"]) == 0
    assert sum(run["counts"]["visits"] for run in database.runs.find()) == 67
    assert keys_in(redis, database) == []
