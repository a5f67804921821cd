"""Kernels are compiled once: at installation, for all checkouts, until their source changes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from shutil import copyfile, copytree

import pytest

from crawler.items import Kind
from crawler.storage.targets import history_document, in_minutes, new_document
from schedules.history import History
from tests.integration.harness import HIDDEN, ROOT, Db, Freshet, Pages, Row
from tests.integration.known_pages import BEGIN, NOW, clock, of_the_paper, put

pytestmark = pytest.mark.soak

COMMANDS = """
import sys
from scrapy.cmdline import execute
from schedules import on_compiling

count = []
with on_compiling(lambda: count.append(1)):
    for words in sys.argv[1:]:
        try:
            execute(["scrapy", *words.split()])
        except SystemExit as end:
            assert not end.code, words
print(len(count), "compiled")
"""
# A two-module package; CALL runs its kernel with `installed` as the environment's folder.
PACKAGE = {
    "kernel.py": """
from schedules.compiled import compiled
from tiny.factors import FACTOR

@compiled
def scaled(value):
    return FACTOR * value
""",
    "factors.py": "FACTOR = 3\n",
    "unrelated.py": "NAME = 'a'\n",
    "__init__.py": "",
}
CALL = """
import sys
sys.prefix, count = sys.argv[1], []
from schedules import on_compiling
from tiny.kernel import scaled

with on_compiling(lambda: count.append(1)):
    print(scaled(2.0), len(count))
"""
# Runs CALL in a fork for each line of input, and prints the exit code after the output of CALL.
FORKING = """
import json, os, sys
import numba

