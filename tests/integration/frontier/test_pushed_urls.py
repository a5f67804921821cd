"""URLs pushed to the Redis key NAME:start_urls become due targets of a site, or are refused."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from crawler.frontier.pushed_urls import MAX_BYTES, MAX_LOGGED, MAX_VALUES
from tests.integration.frontier.test_workers import ended, start, until
from tests.integration.harness import Db, Freshet, Pages, asked, target, urls

ITEMS = 6
# The requests for pages that the list shows.
SHOWN = {"/index": 1, "/item/0": 1}


@pytest.fixture
def shop(freshet: Freshet, pages: Pages, database: Db) -> Path:
    """Write a site whose list shows only the first of its items."""
    pages.list("/index", ["/item/0"])
    for n in range(ITEMS):
        pages.item(f"/item/{n}", f"Item {n}")
    return freshet.wrapper(
        database.name, start_urls=[f"{pages.url}/index"], list_pages="/list/",
        item_pages="/(item|list/both)/", fields={"title": "h1"},
    )  # fmt: skip


@pytest.fixture
def server(redis: str) -> Iterator[Redis]:
    with Redis.from_url(redis) as client:
        yield client


def test_pushed_urls_are_visited_by_workers_that_run(
    freshet: Freshet, pages: Pages, redis: str, server: Redis, database: Db
) -> None:
    pages.list("/index", [f"/item/{n}" for n in range(20)])
    for n in range(25):
        pages.item(f"/item/{n}", f"Item {n}")
    wrapper = freshet.wrapper(
        database.name, start_urls=[f"{pages.url}/index"], item_pages="/item/",
        fields={"title": "h1"}, delay_seconds=0.1, concurrency=1,
    )  # fmt: skip
    workers = start(freshet, wrapper, redis, 2)
    until(lambda: database.visits.count_documents({}) > 2)
    server.lpush(
        f"{database.name}:start_urls", *(f"{pages.url}/item/{n}" for n in range(20, 24)),
        json.dumps({"url": f"{pages.url}/item/24", "meta": {"job": "7"}, "method": "get"}),
    )  # fmt: skip
    log = "".join(ended(workers))
    assert asked(pages) == SHOWN | {f"/item/{n}": 1 for n in range(25)}
    assert "5 pushed URLs made due" in log
    assert not server.exists(f"{database.name}:start_urls")
    (run,) = database.runs.find()
    assert run["counts"]["pushed"] == 5


@pytest.mark.parametrize("kind", ["list", "set", "sorted set"])
def test_urls_pushed_before_the_crawl_are_read_from_any_kind_of_key(
    freshet: Freshet, pages: Pages, redis: str, server: Redis, database: Db, shop: Path, kind: str
) -> None:
    key, pushed = f"{database.name}:start_urls", [f"{pages.url}/item/{n}" for n in range(ITEMS)]
    if kind == "list":
        server.rpush(key, *pushed)
    elif kind == "set":
        server.sadd(key, *pushed)
    else:
        server.zadd(key, {url: n for n, url in enumerate(pushed)})
    freshet.crawl(shop, REDIS_URL=redis)
    assert urls(database.posts.find()) == set(pushed)
    assert not server.exists(key)


def test_known_url_is_due_again_and_stays_one_target(
    freshet: Freshet, pages: Pages, redis: str, server: Redis, database: Db, shop: Path
) -> None:
    key = f"{database.name}:start_urls"
    server.lpush(key, f"{pages.url}/item/1?b=2&a=1#top")
    freshet.crawl(shop, REDIS_URL=redis)
    freshet.crawl(shop, REDIS_URL=redis)
    assert asked(pages) == SHOWN | {"/item/1?a=1&b=2": 1}
    server.lpush(key, f"{pages.url}/item/1?utm_source=x&a=1&b=2", f" {pages.url}/item/1?b=2&a=1\n")
    log = freshet.crawl(shop, REDIS_URL=redis).err
    assert "1 visited: 0 new" in log
    assert asked(pages) == SHOWN | {"/item/1?a=1&b=2": 2}
    assert database.targets.count_documents({"kind": "item"}) == 2


def test_alias_makes_its_page_due(
    freshet: Freshet, pages: Pages, redis: str, server: Redis, database: Db, shop: Path
) -> None:
    page, alias = f"{pages.url}/item/1", f"{pages.url}/item/2"
    server.lpush(f"{database.name}:start_urls", page, alias)
    freshet.crawl(shop, REDIS_URL=redis)
    database.targets.update_one({"url": alias}, {"$set": {"alias_of": page}})
    database.targets.update_one({"url": page}, {"$set": {"aliases": [alias]}})
    server.lpush(f"{database.name}:start_urls", alias)
    freshet.crawl(shop, REDIS_URL=redis)
    assert asked(pages) == SHOWN | {"/item/1": 2, "/item/2": 1}


def test_refused_urls_cost_only_themselves_and_say_why(
    freshet: Freshet, pages: Pages, redis: str, server: Redis, database: Db, shop: Path
) -> None:
    url, key = pages.url, f"{database.name}:start_urls"
    freshet.crawl(shop, REDIS_URL=redis)
    assert freshet("targets", "mute", f"{url}/item/0").code == 0
    refused = {
        b"http://other.example/item/1": "other.example is not a host of this site",
        f"{url}/about".encode(): "neither matches",
        f"{url}/list/both/1".encode(): "both match",
        f"{url}/item/0".encode(): "muted",
        b"": "no http(s) URL",
        b"/item/1": "no http(s) URL",
        b"file:///etc/passwd": "no http(s) URL",
        b"[1, 2]": "no http(s) URL",
        b'{"meta": {}}': "no http(s) URL",
        b'{"url": 7}': "no http(s) URL",
        b'{"url": "': "invalid JSON",
        b'{"url":' + b"[" * (MAX_BYTES // 2): "recursion",
        b'{"url": "%s/item/1", "n": 7}' % url.encode(): "must receive",
        b'{"url": "%s/item/1", "method": "POST"}' % url.encode(): "method POST",
        b"http://\xff": "can't decode byte 0xff",
        f"{url}/item/{'1' * 3000}".encode(): "longer than 2,000 characters",
        b"x" * (MAX_BYTES + 1): "longer than 65,536 bytes",
        b"x" * 5_000_000: "longer than 65,536 bytes",
    }
    assert len(refused) < MAX_LOGGED
    server.rpush(key, *refused, f"{url}/item/1")
    log = freshet.crawl(shop, REDIS_URL=redis).err
    lines = [line for line in log.splitlines() if "Pushed URL refused by" in line]
    assert len(lines) == len(refused)
    for reason in refused.values():
        assert any(reason in line for line in lines), (reason, lines)
    assert max(map(len, lines)) < 1000
    assert f"1 pushed URL made due, {len(refused)} refused (see the warnings)" in log
    assert f"'freshet/pushed_refused': {len(refused)}" in log
    assert asked(pages) == SHOWN | {"/item/1": 1}
    assert not server.exists(key)


def test_thousands_of_pushed_urls_are_bounded(
    freshet: Freshet, pages: Pages, redis: str, server: Redis, database: Db, shop: Path
) -> None:
    key, foreign = f"{database.name}:start_urls", 25 * MAX_VALUES
    server.rpush(key, *(f"http://other.example/{n}" for n in range(foreign)), f"{pages.url}/item/1")
    log = freshet.crawl(shop, REDIS_URL=redis).err
    assert log.count("Pushed URL refused by") == MAX_LOGGED
    assert log.count("more are not logged") == 1
    assert f"1 pushed URL made due, {foreign:,} refused" in log
    assert asked(pages) == SHOWN | {"/item/1": 1}


def test_caps_of_the_site_apply_to_pushed_urls(
    freshet: Freshet, pages: Pages, redis: str, server: Redis, database: Db, shop: Path
) -> None:
    shop.write_text(shop.read_text() + "\nmax_pattern_items = 2", encoding="utf-8")
    server.lpush(f"{database.name}:start_urls", *(f"{pages.url}/item/{n}" for n in range(1, ITEMS)))
    log = freshet.crawl(shop, REDIS_URL=redis).err
    assert len(asked(pages)) == len(SHOWN) + 2
    assert "over a cap of the site" in log
    assert "raise max_pattern_items" in log
    assert f"2 pushed URLs made due, {ITEMS - 3} refused" in log


def test_other_keys_of_json_are_the_query(
    freshet: Freshet, pages: Pages, redis: str, server: Redis, database: Db, shop: Path
) -> None:
    given = {"url": f"{pages.url}/item/1?old=1", "page": "2", "q": ["a", "b"]}
    server.lpush(f"{database.name}:start_urls", json.dumps(given))
    freshet.crawl(shop, REDIS_URL=redis)
    assert asked(pages) == SHOWN | {"/item/1?page=2&q=a&q=b": 1}


def test_key_and_encoding_are_settings_of_scrapy_redis(
    freshet: Freshet, pages: Pages, redis: str, server: Redis, database: Db, shop: Path
) -> None:
    server.lpush(f"urls of {database.name}", f"{pages.url}/item/é".encode("latin-1"))
    words = ("-s", "REDIS_START_URLS_KEY=urls of %(name)s", "-s", "REDIS_ENCODING=latin-1")
    freshet.crawl(shop, *words, REDIS_URL=redis)
    assert target(database, f"{pages.url}/item/%C3%A9")
    failed = freshet.crawl(shop, "-s", "REDIS_ENCODING=base64", code=1, REDIS_URL=redis)
    assert "REDIS_ENCODING: 'base64' is not a text encoding" in failed.err


def test_key_of_another_type_does_not_stop_the_crawl(
    freshet: Freshet, pages: Pages, redis: str, server: Redis, database: Db, shop: Path
) -> None:
    server.set(f"{database.name}:start_urls", f"{pages.url}/item/1")
    log = freshet.crawl(shop, REDIS_URL=redis).err
    assert log.count("are not read: it is a string, not a list, set or sorted set") == 1
    assert asked(pages) == SHOWN


def test_user_without_rights_to_the_key_crawls_without_it(
    freshet: Freshet, pages: Pages, redis: str, server: Redis, database: Db, shop: Path
) -> None:
    own = [f"~{{freshet:{database.name}:*", "~freshet:*"]
    server.acl_setuser(database.name, True, passwords=["+secret"], commands=["+@all"], keys=own)
    try:
        log = freshet.crawl(shop, REDIS_URL=f"{redis}?username={database.name}&password=secret").err
    finally:
        server.acl_deluser(database.name)
    assert "are not read" in log
    assert asked(pages) == SHOWN


@pytest.mark.soak
def test_urls_outlive_the_worker_that_reads_them(
    freshet: Freshet, pages: Pages, redis: str, server: Redis, database: Db, shop: Path
) -> None:
    many = 3 * MAX_VALUES
    for n in range(many):
        pages.item(f"/item/{n}", f"Item {n}")
    server.rpush(f"{database.name}:start_urls", *(f"{pages.url}/item/{n}" for n in range(many)))
    env = {"FRESHET_LEASE_SECONDS": 2}
    killed, survivor = start(freshet, shop, redis, 2, **env)
    until(lambda: database.visits.count_documents({}) > 20)
    killed.kill()
    killed.communicate()
    ended([survivor])
    assert database.posts.count_documents({}) == many
    assert not server.exists(f"{database.name}:start_urls")


@pytest.mark.soak
def test_service_starts_a_run_for_pushed_urls(
    freshet: Freshet, pages: Pages, redis: str, server: Redis, database: Db, shop: Path
) -> None:
    service = freshet.start("refresh", "run", shop, "--json", REDIS_URL=redis)
    until(lambda: database.visits.count_documents({}) == 2)
    time.sleep(1)  # nothing is due any more
    server.lpush(f"{database.name}:start_urls", f"{pages.url}/item/1")
    until(lambda: database.posts.count_documents({}) == 2)
    service.terminate()
    assert service.communicate(timeout=60)[1].count("failed") == 0
    assert asked(pages) == SHOWN | {"/item/1": 1}
    assert not server.exists(f"{database.name}:start_urls")
