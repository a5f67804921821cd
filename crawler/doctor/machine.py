"""The interpreter and the folder that Freshet runs in."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from scrapy.utils.conf import closest_scrapy_cfg

from crawler.config import PROJECT
from crawler.doctor.findings import Finding, failed, ok, warning

OLDEST, NEWEST = (3, 11), (3, 13)
PYTHON, FOLDER = "python", "folder"


def check() -> list[Finding]:
    """Both."""
    return [python(sys.version_info[:3], platform.system()), *folder(_here(), sys.path)]


def python(version: Sequence[int], system: str) -> Finding:
    """Whether the interpreter and the system are among those that the tests run on."""
    said = ".".join(map(str, version))
    found = f"{said} on {system} {platform.machine()}"
    if tuple(version[:2]) < OLDEST:
        return failed(PYTHON, found, "install Python 3.11 or newer, then make clean venv")
    if tuple(version[:2]) > NEWEST:
        return warning(PYTHON, f"{found}: newer than what the tests run on (3.11 to 3.13)")
    if system != "Linux":
        return warning(PYTHON, f"{found}: the tests run on Linux", "name a MongoDB by MONGO_URI")
    return ok(PYTHON, found)


def folder(here: Path | None, search: Sequence[str]) -> list[Finding]:
    """Whether the code at work is that of the project in whose folder we are.

    here:   the folder, None where it is gone
    search: where Python looks for modules
    """
    if here is None:
        return [failed(FOLDER, "the working directory is gone", f"cd {PROJECT}")]
    found = []
    if inner := [path for path in search if _is_within(here / path)]:
        said = f"Python looks for modules in {inner[0] or here}, where redis is not the library"
        found.append(failed(FOLDER, said, f"run it in {PROJECT}, and keep PYTHONPATH clear of it"))
    project = closest_scrapy_cfg(here)
    if project and Path(project).parent.resolve() != PROJECT:
        said = f"scrapy.cfg is that of {Path(project).parent}, the code that of {PROJECT}"
        found.append(failed(FOLDER, said, f"cd {PROJECT}, or use the environment of that project"))
    return found or [ok(FOLDER, str(PROJECT))]


def _here() -> Path | None:
    try:
        return Path.cwd()
    except FileNotFoundError:
        return None


def _is_within(path: Path) -> bool:
    """Whether a folder is one of the project's packages."""
    packages = (PROJECT / name for name in ("crawler", "spiders", "pipelines", "schedules"))
    return any(path.resolve().is_relative_to(package) for package in packages)
