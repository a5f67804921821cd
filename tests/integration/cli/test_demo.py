"""The quick start's table of the demonstration is what the demonstration prints."""

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
# Requests a day, freshness, hours that a change waits: runs take real time, so on
# a very busy machine the last digit may be the next one.
TOLERANCES = (1, 0.011, 1)
FIGURES = r"\D*([\d.]+)" * len(TOLERANCES)


@pytest.fixture
def environment() -> Iterator[dict[str, str]]:
    """As of a user who has set nothing, with data of the test's own and an embedded server."""
    # A socket's path may have 107 bytes, so not in pytest's folder.
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        environment = _clean() | {"FRESHET_DATA_DIR": folder}
        yield environment
        stop = [sys.executable, "-m", "scrapy", "db", "stop"]
        subprocess.run(stop, cwd=ROOT, env=environment, check=True, capture_output=True)


def figures(row: str, text: str) -> list[float]:
    found = re.search(rf"{row} *[|│]{FIGURES}", text)
    assert found, row
    return [float(figure) for figure in found.groups()]


@pytest.mark.soak
@pytest.mark.mongo
@pytest.mark.usefixtures("mongo")
def test_readme_has_the_figures_that_the_demonstration_prints(environment: dict[str, str]) -> None:
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
        pytest.skip(f"another program has port {PORT}, so the figures are others")
    readme = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8")
    for row in ("with a plan", "daily crawling"):
        for said, printed, tolerance in zip(
            figures(row, readme), figures(row, done.stdout), TOLERANCES, strict=True
        ):
            assert abs(said - printed) <= tolerance, (row, said, printed)
