"""Files of an export: Parquet, JSON Lines and CSV.

The same documents in the same order give the same bytes, with the same versions of the libraries:
row groups depend only on the documents, and no file contains a time or a name of a machine.
"""

from __future__ import annotations

import gzip
import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from crawler.exchange.tables import SCHEMA, ColumnType, Table, as_json, document_of, iso, values_of
from crawler.storage.client import Document
from crawler.utils.files import without_formula

if TYPE_CHECKING:
    import pyarrow as pa

# A row group ends after this many rows or bytes in BSON. It is held in memory while it is written.
MAX_GROUP_ROWS, MAX_GROUP_BYTES = 65_536, 32 << 20
ZSTD_LEVEL, GZIP_LEVEL = 3, 6
# Columns whose values repeat, which a dictionary makes smaller.
REPEATED = (ColumnType.NAME, ColumnType.TEXT, ColumnType.TEXTS)
QUOTED = re.compile(r'[",\r\n]')
LINE_END = "\r\n"
# A cell of a CSV record. Groups: the text of a quoted cell; the text of any other cell.
CELL = re.compile(r'(?:^|,)(?:"([^"]*(?:""[^"]*)*)"|([^,"]*))')
# Rows of a Parquet file that are read together.
READ_ROWS = 1000


class Format(StrEnum):
    """A file format."""

    PARQUET = "parquet"
    JSONL = "jsonl"
    CSV = "csv"


class Writer(ABC):
    """Writes the rows of a table into a file."""

    @abstractmethod
    def write(self, documents: Sequence[Document], sizes: Sequence[int]) -> None:
        """Append documents. sizes: bytes of each document in BSON."""

    @abstractmethod
    def close(self) -> None:
        """Complete the file."""


def writer_of(path: Path, table: Table, file_format: Format, *, compressed: bool) -> Writer:
    """Open a file for the rows of a table. compressed: with gzip; Parquet always uses zstd."""
    if file_format is Format.PARQUET:
        return _ParquetWriter(path, table)
    line = _csv_lines if file_format is Format.CSV else _json_lines
    return _TextWriter(path, table, line, compressed=compressed)


def documents_in(
    file: BinaryIO, table: Table, file_format: Format, *, compressed: bool
) -> Iterator[Document]:
    """Yield the documents of a log that an exported file has, in the order of the file.

    Their values are those of the columns. Raises ValueError, TypeError, LookupError,
    EOFError, zlib.error or OSError if the file is damaged.
    """
    if file_format is Format.PARQUET:
        from pyarrow.parquet import ParquetFile

        for batch in ParquetFile(file).iter_batches(READ_ROWS):
            for row in batch.to_pylist():
                times = {name: at for name, at in row.items() if isinstance(at, datetime)}
                naive = {name: at.replace(tzinfo=None) for name, at in times.items()}
                yield document_of(table, row | naive)
        return
    unpacked = gzip.GzipFile(fileobj=file) if compressed else file
    with io.TextIOWrapper(cast(BinaryIO, unpacked), "utf-8", newline="\n") as lines:
        if file_format is Format.JSONL:
            for line in lines:
                yield document_of(table, json.loads(line))
            return
        names: list[str] | None = None
        for record in _records(lines):
            if names is None:
                names = cast(list[str], record)
            else:
                yield document_of(table, dict(zip(names, record, strict=True)))
        if names is None:
            raise ValueError("no header")


def _records(lines: Iterable[str]) -> Iterator[list[str | None]]:
    """Yield the records of a CSV file that `_csv_lines` wrote; empty cells without quotes are None.

    The module csv does not distinguish them from empty texts; pyarrow does, but reads no record of
    many megabytes without a buffer of that size.
    """
    parts: list[str] = []
    quotes = 0
    for line in lines:
        parts.append(line)
        quotes += line.count('"')
        if quotes % 2 == 0 and line.endswith(LINE_END):
            record = "".join(parts).removesuffix(LINE_END)
            yield [
                cell[2] or None if cell[1] is None else cell[1].replace('""', '"')
                for cell in CELL.finditer(record)
            ]
            parts, quotes = [], 0


def suffix_of(file_format: Format, *, compressed: bool) -> str:
    """Return the end of the names of files, such as `.jsonl.gz`."""
    return f".{file_format}{'.gz' if compressed and file_format is not Format.PARQUET else ''}"


