"""`scrapy backup`: write the whole database to a file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import TypedDict

from crawler.cli.base import FreshetCommand, print_json, with_database
from crawler.utils.terminal import print_line
from crawler.utils.text import megabytes

if TYPE_CHECKING:
    from crawler.storage.client import Database


class BackupReport(TypedDict):
    """A backup."""

    file: str
    """The file."""
    bytes: int
    """Size of the file."""
    version: int
    """Version of the data."""
    documents: int
    """Number of documents."""
    collections: dict[str, int]
    """Number of documents by collection."""


class Command(FreshetCommand):
    """Write a backup of the whole database to one file, and check it."""

    arguments = ("FILE",)
    summary = "Write a backup of the whole database to one file, and check it"
    example = "scrapy backup freshet-2026-03-01.zip"
    documents: ClassVar = {
        "scrapy backup FILE --json": BackupReport,
    }

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Write the backup, and print what it contains."""
        from crawler.exchange.backup import Manifest, write
        from crawler.storage.transfer import writers_locked_out
        from crawler.utils.terminal import working

        path, now = Path(args[0]), self.config.clock.now()
        with working(self.config.progress, "opening the database") as progress:

            async def back_up(db: Database) -> tuple[Manifest, int]:
                async with writers_locked_out(db, self.config):
                    return await write(db, path, now, progress)

            manifest, size = with_database(self.config, back_up)
        if opts.json:
            report: BackupReport = {
                "file": str(path), "bytes": size, "version": manifest.version,
                "documents": manifest.documents,
                "collections": manifest.counts,
            }  # fmt: skip
            print_json(report)
            return
        print_line(f"{manifest} written to {path} and checked, {megabytes(size)}")
