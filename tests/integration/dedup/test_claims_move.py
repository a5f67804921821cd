"""Claims of near-duplicates move between MongoDB and Redis without changing any verdict."""

from __future__ import annotations

import asyncio
import socket
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis as driver

from crawler.config import Config
from crawler.dedup.boilerplate import MIN_POSTS
from crawler.storage.client import opened
from crawler.storage.dedup import index
from tests.integration.claiming import edited, text
from tests.integration.dedup.test_boilerplate import framed
from tests.integration.dedup.test_duplicates_crawl import article, site
from tests.integration.feeds.test_feed_crawl import crawl, post, rss, subscribe
from tests.integration.harness import Db, Freshet, Pages, Row
from tests.integration.inside import in_json, run

DUPLICATES = "characters"
pytestmark = pytest.mark.soak
A, ALONE, LEFT, SOURCED = (text(n) for n in range(4))
SHOP = ["a", "b", "alone", "left", "heir"]
META = {"_id": "duplicates"}


class World:
    """Sites and feeds with posts of every kind."""

    def __init__(self, freshet: Freshet, stored: tuple[Db, str], pages: Pages) -> None:
        self.freshet, self.pages = freshet, pages
        self.db, uri = stored
        self.hours, self.shop = 0, list(SHOP)
        for name, words in [
            ("a", A), ("b", edited(A, 3)), ("alone", ALONE), ("left", LEFT),
            ("heir", edited(LEFT, 3)), ("sourced", SOURCED), ("apart", A),
        ]:  # fmt: skip
            article(pages, name, words)
        pages.file("one.xml", rss(*(post(f"p{n}", framed(n)) for n in range(MIN_POSTS + 2))))
        link = f"{pages.url}/item-sourced.html"
        pages.file("two.xml", rss(post("sourced", SOURCED, link), post("p", edited(framed(0), 2))))
        subscribe(self.db, uri, f"{pages.url}/one.xml", f"{pages.url}/two.xml")
        self.wrapper = site(freshet, pages, *SHOP, spider="shop")
        freshet.crawl(self.wrapper)
        freshet.crawl(site(freshet, pages, "sourced", spider="blog"))
        freshet.crawl(site(freshet, pages, "apart", spider="apart", duplicates=False))
        crawl(freshet, hours=1)
        forgot = run(freshet, "forget", f"{pages.url}/item-left.html", "--yes")
        assert forgot.code == 0, forgot.err
        pages.remove("item-left.html")
        self.shop.remove("left")

    def add(self, items: dict[str, str], **env: object) -> None:
        """Add items with these texts to the shop and crawl it."""
        self.hours += 24
        self.shop += items
        for name, words in items.items():
            article(self.pages, name, words)
        site(self.freshet, self.pages, *self.shop, spider="shop")
        self.freshet.crawl(self.wrapper, hours=self.hours, **env)

    def posts(self) -> dict[str, str | None]:
        """Return the original of each post (or None), both named by spider and title."""
        rows = {row["_id"]: row for row in self.db.posts.find()}
        for row in rows.values():
            assert row["original"] is ("duplicate_of" not in row), row
        names = {key: f"{row['spider']} {row['title']}" for key, row in rows.items()}
        return {names[key]: names.get(row.get("duplicate_of")) for key, row in rows.items()}

    def commands(self, **env: object) -> None:
        """Check that the commands report the same duplicates as the posts."""
        found = in_json(self.freshet, "duplicates", **env)
        copies = sum(of is not None for of in self.posts().values())
        assert found["copies"] == copies
        a, b = (f"{self.pages.url}/item-{name}.html" for name in "ab")
        assert in_json(self.freshet, "duplicates", "explain", a, b, **env)["duplicates"]
        doctor = run(self.freshet, "doctor", "--quick", "--json", **env)
        assert '"near-duplicates"' in doctor.out

    def rebuild(self, **env: object) -> None:
        done = run(self.freshet, "duplicates", "rebuild", **env)
        assert done.code == 0, done.err


@pytest.fixture
def world(freshet: Freshet, stored: tuple[Db, str], pages: Pages) -> World:
    return World(freshet, stored, pages)


def meta(db: Db) -> Row:
    return db.meta.find_one(META) or {}


