"""What a visit adds to the counts of its pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from crawler.items import Kind, Outcome, Visit

Counts = dict[str, float]


def counts_of(visit: Visit) -> Counts:
    """The counts of one stored visit, by name; none is 0."""
    fetched = visit.fetched
    counts = _counts(fetched.target.kind, visit.outcome, fetched.size)
    counts["missed visits"] = visit.missed
    if visit.collected is not None:
        counts["posts"] = len(visit.collected.new)
        counts["edited posts"] = len(visit.collected.edited)
        counts["missed posts"] = visit.collected.missed
    return {name: value for name, value in counts.items() if value}


def counts_of_row(row: Mapping[str, Any]) -> Counts:
    """As `counts_of`, from the change log's row and the target's kind: its worker died too early.

    Missed visits are not in the log.
    """
    counts = _counts(row["kind"], row["outcome"], row["get_size"])
    counts["posts"] = row.get("posts_new", 0)
    counts["edited posts"] = row.get("posts_edited", 0)
    counts["missed posts"] = row.get("missed", 0)
    return {name: value for name, value in counts.items() if value}


def _counts(kind: Kind | str, outcome: Outcome | str, size: int) -> Counts:
    return {"visits": 1, str(outcome): 1, f"{kind} pages": 1, "bytes": size}


def whole(counts: Mapping[str, float]) -> Counter[str]:
    """Counts as whole numbers; estimates are rounded."""
    return Counter({name: round(value) for name, value in counts.items()})
