"""Compare Freshet with plain Scrapy on the generated site, in alternating runs, by medians."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from rich.console import Console
from rich.table import Table

from crawler.config import Config
from crawler.storage.embedded import EmbeddedServer
from tests.bench import (
    archived,
    boilerplate,
    budget,
    claims,
    crawlduplicates,
    crawlmetrics,
    dispatching,
    exports,
    feedloop,
    feedplans,
    hostile,
    hostilesite,
    hundredcells,
    planning,
    recall,
    revisits,
    searching,
    silence,
    sizing,
    startup,
    watchers,
    web,
    workeroptions,
)
from tests.bench.crawls import ROOT, Crawl, freshet, plain
from tests.bench.dedup import experiment
from tests.site.running import RunningSite

BAR = 0.6


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument(
        "--items", type=int, default=4000, help="number of item pages (default: 4000)"
    )
    parser.add_argument("--rounds", type=int, help="number of rounds (default: 3 to 9)")
    parser.add_argument(
        "--scale", action="store_true", help="memory of crawls of up to 100,000 items"
    )
    parser.add_argument(
        "--planning", action="store_true", help="replans of up to a million targets"
    )
    parser.add_argument(
        "--engine", default="local", help="with --planning: local (default), processes, dask://…"
    )
    parser.add_argument(
        "--targets", type=int, nargs="+", default=planning.SIZES,
        help="with --planning: numbers of targets",
    )  # fmt: skip
    parser.add_argument(
        "--budget", action="store_true", help="budget curves of up to a million targets"
    )
    parser.add_argument("--feeds", action="store_true", help="a day of crawls of 1,000 feeds")
    parser.add_argument("--feed-plans", action="store_true", help="plans of up to a million feeds")
    parser.add_argument("--hostile", action="store_true", help="crawls of misbehaving servers")
    parser.add_argument(
        "--hostile-site", action="store_true", help="crawls of a site with 40 hostile pages"
    )
    parser.add_argument("--dispatch", action="store_true", help="dispatch of a million due targets")
    parser.add_argument(
        "--recall", type=Path, help="recall of near-duplicates among the posts of this file"
    )
    parser.add_argument(
        "--claims", action="store_true", help="near-duplicates among a million posts"
    )
    parser.add_argument(
        "--posts", type=int, nargs="+", default=claims.SIZES, help="with --claims: numbers of posts"
    )
    parser.add_argument(
        "--duplicates",
        action="store_true",
        help="crawls with and without detection of near-duplicates",
    )
    parser.add_argument(
        "--boilerplate",
        type=Path,
        nargs="?",
        const=Path(),
        help="claims with and without learning boilerplate; also flags the posts of this file",
    )
    parser.add_argument("--metrics", action="store_true", help="crawls with and without metrics")
    parser.add_argument(
        "--archive", action="store_true", help="crawls with and without an archive, and a reread"
    )
    parser.add_argument(
        "--revisits",
        action="store_true",
        help="crawls of a site with unchanged pages, and with 5 %% changed",
    )
    parser.add_argument("--watchers", action="store_true", help="500 due pages, beside urlwatch")
    parser.add_argument("--startup", action="store_true", help="commands with almost nothing to do")
    parser.add_argument(
        "--sizing",
        type=int,
        nargs="?",
        const=sizing.MAX_ITEMS,
        metavar="N",
        help="CPU time, memory and disk space per page, with N items (default: 100000)",
    )
    parser.add_argument(
        "--silence", type=Path, help="silence alarms on the real pages and feeds of this folder"
    )
    parser.add_argument("--cells", action="store_true", help="freshness of a hundred cells")
    parser.add_argument(
        "--minutes", type=float, help="duration of --cells (default: 12) or --hour (default: 60)"
    )
    parser.add_argument("--policy", default="value", help="with --cells: value of FRESHET_DISPATCH")
    parser.add_argument("--port", type=int, default=0, help="with --cells: port of its six pages")
    parser.add_argument(
        "--days", type=int, default=1, help="with --feeds: number of days (default: 1)"
    )
    parser.add_argument(
        "--trace", type=Path, help="with --feeds: folder with posts.csv.gz and feeds.csv"
    )
    workeroptions.add(parser)
    web.add(parser)
    searching.add(parser)
    exports.add(parser)
    experiment.add(parser)
    return parser


def main() -> int:
    """Run the selected benchmark; return exit code 1 if a requirement is not met."""
    options = arguments().parse_args()
    for name, bench in _others(options).items():
        if getattr(options, name) not in (None, False):
            return bench()
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as name, RunningSite() as site:
        folder = Path(name)
        try:
            if options.scale:
                return _scale(site.url, folder)
            return _speed(site.url, folder, options.items, options.rounds or 3)
        finally:
            _stop(folder)


def _others(options: argparse.Namespace) -> dict[str, Callable[[], int]]:
    """Return the other benchmarks by the name of their option."""
    return {
        "planning": lambda: planning.run(tuple(options.targets), options.engine),
        "budget": budget.run,
        "feeds": lambda: feedloop.run(options.days, trace=options.trace),
        "feed_plans": feedplans.run,
        "hostile": hostile.run,
        "hostile_site": lambda: hostilesite.run(options.rounds or 3),
        "dispatch": dispatching.run,
        "duplicates": lambda: crawlduplicates.run(options.rounds or 5),
        "archive": lambda: archived.run(options.rounds or 5),
        "metrics": lambda: crawlmetrics.run(options.rounds or 9),
        "cells": lambda: hundredcells.run(
            round(options.minutes or 12), options.policy, options.port
        ),
        "watchers": lambda: watchers.run(options.rounds or 9),
        "sizing": lambda: sizing.run(options.sizing),
        "web": lambda: web.run(options),
        "export": lambda: exports.run(options),
        "search": lambda: searching.run(options),
        "silence": lambda: silence.run(options.silence),
        "revisits": lambda: revisits.bench(options.items, options.rounds or 5),
        "startup": lambda: startup.run(options.rounds or 7),
        "recall": lambda: recall.run(options.recall),
        "claims": lambda: claims.run(options.posts),
        "boilerplate": lambda: boilerplate.run(options.boilerplate),
        "experiment": lambda: experiment.run(options),
    } | workeroptions.benches(options)


def _speed(url: str, folder: Path, items: int, rounds: int) -> int:
    server = EmbeddedServer.of(Config.load(data_dir=folder / "data", mongo_uri=None))
    uri = server.start()

    def run(path: str, *, fields: bool, **env: str) -> Callable[[], Crawl]:
        return lambda: _into_empty_database(uri, url + path, folder, fields=fields, **env)

    long = max(600, items // 10)
    cases: dict[str, Callable[[], Crawl]] = {
        "plain Scrapy, 5 kB, five fields": lambda: plain(f"{url}/big/{items}/list/1/"),
        "the same with CONCURRENT_ITEMS=1": lambda: plain(
            f"{url}/big/{items}/list/1/", "CONCURRENT_ITEMS=1"
        ),
        "Freshet, 5 kB, five fields": run(f"/big/{items}/list/1/", fields=True),
        "the same without near-duplicates": run(
            f"/big/{items}/list/1/", fields=True, FRESHET_DUPLICATES="off"
        ),
    }
    articles = f"/big/{long}/articles/1/?kb=100"
    texts = {
        "Freshet, 100 kB, main text": run(articles, fields=False),
        "the same in one process": run(articles, fields=False, FRESHET_READ_PROCESSES="0"),
    }
    results: dict[str, list[Crawl]] = {name: [] for name in cases | texts}
    for number in range(rounds):
        # Reverse the order in every second round, so that each case is first equally often.
        order = list((cases | texts).items())[:: -1 if number % 2 else 1]
        for name, case in order:
            crawl = case()
            results[name].append(crawl)
            print(f"{name}: {crawl.steady_cpu_ms:.2f} ms, {crawl.steady_pages:.0f} pages/s")
    _show(results)
    usual, tuned, ours, alone = (results[name] for name in cases)
    ratio = _ratio(usual, ours)
    print(f"Freshet / plain Scrapy: {ratio:.2f} of its pages/s (required: {BAR})")
    print(f"Freshet / plain Scrapy with CONCURRENT_ITEMS=1: {_ratio(tuned, ours):.2f}")
    like_for_like = statistics.median(
        other.steady_cpu_ms / mine.steady_cpu_ms for other, mine in zip(tuned, alone, strict=True)
    )
    print(f"The same without near-duplicates, by processor time: {like_for_like:.2f}")
    pooled, single = (results[name] for name in texts)
    print(f"Main text in several processes / in one: {_ratio(single, pooled):.2f} of its pages/s")
    return 0 if ratio >= BAR else 1


def _into_empty_database(uri: str, start: str, folder: Path, **options: Any) -> Crawl:
    """Crawl, and drop the database; otherwise the next crawl's pages would be near-duplicates."""
    crawl = freshet(start, "bench", folder, **options)
    with MongoClient[dict[str, Any]](uri) as client:
        client.drop_database(client.get_default_database())
    return crawl


