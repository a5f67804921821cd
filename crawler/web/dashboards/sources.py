"""Sources of dashboards: templates of pages, and static files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from crawler.errors import ConfigError

BUILT_IN = Path(__file__).parent / "templates"
ASSETS = ("freshet.css", "freshet.js")
STATES = "cells.json"
# Prefixes of the names of files and folders that are parts of pages, or hidden.
PARTIAL = (".", "_")


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of all dashboards.

    folder: the user's templates; None: the built-in ones
    pages:  names of templates, by path
    files:  static files, by path
    """

    folder: Path | None
    pages: dict[str, str]
    files: dict[str, Path]


def find(folder: Path | None) -> Sources:
    """Find the sources in a folder, or the built-in page if it is None; raises ConfigError."""
    files = {name: BUILT_IN / name for name in ASSETS}
    pages = {} if folder else {"index.html": "freshet/index.html"}
    for name, path in _within(folder):
        if not name.isprintable():
            raise ConfigError(f"{str(path)!a}: the file name is not valid UTF-8")
        if any(part.startswith(PARTIAL) for part in name.split("/")):
            continue
        if name.endswith(".html"):
            pages[name] = name
        else:
            files[name] = path
    if folder and not os.access(folder, os.R_OK | os.X_OK):
        raise ConfigError(f"{folder}: template folder not found")
    if not pages:
        raise ConfigError(f"{folder}: no pages found. Add an .html file not beginning with _ or .")
    if STATES in files:
        raise ConfigError(f"{folder}/{STATES}: reserved for the states of cells. Rename the file")
    return Sources(folder, pages, files)


def _within(folder: Path | None) -> Iterator[tuple[str, Path]]:
    """Yield relative and full paths of all files in a folder, sorted, at any depth.

    Skips hidden files and does not follow links to folders.
    """
    for at, folders, names in os.walk(folder) if folder else ():
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(at, name)
            # Editors write backup files whose names end with ~.
            is_hidden = name.startswith(".") or name.endswith("~")
            with suppress(OSError):
                if folder and not is_hidden and path.is_file():
                    yield path.relative_to(folder).as_posix(), path
