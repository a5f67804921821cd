"""The queries of docs/how-to/export.md."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs/how-to/export.md"
# Heading above the definitions of the views.
VIEWS = "Ten questions"


def queries(folder: Path) -> dict[str, str]:
    """Return the queries for an export in a folder by the heading above each query."""
    found: dict[str, str] = {}
    for section in re.split(r"^###? ", PAGE.read_text(encoding="utf-8"), flags=re.M)[1:]:
        heading = section.partition("\n")[0]
        if block := re.search(r"^```sql\n(.*?)^```", section, re.M | re.S):
            found[heading] = block[1].replace("freshet-export", str(folder))
    return found
