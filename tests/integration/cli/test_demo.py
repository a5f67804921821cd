"""The quick start shows the table that the demo prints."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.integration.harness import ROOT, _clean
from tests.site.demo import PORT, is_free

LIMIT_SECONDS = 600
# Another run of the tests on this machine may be running the demo.
PORT_SECONDS = 120
# Requests per day, freshness, and hours until a change is found: runs take real time, so the
# last digit may differ by one on a very busy machine.
TOLERANCES = (1, 0.011, 1)
FIGURES = r"\D*([\d.]+)" * len(TOLERANCES)


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """Set up a user without settings, with separate data and an embedded server."""
    # A socket path is limited to 107 bytes, so pytest's folder is too deep.
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        environment = _clean() | {"FRESHET_DATA_DIR": folder, "TMPDIR": folder}
        yield environment
        stop = [sys.executable, "-m", "scrapy", "db", "stop"]
        subprocess.run(stop, cwd=ROOT, env=environment, check=True, capture_output=True)


@contextmanager
def demo(environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Start the demo when its port is free; kill it at the end, with the processes it started."""
    wait_until_free(PORT_SECONDS)
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "tests.site.demo"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True, process_group=0
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def wait_until_free(seconds: float) -> None:
    """Wait for the port of the demo's site: with another port, the figures differ."""
    deadline = time.monotonic() + seconds
    while not is_free(PORT):
        assert time.monotonic() < deadline, f"Stop the program that uses port {PORT}, and try again"
        time.sleep(0.2)


def figures(row: str, text: str) -> list[float]:
    match = re.search(rf"{row} *[|│]{FIGURES}", text)
    assert match, row
    return [float(figure) for figure in match.groups()]


@pytest.mark.soak
@pytest.mark.usefixtures("mongo")
def test_quickstart_has_figures_that_demo_prints(environment: dict[str, str]) -> None:
    began = time.time() - 100
    with demo(environment | {"DEMO_BEGAN": f"{began:.0f}"}) as process:
        out, err = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0, out + err
    took = re.search(r"This took (\d+) s", out)
    assert took
    assert 100 < int(took[1]) <= time.time() - began + 1
    assert f"http://127.0.0.1:{PORT}/" in out
    readme = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8")
    for row in ("with a plan", "daily crawling"):
        for documented, printed, tolerance in zip(
            figures(row, readme), figures(row, out), TOLERANCES, strict=True
        ):
            assert abs(documented - printed) <= tolerance, (row, documented, printed)


@pytest.mark.soak
@pytest.mark.usefixtures("mongo")
def test_killed_demo_leaves_no_site_behind(environment: dict[str, str]) -> None:
    with demo(environment) as process:
        deadline = time.monotonic() + PORT_SECONDS
        while is_free(PORT):
            assert time.monotonic() < deadline, "the demo starts no site"
            time.sleep(0.2)
        process.kill()
        wait_until_free(seconds=30)
