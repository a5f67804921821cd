"""Short values of items, and how they changed, as pages, the API and messages show them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import islice
from typing import Any, Literal

from typing_extensions import TypedDict

from crawler.extract.item_names import NAMES
from crawler.extract.prices import read_number, read_price
from crawler.utils.edits import MAX_FIELDS, short_line
from crawler.utils.text import signed_percent

# Fields that are no values of their own.
TEXTS = frozenset({"main_text", "details", "links"})
# A text with one number and little else, such as a price without a type in the site definition.
ONE_NUMBER = re.compile(r"[^\d\n]{0,6}\d[\d.,'\u00a0\u202f]*[^\d\n]{0,6}")
# A smaller difference has no percentage.
MIN_RATIO = 0.0005
Direction = Literal["lower", "higher"]


class Value(TypedDict):
    """A value of an item that fits on a line."""

    name: str
    """Name of the field."""
    text: str
    """The value as people read it, such as `£289.90`."""
    number: float | None
    """The value as a number; null if it is none."""
    unit: str | None
    """Currency of a price."""


class ValueChange(TypedDict):
    """A place where an item differs: a value that fits on a line, or a place of a longer text."""

    name: str
    """Name of the field."""
    before: str | None
    """The value before, as people read it, or words of a longer text; null if there was none."""
    after: str | None
    """The same after the change; null if there is none."""
    number_before: float | None
    """The value before as a number; null if it was none."""
    number_after: float | None
    """The same after the change."""
    unit: str | None
    """Currency of a price."""
    direction: Direction | None
    """Whether the number is `lower` or `higher`; null if both values are no numbers of a unit."""
    ratio: float | None
    """How much higher the number is than before: -0.1 for a tenth less; null: not comparable."""
    is_price: bool
    """Whether the value is a price."""


def change_of(name: str, before: Value | None, after: Value | None) -> ValueChange:
    """Return how the value of a field changed. before, after: None: there is none on a line."""
    value = after or before
    change = text_change(name, before and before["text"], after and after["text"])
    old, new = (each["number"] if each else None for each in (before, after))
    change["number_before"], change["number_after"] = old, new
    change["unit"] = value["unit"] if value else None
    change["is_price"] = value is not None and is_priced(name, value["unit"])
    is_same_unit = before is not None and after is not None and before["unit"] == after["unit"]
    if old is None or new is None or old == new or not is_same_unit:
        return change
    change["direction"] = "higher" if new > old else "lower"
    ratio = (new - old) / abs(old) if old else math.inf
    change["ratio"] = ratio if math.isfinite(ratio) else None
    return change


def text_change(name: str, before: str | None, after: str | None) -> ValueChange:
    """Return a place where a text changed. before, after: None if there was nothing."""
    return {
        "name": name, "before": before, "after": after, "number_before": None,
        "number_after": None, "unit": None, "direction": None, "ratio": None, "is_price": False,
    }  # fmt: skip


def percent_of(change: ValueChange) -> str | None:
    """Return how much a number changed, such as `+20 %`; None if there is no percentage."""
    ratio = change["ratio"]
    return signed_percent(ratio) if ratio is not None and abs(ratio) >= MIN_RATIO else None


def difference_of(change: ValueChange) -> str:
    """Return how much a number changed, or in which direction; empty for other values."""
    words = {"lower": "↓ lower", "higher": "↑ higher"}
    return percent_of(change) or words.get(change["direction"] or "", "")


def is_priced(name: str, unit: str | None) -> bool:
    """Return whether the value of a field is a price. unit: its currency; None: none."""
    return unit is not None or "price" in name.casefold()


def values_of(content: Mapping[str, Any]) -> list[Value]:
    """Return the values of an item that fit on a line, without its name, in their order."""
    name = next((field for field in NAMES if content.get(field)), None)
    found: list[Value] = []
    for field, value in islice(content.items(), MAX_FIELDS):
        if field in TEXTS or field == name or value is None:
            continue
        text = short_line(value)
        if text:
            number, unit = number_of(value) or (None, None)
            found.append({"name": field, "text": text, "number": number, "unit": unit})
    return found


def number_of(value: Any) -> tuple[float, str | None] | None:
    """Return the finite number in a value, with the currency of a price; None without one."""
    if isinstance(value, str):
        if ONE_NUMBER.fullmatch(value.strip()) is None:
            return None
        price = read_price(value)
        value = price if price is not None and price["currency"] else read_number(value)
    if isinstance(value, dict):
        number, currency = value.get("amount"), value.get("currency")
        if not isinstance(currency, str | None):
            return None
        return None if (finite := _finite(number)) is None else (finite, currency)
    return None if (finite := _finite(value)) is None else (finite, None)


def _finite(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None
