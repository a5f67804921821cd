"""`scrapy dashboards`: dashboards made of cells, as files."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import ClassVar

from typing_extensions import TypedDict

from crawler.cli.base import Action, ActionsCommand, print_json, with_database
from crawler.config import Config
from crawler.utils.terminal import complain, print_line


class BuildReport(TypedDict):
    """Result of a build."""

    pages: dict[str, str]
    """Result by page: `written`, `unchanged`, `failed` or `removed`."""
    out: str
    """Output folder."""


class Command(ActionsCommand):
    """Build dashboards; `scrapy web` serves them."""

    summary = "Build dashboards made of cells"
    example = "scrapy dashboards build templates --out /srv/www/cells"
    documents: ClassVar = {
        "scrapy dashboards build TEMPLATES --json": BuildReport,
    }

    @property
    def actions(self) -> Mapping[str, Action]:
        """Return the action."""
        from crawler.web.dashboards.sources import add_folders

        summary = "Write the dashboards whose cells or templates changed"
        return {"build": Action(summary, self.example, run_build, add_folders)}


def run_build(config: Config, opts: argparse.Namespace) -> int:
    """Build the dashboards once; return 1 if one of them failed. Raises FreshetError."""
    # Jinja is slow to import, and --help does not need it.
    from crawler.storage import cells
    from crawler.web.dashboards import sources
    from crawler.web.dashboards.build import Cells, build

    folders = sources.checked_folders(opts.templates, sources.output_folder(config, opts.out))
    templates = sources.find(folders.templates)
    rows = with_database(config, cells.read)
    now = config.clock.now()
    done = build(Cells(rows, now), templates, folders.out)
    for problem in done.problems.values():
        complain("dashboards", problem)
    if opts.json:
        print_json(BuildReport(pages=done.pages, out=str(folders.out)))
    else:
        print_line(f"{done} -> {folders.out}")
    return 1 if done.problems else 0
