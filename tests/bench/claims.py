"""Compare near-duplicate detection with datasketch's index: `make bench ARGS=--claims`.

The same posts are checked and stored by Freshet, and by datasketch's MinHashLSH on Redis and in
memory. They run one after the other, each with one worker in its own process and with its own
servers. Each index is filled up to a size and timed at the end. Sketches are made in advance and
timed separately.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
SIZES = (100_000, 1_000_000)
FRESHET, RIVALS = "tests.bench.claimsfreshet", "tests.bench.claimrivals"
NOTE = """\
claimed: checked, claimed and stored in the index with its signature; + post: with the post's
document. Rates are of the median batch of 200; p50 and p99 are latencies of the number of posts in
the column "posts". datasketch stores no documents; on Redis it is filled in pipelines and without
checks, and only the last posts are looked up and inserted one by one. Bytes: index and signature;
MongoDB's files also contain reusable space. Times do not include sketches, and posts are not
indexed for searches. Required of Freshet: {0.least:,}/s with posts, {0.most_bytes} bytes."""
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Contender:
    """An index with its requirements: posts stored per second, and maximum bytes per post."""

    name: str
    module: str
    backend: str = ""
    least: int = 0
    most_bytes: float = float("inf")

    def misses(self, row: Row) -> list[str]:
        """Return the requirements that are not met at a size."""
        where, missed = f"{self.name}, {row['posts']:,} posts", []
        if self.least and row["stored"] < self.least:
            missed.append(f"{where}: {row['stored']:,.0f} per second")
        if row["size"] > self.most_bytes:
            missed.append(f"{where}: {row['size']:,.0f} bytes per post")
        return missed


CONTENDERS = (
    Contender("Freshet", FRESHET, least=2500, most_bytes=750),
    Contender("datasketch, Redis", RIVALS, "redis"),
    Contender("datasketch, memory", RIVALS, "memory"),
)


def run(sizes: list[int]) -> int:
    """Measure all indexes at each size and print a table; return 1 if a requirement is not met."""
    console, results = Console(width=130), list[tuple[Contender, Row]]()
    sizes = sorted(set(sizes))
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as name:
        folder = Path(name)
        rates = _made(console, folder, sizes[-1])
        for one in CONTENDERS:
            console.print(f"Measuring {one.name} ...", style="dim")
            for row in measured(one, folder, sizes):
                console.print(f"  {row['posts']:,} posts: {' | '.join(_cells(row))}", style="dim")
                results.append((one, row))
    _show(console, results)
    _show_steps(console, results)
    console.print("Sketches, texts per second: " + ", ".join(rates))
    missed = [why for one, row in results if "why" not in row for why in one.misses(row)]
    console.print("\n".join(f"Missed: {why}" for why in missed) or "All requirements met.")
    return 1 if missed else 0


def _made(console: Console, folder: Path, posts: int) -> list[str]:
    """Generate the posts; return a report on the speed of sketching."""
    from tests.bench.claimsposts import sketching, write

    rates = [f"{name} {rate:,.0f}" for name, rate in sketching().items()]
    console.print(f"Making {posts:,} posts ...", style="dim")
    write(folder, posts)
    return rates


def measured(one: Contender, folder: Path, sizes: list[int]) -> Iterator[Row]:
    """Yield the results of a contender's process at each size."""
    backend = [one.backend] if one.backend else []
    command = [sys.executable, "-m", one.module, *backend, str(folder), *map(str, sizes)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield from map(json.loads, process.stdout)
    if process.returncode:
        raise RuntimeError(f"{one.name}: its process ended with {process.returncode}")


def _show(console: Console, results: list[tuple[Contender, Row]]) -> None:
    for posts in sorted({row["posts"] for _, row in results}):
        table = Table(
            "", "claimed/s", "+ post/s", "whole fill/s", "posts", "p50 ms",
            "p99 ms", "bytes/post", "copies found", title=f"{posts:,} posts",
        )  # fmt: skip
        for one, row in results:
            if row["posts"] == posts:
                table.add_row(one.name, *_cells(row))
        console.print(table)
    console.print(NOTE.format(*CONTENDERS), highlight=False)


def _cells(row: Row) -> list[str]:
    if "why" in row:
        return [row["why"]]
    files = f" (files: {row['files']:,.0f})" if row["files"] else ""
    return [
        f"{row['claimed']:,.0f}",
        f"{row['stored']:,.0f}" if row["stored"] else "",
        f"{row['filling']:,.0f}",
        f"{row['together']}",
        f"{row['p50_ms']:.2f}",
        f"{row['p99_ms']:.2f}",
        f"{row['size']:,.0f}{files}",
        f"{row['found']:.1%}",
    ]


def _show_steps(console: Console, results: list[tuple[Contender, Row]]) -> None:
    for one, row in results:
        if parts := row.get("parts"):
            shares = ", ".join(f"{step} {share:.0%}" for step, share in parts.items())
            console.print(f"{one.name}, {row['posts']:,} posts: {shares} of the time", style="dim")
