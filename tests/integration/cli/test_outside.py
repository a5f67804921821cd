"""Commands outside of a project of Freshet say where to run them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.site.running import PYTHON, ROOT


def without_project() -> dict[str, str]:
    """Return the environment without the project, which Scrapy sets when it reads the settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SCRAPY_")}


@pytest.mark.parametrize("command", [["targets", "--json"], ["replan"], ["import", "x.json"]])
def test_command_outside_of_a_project_names_the_folder(tmp_path: Path, command: list[str]) -> None:
    env = without_project() | {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(
        [PYTHON, "-m", "scrapy", *command],
        cwd=tmp_path, env=env, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    start = f"scrapy {command[0]}: this folder has no Freshet project (scrapy.cfg). Change to yours"
    assert line.startswith(start)


def test_every_command_is_registered() -> None:
    own = {path.stem for path in (ROOT / "crawler/cli/commands").glob("[a-z]*.py")}
    listed = subprocess.run(
        [PYTHON, "-m", "scrapy"],
        cwd="/", env=without_project(), check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert {name for name in own if f"  {name} " not in listed} <= {
        "check",
        "crawl",
        "list",
        "parse",
    }