def _scale(url: str, folder: Path) -> int:
    results = {
        f"Freshet, {n:,} items": [freshet(f"{url}/big/{n}/list/1/", f"n{n}", folder)]
        for n in (25_000, 50_000, 100_000)
    }
    _show(results)
    return 0


def _ratio(yardstick: list[Crawl], ours: list[Crawl]) -> float:
    """Return the median ratio of adjacent runs, which share the noise of the machine.

    Uses pages/s after the first pages, because startup takes as long as hundreds of pages.
    """
    return statistics.median(
        mine.steady_pages / other.steady_pages for other, mine in zip(yardstick, ours, strict=True)
    )


def _show(results: dict[str, list[Crawl]]) -> None:
    table = Table("", "pages", "pages/s", "steady", "CPU ms/page", "steady", "peak MB")
    for name, crawls in results.items():
        table.add_row(
            name,
            str(crawls[0].pages),
            f"{statistics.median(c.pages_per_second for c in crawls):.0f}",
            f"{statistics.median(c.steady_pages for c in crawls):.0f}",
            f"{statistics.median(c.cpu_seconds / c.pages * 1000 for c in crawls):.2f}",
            f"{statistics.median(c.steady_cpu_ms for c in crawls):.2f}",
            f"{max(c.peak_mb for c in crawls):.0f}",
        )
    Console().print(table)


def _stop(folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "scrapy",
        "db",
        "stop",
        "-s",
        f"FRESHET_DATA_DIR={folder}/data",
    ]
    subprocess.run(command, cwd=ROOT, check=False, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
