"""`scrapy restore`: replace the database with a backup, completely or not at all."""

from __future__ import annotations

import argparse
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from typing_extensions import TypedDict

from crawler.cli.base import FreshetCommand, confirm, print_json, with_database
from crawler.cli.options import add_yes
from crawler.errors import ConfigError
from crawler.utils.terminal import print_line, working

if TYPE_CHECKING:
    from crawler.storage.client import Database


class RestoreReport(TypedDict):
    """Restored data."""

    file: str
    """The file."""
    at: datetime
    """Time of the backup."""
    documents: int
    """Number of documents."""
    collections: dict[str, int]
    """Number of documents by collection."""
    not_restored: list[str]
    """Indexes outside Freshet's schema, which have to be created again: `NAME of COLLECTION`."""


class Command(FreshetCommand):
    """Restore a backup, completely or not at all."""

    arguments = ("FILE",)
    summary = "Restore a backup into an empty database, or in place of the current data"
    example = "scrapy restore freshet-2026-03-01.zip"
    documents: ClassVar = {
        "scrapy restore FILE --json": RestoreReport,
    }

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add `--replace` and `--yes`."""
        super().add_options(parser)
        parser.add_argument(
            "--replace", action="store_true",
            help="replace the data of a database that is not empty",
        )  # fmt: skip
        add_yes(parser)

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Check the file, restore it, and print what was restored."""
        from crawler.exchange.backup import Backup
        from crawler.storage.transfer import collection_in_use, writers_locked_out

        config = self.config
        with Backup.opened(Path(args[0])) as backup:
            with working(config.progress, "checking the file") as progress:
                backup.verify(progress)
            # The current data may be damaged, so it is neither checked nor migrated.
            used = with_database(config, collection_in_use, prepares=False)
            if used is not None:
                if not opts.replace:
                    raise ConfigError(
                        f"database {config.database!r} is not empty: it has documents in "
                        f"{used}. Add --replace to replace all of its data"
                    )
                confirm("all current data of this database", opts)

            async def restore(db: Database) -> None:
                async with writers_locked_out(db, config):
                    if used is None and (found := await collection_in_use(db)) is not None:
                        raise ConfigError(
                            f"{found} is no longer empty. Stop all other processes, then try again"
                        )
                    await backup.restore(db, progress)

            with working(config.progress, "opening the database") as progress:
                with_database(config, restore, prepares=False)
            manifest = backup.manifest
        if opts.json:
            report: RestoreReport = {
                "file": args[0], "at": manifest.at, "documents": manifest.documents,
                "collections": manifest.counts, "not_restored": manifest.other_indexes,
            }  # fmt: skip
            print_json(report)
            return
        print_line(f"{manifest} restored, as of {manifest.at:%Y-%m-%d %H:%M} UTC")
        for index in manifest.other_indexes:
            print_line(f"note: index {index} is not part of Freshet and was not created")
