"""Files that are replaced atomically: readers see the old content or the new, never a part."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from scrapy.exporters import CsvItemExporter
from scrapy.item import Field


@contextmanager
def atomic_replace(path: Path) -> Iterator[Path]:
    """Yield a temporary file next to `path` that replaces it when the block ends.

    The temporary file has the suffix of `path`. If the block fails, it is deleted and `path` stays
    as it was. Raises OSError.
    """
    draft = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        yield draft
        with draft.open("rb") as written:
            os.fsync(written.fileno())
        draft.replace(path)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


# Cells that begin with one of these are formulas for a spreadsheet; the last four are full-width.
FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


class SafeCsvExporter(CsvItemExporter):
    """Scrapy's exporter of CSV with an apostrophe before what would be a formula.

    Numbers such as -3.5 stay as they are.
    """

    def serialize_field(self, field: Mapping[str, Any] | Field, name: str, value: Any) -> Any:
        """Return the value of a field as it is written."""
        value = super().serialize_field(field, name, value)
        is_formula = isinstance(value, str) and value.startswith(FORMULAS)
        return f"'{value}" if is_formula and not _is_number(value) else value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text == text.strip()
