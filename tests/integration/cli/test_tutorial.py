"""The tutorial "Your first site", followed as it is printed, with the site of `make site`."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.harness import Freshet

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/tutorial/first-site.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8028"
# A day of the shop in a second, in which item 1 changes.
SPEED = 86_400

pytestmark = pytest.mark.soak


@pytest.fixture
def address() -> Iterator[str]:
    """Return the address of the practice site, which needs no fixed port here."""
    command = [sys.executable, "-m", "tests.site.tutorial", "--port", "0", "--speed", str(SPEED)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
            assert found
            yield found[0]
        finally:
            process.terminate()


def test_every_step_of_the_tutorial_works(freshet: Freshet, address: str) -> None:
    page = PAGE.replace(ADDRESS, address)
    (definition,) = re.findall(r'^```toml\n(name = "shop".*?)^```', page, re.M | re.S)
    (freshet.folder / "shop.toml").write_text(definition, encoding="utf-8")
    shell = "".join(re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S))
    lines = [line.partition(" #")[0].strip() for line in shell.splitlines()]
    commands = [line.split()[1:] for line in lines if line.startswith("scrapy ")]
    assert len(commands) >= 10
    shown = {}
    for words in commands:
        if "full=1" in words:
            time.sleep(1)
        given = [str(freshet.folder / word) if word == "shop.toml" else word for word in words]
        given = [
            word.replace("wrapper=shop.toml", f"wrapper={freshet.folder}/shop.toml")
            for word in given
        ]
        given = [str(freshet.folder / word) if word == "week.svg" else word for word in given]
        if words[0] == "crawl":
            given += ["-s", "AUTOTHROTTLE_ENABLED=0"]
        done = freshet(*given)
        assert done.code == 0, (words, done.err)
        shown[" ".join(words)] = done.out
    assert "6 changes in shop" in shown["changes shop --since 2d --limit 6"]
    edits = shown[f"history {address}/item/1 --diff"]
    assert re.search(r"^@@ (price|stock) @@\n-.+\n\+", edits, re.M), edits
