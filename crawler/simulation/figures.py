"""Figures as tables and JSON show them: NaN is what cannot be told."""

from __future__ import annotations

import math

from rich import box
from rich.table import Table

NOTHING = "-"


def number(value: float) -> float | None:
    """For JSON: null where there is none."""
    return value if math.isfinite(value) else None


def text(value: float, form: str) -> str:
    """For tables; form: as of `str.format`."""
    return form.format(value) if math.isfinite(value) else NOTHING


def table(title: str, first: str, *others: str) -> Table:
    """An empty table: a column of names, and columns of figures."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    made.add_column(first, no_wrap=True)
    for head in others:
        made.add_column(head, justify="right", no_wrap=True)
    return made
