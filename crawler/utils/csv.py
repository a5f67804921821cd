"""Items as CSV that a spreadsheet takes for text and numbers, not for formulas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scrapy.exporters import CsvItemExporter
from scrapy.item import Field

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
