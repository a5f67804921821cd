"""Installed packages that take the names of the project's own.

The `scrapy` script looks for modules among the installed ones first, and in the project last.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

from crawler.config import PROJECT
from crawler.doctor.findings import Finding, failed, ok, warning

NAMES = ("crawler", "spiders", "pipelines", "schedules", "tests")
# Only these are needed to crawl.
NEEDED = NAMES[:-1]
CHECK = "names"


def check() -> list[Finding]:
    """Whether each name leads to the project, however Freshet is started."""
    elsewhere = [path for path in sys.path if not _is_project(path)]
    found = [
        _finding(name, spec)
        for name in NAMES
        if (spec := PathFinder.find_spec(name, elsewhere)) is not None and spec.origin is not None
    ]
    return found or [ok(CHECK, "no installed package hides the project's")]


def _finding(name: str, spec: ModuleSpec) -> Finding:
    owners = packages_distributions().get(name, [])
    whose = f"of {' and '.join(owners)}" if owners else "of no distribution"
    said = f"{name} is also a package {whose} ({spec.origin})"
    todo = f"pip uninstall {owners[0]}" if owners else f"remove {_place(spec.origin)}"
    if name in NEEDED and not _is_ours(name):
        return failed(CHECK, said, f"{todo}, or run python -m scrapy in {PROJECT}")
    return warning(CHECK, said, f"{todo}, or keep to python -m scrapy in {PROJECT}")


def _place(origin: str | None) -> Path:
    """The folder of a package, the file of a module."""
    path = Path(origin or "")
    return path.parent if path.name == "__init__.py" else path


def _is_ours(name: str) -> bool:
    spec = find_spec(name)
    places: Sequence[str] = (spec.submodule_search_locations or []) if spec else []
    return any(Path(place).resolve() == PROJECT / name for place in places)


def _is_project(path: str) -> bool:
    try:
        return Path(path).resolve() == PROJECT
    except OSError:
        return False
