"""`scrapy export`: write visits, contents, posts and states to files, and items to spreadsheets."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from crawler.cli.base import FreshetCommand, print_json, spiders_of, usage_error
from crawler.cli.options import add_spiders, past_time, time_or_age
from crawler.errors import ConfigError, no_targets
from crawler.utils.terminal import print_line, without_secrets, working
from crawler.utils.text import count, megabytes

if TYPE_CHECKING:
    from crawler.exchange.exports import ExportReport, TableExport

# The tables with files by day, then the others.
BY_DAY = ("visits", "versions", "posts")
TABLE_NAMES = (*BY_DAY, "targets", "feeds", "plans")
# Not in ALL: its columns come from the data, and it has formats of its own.
ITEMS, ITEM_FORMATS = "items", ("csv", "xlsx")
ALL = "all"
FORMATS = ("parquet", "jsonl", "csv")
ALL_FORMATS = (*FORMATS, "xlsx")


class Command(FreshetCommand):
    """Export tables to a folder or an object store; later exports add what is new."""

    arguments = ("|".join((*TABLE_NAMES, ITEMS, ALL)), "FOLDER_OR_URL")
    summary = "Export visits, contents, posts and states to Parquet, JSON Lines or CSV"
    example = "scrapy export visits freshet-export"
    documents: ClassVar = {
        "scrapy export visits FOLDER --json": "crawler.exchange.exports.ExportReport",
    }

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the format, and options that select rows."""
        super().add_options(parser)
        parser.add_argument(
            "--format", choices=ALL_FORMATS, dest="file_format",
            help=f"format of the files: {', '.join(FORMATS)}; for {ITEMS}: "
            f"{', '.join(ITEM_FORMATS)} (default: {FORMATS[0]}; for {ITEMS}: "
            f"{ITEM_FORMATS[0]})",
        )  # fmt: skip
        parser.add_argument(
            "--gzip", action="store_true", help="compress JSON Lines and CSV with gzip"
        )
        parser.add_argument(
            "--since", metavar="T", type=time_or_age,
            help="rewrite all days since T, a day or time (UTC) or an age such as 7d; "
            "for visits, versions and posts (default: only write new rows)",
        )  # fmt: skip
        add_spiders(parser, "export only this spider")

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Export the tables, and print how many rows and files were written."""
        name, address = args
        if name not in (*TABLE_NAMES, ITEMS, ALL):
            available = ", ".join((*TABLE_NAMES, ITEMS, ALL))
            raise usage_error(f"unknown table {name!r}. Available: {available}")
        formats = ITEM_FORMATS if name == ITEMS else FORMATS
        opts.file_format = opts.file_format or formats[0]
        if opts.file_format not in formats:
            raise ConfigError(
                f"--format: {name} cannot be {opts.file_format}. Use {' or '.join(formats)}"
            )
        if opts.gzip and name == ITEMS:
            raise ConfigError(f"--gzip: not for {ITEMS}. Leave the option out")
        if opts.gzip and opts.file_format == FORMATS[0]:
            raise ConfigError("--gzip: Parquet is always compressed. Use it with jsonl or csv")
        if opts.since is not None and name not in (*BY_DAY, ALL):
            raise ConfigError(
                f"--since: {name} has no days; each export replaces it. Leave the option out"
            )
        if opts.spider and name == "plans":
            raise ConfigError("--spider: plans can have several spiders. Leave the option out")
        with working(self.config.progress, "opening the database") as progress:
            tables = asyncio.run(self._export(name, address, opts, progress))
        if opts.json:
            report: ExportReport = {"to": without_secrets(address), "tables": tables}
            print_json(report)
            return
        for table in tables:
            print_line(_summary(table))

    async def _export(
        self, name: str, address: str, opts: argparse.Namespace, progress: Callable[[str], None]
    ) -> list[TableExport]:
        """Export one table or all tables, and return a report for each."""
        from crawler.exchange.destinations import destination_of
        from crawler.exchange.exports import Export, Request
        from crawler.exchange.formats import Format
        from crawler.exchange.item_exports import ItemFormat, export_items
        from crawler.exchange.tables import TABLES
        from crawler.storage import leases
        from crawler.storage.client import storage_errors
        from crawler.storage.store import opened

        config = self.config
        destination = await asyncio.to_thread(destination_of, address)
        async with opened(config) as db:
            stored = await spiders_of(db, None)
            if unknown := sorted(set(opts.spider or ()) - set(stored)):
                raise no_targets(unknown[0], stored)
            if name == ITEMS:
                chosen = sorted(opts.spider or stored)
                async with leases.held(
                    db, config, f"{leases.EXPORT}{name}", f"{name} are being exported"
                ):
                    with storage_errors("run the same command again"):
                        form = ItemFormat(opts.file_format)
                        return [await export_items(db, destination, chosen, form, progress)]
            now = config.clock.now()
            request = Request(
                Format(opts.file_format), opts.gzip, tuple(opts.spider or ()),
                past_time(opts.since, now), now,
            )  # fmt: skip
            reports: list[TableExport] = []
            for table in TABLES.values() if name == ALL else [TABLES[name]]:
                async with leases.held(
                    db, config, f"{leases.EXPORT}{table.name}", f"{table.name} are being exported"
                ):
                    with storage_errors("run the same command again to continue"):
                        export = await asyncio.to_thread(Export, db, destination, table, request)
                        reports.append(await export.run(progress))
            return reports


def _summary(table: TableExport) -> str:
    """Return a line about the export of a table."""
    name, unchanged = table["table"], table["unchanged"]
    newest = f"{table['newest']:%Y-%m-%d %H:%M:%S} UTC" if table["newest"] else ""
    if not (table["files"] or unchanged or table["removed"]):
        return f"{name}: no rows to export yet"
    if not (table["files"] or table["removed"]):
        since = f"nothing new since {newest}" if newest else "nothing new"
        return f"{name}: {since}; {count(unchanged, 'file')} in {table['folder']}"
    written = f"{count(table['rows'], 'row')} in {count(table['files'], 'file')}"
    parts = [f"{name}: wrote {written} ({megabytes(table['bytes'])}) to {table['folder']}"]
    if unchanged:
        parts.append(f"{count(unchanged, 'other file')} unchanged")
    if table["removed"]:
        parts.append(f"{count(table['removed'], 'file')} of deleted sites removed")
    if newest:
        parts.append(f"newest row {newest}")
    return "; ".join(parts)
