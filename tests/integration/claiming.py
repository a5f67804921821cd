"""Posts to claim: an index of near-duplicates, and similar and different texts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from random import Random
from typing import Any

from pymongo import AsyncMongoClient, UpdateOne

from crawler.config import Config
from crawler.dedup.posts import Candidate, Verdict, claimed_at, id_of
from crawler.dedup.schemes import scheme_of
from crawler.storage.client import Database
from crawler.storage.dedup import claims, clusters, edits
from crawler.storage.dedup.index import opened
from crawler.storage.dedup.signatures import Registry
from crawler.storage.schema import prepare
from crawler.storage.verdicts import with_verdict
from tests.integration.harness import Row

NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)
HOUR = timedelta(hours=1)
SCHEME = scheme_of("characters", 0.7)
SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "ing")]


def text(seed: int, words: int = 120) -> str:
    """Return a text that differs from the text of any other seed."""
    random = Random(seed)
    return " ".join(
        "".join(random.choices(SYLLABLES, k=random.randint(1, 3))) for _ in range(words)
    )


def edited(words: str, edits: int, seed: int = 1) -> str:
    """Return the text with `edits` of its words replaced."""
    random, parts = Random(seed), words.split()
    for at in random.sample(range(len(parts)), edits):
        parts[at] = "".join(random.choices(SYLLABLES, k=3))
    return " ".join(parts)


def candidate(  # noqa: PLR0913 - a test names only the times that matter
    key: str,
    words: str,
    created: datetime = NOW,
    *,
    seen: datetime | None = None,
    source: int = 0,
    edit: bool = False,
    item: int | None = None,
    absent: datetime | None = None,
) -> Candidate:
    """Return a post with this text; item: number of the item that the post is a source of.

    absent: last visit of the source that did not show the text
    """
    sketch = SCHEME.sketch(words)
    assert sketch is not None
    claimed = claimed_at(created, seen or created, absent)
    return Candidate(
        key, created, sketch, edit, item, seen=seen, source=source, absent=absent, claimed=claimed
    )


@dataclass
class Posts:
    """An index and its posts, as a crawl stores them; each call opens its own connection."""

    uri: str

    def claim(self, *posts: Candidate) -> dict[str, Verdict]:
        """Claim posts and store them, in the same order as the writer."""
        return self.on(lambda db, registry: stored(db, registry, posts))

    def remove(self, *keys: str) -> None:
        """Delete posts."""

        async def removed(db: Database, registry: Registry) -> None:
            query = {"_id": {"$in": list(keys)}}
            await edits.release_posts(db, registry, query, NOW)
            await db.posts.delete_many(query)

        self.on(removed)

    def originals(self) -> set[str]:
        """Return the keys of the posts that a search can find."""

        async def found(db: Database, registry: Registry) -> Any:
            return await db.posts.distinct("_id", {"original": True})

        return set(self.on(found))

    def post(self, key: str) -> Row:
        """Return a post as stored."""
        row: Row = self.on(lambda db, registry: db.posts.find_one({"_id": key}))
        return row

    def all(self) -> dict[str, Row]:
        """Return all posts by key."""
        rows: list[Row] = self.on(lambda db, registry: db.posts.find().to_list(None))
        return {row["_id"]: row for row in rows}

    def signature(self, key: str) -> Row:
        """Return a signature as stored."""
        row: Row = self.on(lambda db, registry: registry.signatures.find_one({"_id": id_of(key)}))
        return row

    def clusters(self) -> list[Row]:
        """Return all clusters."""
        rows: list[Row] = self.on(lambda db, registry: registry.clusters.find().to_list(None))
        return rows

    def on(self, call: Callable[[Database, Registry], Awaitable[Any]]) -> Any:
        """Run a coroutine on the database and the index, and return its result."""

        async def there() -> Any:
            async with index(self.uri) as (db, registry):
                return await call(db, registry)

        return asyncio.run(there())


@lru_cache(8)
def _configured(uri: str) -> Config:
    """Read the configuration once for each database, because it takes as long as a claim."""
    return Config.load(mongo_uri=uri)


@asynccontextmanager
async def index(uri: str) -> AsyncIterator[tuple[Database, Registry]]:
    """Open the index of a database."""
    config = _configured(uri)
    client: AsyncMongoClient[Row]
    async with AsyncMongoClient(uri, tz_aware=True, w="majority", journal=True) as client:
        db = client.get_default_database()
        await prepare(db)
        async with opened(db, config) as registry:
            assert registry is not None
            yield db, registry


async def stored(
    db: Database, registry: Registry, posts: Iterable[Candidate]
) -> dict[str, Verdict]:
    """Claim posts and store them like the writer; return their verdicts."""
    verdicts = await claims.claim(registry, posts, NOW)
    updates = []
    for post in posts:
        bare: Row = {"spider": "x", "url": post.key, "content_hash": "x"}
        bare |= dict.fromkeys(("first_seen", "changed_at"), NOW)
        update = with_verdict({"$set": bare}, verdicts[post.key])
        updates.append(UpdateOne({"_id": post.key}, update, upsert=True))
    await db.posts.bulk_write(updates)
    await clusters.confirm(db, registry, verdicts, {post.key for post in posts})
    return verdicts
