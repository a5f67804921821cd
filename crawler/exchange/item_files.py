"""Items of a site as CSV or XLSX, for spreadsheets: a row for each item, a column for each field.

A value that is a document, such as a price, has a column for each of its parts: `price.amount`.
CSV is streamed. XLSX is written row by row to a temporary file, so both need little memory.

Spreadsheets take some texts for formulas. A cell of XLSX has a type, so texts stay texts. In CSV,
an apostrophe precedes such texts. CSV begins with a byte order mark, without which Excel reads
UTF-8 as another encoding.
"""

from __future__ import annotations

import asyncio
import csv
import io
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from crawler.extract.item_names import name_of
from crawler.reports.items import content_of, newest_fields, rows_of_file
from crawler.storage import items
from crawler.storage.client import Database, Document
from crawler.storage.items import ItemFilter
from crawler.utils.edits import shown
from crawler.utils.files import flattened, without_formula

# XLSX allows 1,048,576 rows. Writing this many takes up to half a minute, and browsers and proxies
# wait a minute.
MAX_XLSX_ROWS = 20_000
CELL_CHARACTERS = items.MAX_CELL_CHARACTERS
# Rows that are written together.
BATCH = 200
BYTE_ORDER_MARK = "\ufeff"
STATE_COLUMNS = ("name", "url", "categories", "gone", "first_seen", "changed_at")
# Precedes the name of a field that one of the columns above has.
PREFIX = "fields."
TIME_FORMAT, DATE_FORMAT = "yyyy-mm-dd hh:mm:ss", "yyyy-mm-dd"
# Spreadsheets have no earlier dates.
FIRST_YEAR = 1900
COLUMN_WIDTH, NAME_WIDTH = 18, 40
# Characters that XML does not allow.
NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


@dataclass(slots=True)
class ItemTable:
    """The rows of a file.

    columns: names of all columns
    rows:    of items, by column
    count:   number of rows that were written
    """

    columns: tuple[str, ...]
    rows: AsyncIterator[dict[str, Any]]
    count: int = 0


async def item_table(db: Database, spider: str, wanted: ItemFilter) -> ItemTable:
    """Return the items of a list as the rows of a file, in the order of the list."""
    stored = {field.name: field for field in await items.fields_of(db, spider, wanted)}
    # In the order of the site definition, as far as the newest items have it.
    order = dict.fromkeys([*await newest_fields(db, spider), *sorted(stored)])
    columns = list(STATE_COLUMNS)
    for name in order:
        if (field := stored.get(name)) is None:
            continue
        label = _label(name)
        columns += [label] if field.is_plain else []
        columns += [f"{label}.{part}" for part in field.parts]
    return ItemTable(tuple(dict.fromkeys(columns)), _rows(db, spider, wanted))


def _label(field: str) -> str:
    return f"{PREFIX}{field}" if field in STATE_COLUMNS else field


async def _rows(db: Database, spider: str, wanted: ItemFilter) -> AsyncIterator[dict[str, Any]]:
    batch: list[Document] = []
    async for row in rows_of_file(db, spider, wanted):
        batch.append(row)
        if len(batch) >= items.FILE_BATCH:
            for each in await _with_states(db, batch):
                yield each
            batch = []
    for each in await _with_states(db, batch):
        yield each


async def _with_states(db: Database, batch: Sequence[Document]) -> list[dict[str, Any]]:
    gone = await items.gone_of(db, [row["_id"] for row in batch])
    rows = []
    for row in batch:
        content = {_label(name): value for name, value in items.values_in(row).items()}
        state = {
            "name": name_of(content_of(row), row["url"]),
            "url": row["url"],
            "categories": ", ".join(row.get("categories") or ()),
            "gone": row["_id"] in gone,
            "first_seen": row["first_seen"],
            "changed_at": row.get("changed_at"),
        }
        rows.append(state | dict(flattened(content)))
    return rows


