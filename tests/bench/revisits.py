"""Crawls of a known site in which 95 % of the pages are unchanged: `make bench ARGS=--revisits`.

Freshet and plain Scrapy with conditional requests visit all pages of the generated site again, in
alternating order. Before each round, 5 % of the items change; the others answer 304. The benchmark
also counts the commands that MongoDB gets.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from pymongo import MongoClient
from rich.console import Console
from rich.table import Table

from crawler.config import Config
from crawler.storage.embedded import EmbeddedServer
from tests.bench.crawls import ROOT, Crawl, freshet, run
from tests.site.running import RunningSite

EDITED = 20
# Minimum CPU time per page of plain Scrapy relative to Freshet, and maximum commands per page.
BAR, MAX_COMMANDS = 0.8, 0.1
PLAIN, OURS = "plain Scrapy with conditional requests", "Freshet"


def bench(items: int, rounds: int) -> int:
    """Measure both and print the results; return 1 if a requirement is not met."""
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as name, RunningSite() as site:
        folder = Path(name)
        server = EmbeddedServer.of(Config.load(data_dir=folder / "data", mongo_uri=None))
        try:
            uri = server.start()
            first = f"{site.url}/big/{items}/list/1/"
            # The first crawls fill the database and the file.
            _plain(first, folder)
            freshet(first, "site", folder)
            results: dict[str, list[Crawl]] = {PLAIN: [], OURS: []}
            commands: list[float] = []
            for number in range(rounds):
                for item in range(1 + number, items + 1, EDITED):
                    site.edit(f"/big/{items}/item/{item}.html")
                results[PLAIN].append(_plain(first, folder))
                before = _commands(uri)
                results[OURS].append(freshet(first, "site", folder, full=True))
                commands.append((_commands(uri) - before) / results[OURS][-1].pages)
        finally:
            server.stop()
    return _show(results, commands)


def _plain(first: str, folder: Path) -> Crawl:
    script = ROOT / "tests/bench/plainconditional.py"
    arguments = ["runspider", str(script), "-a", f"first={first}", "-a", f"state={folder}/state.db"]
    items = ["-O", f"{folder}/items.jsonl", "-s", "CONCURRENT_ITEMS=1"]
    return run([*arguments, *items], {}, cwd=str(folder))


def _commands(uri: str) -> int:
    """Return the number of commands that the server has executed, without heartbeats."""
    client: MongoClient[dict[str, object]] = MongoClient(uri)
    with client:
        counts = client.admin.command("serverStatus")["metrics"]["commands"]
    return sum(
        count["total"]
        for name, count in counts.items()
        if isinstance(count, dict) and "total" in count and name not in ("hello", "serverStatus")
    )


def _show(results: dict[str, list[Crawl]], commands: list[float]) -> int:
    table = Table("", "pages", "CPU ms/page", "pages/s", "commands/page")
    for name, crawls in results.items():
        table.add_row(
            name,
            str(crawls[0].pages),
            f"{statistics.median(c.cpu_seconds / c.pages * 1000 for c in crawls):.2f}",
            f"{statistics.median(c.pages_per_second for c in crawls):.0f}",
            f"{statistics.median(commands):.3f}" if name == OURS else "",
        )
    Console().print(table)
    ratios = [
        (other.cpu_seconds / other.pages) / (ours.cpu_seconds / ours.pages)
        for other, ours in zip(results[PLAIN], results[OURS], strict=True)
    ]
    ratio = statistics.median(ratios)
    span = f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(f"CPU time of plain Scrapy / Freshet: {ratio:.2f} ({span}; required: {BAR})")
    return int(ratio < BAR or statistics.median(commands) > MAX_COMMANDS)
