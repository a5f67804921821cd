"""Test commands that are started by a fork behave the same as `python -m`."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Databases
from tests.integration import launcher
from tests.integration.forked import CAN_FORK, Forked, python
from tests.integration.harness import Freshet, Pages, asked
from tests.site import running

pytestmark = [
    pytest.mark.skipif(not CAN_FORK, reason="commands are not forked on this system"),
    pytest.mark.soak,
]

ENV = {"PATH": os.environ["PATH"], "ONLY": "this"}
PRINTS_PROPERTIES = """
import atexit, json, os, sys, time
atexit.register(print, "the end")
print(json.dumps({
    "args": sys.argv[1:], "name": __name__, "env": dict(os.environ), "folder": os.getcwd(),
    "input": sys.stdin.read(), "terminal": sys.stdout.isatty(), "zone": time.strftime("%Z"),
}))
print("for the other", file=sys.stderr)
sys.exit(3)
"""
SLEEPS = """
import time
print("at work", flush=True)
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.fixture
def module(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, str]]:
    """Write a module with the test's code; return its name and an environment that finds it."""
    (tmp_path / "given.py").write_text(request.param, encoding="utf-8")
    return "given", ENV | {"PYTHONPATH": str(tmp_path), "TZ": "Asia/Tokyo"}


@pytest.mark.parametrize("module", [PRINTS_PROPERTIES], indirect=True, ids=["properties"])
def test_fork_has_its_own_arguments_environment_and_streams(
    module: tuple[str, dict[str, str]],
) -> None:
    name, env = module
    process = python(name, ["one", "two words"], env)
    out, err = process.communicate(timeout=60)
    line, end = out.splitlines()
    properties: dict[str, Any] = json.loads(line)
    # An interpreter that coerces its locale adds a variable to the environment.
    assert properties.pop("env").items() >= env.items()
    assert properties == {
        "args": ["one", "two words"], "name": "__main__", "folder": str(running.ROOT), "input": "",
        "terminal": False, "zone": "JST",
    }  # fmt: skip
    assert end == "the end"
    assert (err, process.returncode) == ("for the other\n", 3)


@pytest.mark.parametrize("module", [SLEEPS], indirect=True, ids=["waits"])
@pytest.mark.parametrize(
    ("signal_number", "code", "more"),
    [(signal.SIGKILL, -9, ""), (signal.SIGTERM, -15, ""), (signal.SIGINT, 0, "interrupted\n")],
)
def test_signals_reach_the_fork(
    module: tuple[str, dict[str, str]], signal_number: int, code: int, more: str
) -> None:
    process = python(module[0], [], module[1])
    assert process.stdout.readline() == "at work\n"
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=0.01)
    os.kill(process.pid, signal_number)
    assert process.communicate(timeout=60) == (more, "")
    assert process.returncode == code
    process.kill()  # has no effect on an ended process


def test_forked_crawl_gives_the_same_results(
    freshet: Freshet, databases: Databases, pages: Pages
) -> None:
    """Compare a forked crawl with a crawl in a new interpreter."""
    pages.list("/list.html", ["/item-1.html"])
    pages.item("/item-1.html", "tea")
    wrapper = freshet.wrapper("shop", start_urls=[f"{pages.url}/list.html"], item_pages="/item-")
    words = ["crawl", "site", "-a", f"wrapper={wrapper}"]
    posts = []
    for start in (running.python, Forked):
        with databases() as (db, uri):
            env = dict(os.environ) | freshet.env | {"MONGO_URI": uri}
            env["FRESHET_DUPLICATES"] = "characters"
            process = start("scrapy", words, env, subprocess.PIPE)
            _, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
            posts.append([post["fields"] for post in db.posts.find()])
    assert posts[0] == posts[1]
    assert asked(pages)["/item-1.html"] == 2


def launch(*words: str, **options: Any) -> subprocess.Popen[str]:
    """Start a process with `sys.executable`, as Freshet does."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=running.ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True, **options,
    )  # fmt: skip


@pytest.mark.parametrize("words", [["version"], ["replan", "--budget", "none"]], ids=str)
def test_sys_executable_fork_has_the_same_output_and_exit_code(words: list[str]) -> None:
    with launch("-m", "scrapy", *words) as forked:
        ended = forked.communicate(timeout=60)
    expected = subprocess.run(
        [running.PYTHON, "-m", "scrapy", *words],
        cwd=running.ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (*ended, forked.returncode) == (expected.stdout, expected.stderr, expected.returncode)


# This module waits for a JobRequest on standard input.
JOBS = ("-m", "crawler.reports.jobs")


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
def test_signal_ends_a_process_started_by_freshet(signal_number: int) -> None:
    with launch(*JOBS, start_new_session=True) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        os.kill(process.pid, signal_number)
        # The input stays open, because its end would also end the fork.
        assert process.wait(60) == -signal_number
        assert process.stdout is not None
        # The streams end with the fork.
        assert select.select([process.stdout], [], [], 60)[0]
        assert process.stdout.read() == ""


def test_fork_reads_standard_input() -> None:
    with launch(*JOBS) as process:
        _, err = process.communicate("not an order\n", timeout=60)
    assert "JobRequest" in err
    assert process.returncode == 1


def test_worker_of_a_test_run_is_a_fork_with_the_libraries() -> None:
    program = "print(sys.executable, 'scrapy.crawler' in sys.modules)"
    with launch(*launcher.OF_WORKER) as process:
        assert process.communicate(f"{program!r}\n", timeout=60) == (f"{running.PYTHON} True\n", "")


def test_other_programs_run_in_the_interpreter() -> None:
    with launch("-c", "import sys; print(sys.executable)") as process:
        assert process.communicate(timeout=60) == (f"{running.PYTHON}\n", "")
