"""What a visit adds to the counts of its pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from crawler.items import LinkCount, Visit

Counts = dict[str, float]
NOT_STORED = frozenset({"missed visits", "dead", *LinkCount})
# Items whose fields were read; and, before a field's name, those that do not have it.
ITEMS_READ, WITHOUT = "items read", "without "
SUMMED = ("visits", "bytes", "posts", "edited posts", "missed posts")


def counts_of(visit: Visit) -> Counts:
    """The counts of one stored visit, by name; none is 0."""
    fetched = visit.fetched
    kind = f"{fetched.target.kind} pages"
    counts = {"visits": 1.0, str(visit.outcome): 1, kind: 1, "bytes": fetched.size}
    counts["missed visits"] = visit.missed
    if visit.collected is not None:
        counts["posts"] = len(visit.collected.new)
        counts["edited posts"] = len(visit.collected.edited)
        counts["missed posts"] = visit.collected.missed
    if fetched.link_counts is not None:
        counts |= fetched.link_counts.counts
    if fetched.empty_fields is not None:
        counts[ITEMS_READ] = 1
        counts |= {f"{WITHOUT}{name}": 1 for name in fetched.empty_fields}
    return {str(name): value for name, value in counts.items() if value}


def recounted(
    counts: Mapping[str, float],
    by_outcome: Iterable[Mapping[str, Any]],
    by_kind: Iterable[Mapping[str, Any]],
) -> Counts:
    """Counts of a pass by what is stored, where workers that died may have told it twice or never.

    by_outcome, by_kind: as `storage.visits` has them. What is not stored (missed visits, pages left
    for dead, links, fields that were not found) stays as it was counted.
    """
    found = Counter[str]()
    for row in by_outcome:
        found[row["_id"]] += row["visits"]
        for name in SUMMED:
            found[name] += row[name]
    kinds = {f"{row['_id']} pages": row["pages"] for row in by_kind}
    left = {name: n for name, n in counts.items() if _is_not_stored(name)}
    return {name: value for name, value in (found | left | kinds).items() if value}


def _is_not_stored(name: str) -> bool:
    return name in NOT_STORED or name == ITEMS_READ or name.startswith(WITHOUT)


def whole(counts: Mapping[str, float]) -> Counter[str]:
    """Counts as whole numbers; estimates are rounded."""
    return Counter({name: round(value) for name, value in counts.items()})
