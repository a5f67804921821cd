"""Export the items of sites as CSV or XLSX: one file for each site, with a column for each field.

Unlike the other tables, the columns come from the data. Each export replaces the files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from urllib.parse import quote

from crawler.exchange.destinations import Destination
from crawler.exchange.exports import TableExport
from crawler.exchange.item_files import ItemTable, csv_of, item_table, write_xlsx
from crawler.storage import items
from crawler.storage.client import Database
from crawler.storage.items import NAME, ItemFilter
from crawler.utils.files import file_errors
from crawler.utils.process import Say

ITEMS = "items"


class ItemFormat(StrEnum):
    """A format of files for spreadsheets."""

    CSV = "csv"
    XLSX = "xlsx"


async def export_items(
    db: Database, destination: Destination, spiders: Sequence[str], file_format: ItemFormat,
    say: Say,
) -> TableExport:  # fmt: skip
    """Write the items of each site by name. Raises ConfigError and StorageError.

    say: takes a line about the progress
    """
    report: TableExport = {
        "table": ITEMS, "folder": f"{destination.name}/{ITEMS}", "files": 0, "rows": 0, "bytes": 0,
        "unchanged": 0, "removed": 0, "newest": None,
    }  # fmt: skip
    for spider in spiders:
        if not await items.is_any(db, spider):
            continue
        say(f"{ITEMS}: {spider}")
        table = await item_table(db, spider, ItemFilter(sorting=NAME, is_descending=False))
        path = f"{ITEMS}/{quote(spider, safe='')}.{file_format}"
        with destination.draft(path) as draft:
            with file_errors(str(draft)):
                await _write(draft, table, spider, file_format)
                report["bytes"] += draft.stat().st_size
            await asyncio.to_thread(destination.put, draft, path)
        report["files"] += 1
        report["rows"] += table.count
    return report


async def _write(path: Path, table: ItemTable, spider: str, file_format: ItemFormat) -> None:
    if file_format is ItemFormat.XLSX:
        await write_xlsx(path, table, spider)
        return
    with path.open("wb") as file:
        async for part in csv_of(table):
            file.write(part)
