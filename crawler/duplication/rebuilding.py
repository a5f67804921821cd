"""`scrapy duplicates rebuild`: all posts compared anew, by what the settings ask for."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from crawler.command import print_json
from crawler.config import Config
from crawler.duplication.common import COMMAND, STOPPED, copies, ended
from crawler.errors import Busy
from crawler.storage import leases
from crawler.storage.client import Database, Document
from crawler.storage.duplicates import reading, rebuilding
from crawler.storage.duplicates.registry import Registry
from crawler.storage.duplicates.trouble import told
from crawler.storage.store import opened
from crawler.utils.terminal import complain, print_line
from crawler.utils.text import count
from crawler.utils.time import Clock
from crawler.working import working

BUSY = "another scrapy duplicates rebuild is running"
AGAIN = "crawls are refused until scrapy duplicates rebuild has come to its end"
OFF = "off"
Tell = Callable[[str], None]


def add_options(parser: argparse.ArgumentParser) -> None:
    """None: the settings say all."""


def run(config: Config, opts: argparse.Namespace) -> int:
    """Compare, and say what there is; 130 where it was interrupted."""
    with working(config, "opening the database") as tell:
        done = ended(_rebuild(config, tell))
    if done is None:
        complain(COMMAND, f"stopped; {AGAIN}")
        return STOPPED
    if opts.json:
        print_json(done)
    else:
        print_line(_in_words(done))
    return 0


async def _refuse_crawls(db: Database) -> None:
    """Raise Busy while a spider of this database is being crawled, on whichever machine."""
    for name, holders in (await leases.at_work(db, leases.CRAWL)).items():
        spider = name.removeprefix(leases.CRAWL)
        raise Busy(f"{spider} is being crawled on {holders[0]}: try again when that has ended")


async def _rebuild(config: Config, tell: Tell) -> Document:
    started = time.monotonic()
    with told(AGAIN):
        async with opened(config) as db, leases.held(db, config, leases.REBUILD, BUSY):
            asked = config.duplicates
            async with rebuilding.begun(db, config, lambda: _refuse_crawls(db)) as registry:
                done = await (_off(db) if asked == OFF else _compared(db, registry, config, tell))
            found = await reading.overview(db, limit=0)
    return {
        "scheme": OFF if asked == OFF else registry.scheme.name,
        "posts": done[0],
        "compared": done[1],
        "clusters": found.clusters,
        "copies": found.copies,
        "seconds": round(time.monotonic() - started, 3),
    }


async def _off(db: Database) -> tuple[int, int]:
    await rebuilding.show_all(db)
    return await db.posts.estimated_document_count(), 0


async def _compared(
    db: Database, registry: Registry, config: Config, tell: Tell
) -> tuple[int, int]:
    """How many posts there are, and how many have a text to compare."""
    clock, posts, compared = Clock(config.clock_offset_hours), 0, 0
    total = await db.posts.estimated_document_count()
    tell(f"{count(total, 'post')} are brought in order")
    if registry.boilerplate is not None:
        async for some in rebuilding.posts(db):
            await rebuilding.learn(registry, some, clock.now())
            posts += len(some)
            tell(f"{posts:,} of {count(total, 'post')} searched for boilerplate")
    posts = 0
    async for some in rebuilding.posts(db):
        compared += await rebuilding.compare(db, registry, some, clock.now())
        posts += len(some)
        tell(f"{posts:,} of {count(total, 'post')} compared anew; crawls have to wait")
    tell(f"{count(posts, 'post')} compared, clusters are being shown on them")
    await rebuilding.settle(db, registry)
    return posts, compared


def _in_words(done: Document) -> str:
    if done["scheme"] == OFF:
        return f"near-duplicates are off: all of {count(done['posts'], 'post')} are originals"
    without = done["posts"] - done["compared"]
    textless = f", {without:,} without a text" if without else ""
    return (
        f"{count(done['posts'], 'post')} compared by {done['scheme']}{textless}: "
        f"{copies(done['copies'])} in {count(done['clusters'], 'cluster')} "
        f"({done['seconds']:.1f} s)"
    )
