"""`scrapy duplicates list`, `kept` and `rebuild`, and what the other actions print posts with."""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import asdict
from typing import Any, TypeVar

from bson import ObjectId
from bson.errors import InvalidId
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from crawler.cli.base import confirm, print_json
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.ops.progress import working
from crawler.storage import leases, search
from crawler.storage.client import Database, Document
from crawler.storage.dedup import check_index, queries, rebuild
from crawler.storage.dedup.index import HINT
from crawler.storage.dedup.registry import Registry
from crawler.storage.retry import storage_errors
from crawler.storage.store import opened
from crawler.utils.terminal import complain, print_line, printable, shortened, stdout
from crawler.utils.text import count, listed
from crawler.utils.time import Clock

Result = TypeVar("Result")
Tell = Callable[[str], None]
COMMAND = "duplicates"
STOPPED = 130
USUAL_LIMIT, USUAL_COPIES = 20, 200
OFF = "off"
BUSY = "another scrapy duplicates rebuild is running"
AGAIN = "crawls are refused until scrapy duplicates rebuild has come to its end"


def positive(text: str) -> int:
    """A number from 1 on; for argparse."""
    if not text.isascii() or not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number such as 100")
    return int(text)


def ended(work: Coroutine[Any, Any, Result]) -> Result | None:
    """The result of some work; None where Ctrl-C or SIGTERM has ended it, in order."""

    async def there() -> Result:
        task = asyncio.current_task()
        if task is not None:
            # Only the main thread of a Unix process has signals.
            with suppress(NotImplementedError, RuntimeError, ValueError):
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(there())
    except (KeyboardInterrupt, asyncio.CancelledError):
        return None


def title_of(post: Document) -> str:
    """A post's title, fit for a terminal; empty where it has none."""
    title = post.get("title")
    return "" if title is None else printable(str(title))


def place_of(post: Document) -> str:
    """Where a post is: its URL, else its id."""
    return printable(str(post.get("url") or post["id"]))


def copies(n: int) -> str:
    """So many copies."""
    return f"{n:,} {'copy' if n == 1 else 'copies'}"


def list_options(parser: argparse.ArgumentParser) -> None:
    """Which clusters, and how much of them."""
    parser.add_argument("--cluster", metavar="ID", help="this one, with its copies and history")
    parser.add_argument("--spider", metavar="NAME", help="only clusters with a post of it")
    parser.add_argument(
        "--limit", metavar="N", type=positive,
        help=f"clusters at most (default: {USUAL_LIMIT}), or copies of one (default: "
        f"{USUAL_COPIES}); --json shows all",
    )  # fmt: skip


def run_list(config: Config, opts: argparse.Namespace) -> int:
    """Print the clusters of near-duplicates, or one of them with its copies."""
    console = stdout()
    usual = USUAL_LIMIT if opts.cluster is None else USUAL_COPIES
    limit = opts.limit if opts.limit is not None or opts.json else usual
    result = asyncio.run(_clusters(config, opts, limit))
    if opts.json:
        print_json(result)
        return 0
    if opts.cluster is not None:
        _show_cluster(console, result)
        return 0
    for row in result["shown"]:
        _show_original(console, row)
        console.print(f"cluster {row['cluster']}", style="dim")
        console.print()
    compared = f"{count(result['posts'], 'post')} compared"
    total = f"{count(result['clusters'], 'cluster')} with {copies(result['copies'])}"
    console.print(f"{compared}: {total}", soft_wrap=True)
    if (shown := len(result["shown"])) < result["clusters"]:
        more = f"the {shown:,} largest; --limit N shows more, --json all"
        console.print(more if shown else "--json shows all", soft_wrap=True)
    if result["rebuilding"]:
        console.print(f"being rebuilt, or that was cut short: {HINT}", soft_wrap=True)
    return 0


async def _clusters(config: Config, opts: argparse.Namespace, limit: int | None) -> Document:
    """The cluster that was asked for, else an overview of all."""
    async with opened(config) as db:
        if opts.cluster is not None:
            with suppress(InvalidId):
                cluster = await queries.cluster_of(db, ObjectId(opts.cluster), limit)
                if cluster is not None:
                    return cluster
            raise ConfigError(f"no cluster {opts.cluster} (scrapy duplicates lists them)")
        if opts.spider is not None and opts.spider not in (spiders := await search.spiders(db)):
            available = ", ".join(spiders) or "none; run scrapy crawl first"
            raise ConfigError(f"no posts of {opts.spider!r}; spiders with posts: {available}")
        return asdict(await queries.overview(db, opts.spider, limit))


def _show_original(console: Console, row: Document) -> None:
    post = row["original"]
    console.print(title_of(post) or "(no title)", style="bold", soft_wrap=True)
    parts = (f"{post['created']:%Y-%m-%d}", f"+{copies(row['copies'])}", place_of(post))
    console.print("  ".join(parts), style="cyan", soft_wrap=True)


