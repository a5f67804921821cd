"""The quick start shows the table that the demo prints."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import pytest

from tests.integration.harness import ROOT, _clean
from tests.site.demo import PORT

LIMIT_SECONDS = 600
# Requests per day, freshness, and hours until a change is found: runs take real time, so the
# last digit may differ by one on a very busy machine.
TOLERANCES = (1, 0.011, 1)
FIGURES = r"\D*([\d.]+)" * len(TOLERANCES)


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """Set up a user without settings, with separate data and an embedded server."""
    # A socket path is limited to 107 bytes, so pytest's folder is too deep.
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        environment = _clean() | {"FRESHET_DATA_DIR": folder}
        yield environment
        stop = [sys.executable, "-m", "scrapy", "db", "stop"]
        subprocess.run(stop, cwd=ROOT, env=environment, check=True, capture_output=True)


def figures(row: str, text: str) -> list[float]:
    match = re.search(rf"{row} *[|│]{FIGURES}", text)
    assert match, row
    return [float(figure) for figure in match.groups()]


@pytest.mark.soak
@pytest.mark.mongo
@pytest.mark.usefixtures("mongo")
def test_quickstart_has_figures_that_demo_prints(environment: dict[str, str]) -> None:
    began = time.time() - 100
    done = subprocess.run(
        [sys.executable, "-m", "tests.site.demo"],
        cwd=ROOT,
        env=environment | {"DEMO_BEGAN": f"{began:.0f}"},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    took = re.search(r"This took (\d+) s", done.stdout)
    assert took
    assert 100 < int(took[1]) <= time.time() - began + 1
    if f"http://127.0.0.1:{PORT}/" not in done.stdout:
        pytest.skip(f"port {PORT} is in use, so the figures would differ")
    readme = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8")
    for row in ("with a plan", "daily crawling"):
        for documented, printed, tolerance in zip(
            figures(row, readme), figures(row, done.stdout), TOLERANCES, strict=True
        ):
            assert abs(documented - printed) <= tolerance, (row, documented, printed)