for line in sys.stdin:
    path, cache, installed, code = json.loads(line)
    pid = os.fork()
    if pid == 0:
        sys.path[:0], sys.argv[1:] = path, [installed]
        os.environ["XDG_CACHE_HOME"] = cache
        exec(code, {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


def environment() -> dict[str, str]:
    """Return the machine's environment without settings of Freshet and numba."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)}
    inherited.pop("NUMBA_CACHE_DIR", None)
    return inherited


def python(*words: object, **env: object) -> str:
    """Run Python in a subprocess and return its output."""
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=ROOT, check=False, capture_output=True, text=True,
        env=environment() | {name: str(value) for name, value in env.items()}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def feed(name: str) -> Row:
    """Build a feed with a post every six hours."""
    last, hours = in_minutes(NOW - timedelta(hours=1)), range(0, 480, 6)
    posts = [in_minutes(BEGIN + timedelta(hours=hour)) for hour in hours]
    past = History.begin(in_minutes(BEGIN)).extended(last, [(at, at + 60, at) for at in posts[1:]])
    row = new_document("feeds", f"https://feeds.test/{name}", Kind.FEED, NOW, BEGIN)
    return row | {"history": history_document(past), "feed_size": 10, "requested": 9}


def test_plans_and_crawls_use_only_preinstalled_kernels(
    stored: tuple[Db, str], freshet: Freshet, pages: Pages
) -> None:
    python("-m", "crawler.ops.kernels")
    put(*stored, [*of_the_paper(), *map(feed, "abc")])
    pages.list("list.html", ["/item-a.html", "/item-b.html"])
    pages.item("item-a.html", "A title and some words that are compared with others " * 9)
    pages.item("item-b.html", "B" + "字" * 90)
    site = freshet.wrapper("new", start_urls=[f"{pages.url}/list.html"], item_pages="/item-")
    caps = "--daily-cap 80/day --hourly-cap 20/hour"
    done = python(
        "-c", COMMANDS,
        "replan",
        f"replan --kind pages --budget 60/day {caps}",
        f"replan --kind feeds --budget 60/day {caps}",
        "explain https://shop.example/u1",
        "explain https://feeds.test/a",
        f"crawl site -a wrapper={site}",
        **freshet.env | {"FRESHET_DUPLICATES": "characters", "FRESHET_CLOCK_OFFSET_HOURS": clock()},
    )  # fmt: skip
    assert done.splitlines()[-1] == "0 compiled"
    assert stored[0].posts.count_documents({}) == 2


Call = Callable[..., str]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Create a checkout with the package `tiny`."""
    folder = tmp_path / "first"
    (folder / "tiny").mkdir(parents=True)
    for name, source in PACKAGE.items():
        (folder / "tiny" / name).write_text(source, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def forking() -> Iterator[subprocess.Popen[str]]:
    """Run a process that has loaded numba, which takes longer than a test, and forks itself."""
    words = [sys.executable, "-c", FORKING]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, cwd=ROOT, env=environment(), stdin=pipe, stdout=pipe, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.fixture
def call(tmp_path: Path, forking: subprocess.Popen[str]) -> Call:
    """Call a checkout's kernel; return its result and the number of kernels compiled for it."""
    assert forking.stdin is not None
    assert forking.stdout is not None
    to, output = forking.stdin, forking.stdout

    def call(checkout: Path, *, installed: str = "installed", home: str = "home") -> str:
        folders = [str(tmp_path / home), str(tmp_path / installed)]
        to.write(json.dumps([[str(checkout), str(ROOT)], *folders, CALL]) + "\n")
        to.flush()
        result = output.readline()
        assert output.readline() == "0\n", result
        return result.strip()

    return call


def test_kernels_are_shared_between_checkouts(call: Call, package: Path) -> None:
    assert call(package) == "6.0 1"
    # A copy has different modification times, like a clone.
    second = copytree(package, package.with_name("second"), copy_function=copyfile)
    assert call(second) == "6.0 0"
    assert call(second, home="other") == "6.0 0", "not loaded from the installation"
    assert call(second, installed="other") == "6.0 0", "not loaded from the user's cache"
    assert call(second, installed="other", home="another") == "6.0 0", "not stored in installation"


def test_kernel_is_recompiled_only_if_its_sources_change(call: Call, package: Path) -> None:
    assert call(package) == "6.0 1"
    (package / "tiny" / "unrelated.py").write_text("NAME = 'b'\n", encoding="utf-8")
    assert call(package) == "6.0 0"
    (package / "tiny" / "factors.py").write_text("FACTOR = 5\n", encoding="utf-8")
    assert call(package) == "10.0 1"
    (package / "tiny" / "factors.py").write_text("FACTOR = 3\n", encoding="utf-8")
    assert call(package) == "6.0 0", "compiled again after a branch switch"


def test_read_only_installation_falls_back_to_user_cache(
    call: Call, package: Path, tmp_path: Path
) -> None:
    # No folder can be created at these paths, not even by root.
    for name in ("file", "other"):
        (tmp_path / name).write_text("", encoding="utf-8")
    assert call(package, installed="file") == "6.0 1"
    assert call(package, installed="file") == "6.0 0"
    assert call(package, installed="file", home="other") == "6.0 1"
    assert call(package, installed="file", home="other") == "6.0 1"


def test_damaged_kernel_is_recompiled(call: Call, package: Path, tmp_path: Path) -> None:
    assert call(package, home="installed") == "6.0 1"
    for file in (tmp_path / "installed").rglob("*.nb?"):
        file.write_bytes(file.read_bytes()[:40])
    assert call(package, home="installed") == "6.0 1"
    assert call(package, home="installed") == "6.0 0"


def test_progress_line_counts_compiled_kernels() -> None:
    code = """
import time
from crawler.config import Config
from crawler.utils.terminal import working
from schedules import announce

with working(Config.load().progress, "opening the database") as say:
    say("planning 60 feeds")
    announce()
    announce()
    time.sleep(0.5)
"""
    terminal, end = os.openpty()
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, cwd=ROOT, stderr=end, env=os.environ | {"TERM": "xterm"}) as done:
        os.close(end)
        shown = b""
        # On Linux, reading fails once the other end of the terminal is closed.
        with suppress(OSError):
            while part := os.read(terminal, 4096):
                shown += part
    os.close(terminal)
    assert done.returncode == 0
    line = "planning 60 feeds: compiling the planner's kernels, once per machine: 2"
    assert line in shown.decode()
