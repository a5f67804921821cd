"""`scrapy backup`: write the whole database to a file."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import TypedDict

from crawler.cli.base import FreshetCommand, JsonTypes, print_json
from crawler.utils.terminal import print_line
from crawler.utils.text import megabytes

if TYPE_CHECKING:
    from crawler.exchange.backup import Manifest


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

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Write the backup, and print what it contains."""
        from crawler.utils.terminal import working

        path = Path(args[0])
        with working(self.config.progress, "opening the database") as progress:
            manifest, size = asyncio.run(self._write(path, progress))
        if opts.json:
            report: BackupReport = {
                "file": str(path), "bytes": size, "version": manifest.version,
                "documents": manifest.documents,
                "collections": manifest.counts,
            }  # fmt: skip
            print_json(report)
            return
        print_line(f"{manifest} written to {path} and checked, {megabytes(size)}")

    def json_types(self) -> JsonTypes:
        """Return the type of the report."""
        return {"scrapy backup FILE --json": BackupReport}

    async def _write(self, path: Path, progress: Callable[[str], None]) -> tuple[Manifest, int]:
        from crawler.exchange.backup import write
        from crawler.storage.client import opened
        from crawler.storage.transfer import writers_locked_out

        now = self.config.clock.now()
        async with opened(self.config) as db, writers_locked_out(db, self.config):
            return await write(db, path, now, progress)
