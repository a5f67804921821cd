"""Refresh a hundred real cells for some minutes and compare with a simulation: `ARGS=--cells`.

PostgreSQL is overloaded (load 1.6, one query at a time); the other sources are not. The periods are
the paper's, divided by 30: 10, 60 and 240 s.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.marketdata import Changing, Kind, cells_toml, kinds
from tests.integration.databases import postgres
from tests.site.running import RunningFolder

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = Path(__file__).parent / "market"
SHORTEST_SECONDS, LOAD = 10.0, 1.6
Row = dict[str, Any]


def run(minutes: int = 12, policy: str = "value", port: int = 0) -> int:
    """Refresh the cells, then print the ratios. port: port of the server for the six pages."""
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as name:
        folder = Path(name)
        home = folder / "site"
        home.mkdir()
        cells = kinds(SHORTEST_SECONDS, LOAD)
        with postgres() as server, RunningFolder({"127.0.0.1": home}) as site:
            file = folder / "rates.db"
            described = folder / "cells.toml"
            described.write_text(cells_toml(cells, site.url, server.url, file), encoding="utf-8")
            with Changing(home, server.url, file, cells):
                project = Project(folder, policy)
                try:
                    _show(cells, *project.measured(described, minutes, port))
                finally:
                    project.scrapy("db", "stop")
    return 0


class Project:
    """Freshet with its own data folder."""

    def __init__(self, folder: Path, policy: str) -> None:
        self._folder, self._policy = folder, policy
        self._env = os.environ | {
            "FRESHET_DATA_DIR": str(folder / "data"),
            "FRESHET_DISPATCH": policy,
            "FRESHET_DUPLICATES": "off",
        }

    def scrapy(self, *words: object) -> str:
        """Run a command and return its output."""
        done = subprocess.run(
            [sys.executable, "-m", "scrapy", *map(str, words)],
            cwd=ROOT, env=self._env, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"scrapy {words[0]}: {done.stderr}")
        return done.stdout

    def measured(self, described: Path, minutes: int, port: int) -> tuple[Row, Row, float]:
        """Return the final cell store, its simulation with measured costs, and the seconds."""
        pages = self._start("web", "--no-service", "--dashboards", TEMPLATES, "--port", port)
        try:
            words = ("refresh", "run", described, "--for", f"{minutes}m", "--slice", "5s")
            done = json.loads(self.scrapy(*words, "--json"))
        finally:
            pages.terminate()
            pages.wait()
        base = json.loads(self.scrapy("cells", "market", "--json"))
        mix = self._folder / "mix.toml"
        mix.write_text(_mix(base["cells"], minutes), encoding="utf-8")
        simulate = ("simulate", "overload", mix, "--policy", self._policy, "--json")
        return base, json.loads(self.scrapy(*simulate))["policies"][self._policy], done["seconds"]

    def _start(self, *words: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "scrapy", *map(str, words)], cwd=ROOT, env=self._env, text=True
        )


def _mix(cells: list[Row], minutes: int) -> str:
    """Describe the cells of the overloaded database with their measured refresh times."""
    lines = [f"hours = {minutes / 60}"]
    for kind in ("auction", "purchase", "film"):
        group = [one for one in cells if one["name"].startswith(kind)]
        cost = statistics.fmean(one["execution_seconds"] for one in group if one["refreshed"])
        lines += [
            "[[cells]]", f'group = "{kind}"', f"count = {len(group)}",
            f"period = {group[0]['period_seconds']}", f"cost = {cost}",
        ]  # fmt: skip
    return "\n".join(lines)


def _show(cells: list[Kind], base: Row, simulated: Row, seconds: float) -> None:
    console = Console()
    table = Table("cells", "source", "group", "every", "takes", "ratio", "min", "simulated", "min")
    for kind in cells:
        group = [one for one in base["cells"] if one["name"].startswith(kind.name)]
        ratio = [min(1.0, one["refreshed"] / max(1, seconds // kind.period)) for one in group]
        took = [one["execution_seconds"] for one in group if one["execution_seconds"]]
        of_kind = simulated["groups"].get(kind.name, {})
        table.add_row(
            f"{len(group)} {kind.name}", kind.source, kind.group, f"{kind.period:g} s",
            f"{statistics.fmean(took):.3f} s", f"{statistics.fmean(ratio):.3f}",
            f"{min(ratio):.3f}", _figure(of_kind, "ratio"), _figure(of_kind, "worst_ratio"),
        )  # fmt: skip
    console.print(table)
    errors = [one["name"] for one in base["cells"] if one["error"]]
    console.print(f"{len(base['cells'])} cells, {seconds:.0f} s, errors: {errors or 'none'}")


def _figure(group: Row, name: str) -> str:
    return f"{group[name]:.3f}" if group else "1.000"
