"""Sources and folders of dashboards: templates, static files, the output; command options."""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.utils.files import atomic_replace, file_errors

BUILT_IN = Path(__file__).parent / "templates"
ASSETS = ("freshet.css", "freshet.js")
STATES = "cells.json"
# Prefixes of the names of files and folders that are parts of pages, or hidden.
PARTIAL = (".", "_")
Stamp = list[tuple[str, int, int]]


def write(path: Path, content: bytes) -> None:
    """Replace a file atomically, creating its folder; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_replace(path) as draft:
        draft.write_bytes(content)


def is_there(path: Path) -> bool:
    """Return whether a file exists and is accessible."""
    try:
        return path.is_file()
    except OSError:
        return False


def remove(out: Path, name: str) -> None:
    """Delete a file and the folders in `out` that are empty afterwards; ignores OSErrors."""
    with suppress(OSError):
        (out / name).unlink(missing_ok=True)
        for folder in (out / name).parents:
            if folder == out:
                return
            folder.rmdir()


@dataclass(frozen=True, slots=True)
class Copied:
    """A file to copy: its source and the digest of its content."""

    source: Path
    digest: str


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of the output folder.

    folder: the user's templates; None: the built-in ones
    pages:  names of templates, by path in the output folder
    files:  files to copy, by path in the output folder
    digest: digest of all templates and files
    """

    folder: Path | None
    pages: dict[str, str]
    files: dict[str, Copied]
    digest: str


def find(folder: Path | None) -> Sources:
    """Find the sources in a folder, or the built-in page if it is None; raises ConfigError."""
    files = {name: Copied(BUILT_IN / name, _digest(BUILT_IN / name)) for name in ASSETS}
    pages = {} if folder else {"index.html": "freshet/index.html"}
    total = hashlib.sha256()
    for name, path in (*_within(BUILT_IN), *_within(folder)):
        if not name.isprintable():
            raise ConfigError(f"{str(path)!a}: the file name is not valid UTF-8")
        digest = _digest(path)
        total.update(f"{name}\0{digest}\0".encode())
        is_partial = any(part.startswith(PARTIAL) for part in name.split("/"))
        if folder is None or path.is_relative_to(BUILT_IN) or is_partial:
            continue
        if name.endswith(".html"):
            pages[name] = name
        else:
            files[name] = Copied(path, digest)
    if folder and not os.access(folder, os.R_OK | os.X_OK):
        raise ConfigError(f"{folder}: template folder not found")
    if not pages:
        raise ConfigError(f"{folder}: no pages found. Add an .html file not beginning with _ or .")
    if STATES in files:
        raise ConfigError(f"{folder}/{STATES}: reserved for the states of cells. Rename the file")
    return Sources(folder, pages, files, total.hexdigest())


def stamp(folder: Path | None) -> Stamp:
    """Return names, times and sizes of all files, to detect changed files."""
    files: Stamp = []
    for name, path in _within(folder):
        # The file may have been deleted since it was listed.
        with suppress(OSError):
            stat = path.stat()
            files.append((name, stat.st_mtime_ns, stat.st_size))
    return files


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
            if folder and not is_hidden and is_there(path):
                yield path.relative_to(folder).as_posix(), path


def _digest(path: Path) -> str:
    with file_errors(str(path)):
        return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True, slots=True)
class Folders:
    """Source and output folders. templates=None: the built-in page of all cells."""

    templates: Path | None
    out: Path


def add_folders(parser: argparse.ArgumentParser) -> None:
    """Add the options of `scrapy dashboards build`."""
    parser.add_argument(
        "templates",
        metavar="TEMPLATES",
        nargs="?",
        help="folder of templates (default: built-in page of all cells)",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="output folder (default: dashboards in FRESHET_DATA_DIR)"
    )


def output_folder(config: Config, folder: str | None = None) -> Path:
    """Return the folder of built dashboards. folder: chosen by the user."""
    return Path(folder or config.data_dir / "dashboards").absolute()


def checked_folders(templates_folder: str | None, out: Path, option: str = "--out") -> Folders:
    """Validate the folders; raises ConfigError.

    templates_folder: chosen by the user; None: the built-in page
    option:           name of the option for `out`, for error messages
    """
    if templates_folder is None:
        return Folders(None, out)
    templates = Path(templates_folder).absolute()
    inner, outer = templates.resolve(), out.resolve()
    if inner.is_relative_to(outer) or outer.is_relative_to(inner):
        raise ConfigError(f"{option} {out}: the template and output folders must not overlap")
    if inner.is_relative_to(BUILT_IN):
        raise ConfigError(f"{templates}: these templates are built in. Omit the folder")
    return Folders(templates, out)
