"""Spiders of scrapy-redis run in this project with its scheduler and duplicate filter."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from redis import Redis

from tests.integration.frontier.test_workers import ended
from tests.integration.harness import Db, Freshet, Pages, asked

SPIDERS = """
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import Rule
from scrapy_redis.spiders import RedisCrawlSpider, RedisSpider

SHARED = {{
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
    "SCHEDULER_PERSIST": True,
    "MAX_IDLE_TIME_BEFORE_CLOSE": 1,
    "REDIS_URL": "{redis}",
    "AUTOTHROTTLE_ENABLED": False,
}}


class Pages(RedisSpider):
    name = "{name}_pages"
    custom_settings = SHARED

    def parse(self, response):
        yield {{"url": response.url, "title": response.css("h1::text").get()}}


class Site(RedisCrawlSpider):
    name = "{name}_site"
    custom_settings = SHARED
    rules = [Rule(LinkExtractor(allow="/item/"), callback="parse_item")]

    def parse_item(self, response):
        yield {{"url": response.url, "title": response.css("h1::text").get()}}
"""


@pytest.fixture
def name(redis: str, tmp_path: Path, pages: Pages, database: Db) -> str:
    """Write the spiders; return the prefix of their names."""
    pages.list("/index", [f"/item/{n}" for n in range(20)])
    for n in range(20):
        pages.item(f"/item/{n}", f"Item {n}")
    text = SPIDERS.format(redis=redis, name=database.name)
    (tmp_path / "of_redis.py").write_text(text, encoding="utf-8")
    return str(database.name)


def own(pages: Pages, folder: Path) -> dict[str, object]:
    """Return the environment of a crawl with these spiders."""
    return {"PYTHONPATH": folder, "FRESHET_PRIVATE_HOSTS": urlsplit(pages.url).netloc}


def test_redis_spiders_share_the_urls_that_were_pushed(
    freshet: Freshet, pages: Pages, redis: str, name: str, tmp_path: Path
) -> None:
    with Redis.from_url(redis) as server:
        urls = [f"{pages.url}/item/{n}" for n in range(20)]
        server.lpush(f"{name}_pages:start_urls", *urls[1:], json.dumps({"url": urls[0]}))
        env = own(pages, tmp_path)
        words = ("crawl", f"{name}_pages", "-s", "SPIDER_MODULES=of_redis", "-O")
        files = [freshet.folder / f"{n}.jsonl" for n in range(2)]
        ended([freshet.start(*words, file, **env) for file in files])
        items = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert sorted(item["url"] for item in items) == sorted(urls)
    assert {item["title"] for item in items} == {f"Item {n}" for n in range(20)}
    assert set(asked(pages).values()) == {1}


def test_duplicate_filter_of_a_redis_crawl_spider_lasts(
    freshet: Freshet, pages: Pages, redis: str, name: str, tmp_path: Path
) -> None:
    words, env = ("crawl", f"{name}_site", "-s", "SPIDER_MODULES=of_redis"), own(pages, tmp_path)
    with Redis.from_url(redis) as server:
        for _ in range(2):
            server.lpush(f"{name}_site:start_urls", f"{pages.url}/index")
            ended([freshet.start(*words, **env)])
    assert asked(pages) == {"/index": 2} | {f"/item/{n}": 1 for n in range(20)}
