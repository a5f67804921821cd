"""Options of `scrapy dashboards`: definition, validation."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.fetch.guard import is_loopback
from crawler.utils.time import seconds
from crawler.web.dashboards.sources import BUILT_IN

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
        help="folder of templates (built-in page of all cells)",
    )
    parser.add_argument("--out", metavar="DIR", help="output folder (pages in FRESHET_DATA_DIR)")


def add_listening(parser: argparse.ArgumentParser) -> None:
    """Add the options of the server."""
    parser.add_argument(
        "--port", metavar="N", default="8000", help="port to listen on; 0: any free port (8000)"
    )
    parser.add_argument(
        "--bind", metavar="ADDRESS", default=LOCAL, help=f"loopback address to listen on ({LOCAL})"
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
