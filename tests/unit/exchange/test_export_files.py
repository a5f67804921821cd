"""Export files: batch sizes do not change the bytes, and row groups are bounded."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from bson import Int64, ObjectId

from crawler.cli.commands import export
from crawler.exchange.formats import Format, schema_of, writer_of
from crawler.exchange.tables import TABLES, ColumnType
from crawler.storage.client import Document
from crawler.storage.schema import VALIDATORS

VISITS, VERSIONS = TABLES["visits"], TABLES["versions"]
START = datetime(2026, 3, 1)
# Validator types that each kind of column accepts.
TYPES = {
    ColumnType.TEXT: {"string", "objectId or string", "string or null"},
    ColumnType.NAME: {"string", "string or null"},
    ColumnType.ID: {"objectId"},
    ColumnType.TIME: {"time", "date", "time or null"},
    ColumnType.INTEGER: {"int", "long", "number", "number or null"},
    ColumnType.NUMBER: {"int", "long", "double", "number", "number or null"},
    ColumnType.BOOLEAN: {"boolean", "bool", "int"},
    ColumnType.TEXTS: {"array", "array of strings"},
    ColumnType.JSON: {"object"},
}


def rows(n: int) -> list[dict[str, Any]]:
    return [
        {
            "_id": ObjectId(f"{i:024x}"), "spider": "shop", "target": f"https://a.example/{i % 7}",
            "at": START + timedelta(seconds=i), "outcome": "unchanged", "changed": i % 2,
            "get_size": Int64(i), "missed_posts": 1,
        }
        for i in range(n)
    ]  # fmt: skip


def written(path: Path, documents: list[dict[str, Any]], step: int, size: int = 400) -> bytes:
    """Write documents in batches of `step`, each of `size` bytes; return the file."""
    writer = writer_of(path, VISITS, Format.PARQUET, compressed=False)
    for start in range(0, len(documents), step):
        batch = documents[start : start + step]
        writer.write(batch, [size] * len(batch))
    writer.close()
    return path.read_bytes()


def test_batch_size_does_not_change_the_file(tmp_path: Path) -> None:
    documents = rows(3000)
    # At this document size, 1000 documents fill a row group.
    files = {written(tmp_path / "f", documents, step, (32 << 20) // 1000 + 1) for step in (7, 3000)}
    assert len(files) == 1
    file = pq.ParquetFile(tmp_path / "f")
    assert [file.metadata.row_group(i).num_rows for i in range(3)] == [1000, 1000, 1000]
    table = file.read()
    assert table.column("get_size").to_pylist() == list(range(3000))
    assert table.column("changed").to_pylist() == [False, True] * 1500
    assert table.column("missed_posts")[0].as_py() == 1.0
    assert table.schema.equals(schema_of(VISITS), check_metadata=True)


def test_empty_file_has_the_schema(tmp_path: Path) -> None:
    writer_of(tmp_path / "f", VERSIONS, Format.PARQUET, compressed=False).close()
    assert pq.read_schema(tmp_path / "f").equals(schema_of(VERSIONS))


@pytest.mark.parametrize("name", TABLES)
def test_columns_match_fields_of_the_collection(name: str) -> None:
    table = TABLES[name]
    assert len({column.name for column in table.columns}) == len(table.columns)
    for column in table.columns:
        schema: Document = VALIDATORS[name]["$jsonSchema"]
        for part in column.path.split("."):
            if column.path.startswith("content."):
                # The fields of `content` depend on the site definition.
                assert column.description
                return
            schema = schema["properties"][part]
        types = schema.get("title") or schema.get("bsonType")
        if "enum" in schema:
            assert column.type in (ColumnType.NAME, ColumnType.BOOLEAN), column.name
            continue
        types = {types} if isinstance(types, str) else set(types) - {"null"}
        assert types & TYPES[column.type], (column.name, types)


def test_command_lists_all_tables_and_formats() -> None:
    assert tuple(TABLES) == export.TABLE_NAMES
    assert tuple(name for name in TABLES if TABLES[name].time) == export.BY_DAY
    assert tuple(Format) == export.FORMATS
