"""Actions of `scrapy dashboards`: write dashboards to files, or serve them on this machine."""

from __future__ import annotations

import argparse

from typing_extensions import TypedDict

from crawler.cli.base import print_json, with_database
from crawler.config import Config
from crawler.storage import cells
from crawler.utils.terminal import complain, print_line
from crawler.utils.text import count
from crawler.utils.time import Clock
from crawler.web.dashboards.sources import add_listening, add_places, listening, places

COMMAND = "dashboards"


class BuildReport(TypedDict):
    """Result of a build."""

    pages: dict[str, str]
    """Result by page: `written`, `unchanged`, `failed` or `removed`."""
    out: str
    """Output folder."""


def build_options(parser: argparse.ArgumentParser) -> None:
    """Add the templates and the output folder."""
    add_places(parser)


def serve_options(parser: argparse.ArgumentParser) -> None:
    """Add the templates, the output folder and the address to listen on."""
    add_places(parser)
    add_listening(parser)


def run_build(config: Config, opts: argparse.Namespace) -> int:
    """Build the dashboards once; return 1 if one of them failed. Raises FreshetError."""
    # Jinja is slow to import, and --help does not need it.
    from crawler.web.dashboards import sources
    from crawler.web.dashboards.build import build
    from crawler.web.dashboards.render import Cells

    folders = places(config, opts)
    templates = sources.find(folders.templates)
    rows = with_database(config, cells.read)
    now = Clock(config.clock_offset_hours).now()
    done = build(Cells(rows, now), templates, folders.out)
    for problem in done.problems.values():
        complain(COMMAND, problem)
    if opts.json:
        report: BuildReport = {"pages": done.pages, "out": str(folders.out)}
        print_json(report)
    else:
        print_line(f"{done} -> {folders.out}")
    return 1 if done.problems else 0


def run_serve(config: Config, opts: argparse.Namespace) -> None:
    """Serve the dashboards until SIGTERM, SIGINT or the end of `--for`; raises FreshetError.

    The address and problems are printed on stderr, a summary on stdout at the end.
    """
    folders, address = places(config, opts), listening(opts)
    # twisted.web and Jinja are slow to import, and --help does not need them.
    from crawler.web.dashboards.serve import serve
    from crawler.web.server import run_in_reactor

    done = run_in_reactor(serve(config, folders, address))
    if opts.json:
        print_json(done)
    else:
        changes, seconds = count(done["written"], "page"), count(round(done["seconds"]), "second")
        print_line(f"{changes} written in {seconds} -> {done['out']}")