def _show_cluster(console: Console, cluster: Document) -> None:
    _show_original(console, cluster)
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("alike", justify="right", no_wrap=True)
    table.add_column("created (UTC)", no_wrap=True)
    table.add_column("copy")
    for post in cluster["members"]:
        alike = "" if post["similarity"] is None else f"{post['similarity']:.0%}"
        copy = "\n".join(filter(None, (title_of(post), place_of(post))))
        table.add_row(alike, f"{post['created']:%Y-%m-%d %H:%M}", shortened(copy))
    console.print(table)
    if (shown := len(cluster["members"])) < cluster["copies"]:
        more = f"the {shown:,} oldest; --limit N shows more, --json all"
        console.print(more, soft_wrap=True)
    for source in cluster["sources"]:
        console.print(f"the same item: {place_of(source)} of {source['spider']}", soft_wrap=True)
    for change in cluster["changes"]:
        was, now = printable(change["was"]), printable(change["post"])
        line = f"{change['at']:%Y-%m-%d %H:%M}  {change['why']}: {now} instead of {was}"
        console.print(line, soft_wrap=True)


def kept_options(parser: argparse.ArgumentParser) -> None:
    """What is to go."""
    parser.add_argument("--forget", metavar="NAME", help="remove what is kept under this name")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run_kept(config: Config, opts: argparse.Namespace) -> int:
    """Show the indexes that `check --keep` has kept, or remove one of them."""
    rows = asyncio.run(_kept(config))
    if opts.forget is None:
        print_json(rows) if opts.json else _show_kept(rows)
        return 0
    row = next((row for row in rows if row["name"] == opts.forget), None)
    if row is None:
        available = listed([row["name"] for row in rows]) or "nothing"
        raise ConfigError(f"nothing is kept under {opts.forget!r}; there is: {available}")
    index = f"{row['name']}, {count(row['texts'], 'text')}"
    confirm(index, opts)
    asyncio.run(_forget(config, row["name"]))
    print_json(row) if opts.json else print_line(f"removed {index}")
    return 0


async def _kept(config: Config) -> list[Document]:
    with storage_errors():
        async with opened(config) as db:
            return await check_index.kept(db)


async def _forget(config: Config, name: str) -> None:
    busy = f"{name} is in use"
    with storage_errors():
        async with opened(config) as db, leases.held(db, config, f"{leases.CHECK}{name}", busy):
            await check_index.forget(db, name)


def _show_kept(rows: list[Document]) -> None:
    console = stdout()
    if not rows:
        console.print("nothing is kept; scrapy duplicates check FILE --keep NAME keeps")
        return
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("name", "compared by", "texts", "clusters", "made", "used"):
        table.add_column(name, justify="right" if name in ("texts", "clusters") else "left")
    for row in rows:
        numbers = (f"{row['texts']:,}", f"{row['clusters']:,}")
        days = (f"{row['made']:%Y-%m-%d}", f"{row['used']:%Y-%m-%d}")
        table.add_row(row["name"], row["scheme"], *numbers, *days)
    console.print(table)


def rebuild_options(parser: argparse.ArgumentParser) -> None:
    """None: the settings say all."""


def run_rebuild(config: Config, opts: argparse.Namespace) -> int:
    """Compare all posts anew, and print the result; 130 where it was interrupted."""
    with working(config, "opening the database") as tell:
        done = ended(_rebuild(config, tell))
    if done is None:
        complain(COMMAND, f"stopped; {AGAIN}")
        return STOPPED
    if opts.json:
        print_json(done)
    elif done["scheme"] == OFF:
        posts = count(done["posts"], "post")
        print_line(f"near-duplicates are off: all of {posts} are originals")
    else:
        without = done["posts"] - done["compared"]
        textless = f", {without:,} without a text" if without else ""
        print_line(
            f"{count(done['posts'], 'post')} compared by {done['scheme']}{textless}: "
            f"{copies(done['copies'])} in {count(done['clusters'], 'cluster')} "
            f"({done['seconds']:.1f} s)"
        )
    return 0


async def _rebuild(config: Config, tell: Tell) -> Document:
    started = time.monotonic()
    is_off = config.duplicates == OFF
    with storage_errors(AGAIN):
        async with opened(config) as db, leases.held(db, config, leases.REBUILD, BUSY):
            async with rebuild.begun(db, config) as registry:
                if is_off:
                    await rebuild.show_all(db)
                    posts, compared = await db.posts.estimated_document_count(), 0
                else:
                    posts, compared = await _compare_all(db, registry, config, tell)
            overview = await queries.overview(db, limit=0)
    return {
        "scheme": OFF if is_off else registry.scheme.name,
        "posts": posts,
        "compared": compared,
        "clusters": overview.clusters,
        "copies": overview.copies,
        "seconds": round(time.monotonic() - started, 3),
    }


async def _compare_all(
    db: Database, registry: Registry, config: Config, tell: Tell
) -> tuple[int, int]:
    """How many posts there are, and how many have a text to compare."""
    clock, posts, compared = Clock(config.clock_offset_hours), 0, 0
    total = await db.posts.estimated_document_count()
    tell(f"{count(total, 'post')} are brought in order")
    if registry.boilerplate is not None:
        async for batch in rebuild.posts(db):
            await rebuild.learn(registry, batch, clock.now())
            posts += len(batch)
            tell(f"{posts:,} of {count(total, 'post')} searched for boilerplate")
    posts = 0
    async for batch in rebuild.posts(db):
        compared += await rebuild.compare(db, registry, batch, clock.now())
        posts += len(batch)
        tell(f"{posts:,} of {count(total, 'post')} compared anew; crawls have to wait")
    tell(f"{count(posts, 'post')} compared, clusters are being shown on them")
    await rebuild.settle(db, registry)
    return posts, compared
