"""Crawls of a known site whose pages are unchanged: `make bench ARGS=--revisits`.

Freshet and plain Scrapy with conditional requests visit all pages of the generated site again, in
alternating order: in each round once with all pages unchanged (304), and once after 5 % of the
items have changed. The benchmark also counts MongoDB's commands.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pymongo import MongoClient
from rich.console import Console
from rich.table import Table

from crawler.config import Config
from crawler.storage.embedded import EmbeddedServer
from tests.bench.crawls import ROOT, Crawl, freshet, run
from tests.site.running import RunningSite

EDITED = 20
UNCHANGED, CHANGED = "all unchanged", "5 % changed"
# Minimum CPU time per page of plain Scrapy relative to Freshet, and maximum commands per page, if
# all pages are unchanged.
BAR, MAX_COMMANDS = 0.8, 0.1


@dataclass(frozen=True, slots=True)
class Revisit:
    """A crawl of plain Scrapy, the next crawl of Freshet, and the latter's commands."""

    plain: Crawl
    ours: Crawl
    commands: int

    @property
    def ratio(self) -> float:
        """Return the CPU time per page of plain Scrapy relative to Freshet."""
        return _cpu_ms(self.plain) / _cpu_ms(self.ours)

    @property
    def commands_a_page(self) -> float:
        """Return MongoDB's commands per page."""
        return self.commands / self.ours.pages


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
            results: dict[str, list[Revisit]] = {UNCHANGED: [], CHANGED: []}
            for number in range(rounds):
                results[UNCHANGED].append(_revisit(uri, first, folder))
                for item in range(1 + number, items + 1, EDITED):
                    site.edit(f"/big/{items}/item/{item}.html")
                results[CHANGED].append(_revisit(uri, first, folder))
        finally:
            server.stop()
    return _show(results)


def _revisit(uri: str, first: str, folder: Path) -> Revisit:
    plain = _plain(first, folder)
    before = _commands(uri)
    ours = freshet(first, "site", folder, full=True)
    return Revisit(plain, ours, _commands(uri) - before)


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


def _show(results: dict[str, list[Revisit]]) -> int:
    table = Table("", "pages", "CPU ms/page", "pages/s", "commands/page")
    for case, done in results.items():
        commands = statistics.median(each.commands_a_page for each in done)
        rows = {"plain Scrapy": [x.plain for x in done], "Freshet": [x.ours for x in done]}
        for name, crawls in rows.items():
            table.add_row(
                f"{name}, {case}",
                str(crawls[0].pages),
                f"{statistics.median(map(_cpu_ms, crawls)):.2f}",
                f"{statistics.median(c.pages_per_second for c in crawls):.0f}",
                f"{commands:.3f}" if name == "Freshet" else "",
            )
    Console().print(table)
    for case, done in results.items():
        ratios = [each.ratio for each in done]
        required = f"; required: {BAR}" if case is UNCHANGED else ""
        print(
            f"CPU time of plain Scrapy / Freshet, {case}: {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f}{required})"
        )
    unchanged = results[UNCHANGED]
    commands = statistics.median(each.commands_a_page for each in unchanged)
    return int(statistics.median(each.ratio for each in unchanged) < BAR or commands > MAX_COMMANDS)


def _cpu_ms(crawl: Crawl) -> float:
    return crawl.cpu_seconds / crawl.pages * 1000
