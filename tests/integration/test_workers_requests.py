"""Requests that a spider makes itself, feeds and cells in a shared pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis as driver

from tests.integration.harness import Db, Freshet, Pages, asked
from tests.integration.test_workers import ended, keys_in, shop, start, until

# Each item page names another with its details; `read_details` logs what it got.
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

    def parse_target(self, response):
        yield from super().parse_target(response)
        if "/item/" in response.url:
            yield Request(
                response.url.replace("item", "details"), self.read_details,
                headers={{"X-Of": "item"}}, cb_kwargs={{"of": response.url}}, meta={meta},
            )
            yield Request("{url}/shared", self.read_details, cb_kwargs={{"of": "all"}})

    def read_details(self, response, of):
        assert response.request.headers.get("X-Of") == b"item" or of == "all"
        self.logger.info("details of %s: %s", of, response.css("h1::text").get())
"""


@pytest.fixture
def words(pages: Pages, tmp_path: Path) -> tuple[str, ...]:
    """A spider that makes requests of its own."""
    pages.list("/index", [f"/item/{n}" for n in range(20)])
    pages.item("/shared", "Shared")
    for n in range(20):
        pages.item(f"/item/{n}", f"Item {n}")
        pages.item(f"/details/{n}", f"Details {n}")
    spider = SPIDER.format(url=pages.url, meta="{'n': b'\\xff'}")
    (tmp_path / "detailed.py").write_text(spider, encoding="utf-8")
    (tmp_path / "objects.py").write_text(
        SPIDER.format(url=pages.url, meta="{'n': object()}"), encoding="utf-8"
    )
    return ("crawl", "shop", "-s")


@pytest.mark.parametrize("module", ["detailed", "objects"])
def test_requests_of_a_spider_are_made_once_by_whoever_has_room(
    freshet: Freshet, database: Db, pages: Pages, redis: str, words: tuple[str, ...],
    tmp_path: Path, module: str,
) -> None:  # fmt: skip
    env = {"PYTHONPATH": tmp_path, "REDIS_URL": redis}
    workers = [freshet.start(*words, f"SPIDER_MODULES={module}", **env) for _ in range(2)]
    said = "".join(ended(workers))
    found = asked(pages)
    # What cannot leave a process (it has an object in its meta) stays with the worker that made it.
    assert found.pop("/shared") == 1
    assert set(found.values()) == {1}
    assert len(found) == 41
    assert said.count("details of") == 21
    assert database.visits.count_documents({}) == 21
    assert keys_in(redis, database) == []


def test_what_a_stranger_writes_into_the_queue_is_thrown_out(
    freshet: Freshet, database: Db, pages: Pages, redis: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    evil = tmp_path / "evil"
    strange = [
        {"_class": "subprocess.Popen", "args": ["touch", str(evil)], "url": "http://a/"},
        {"url": f"file://{tmp_path}/detailed.py", "callback": "read_details"},
        {"url": pages.url, "callback": "no_such"},
    ]
    env = {"PYTHONPATH": tmp_path, "REDIS_URL": redis}
    more = ("SPIDER_MODULES=detailed", "-s", "DOWNLOAD_DELAY=0.1")
    worker = freshet.start(*words, *more, **env)
    with driver.Redis.from_url(redis) as client:
        until(lambda: database.visits.count_documents({}) > 0)
        base = f"{{freshet:{database.name}:shop}}:"
        run = str(client.hget(f"{base}pass", "id"), "ascii")
        for n, one in enumerate(strange):
            client.hset(f"{base}{run}:bodies", f"evil {n}", json.dumps(one))
            client.zadd(f"{base}{run}:pending", {f"evil {n}": 0})
        client.zadd(f"{base}{run}:pending", {"other http://127.0.0.1/": 0})
    (said,) = ended([worker])
    assert said.count("Redis holds what is no request of shop") == 3
    assert not evil.exists()
    assert asked(pages)["/"] == 0
    assert database.visits.count_documents({}) == 21


def test_all_cells_of_a_page_are_read_by_one_worker_in_one_request(
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
    assert database.visits.count_documents({"along": True}) == 16
    (run,) = database.runs.find()
    assert run["counts"]["visits"] == 20
    assert keys_in(redis, database) == []


def test_services_on_several_machines_share_passes_and_their_reports_add_up(
    freshet: Freshet, database: Db, pages: Pages, redis: str, tmp_path: Path
) -> None:
    wrapper = shop(freshet, pages, 60, concurrency=2)
    words = ("refresh", "run", wrapper, "--for", "6s", "--json")
    services = [
        freshet.start(*words, REDIS_URL=redis, FRESHET_DATA_DIR=tmp_path / f"machine{n}")
        for n in range(2)
    ]
    done = [json.loads(service.communicate(timeout=60)[0]) for service in services]
    assert set(asked(pages).values()) == {1}
    assert sum(row["visits"] for one in done for row in one["spiders"]) == 67
    assert sum(row["failed"] for one in done for row in one["spiders"]) == 0
    assert sum(run["counts"]["visits"] for run in database.runs.find()) == 67
    assert keys_in(redis, database) == []
