"""`scrapy duplicates`: the clusters of near-duplicates, or one of them with its copies."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from bson import ObjectId
from bson.errors import InvalidId
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from crawler.cli.base import print_json
from crawler.config import Config
from crawler.errors import Busy, ConfigError
from crawler.ops.progress import working
from crawler.storage import leases, search
from crawler.storage.client import Database, Document
from crawler.storage.dedup import named as kept
from crawler.storage.dedup import queries as reading
from crawler.storage.dedup import rebuild as rebuilding
from crawler.storage.dedup.index import HINT
from crawler.storage.dedup.queries import Overview
from crawler.storage.dedup.registry import Registry
from crawler.storage.retry import storage_errors
from crawler.storage.store import opened
from crawler.utils.terminal import complain, print_line, printable, shortened, stdout
from crawler.utils.text import count, listed
from crawler.utils.time import Clock


def kept_options(parser: argparse.ArgumentParser) -> None:
    """What is to go."""
    parser.add_argument("--forget", metavar="NAME", help="remove what is kept under this name")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run_kept(config: Config, opts: argparse.Namespace) -> int:
    """Show what is kept, or remove one of them."""
    rows = asyncio.run(_names(config))
    if opts.forget is not None:
        row = _named(rows, opts.forget)
        _ask(row, opts)
        _forget(config, row["name"])
        print_json(row) if opts.json else print_line(f"removed {_told(row)}")
    elif opts.json:
        print_json(rows)
    else:
        _show_kept(rows)
    return 0


def _named(rows: list[Document], name: str) -> Document:
    found = next((row for row in rows if row["name"] == name), None)
    if found is None:
        known = listed([row["name"] for row in rows]) or "nothing"
        raise ConfigError(f"nothing is kept under {name!r}; there is: {known}")
    return found


def _ask(row: Document, opts: argparse.Namespace) -> None:
    if opts.yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError(f"would remove {_told(row)}: say --yes to mean it")
    if input(f"Remove {_told(row)}? [y/N] ").strip().lower() != "y":
        raise ConfigError("nothing was removed")


def _told(row: Document) -> str:
    return f"{row['name']}, {count(row['texts'], 'text')}"


def _forget(config: Config, name: str) -> None:
    asyncio.run(_drop(config, name))


async def _names(config: Config) -> list[Document]:
    with storage_errors():
        async with opened(config) as db:
            return await kept.names(db)


async def _drop(config: Config, name: str) -> None:
    busy = f"{name} is in use"
    with storage_errors():
        async with opened(config) as db, leases.held(db, config, f"{leases.CHECK}{name}", busy):
            await kept.forget(db, name)


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


Result = TypeVar("Result")
COMMAND = "duplicates"
STOPPED = 130


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


USUAL_LIMIT = 20
USUAL_COPIES = 200


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
    """Print them."""
    console = stdout()
    if opts.cluster is not None:
        found = asyncio.run(_cluster(config, opts))
        print_json(found) if opts.json else _show_cluster(console, found)
        return 0
    overview = asyncio.run(_overview(config, opts))
    if opts.json:
        print_json(_plain(overview))
    else:
        _show(console, overview)
    return 0


def _limit(opts: argparse.Namespace, usual: int) -> int | None:
    if opts.limit is not None:
        return int(opts.limit)
    return None if opts.json else usual


async def _overview(config: Config, opts: argparse.Namespace) -> Overview:
    async with opened(config) as db:
        if opts.spider is not None:
            await _check_spider(db, opts.spider)
        return await reading.overview(db, opts.spider, _limit(opts, USUAL_LIMIT))


async def _check_spider(db: Database, spider: str) -> None:
    known = await search.spiders(db)
    if spider not in known:
        named = ", ".join(known) or "none; run scrapy crawl first"
        raise ConfigError(f"no posts of {spider!r}; spiders with posts: {named}")


async def _cluster(config: Config, opts: argparse.Namespace) -> Document:
    async with opened(config) as db:
        try:
            found = await reading.cluster_of(db, ObjectId(opts.cluster), _limit(opts, USUAL_COPIES))
        except InvalidId:
            found = None
    if found is None:
        raise ConfigError(f"no cluster {opts.cluster} (scrapy duplicates lists them)")
    return found


def _plain(found: Overview) -> Document:
    return {
        "posts": found.posts,
        "clusters": found.clusters,
        "copies": found.copies,
        "rebuilding": found.rebuilding,
        "shown": found.shown,
    }


def _show(console: Console, found: Overview) -> None:
    for row in found.shown:
        _show_original(console, row)
        console.print(f"cluster {row['cluster']}", style="dim")
        console.print()
    compared = f"{count(found.posts, 'post')} compared"
    total = f"{count(found.clusters, 'cluster')} with {copies(found.copies)}"
    console.print(f"{compared}: {total}", soft_wrap=True)
    if (shown := len(found.shown)) < found.clusters:
        said = f"the {shown:,} largest; --limit N shows more, --json all"
        console.print(said if shown else "--json shows all", soft_wrap=True)
    if found.rebuilding:
        console.print(f"being rebuilt, or that was cut short: {HINT}", soft_wrap=True)


def _show_original(console: Console, row: Document) -> None:
    post = row["original"]
    console.print(title_of(post) or "(no title)", style="bold", soft_wrap=True)
    told = (f"{post['created']:%Y-%m-%d}", f"+{copies(row['copies'])}", place_of(post))
    console.print("  ".join(told), style="cyan", soft_wrap=True)


def _show_cluster(console: Console, found: Document) -> None:
    _show_original(console, found)
    console.print(_copies(found["members"]))
    if (shown := len(found["members"])) < found["copies"]:
        said = f"the {shown:,} oldest; --limit N shows more, --json all"
        console.print(said, soft_wrap=True)
    for source in found["sources"]:
        console.print(f"the same item: {place_of(source)} of {source['spider']}", soft_wrap=True)
    for change in found["changes"]:
        console.print(_change(change), soft_wrap=True)


def _copies(members: Sequence[Document]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("alike", justify="right", no_wrap=True)
    table.add_column("created (UTC)", no_wrap=True)
    table.add_column("copy")
    for post in members:
        alike = "" if post["similarity"] is None else f"{post['similarity']:.0%}"
        told = "\n".join(filter(None, (title_of(post), place_of(post))))
        table.add_row(alike, f"{post['created']:%Y-%m-%d %H:%M}", shortened(told))
    return table


def _change(change: Document) -> str:
    was, now = printable(change["was"]), printable(change["post"])
    return f"{change['at']:%Y-%m-%d %H:%M}  {change['why']}: {now} instead of {was}"


BUSY = "another scrapy duplicates rebuild is running"
AGAIN = "crawls are refused until scrapy duplicates rebuild has come to its end"
OFF = "off"
Tell = Callable[[str], None]


def rebuild_options(parser: argparse.ArgumentParser) -> None:
    """None: the settings say all."""


def run_rebuild(config: Config, opts: argparse.Namespace) -> int:
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
    with storage_errors(AGAIN):
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