def schema_of(table: Table) -> pa.Schema:
    """Return the schema of a table's Parquet files."""
    import pyarrow as pa

    types: dict[ColumnType, pa.DataType] = {
        ColumnType.TEXT: pa.string(),
        # Not an Arrow dictionary: readers that also get `spider` from the folder's name would have
        # two types for it. In the file it is dictionary-encoded anyway.
        ColumnType.NAME: pa.string(),
        ColumnType.ID: pa.string(),
        ColumnType.TIME: pa.timestamp("ms", tz="UTC"),
        ColumnType.INTEGER: pa.int64(),
        ColumnType.NUMBER: pa.float64(),
        ColumnType.BOOLEAN: pa.bool_(),
        ColumnType.TEXTS: pa.list_(pa.string()),
        ColumnType.JSON: pa.string(),
    }
    fields = [pa.field(column.name, types[column.type]) for column in table.columns]
    return pa.schema(fields, {"freshet.table": table.name, "freshet.schema": str(SCHEMA)})


class _ParquetWriter(Writer):
    """Writes Parquet. Documents become arrays immediately: these need a tenth of the memory."""

    def __init__(self, path: Path, table: Table) -> None:
        from pyarrow.parquet import ParquetWriter

        self._table, self._schema = table, schema_of(table)
        repeated = [
            f"{column.name}.list.element" if column.type is ColumnType.TEXTS else column.name
            for column in table.columns
            if column.type in REPEATED
        ]
        self._file = ParquetWriter(
            path, self._schema, compression="zstd", compression_level=ZSTD_LEVEL,
            use_dictionary=repeated,
        )  # fmt: skip
        self._pending: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, documents: Sequence[Document], sizes: Sequence[int]) -> None:
        """Append documents, and write each row group that is complete."""
        start = 0
        while start < len(documents):
            stop = start
            while stop < len(sizes) and not self._is_complete:
                self._rows += 1
                self._bytes += sizes[stop]
                stop += 1
            self._pending.append(self._batch(documents[start:stop]))
            if self._is_complete:
                self._write_group()
            start = stop

    def close(self) -> None:
        """Write the last row group and the footer."""
        try:
            self._write_group()
        finally:
            self._file.close()

    @property
    def _is_complete(self) -> bool:
        return self._rows >= MAX_GROUP_ROWS or self._bytes >= MAX_GROUP_BYTES

    def _batch(self, documents: Sequence[Document]) -> pa.RecordBatch:
        import pyarrow as pa

        arrays = []
        for column, field in zip(self._table.columns, self._schema, strict=True):
            values = values_of(column, documents)
            if column.type is ColumnType.JSON:
                values = [None if value is None else as_json(value) for value in values]
            arrays.append(pa.array(values, field.type))
        return pa.record_batch(arrays, schema=self._schema)

    def _write_group(self) -> None:
        import pyarrow as pa

        # Clear the rows first, so that a failed file can be closed without writing them again.
        batches, self._pending = self._pending, []
        self._rows = self._bytes = 0
        if batches:
            # One array per column, so that pages do not depend on the batches of the server.
            group = pa.Table.from_batches(batches, self._schema).combine_chunks()
            self._file.write_table(group, row_group_size=MAX_GROUP_ROWS)


Lines = Callable[[Table, Sequence[Document]], str]


class _TextWriter(Writer):
    """Writes lines of text. A CSV file begins with the names of the columns."""

    def __init__(self, path: Path, table: Table, lines: Lines, *, compressed: bool) -> None:
        self._table, self._lines = table, lines
        self._raw = path.open("wb")
        self._file: BinaryIO | gzip.GzipFile = self._raw
        if compressed:
            # Leave out the name and the time, which would differ between equal files.
            self._file = gzip.GzipFile("", "wb", GZIP_LEVEL, self._raw, mtime=0)
        if lines is _csv_lines:
            self._file.write((",".join(c.name for c in table.columns) + LINE_END).encode())

    def write(self, documents: Sequence[Document], sizes: Sequence[int]) -> None:
        """Append documents."""
        self._file.write(self._lines(self._table, documents).encode())

    def close(self) -> None:
        """Complete the compressed stream, and close the file."""
        try:
            if self._file is not self._raw:
                self._file.close()
        finally:
            self._raw.close()


def _json_lines(table: Table, documents: Sequence[Document]) -> str:
    """Return one object per line. Absent values are null, so that each line has the same keys."""
    names = [column.name for column in table.columns]
    columns = [values_of(column, documents) for column in table.columns]
    lines = io.StringIO()
    for row in zip(*columns, strict=True):
        lines.write(as_json(dict(zip(names, row, strict=True))))
        lines.write("\n")
    return lines.getvalue()


def _csv_lines(table: Table, documents: Sequence[Document]) -> str:
    """Return a line per document (RFC 4180). Absent values are empty, empty texts are quoted."""
    columns = [list(map(_cell, values_of(column, documents))) for column in table.columns]
    return "".join(f"{','.join(row)}{LINE_END}" for row in zip(*columns, strict=True))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    text = without_formula(value if isinstance(value, str) else as_json(value))
    if not text or QUOTED.search(text):
        return '"' + text.replace('"', '""') + '"'
    return text
