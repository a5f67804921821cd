"""Numbers in the versions of a target, such as prices and stocks, over time."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from typing_extensions import TypedDict

from crawler.extract.fields import read_number, read_price
from crawler.storage import versions
from crawler.storage.client import Database

# Fields to draw.
MAX_SERIES = 8
# A text with one number and little else, such as a price without a type in the site definition.
ONE_NUMBER = re.compile(r"[^\d\n]{0,6}\d[\d.,'\u00a0\u202f]*[^\d\n]{0,6}")


class Point(TypedDict):
    """A value from a time on."""

    at: datetime
    """Time of the visit that found the value."""
    value: float
    """The value."""


class Series(TypedDict):
    """The values of one field over time."""

    name: str
    """Name of the field."""
    unit: str | None
    """Currency; null for other numbers, and if it changes."""
    points: list[Point]
    """Each change of the value, oldest first; the value lasts until the next point."""


async def series_of(db: Database, spider: str, url: str) -> list[Series]:
    """Return the fields of a target whose values are numbers that changed, at most MAX_SERIES.

    Uses the newest MAX_POINTS versions, and as many visits that found another version.
    """
    rows = await versions.short_values(db, spider, url)
    numbers = {row["content_hash"]: _numbers(row["values"]) for row in rows}
    times = {(row["at"], row["content_hash"]) for row in rows}
    # A page may return to an earlier content, of which there is one version only.
    changes = await versions.content_changes(db, spider, url)
    times |= {(row["at"], row["content_hash"]) for row in changes if row.get("content_hash")}
    found: dict[str, Series] = {}
    for at, content_hash in sorted(times):
        for name, (value, unit) in numbers.get(content_hash, {}).items():
            series = found.setdefault(name, {"name": name, "unit": unit, "points": []})
            series["unit"] = unit if series["unit"] == unit else None
            if not series["points"] or series["points"][-1]["value"] != value:
                series["points"].append({"at": at, "value": value})
    changed = [series for series in found.values() if len(series["points"]) > 1]
    return changed[:MAX_SERIES]


def _numbers(pairs: list[dict[str, Any]]) -> dict[str, tuple[float, str | None]]:
    """Return the numbers among some fields, each with its currency if it is a price."""
    values = ((pair["k"], _number(pair["v"])) for pair in pairs)
    return {name: value for name, value in values if value is not None}


def _number(value: Any) -> tuple[float, str | None] | None:
    if isinstance(value, str):
        if ONE_NUMBER.fullmatch(value.strip()) is None:
            return None
        price = read_price(value)
        value = price if price is not None and price["currency"] else read_number(value)
    if isinstance(value, dict):
        number, currency = value.get("amount"), value.get("currency")
        if isinstance(number, int | float) and isinstance(currency, str | None):
            return float(number), currency
        return None
    return (float(value), None) if isinstance(value, int | float) else None
