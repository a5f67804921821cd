"""The workers of Freshet or of plain scrapy-redis, with the settings that both share."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import pymongo
from pymongo.database import Database

from crawler.config import Config
from crawler.storage.store import opened
from tests.faults.servers import Redis
from tests.faults.worker import Worker, agent
from tests.integration.harness import HIDDEN

Row = dict[str, Any]
CONCURRENCY = 16
# Settings of both sides: as fast as the machine allows.
SETTINGS = {
    "AUTOTHROTTLE_ENABLED": 0,
    "ROBOTSTXT_OBEY": 0,
    "CONCURRENT_REQUESTS": CONCURRENCY,
    "CONCURRENT_REQUESTS_PER_DOMAIN": CONCURRENCY,
    "DOWNLOAD_DELAY": 0,
    "TELNETCONSOLE_ENABLED": 0,
    "LOG_LEVEL": "INFO",
}
WRAPPER = """
name = "{name}"
start_urls = ["{url}/"]
list_pages = '/list/\\d+/'
item_pages = '/item/\\d+\\.html'
throttle = false
robots = false
concurrency = 16

[fields]
title = "h1"
price = "p.price"
stock = "p.stock"
sku = "span.sku"
description = "div.description"
"""
NAME = "faults"
PLAIN_SETTINGS = "tests.bench.plainredis.settings"
REDIS_ITEMS, MONGO_ITEMS = "shop:items", "items"


class Side(Protocol):
    """The workers of a run over the quick site."""

    def begin(self) -> None:
        """Prepare the run, before the first worker starts."""

    def start(self, number: int) -> Worker:
        """Start a worker."""

    def stored(self) -> list[str]:
        """Return the URL of each stored item, as often as it is stored."""


class FreshetSide:
    """Run `scrapy crawl site` on one database, and on one Redis if `redis_url` is given.

    Each worker has its own data folder. env: additional variables, such as FRESHET_DUPLICATES
    """

    def __init__(
        self, folder: Path, url: str, mongo_uri: str, redis_url: str | None = None, **env: str
    ) -> None:
        self._folder, self.url, self.mongo_uri = folder, url, mongo_uri
        self._env = {"MONGO_URI": mongo_uri, "FRESHET_DUPLICATES": "off"} | env
        if redis_url is not None:
            self._env["REDIS_URL"] = redis_url
        self.wrapper = folder / f"{NAME}.toml"

    def begin(self) -> None:
        """Write the site definition; create collections and indexes once for all runs."""
        self.wrapper.write_text(WRAPPER.format(name=NAME, url=self.url), encoding="utf-8")
        asyncio.run(_prepared(Config.load(mongo_uri=self.mongo_uri)))

    def start(self, number: int) -> Worker:
        words = ["crawl", "site", "-a", f"wrapper={self.wrapper}", *settings(number)]
        return self.started(number, words)

    def started(self, number: int, words: list[str]) -> Worker:
        """Start a worker with this command."""
        own = {"FRESHET_DATA_DIR": str(self._folder / f"data-{number}")}
        return Worker(number, words, _clean() | self._env | own, _log(self._folder, number))

    def stored(self) -> list[str]:
        return _urls(self.mongo_uri, "posts")


class PlainSide:
    """The project `tests.bench.plainredis`. It stores items in Redis, or one by one in MongoDB."""

    def __init__(
        self,
        folder: Path,
        url: str,
        redis: Redis,
        mongo_uri: str | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self._folder, self._url, self._redis, self._uri = folder, url, redis, mongo_uri
        self._settings = settings
        self._env = {"REDIS_URL": redis.url, "SCRAPY_SETTINGS_MODULE": PLAIN_SETTINGS}
        if mongo_uri is not None:
            self._env["MONGO_URI"] = mongo_uri

    def begin(self) -> None:
        """Add the start URL as the README does."""
        with self._redis.client() as client:
            client.lpush("shop:start_urls", json.dumps({"url": f"{self._url}/"}))

    def start(self, number: int) -> Worker:
        words = ["crawl", "shop", *settings(number, self._settings)]
        return Worker(number, words, _clean() | self._env, _log(self._folder, number))

    def stored(self) -> list[str]:
        if self._uri is None:
            with self._redis.client() as client:
                return [json.loads(one)["url"] for one in client.lrange(REDIS_ITEMS, 0, -1)]
        return _urls(self._uri, MONGO_ITEMS)


def _urls(uri: str, collection: str) -> list[str]:
    client: pymongo.MongoClient[Row]
    with pymongo.MongoClient(uri) as client:
        db: Database[Row] = client.get_default_database()
        return [row["url"] for row in db[collection].find({}, {"url": 1})]


def settings(number: int, more: Mapping[str, object] | None = None) -> list[str]:
    """Return the command-line settings: the shared ones, the worker's user agent, and others."""
    given = {**SETTINGS, "USER_AGENT": agent(number), **(more or {})}
    return [word for name, value in given.items() for word in ("-s", f"{name}={value}")]


def _clean() -> dict[str, str]:
    """Return the environment without Freshet's own variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)}


def _log(folder: Path, number: int) -> Path:
    return folder / f"worker-{number}.log"


async def _prepared(config: Config) -> None:
    async with opened(config):
        pass
