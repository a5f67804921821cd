"""Write files safely: atomic replacement, and CSV without spreadsheet formulas."""

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
    """Yield a temporary file in the same folder that replaces `path` when the block ends.

    Readers see the old content or the new one, never a partial file. If the block raises an error,
    the temporary file is deleted and `path` is unchanged. The temporary file has the suffix of
    `path`. Raises OSError.
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


# Spreadsheets interpret cells with one of these prefixes as formulas. The last four are full-width
# forms.
FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


class SafeCsvExporter(CsvItemExporter):
    """Scrapy's CSV exporter, which puts an apostrophe before values that look like formulas.

    Numbers such as -3.5 are not changed.
    """

    def serialize_field(self, field: Mapping[str, Any] | Field, name: str, value: Any) -> Any:
        """Return the value to write for a field."""
        value = super().serialize_field(field, name, value)
        if not isinstance(value, str) or not value.startswith(FORMULAS):
            return value
        with suppress(ValueError):
            float(value)
            # float() accepts white space around a number, which a spreadsheet may not.
            if value == value.strip():
                return value
        return f"'{value}"
