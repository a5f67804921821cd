"""Action of `scrapy dashboards`: write dashboards to files."""

from __future__ import annotations

import argparse

from typing_extensions import TypedDict

from crawler.cli.base import print_json, with_database
from crawler.config import Config
from crawler.storage import cells
from crawler.utils.terminal import complain, print_line
from crawler.utils.time import Clock
from crawler.web.dashboards.sources import add_places, output_folder, places

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


def run_build(config: Config, opts: argparse.Namespace) -> int:
    """Build the dashboards once; return 1 if one of them failed. Raises FreshetError."""
    # Jinja is slow to import, and --help does not need it.
    from crawler.web.dashboards import sources
    from crawler.web.dashboards.build import build
    from crawler.web.dashboards.render import Cells

    folders = places(opts.templates, output_folder(config, opts.out))
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
