"""Tables and lines on stdout, in the width there is."""

from __future__ import annotations

import os
import sys

from rich.console import Console
from rich.text import Text

# For files and pipes: no line of a table is as long.
UNBOUNDED_WIDTH = 10_000


def stdout() -> Console:
    """Return a console on stdout, as wide as the terminal.

    Without a terminal nothing is cut or wrapped, unless COLUMNS gives a width.
    """
    is_free = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, markup=False, width=UNBOUNDED_WIDTH if is_free else None)


def shortened(text: str) -> Text:
    """Return a table cell that ends in an ellipsis where its column is too narrow.

    Its column must not be `no_wrap`, or rich would narrow the columns of numbers as well.
    """
    return Text(text, no_wrap=True, overflow="ellipsis")
