"""Sources and places of dashboards: templates, static files, the output folder; command options."""

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
from crawler.fetch.guard import is_loopback
from crawler.utils.files import atomic_replace
from crawler.utils.time import seconds

BUILT_IN = Path(__file__).parent / "templates"
ASSETS = ("freshet.css", "freshet.js")
STATES = "cells.json"
# Files and folders whose names begin like this hold parts of pages.
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
    digest: of all templates and files
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
    """Return names, times and sizes of all files; differs if any file was changed."""
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
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None


LOCAL = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Places:
    """Source and output folders. templates: None: the built-in page of all cells."""

    templates: Path | None
    out: Path


@dataclass(frozen=True, slots=True)
class Listening:
    """Address and duration of the server. seconds: None: run until stopped."""

    bind: str
    port: int
    seconds: float | None


def add_places(parser: argparse.ArgumentParser) -> None:
    """Add the options of both actions."""
    parser.add_argument(
        "templates",
        metavar="TEMPLATES",
        nargs="?",
        help="folder of templates (default: built-in page of all cells)",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="output folder (default: dashboards in FRESHET_DATA_DIR)"
    )


def add_listening(parser: argparse.ArgumentParser) -> None:
    """Add the options of the server."""
    parser.add_argument(
        "--port",
        metavar="N",
        default="8000",
        help="port to listen on; 0: any free port (default: 8000)",
    )
    parser.add_argument(
        "--bind",
        metavar="ADDRESS",
        default=LOCAL,
        help=f"loopback address to listen on (default: {LOCAL})",
    )
    parser.add_argument(
        "--for", dest="for_time", metavar="TIME", help="stop after a time, such as 90m, 6h or 2d"
    )


def places(config: Config, opts: argparse.Namespace) -> Places:
    """Validate the folders; raises ConfigError."""
    out = Path(opts.out or config.data_dir / "dashboards").absolute()
    if opts.templates is None:
        return Places(None, out)
    templates = Path(opts.templates).absolute()
    inner, outer = templates.resolve(), out.resolve()
    if inner.is_relative_to(outer) or outer.is_relative_to(inner):
        raise ConfigError(f"--out {out}: the template and output folders must not overlap")
    if inner.is_relative_to(BUILT_IN):
        raise ConfigError(f"{templates}: these templates are built in. Omit the folder")
    return Places(templates, out)


def listening(opts: argparse.Namespace) -> Listening:
    """Validate address and time; raises ConfigError."""
    if not opts.port.isascii() or not opts.port.isdecimal() or int(opts.port) > 65_535:
        raise ConfigError(f"--port: {opts.port!r} is not a port number from 0 to 65535")
    bind = LOCAL if opts.bind == "localhost" else opts.bind.strip("[]")
    if not is_loopback(bind):
        raise ConfigError(
            f"--bind {opts.bind}: not a loopback address such as {LOCAL}. "
            "To publish the pages, let a web server serve the output folder"
        )
    try:
        limit = None if opts.for_time is None else seconds(opts.for_time)
    except ValueError as error:
        raise ConfigError(f"--for: {error}") from None
    return Listening(bind, int(opts.port), limit)
