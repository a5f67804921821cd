"""Modules that commands import and threads they leave running: both slow down each command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest

from crawler.storage.embedded import EmbeddedServer
from crawler.utils.process import DEFAULTS
from tests.integration.harness import HIDDEN, ROOT, Db, Freshet, Pages, outcomes

# Runs commands, separated by `;`, in a subprocess, and reports loaded modules and running threads.
RUN = """
import gc, json, sys, threading
from itertools import groupby
from scrapy.cmdline import execute

path, code = sys.argv[1], 0
for is_end, words in groupby(sys.argv[2:], key=";".__eq__):
    try:
        is_end or execute(["scrapy", *words])
    except SystemExit as end:
        code = code or end.code or 0
threads = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
with open(path, "w") as file:
    report = {"code": code, "modules": list(sys.modules), "threads": threads}
    report["collections"] = [generation["collections"] for generation in gc.get_stats()]
    json.dump(report | {"thresholds": gc.get_threshold()}, file)
"""
# Compilers, arrays, database drivers, HTTP clients and servers, page and date parsers.
HEAVY = {
    "numba", "numpy", "scipy", "redis", "pymongo", "aiohttp", "twisted.conch",
    "dateparser", "matplotlib", "sqlalchemy", "feedparser", "rapidfuzz", "prometheus_client",
    "twisted.internet.reactor", "crawler.storage.client", "crawler.frontier.session", "fastapi",
    "spiders.wrapper", "datasketch", "rich.table", "rich.progress", "listparser",
    "uvicorn", "argon2", "yaml", "pyarrow", "fsspec", "warcio", "crawler.exchange.backup",
    "apprise", "standardwebhooks", "crawler.notify.channels", "crawler.notify.rounds",
    "crawler.exchange.watches", "crawler.ops.reread",
}  # fmt: skip
# Commands with actions are left out, since their options require importing each action's module.
WITH_OWN_OPTIONS = (
    "backup", "cells", "crawl", "cron", "db", "doctor", "explain", "export", "forget", "history",
    "import", "learn", "metrics", "plan", "prune", "replan", "reread", "restore", "silence",
    "simulate", "targets", "wrapper",
)  # fmt: skip
STORAGE_MODULES = {"pymongo", "crawler.storage.client"}
# Garbage collections until a crawl with nothing due has ended; over 300 by default.
MAX_COLLECTIONS = 220
CRAWL_MODULES = {"numpy", "twisted.internet.reactor", "crawler.frontier.session", "spiders.wrapper"}


@dataclass(frozen=True)
class CommandResult:
    """Hold the results of a finished command."""

    code: int
    out: str
    err: str
    modules: set[str]
    threads: list[str]
    collections: list[int]
    thresholds: list[int]

    @property
    def heavy(self) -> set[str]:
        return HEAVY & self.modules


Run = Callable[..., CommandResult]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs a command in a new process, as a user does."""

    def run(*words: object, **env: object) -> CommandResult:
        path = tmp_path / "report.json"
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)
        }
        own = {name: str(value) for name, value in env.items()}
        done = subprocess.run(
            [sys.executable, "-c", RUN, path, *map(str, words)], cwd=ROOT, env=inherited | own,
            check=False, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert path.exists(), done.stderr
        report = json.loads(path.read_text(encoding="utf-8"))
        modules = set(report["modules"])
        return CommandResult(
            report["code"], done.stdout, done.stderr, modules, report["threads"],
            report["collections"], report["thresholds"],
        )  # fmt: skip

    return run


def test_command_list_imports_no_heavy_modules(run: Run) -> None:
    done = run("--help")
    assert done.code == 0, done.err
    for name in ("targets", "replan", "refresh", "feeds"):
        assert f"\n  {name} " in done.out
    assert done.heavy == set()


def test_command_help_imports_no_heavy_modules(run: Run) -> None:
    words = [(name, "--help", ";") for name in WITH_OWN_OPTIONS]
    done = run(*chain.from_iterable(words))
    assert (done.code, done.heavy) == (0, set()), done.err
    assert done.out.count("Global Options") == len(WITH_OWN_OPTIONS)


@pytest.mark.soak
def test_targets_command_imports_only_database_driver(run: Run, freshet: Freshet) -> None:
    done = run("targets", **freshet.env)
    assert (done.code, done.heavy) == (0, STORAGE_MODULES | {"rich.table"}), done.err


@pytest.mark.soak
def test_no_thread_outlives_a_command_on_the_embedded_server(
    run: Run, mongo: EmbeddedServer, tmp_path: Path
) -> None:
    done = run("targets", FRESHET_DATA_DIR=mongo.folder, FRESHET_DATABASE="startup")
    assert (done.code, done.threads) == (0, []), done.err


@pytest.mark.soak
def test_crawl_with_nothing_due_imports_no_other_heavy_modules(
    run: Run, freshet: Freshet, pages: Pages, database: Db
) -> None:
    pages.list("list.html", ["/item-a.html"])
    pages.item("item-a.html", "A")
    wrapper = freshet.wrapper("shop", start_urls=[f"{pages.url}/list.html"], item_pages="/item-")
    words = ("crawl", "site", "-a", f"wrapper={wrapper}")
    for _ in range(2):
        done = run(*words, **freshet.env)
        assert done.code == 0, done.err
    assert outcomes(database) == {"new": 2}
    assert done.heavy == STORAGE_MODULES | CRAWL_MODULES
    assert sum(done.collections) < MAX_COLLECTIONS
    assert done.thresholds == list(DEFAULTS)


@pytest.mark.soak
def test_enabled_extension_is_loaded(run: Run, freshet: Freshet, pages: Pages) -> None:
    pages.item("item-a.html", "A")
    wrapper = freshet.wrapper("one", start_urls=[f"{pages.url}/item-a.html"], item_pages="/item-")
    words = ("crawl", "site", "-a", f"wrapper={wrapper}", "-s", "TELNETCONSOLE_ENABLED=1")
    done = run(*words, "-s", "TELNETCONSOLE_PORT=0", **freshet.env)
    assert done.code == 0, done.err
    assert "scrapy.extensions.telnet.TelnetConsole" in done.err
    assert "aiohttp" not in done.modules
