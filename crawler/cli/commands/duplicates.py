"""`scrapy duplicates`: near-duplicates among the stored posts, or in a file of texts.

`duplicates_check` implements the action `check`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from rich.console import Console
from rich.text import Text
from typing_extensions import TypedDict

from crawler.cli.base import (
    Action,
    ActionsCommand,
    print_json,
    require_posts,
    table,
    with_database,
)
from crawler.cli.options import positive_int
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.utils.process import INTERRUPTED, Say, interruptible
from crawler.utils.terminal import (
    SafeConsole,
    complain,
    print_line,
    printable,
    shortened,
    stdout,
    working,
)
from crawler.utils.text import count

if TYPE_CHECKING:
    from crawler.reports.duplicates import Comparison
    from crawler.storage.client import Database
    from crawler.storage.dedup.queries import (
        Cluster,
        ClusterMember,
        ClusterRow,
        Overview,
        ShownPost,
    )
    from crawler.storage.dedup.signatures import Registry
    from crawler.utils.edits import DiffPart

NAME = "duplicates"
DEFAULT_CLUSTERS, DEFAULT_COPIES = 20, 200
OFF = "off"
BUSY = "another scrapy duplicates rebuild is running"
UNFINISHED = "crawls cannot run until scrapy duplicates rebuild has finished"
INDENT = 3
# What only one of two texts has, and its mark between the sides.
SIDES = {"deleted": ("<", "bold red"), "inserted": (">", "bold green")}


class RebuildReport(TypedDict):
    """Result of a rebuild."""

    scheme: str
    """How the posts were compared; `off`: near-duplicate detection is off."""
    posts: int
    """Number of posts."""
    compared: int
    """Number of posts with text."""
    clusters: int
    """Number of clusters with copies."""
    copies: int
    """Number of copies."""
    seconds: float
    """Duration in seconds."""


class Command(ActionsCommand):
    """List, explain and rebuild clusters of near-duplicates, or check a file of texts."""

    default_action = "list"
    summary = "List, explain or rebuild near-duplicates, or check a file of texts"
    example = "scrapy duplicates"
    documents: ClassVar = {
        "scrapy duplicates list --json": "crawler.storage.dedup.queries.Overview",
        "scrapy duplicates list --cluster ID --json": "crawler.storage.dedup.queries.Cluster",
        "scrapy duplicates explain URL_A URL_B --json": "crawler.reports.duplicates.Comparison",
        "scrapy duplicates check FILE --json": "crawler.cli.duplicates_check.CheckedText",
        "scrapy duplicates check FILE --output FILE --json": (
            "crawler.cli.duplicates_check.CheckReport"
        ),
        "scrapy duplicates rebuild --json": RebuildReport,
    }

    @property
    def actions(self) -> Mapping[str, Action]:
        """Return the actions."""
        from crawler.cli import duplicates_check

        return {
            "list": Action(
                "List the clusters of near-duplicates, largest first, or show one cluster",
                "scrapy duplicates --cluster 69a5b1f0c2d4e8f1a2b3c4d5",
                run_list, list_options,
            ),
            "explain": Action(
                "Compare two posts side by side, and explain why they are duplicates or not",
                "scrapy duplicates explain https://a.example/post https://b.example/copy",
                run_explain, explain_options,
            ),
            "check": Action(
                'Find the duplicates in a file of {"id", "text"} lines; stored posts do not change',
                "scrapy duplicates check posts.jsonl --output flags.jsonl",
                duplicates_check.run, duplicates_check.add_options,
            ),
            "rebuild": Action(
                "Compare all posts again with the current settings; no crawl can run meanwhile",
                "scrapy duplicates rebuild -s FRESHET_DUPLICATES=words",
                run_rebuild,
            ),
        }  # fmt: skip


def title_of(title: str | None) -> str:
    """Return a post's title as printable text; empty if it has none."""
    return "" if title is None else printable(str(title))


def place_of(post: ShownPost | ClusterMember) -> str:
    """Return a post's URL, else its id, as printable text."""
    return printable(post["url"] or post["id"])


def list_options(parser: argparse.ArgumentParser) -> None:
    """Add options that select clusters and limit their number."""
    parser.add_argument(
        "--cluster", metavar="ID", help="show this cluster with its copies and history"
    )
    parser.add_argument(
        "--spider", metavar="NAME", help="list only clusters with a post of this spider"
    )
    parser.add_argument(
        "--limit", metavar="N", type=positive_int,
        help=f"maximum number of clusters (default: {DEFAULT_CLUSTERS}), or with --cluster of "
        f"copies (default: {DEFAULT_COPIES}); --json lists all by default",
    )  # fmt: skip


