"""`scrapy forget`: delete the data of a URL or of a spider from the database."""

from __future__ import annotations

import argparse
from typing import ClassVar

from typing_extensions import TypedDict

from crawler.cli.base import FreshetCommand, confirm, print_json, with_database
from crawler.cli.options import add_yes
from crawler.utils.terminal import print_line
from crawler.utils.text import documents


class ForgetReport(TypedDict):
    """Deleted data."""

    dry_run: bool
    """Whether nothing was deleted."""
    deleted: dict[str, int]
    """Number of deleted documents by collection."""


class Command(FreshetCommand):
    """Delete targets, visits, versions and items. This cannot be undone."""

    arguments = ("URL|NAME",)
    summary = "Delete all data of a URL, or of a spider, from the database"
    example = "scrapy forget oldshop --yes"
    documents: ClassVar = {
        "scrapy forget URL --yes --json": ForgetReport,
    }

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add `--yes` and `--dry-run`."""
        super().add_options(parser)
        add_yes(parser)
        parser.add_argument(
            "--dry-run", action="store_true",
            help="print what would be deleted, without deleting it",
        )  # fmt: skip

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Count the data, ask for confirmation, and delete them."""
        from crawler.reports.target import forget

        config, name = self.config, args[0]
        counts = with_database(config, lambda db: forget(db, config, name, delete=False))
        if not opts.dry_run:
            confirm(documents(counts), opts, of=name)
            with_database(config, lambda db: forget(db, config, name, delete=True))
        if opts.json:
            print_json(ForgetReport(dry_run=opts.dry_run, deleted=counts))
        else:
            verb = "would delete" if opts.dry_run else "deleted"
            print_line(f"{verb} {documents(counts)}")
