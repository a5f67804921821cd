"""The memory and time of crawling misbehaving servers: `make bench ARGS=--hostile`.

Makes one crawl for each misbehavior, with eight concurrent pages, and one crawl of an ordinary
site.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymongo
from rich.console import Console
from rich.table import Table

from crawler.config import Config
from crawler.storage.embedded import EmbeddedServer
from tests.bench.crawls import FAST, ROOT
from tests.bench.crawls import run as crawl
from tests.site import hostile_pages, hostile_robots
from tests.site.hostile import HOME, MISBEHAVIOURS
from tests.site.running import RunningHostile

AT_ONCE = 8
SECONDS = 5
OBEDIENT = FAST | {"ROBOTSTXT_OBEY": "1", "LOG_LEVEL": "INFO"}
WRAPPER = """
name = "{name}"
start_urls = ["{start}"]
list_pages = 'sitemap'
item_pages = '/good/|/item/'
not_item_pages = 'sitemap'
[fields]
title = "h1"
all = {{css = "div.x p", type = "list"}}
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A site to crawl: its misbehavior and its start page."""

    name: str
    start: str


def run() -> int:
    """Crawl all sites and print a table."""
    table = Table("", "peak MB", "parser MB", "seconds", "outcome", "reason")
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as name, RunningHostile() as site:
        folder = Path(name)
        config = Config.load(data_dir=folder / "data", mongo_uri=None)
        server = EmbeddedServer.of(config)
        server.start()
        try:
            for number, case in enumerate(_cases(site.url)):
                table.add_row(*_measured(case, f"h{number}", folder, server.uri))
        finally:
            server.stop()
    Console(width=180).print(table)
    return 0


def _cases(url: str) -> Iterable[Case]:
    yield Case("an ordinary site", f"{url}/many/none/0")
    for name in [*MISBEHAVIOURS, *hostile_pages.ALL]:
        yield Case(name, f"{url}/many/{name}/{AT_ONCE}")
    for address in hostile_robots.ALL:
        if address != HOME:
            yield Case(f"robots.txt of {address}", f"{url.replace(HOME, address)}/many/none/0")


def _measured(case: Case, name: str, folder: Path, uri: str) -> Iterable[str]:
    path = folder / f"{name}.toml"
    path.write_text(WRAPPER.format(name=name, start=case.start), encoding="utf-8")
    env = {
        "FRESHET_DATA_DIR": str(folder / "data"),
        "FRESHET_DUPLICATES": "off",
        "FRESHET_RESPONSE_SECONDS": str(SECONDS),
        "FRESHET_READ_SECONDS": str(SECONDS),
    }
    words = ["crawl", "site", "-a", f"wrapper={path}"]
    used = crawl(words, env, cwd=str(ROOT), fast=OBEDIENT)
    with pymongo.MongoClient[dict[str, Any]](uri) as client:
        visits = list(client.get_default_database().visits.find({"spider": name}))
    worst = [visit for visit in visits if "/item/" in visit["target"]] or visits
    reasons = sorted({visit.get("reason") or "" for visit in worst})
    outcomes = sorted({visit["outcome"] for visit in worst})
    return (
        case.name, f"{used.peak_mb:.0f}", f"{used.readers_mb:.0f}", f"{used.seconds:.1f}",
        ", ".join(outcomes), "; ".join(reasons)[:100],
    )  # fmt: skip