async def csv_of(table: ItemTable) -> AsyncGenerator[bytes]:
    """Yield the parts of a CSV file (RFC 4180, UTF-8)."""
    yield (BYTE_ORDER_MARK + _lines([table.columns])).encode()
    batch: list[list[str]] = []
    async for row in table.rows:
        batch.append([_text_of(row.get(column)) for column in table.columns])
        table.count += 1
        if len(batch) >= BATCH:
            yield _lines(batch).encode()
            batch = []
    if batch:
        yield _lines(batch).encode()


def _lines(rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows([without_formula(cell) for cell in row] for row in rows)
    return text.getvalue()


def _text_of(value: Any) -> str:
    """Return a value as a spreadsheet reads it from CSV. Times are in UTC."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    if isinstance(value, int | float):
        return repr(value)
    return _cell_text(value)


def _cell_text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_cell_text, value))[:CELL_CHARACTERS]
    return shown(value)[:CELL_CHARACTERS]


async def write_xlsx(path: Path, table: ItemTable, name: str) -> bool:
    """Write a workbook with one sheet; return whether it has all items.

    A sheet with MAX_XLSX_ROWS items ends with a row that says that there are more.

    name: title of the document
    """
    book = await asyncio.to_thread(_Workbook, path, table.columns, name)
    try:
        batch: list[Mapping[str, Any]] = []
        is_whole = True
        async for row in table.rows:
            if table.count >= MAX_XLSX_ROWS:
                is_whole = False
                break
            batch.append(row)
            table.count += 1
            if len(batch) >= BATCH:
                await asyncio.to_thread(book.write, batch)
                batch = []
        await asyncio.to_thread(book.write, batch)
        if not is_whole:
            note = f"Only the first {MAX_XLSX_ROWS:,} items are in this file. CSV has all of them."
            await asyncio.to_thread(book.write, [{"name": note}])
    finally:
        await asyncio.to_thread(book.close)
    return is_whole


class _Workbook:
    def __init__(self, path: Path, columns: Sequence[str], name: str) -> None:
        # Slow to import.
        from xlsxwriter import Workbook

        self._columns = columns
        options = {
            "constant_memory": True, "tmpdir": str(path.parent), "strings_to_formulas": False,
            "strings_to_urls": False, "strings_to_numbers": False,
        }  # fmt: skip
        self._book = Workbook(str(path), options)
        self._book.set_properties({"title": NOT_XML.sub("", name)[:255]})
        self._sheet = self._book.add_worksheet("Items")
        self._time = self._book.add_format({"num_format": TIME_FORMAT})
        self._date = self._book.add_format({"num_format": DATE_FORMAT})
        bold = self._book.add_format({"bold": True})
        self._sheet.freeze_panes(1, 1)
        self._sheet.set_column(0, 0, NAME_WIDTH)
        self._sheet.set_column(1, len(columns) - 1, COLUMN_WIDTH)
        for place, column in enumerate(columns):
            self._sheet.write_string(0, place, _for_xml(column), bold)
        self._next = 1

    def write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows."""
        for row in rows:
            for place, column in enumerate(self._columns):
                self._write(place, row.get(column))
            self._next += 1

    def _write(self, place: int, value: Any) -> None:
        at, sheet = self._next, self._sheet
        if value is None:
            return
        if isinstance(value, bool):
            sheet.write_boolean(at, place, value)
        elif isinstance(value, int | float) and math.isfinite(value):
            sheet.write_number(at, place, value)
        elif isinstance(value, datetime) and value.year > FIRST_YEAR:
            sheet.write_datetime(at, place, value.astimezone(UTC).replace(tzinfo=None), self._time)
        elif isinstance(value, date) and value.year > FIRST_YEAR:
            sheet.write_datetime(at, place, value, self._date)
        else:
            sheet.write_string(at, place, _for_xml(_cell_text(value)))

    def close(self) -> None:
        """Complete the file."""
        self._book.close()


def _for_xml(text: str) -> str:
    return NOT_XML.sub("", text)[:CELL_CHARACTERS]