def test_moving_claims_both_ways_keeps_verdicts(world: World, redis: str) -> None:
    expected = world.posts()
    found = {name: of for name, of in expected.items() if of is not None}
    assert {"shop heir", "shop alone", "apart apart"} <= expected.keys() - found.keys()
    assert found.keys() >= {"shop b"} or found.keys() >= {"shop a"}
    for round_number in range(2):
        # In the second round, the claims of the first round are still in Redis.
        for env in ({"REDIS_URL": redis}, {}):
            name = f"{'to' if env else 'back'}{round_number}"
            # Copies of a post without copies, of an original with copies, and of a deleted post.
            kinds = {"alone": ALONE, "a": A, "left": LEFT}
            seed = round_number + len(name)
            world.add(
                {f"{kind}{name}": edited(words, 2, seed) for kind, words in kinds.items()}, **env
            )
            now = world.posts()
            assert {key: now[key] for key in expected} == expected
            firsts = {
                "alone": "shop alone",
                "a": found.get("shop b", "shop a"),
                "left": "shop heir",
            }
            for kind, of in firsts.items():
                assert now[f"shop {kind}{name}"] == of
            # Posts with boilerplate are compared as before.
            assert world.db.posts.count_documents({"feed": {"$regex": "one.xml"}}) > MIN_POSTS
            world.commands(**env)
            assert meta(world.db)["backend"] == ("redis" if env else "mongodb")
            assert (world.db.signatures.find_one({"bands": {"$exists": True}}) is None) is bool(env)
            expected = now
            world.rebuild(**env)
            assert world.posts() == expected
            world.commands(**env)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_claims_stay_in_mongodb_if_redis_is_unreachable(world: World) -> None:
    before, signatures = meta(world.db), list(world.db.signatures.find())
    unreachable = f"redis://127.0.0.1:{free_port()}/0"
    failed = world.freshet.crawl(world.wrapper, hours=20, code=1, REDIS_URL=unreachable)
    assert "Redis at 127.0.0.1" in failed.err
    assert run(world.freshet, "duplicates", "rebuild", REDIS_URL=unreachable).code == 1
    assert meta(world.db) == before
    assert list(world.db.signatures.find()) == signatures
    world.add({"again": edited(ALONE, 2)})
    assert world.posts()["shop again"] == "shop alone"


@pytest.mark.parametrize("steps", ["named", "filling", "filled", "noted"])
def test_interrupted_move_is_repeated_or_undone(world: World, redis: str, steps: str) -> None:
    """Interrupt the move in each of its states."""
    uri = world.freshet.env["MONGO_URI"]
    config = Config.load(mongo_uri=uri, redis_url=redis)

    async def move() -> None:
        from crawler.storage.dedup.redis import RedisBands
        from crawler.storage.dedup.signatures import Registry
        from crawler.storage.redis import open_redis

        async with opened(config) as db:
            wanted: Any = index.wanted_meta(config)
            noted = await index._agree(db, wanted)
            if steps == "named":
                return
            client = await open_redis(redis)
            bands = RedisBands(client, f"freshet:{db.name}:duplicates")
            registry = Registry.of(db, index.scheme_of("characters", 0.7), bands)
            if steps == "filling":
                await bands.begin(f"{index.FILLING} {noted['index']}")
            else:
                await index.refill(registry, bands, noted["index"])
            if steps == "noted":
                await index.record_move(db, wanted, noted["index"])
            await client.aclose()

    expected = world.posts()
    asyncio.run(move())
    if steps != "noted":
        # Without Redis, the claims are still in MongoDB.
        world.add({"undone": edited(ALONE, 2)})
        assert world.posts() == expected | {"shop undone": "shop alone"}
        assert "index" not in meta(world.db)
        asyncio.run(move())
    world.add({"repeated": edited(ALONE, 3, 7)}, REDIS_URL=redis)
    assert world.posts()["shop repeated"] == "shop alone"
    world.add({"more": edited(A, 2, 9)}, REDIS_URL=redis)
    assert world.posts()["shop more"] in ("shop a", "shop b")
    assert world.db.signatures.find_one({"bands": {"$exists": True}}) is None
    with driver.Redis.from_url(redis) as client:
        assert client.exists(f"{{freshet:{world.db.name}:duplicates}}:state")


def test_way_back_to_mongodb_waits_for_crawls_with_redis_and_can_be_repeated(
    world: World, redis: str
) -> None:
    world.add({"moved": edited(ALONE, 2)}, REDIS_URL=redis)
    lease = {
        "_id": "crawl other", "shared": "redis", "number": 1, "holders": [
            {"id": "x", "host": "elsewhere", "pid": 1, "place": "x", "began": 0.0,
             "since": datetime.now(UTC), "until": datetime.now(UTC) + timedelta(hours=1)},
        ],
    }  # fmt: skip
    world.db.leases.insert_one(lease)
    refused = world.freshet.crawl(world.wrapper, hours=world.hours + 1, code=1)
    assert "move from Redis to MongoDB once the crawl with REDIS_URL on elsewhere" in refused.err
    assert world.db.signatures.find_one({"bands": {"$exists": True}}) is None
    world.db.leases.delete_one({"_id": lease["_id"]})
    expected = world.posts()
    # An interrupted move has stored some bands. Redis is not needed.
    world.add({"back": edited(ALONE, 3)})
    world.db.meta.update_one(META, {"$set": {"backend": "redis"}})
    world.db.signatures.update_many({"item": {"$exists": True}}, {"$unset": {"bands": ""}})
    world.add({"again": edited(ALONE, 4)})
    added = {"shop back": "shop alone", "shop again": "shop alone"}
    assert world.posts() == expected | added
    assert meta(world.db)["backend"] == "mongodb"
    assert "index" not in meta(world.db)