def run_list(config: Config, opts: argparse.Namespace) -> int:
    """Print the clusters of near-duplicates, or one cluster with its copies."""
    from crawler.storage.dedup import queries
    from crawler.storage.dedup.index import HINT

    if opts.cluster is not None:
        return _print_cluster(config, opts)
    console = stdout()
    limit = opts.limit if opts.limit is not None or opts.json else DEFAULT_CLUSTERS

    async def read(db: Database) -> Overview:
        if opts.spider is not None:
            await require_posts(db, opts.spider)
        return await queries.overview(db, opts.spider, limit)

    result = with_database(config, read)
    if opts.json:
        print_json(result)
        return 0
    for row in result["shown"]:
        _show_original(console, row)
        console.print(f"cluster {row['cluster']}", style="dim")
        console.print()
    compared = f"{count(result['posts'], 'post')} compared"
    total = f"{count(result['clusters'], 'cluster')} with {count(result['copies'], 'copy')}"
    console.print(f"{compared}: {total}", soft_wrap=True)
    measured = result["precision"]
    share, low, high = measured["precision"], measured["low"], measured["high"]
    if share is not None and low is not None and high is not None:
        pairs = f"{measured['confirmed']:,} of {count(measured['flagged'], 'labeled pair')}"
        interval = f"95 % interval {low:.1%} to {high:.1%}"
        console.print(f"measured precision: {share:.1%} ({pairs}; {interval})", soft_wrap=True)
    if (shown := len(result["shown"])) < result["clusters"]:
        more = f"{shown:,} largest shown. --limit N shows more, --json shows all"
        console.print(more if shown else "--json shows all", soft_wrap=True)
    if result["rebuilding"]:
        console.print(f"a rebuild is running or was interrupted: {HINT}", soft_wrap=True)
    return 0


def _print_cluster(config: Config, opts: argparse.Namespace) -> int:
    from bson import ObjectId
    from bson.errors import InvalidId

    from crawler.storage.dedup import queries

    limit = opts.limit if opts.limit is not None or opts.json else DEFAULT_COPIES
    cluster = None
    with suppress(InvalidId):
        number = ObjectId(opts.cluster)
        cluster = with_database(config, lambda db: queries.cluster_of(db, number, limit))
    if cluster is None:
        message = f"cluster not found: {opts.cluster!r}. scrapy duplicates lists the clusters"
        raise ConfigError(message)
    if opts.json:
        print_json(cluster)
    else:
        _show_cluster(stdout(), cluster)
    return 0


def _show_original(console: Console, row: ClusterRow | Cluster) -> None:
    post = row["original"]
    console.print(title_of(post["title"]) or "(no title)", style="bold", soft_wrap=True)
    parts = (f"{post['created']:%Y-%m-%d}", f"+{count(row['copies'], 'copy')}", place_of(post))
    console.print("  ".join(parts), style="cyan", soft_wrap=True)


def _show_cluster(console: Console, cluster: Cluster) -> None:
    _show_original(console, cluster)
    copies = table("alike", "created (UTC)", "copy", right={"alike"}, whole={"created (UTC)"})
    for post in cluster["members"]:
        alike = "" if post["similarity"] is None else f"{post['similarity']:.0%}"
        copy = "\n".join(filter(None, (title_of(post["title"]), place_of(post))))
        copies.add_row(alike, f"{post['created']:%Y-%m-%d %H:%M}", shortened(copy))
    console.print(copies)
    if (shown := len(cluster["members"])) < cluster["copies"]:
        more = f"{shown:,} oldest shown. --limit N shows more, --json shows all"
        console.print(more, soft_wrap=True)
    for source in cluster["sources"]:
        console.print(f"same item: {place_of(source)} of {source['spider']}", soft_wrap=True)
    for change in cluster["changes"]:
        was, now = printable(change["was"]), printable(change["post"])
        line = f"{change['at']:%Y-%m-%d %H:%M}  {change['why']}: {now} instead of {was}"
        console.print(line, soft_wrap=True)


def run_rebuild(config: Config, opts: argparse.Namespace) -> int:
    """Compare all posts again and print the result; return 130 if it was interrupted."""
    with working(config.progress, "opening the database") as progress:
        done = interruptible(_rebuild(config, progress))
    if done is None:
        complain(NAME, f"interrupted; {UNFINISHED}")
        return INTERRUPTED
    if opts.json:
        print_json(done)
    elif done["scheme"] == OFF:
        posts = count(done["posts"], "post")
        print_line(f"near-duplicate detection is off; {posts} marked as originals")
    else:
        without = done["posts"] - done["compared"]
        textless = f", {without:,} without text" if without else ""
        print_line(
            f"{count(done['posts'], 'post')} compared by {done['scheme']}{textless}: "
            f"{count(done['copies'], 'copy')} in {count(done['clusters'], 'cluster')} "
            f"({done['seconds']:.1f} s)"
        )
    return 0


async def _rebuild(config: Config, progress: Say) -> RebuildReport:
    from crawler.storage import leases
    from crawler.storage.client import storage_errors
    from crawler.storage.dedup import index, queries
    from crawler.storage.store import opened

    started = time.monotonic()
    is_off = config.duplicates == OFF
    with storage_errors(UNFINISHED):
        async with opened(config) as db, leases.held(db, config, leases.REBUILD, BUSY):
            async with index.rebuilding(db, config) as registry:
                if is_off:
                    await index.show_all(db)
                    posts, compared = await db.posts.estimated_document_count(), 0
                else:
                    posts, compared = await _compare_all(db, registry, config, progress)
            overview = await queries.overview(db, limit=0)
    return {
        "scheme": OFF if is_off else registry.scheme.name,
        "posts": posts,
        "compared": compared,
        "clusters": overview["clusters"],
        "copies": overview["copies"],
        "seconds": round(time.monotonic() - started, 3),
    }


