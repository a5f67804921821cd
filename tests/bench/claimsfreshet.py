"""Freshet for `make bench ARGS=--claims`: posts in batches like the writer's, with one worker.

`python -m tests.bench.claimsfreshet FOLDER SIZE...` prints the results at each size as a line of
JSON.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pymongo.asynchronous.collection import AsyncCollection

from crawler.config import Config
from crawler.dedup.boilerplate import sourced
from crawler.dedup.compared import source_of
from crawler.dedup.posts import Candidate
from crawler.dedup.sketch import Sketch
from crawler.items import Fetched, Kind, Outcome, Target, Visit
from crawler.storage import identity, posts
from crawler.storage.client import Database, Document
from crawler.storage.dedup import boilerplate, claims, clusters
from crawler.storage.dedup.index import opened
from crawler.storage.dedup.signatures import Registry
from crawler.storage.embedded import EmbeddedServer
from crawler.storage.store import opened as opened_database
from tests.bench.claimsposts import Made, Posts
from tests.bench.claimstimes import BATCH, Measured, Meter, window

BEGIN = datetime(2026, 3, 2, tzinfo=UTC)


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
    """An open index, and its posts."""

    def __init__(self, db: Database, registry: Registry) -> None:
        self.db, self.registry = db, registry
        self.meter, self.learning = Meter(), Learning()

    async def store(self, batch: list[Made]) -> None:
        """Store the posts of a batch as the writer does."""
        now = BEGIN + timedelta(seconds=batch[-1].number)
        visits = [visit_of(one) for one in batch]
        learning = self.learning.seconds
        self.meter.start()
        await identity.set_items(self.db, visits)
        candidates = [visit.candidates[0] for visit in visits]
        with self.learning.timed():
            verdicts = await claims.claim(self.registry, candidates, now)
        self.meter.lap("signatures")
        self.meter.part("signatures", "boilerplate", self.learning.seconds - learning)
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
        return Measured(
            posts=meter.posts,
            claimed=meter.a_second(BATCH, "boilerplate", "signatures"),
            stored=meter.a_second(BATCH),
            filling=meter.posts / meter.seconds,
            p50_ms=meter.percentile_ms(50),
            p99_ms=meter.percentile_ms(99),
            together=BATCH,
            size=used / meter.posts,
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
async def index(config: Config) -> AsyncIterator[Index]:
    """Open an empty index on its own server."""
    async with opened_database(config) as db, opened(db, config) as registry:
        assert registry is not None
        # Search words are not part of a claim.
        if "search" in await db.posts.index_information():
            await db.posts.drop_index("search")
        yield Index(db, registry)


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


async def tell(config: Config, folder: Path, sizes: list[int]) -> None:
    """Print each result immediately."""
    with Posts(folder) as made:
        async with index(config) as one:
            async for measured in measured_at(one, made, sizes):
                print(json.dumps(asdict(measured)), flush=True)


def main(folder: Path, sizes: list[int]) -> None:
    """Measure on a temporary server, which is removed afterwards with its data."""
    with ExitStack() as stack:
        data = folder / "mongodb"
        config = Config.load(data_dir=data, mongo_uri=None, duplicates="characters")
        stack.callback(shutil.rmtree, data, ignore_errors=True)
        stack.callback(EmbeddedServer.of(config).stop)
        asyncio.run(tell(config, folder, sizes))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(word) for word in sys.argv[2:]])
