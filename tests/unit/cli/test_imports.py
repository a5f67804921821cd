"""Imports follow the layers: the contracts in pyproject.toml hold, and every module has a layer."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
RUN = "from importlinter.cli import lint_imports_command as run; run()"
LAYERED = ("crawler", "spiders", "pipelines", "schedules")


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the import contracts of the project in `folder`, in a subprocess without a cache."""
    command = [sys.executable, "-c", RUN, "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def layers() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["id"] == "layers")
    return [name for layer in layers for name in layer.replace("|", " ").replace(":", " ").split()]


def modules() -> list[str]:
    """Return the modules that must belong to a layer: all packages, and each part of `crawler`."""
    parts = [
        f"crawler.{path.stem}"
        for path in (ROOT / "crawler").iterdir()
        if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").exists()
    ]
    return [*parts, *LAYERED[1:]]


def test_import_contracts_hold() -> None:
    checked = lint(ROOT)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_module_has_one_layer() -> None:
    placed = layers()
    assert len(placed) == len(set(placed))
    unplaced = sorted(set(modules()) - set(placed))
    assert not unplaced, f"add these modules to a layer in pyproject.toml: {', '.join(unplaced)}"


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("schedules/bad.py", "import scrapy", "The planner is pure"),
        ("schedules/bad.py", "import crawler.items", "The planner is pure"),
        ("pipelines/bad.py", "import pymongo", "Only crawler.storage talks to MongoDB"),
        ("crawler/storage/bad.py", "import crawler.frontier.session", "Imports point down"),
        ("spiders/bad.py", "import pipelines.content", "Imports point down"),
    ],
)
def test_violation_is_detected(tmp_path: Path, module: str, line: str, contract: str) -> None:
    (tmp_path / "pyproject.toml").symlink_to(ROOT / "pyproject.toml")
    for package in LAYERED:
        copy_package(ROOT / package, tmp_path / package)
    (tmp_path / module).write_text(line + "\n", encoding="utf-8")
    checked = lint(tmp_path)
    assert checked.returncode == 1, checked.stdout + checked.stderr
    broken = [row for row in checked.stdout.splitlines() if "BROKEN" in row]
    assert any(row.startswith(contract) for row in broken), checked.stdout


def copy_package(source: Path, target: Path) -> None:
    """Copy the Python files of a package."""
    for path in source.rglob("*.py"):
        copied = target / path.relative_to(source)
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_bytes(path.read_bytes())