async def _compare_all(
    db: Database, registry: Registry, config: Config, progress: Say
) -> tuple[int, int]:
    """Compare all posts; return the number of posts, and how many of them have text."""
    from crawler.storage.dedup import index

    clock, posts, compared = config.clock, 0, 0
    total = await db.posts.estimated_document_count()
    progress(f"sorting {count(total, 'post')}")
    if registry.boilerplate is not None:
        async for batch in index.posts_by_date(db):
            await index.learn(registry, batch, clock.now())
            posts += len(batch)
            progress(f"{posts:,} of {count(total, 'post')} searched for boilerplate")
    posts = 0
    async for batch in index.posts_by_date(db):
        compared += await index.compare_again(db, registry, batch, clock.now())
        posts += len(batch)
        progress(
            f"{posts:,} of {count(total, 'post')} compared; no crawl can run during the rebuild"
        )
    progress(f"{count(posts, 'post')} compared; storing their clusters")
    await index.end_rebuild(db, registry, clock.now())
    return posts, compared


def show_comparison(console: Console, comparison: Comparison) -> None:
    """Print both posts, their similarity, the verdict, and their texts side by side."""
    from rich.padding import Padding

    for name, post in (("A", comparison["a"]), ("B", comparison["b"])):
        heading = f"{name}  {title_of(post['title']) or '(no title)'}"
        console.print(heading, style="bold", soft_wrap=True)
        place = printable(post["url"] or post["id"])
        console.print(" " * INDENT + place, style="cyan", soft_wrap=True)
        facts = [
            f"{post['created']:%Y-%m-%d %H:%M}",
            f"{count(post['characters'], 'character')}, {count(post['words'], 'word')}",
            f"shingles of {' and '.join(post['shingles'])}" if post["shingles"] else "",
            f"bands {' and '.join(post['bandings'])}" if post["bandings"] else "",
            f"{post['boilerplate']:.0%} boilerplate" if post["boilerplate"] else "",
        ]
        console.print(Padding("; ".join(filter(None, facts)), (0, 0, 0, INDENT)))
    console.print()
    exact, estimated = (
        [f"{value:.3f} ({name})" for name, value in similarities.items()]
        for similarities in (comparison["exact"], comparison["datasketch"])
    )
    for line in (
        f"shared bands  {comparison['shared_bands']} of {comparison['of_bands']}",
        f"similarity    {comparison['similarity']:.3f} estimated by {comparison['scheme']}, "
        f"threshold {comparison['threshold']:.3g}",
        f"exact         {', '.join(exact) or 'no shingles'}",
        f"datasketch    {', '.join(estimated) or 'no shingles'}",
    ):
        console.print(line, soft_wrap=True)
    console.print(printable(comparison["verdict"]), style="bold", soft_wrap=True)
    console.print()
    _show_diff(console, comparison["diff"])
    if comparison["is_long"]:
        console.print("long texts: only their beginnings are shown side by side", style="dim")


def _show_diff(console: Console, parts: list[DiffPart]) -> None:
    from rich.table import Table

    sentences = Table.grid(padding=(0, 1), expand=True)
    sentences.add_column(ratio=1, overflow="fold")
    sentences.add_column(width=1)
    sentences.add_column(ratio=1, overflow="fold")
    for part in parts:
        if part["kind"] == "folded":
            sentences.add_row(Text(f"… {count(part['lines'], 'equal sentence')}", "dim"), "", "")
            continue
        sides = {kind: Text(style="dim" if part["kind"] == "same" else "") for kind in SIDES}
        for segment in part["segments"]:
            for kind, text in sides.items():
                if segment["kind"] == kind:
                    text.append(segment["text"], SIDES[kind][1])
                elif segment["kind"] in ("same", "folded"):
                    text.append(segment["text"] or " … ")
        marks = [mark for kind, (mark, _) in SIDES.items() if sides[kind]]
        mark = " " if part["kind"] == "same" else marks[0] if len(marks) == 1 else "|"
        sentences.add_row(sides["deleted"], mark, sides["inserted"])
    console.print(sentences)


def explain_options(parser: argparse.ArgumentParser) -> None:
    """Add the two posts and `--spider`."""
    for name, which in (("A", "first"), ("B", "second")):
        parser.add_argument(
            f"url_{name.lower()}", metavar=f"URL_{name}", help=f"URL or id of the {which} post"
        )
    parser.add_argument(
        "--spider", metavar="NAME", help="spider of the posts, if several have the same URL"
    )


def run_explain(config: Config, opts: argparse.Namespace) -> int:
    """Print the comparison and the verdict."""
    from crawler.reports.duplicates import compare_posts

    urls = opts.url_a, opts.url_b
    comparison = with_database(config, lambda db: compare_posts(db, config, urls, opts.spider))
    if opts.json:
        print_json(comparison)
    else:
        show_comparison(SafeConsole(), comparison)
    return 0
