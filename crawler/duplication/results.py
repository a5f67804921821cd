"""What came of an experiment, in numbers that JSON has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from crawler.duplication.experiment import Flags, Measured, Query
from crawler.duplication.methods import METHODS
from crawler.duplication.published import DOCUMENTS, SCHEMES
from crawler.storage.client import Document

# Posts of so many words and more are told apart.
LENGTHS = (0, 20, 50, 100, 300)
MILLISECONDS = 1000


def of_all(
    queries: Sequence[Query], measured: Sequence[Measured], right: dict[str, Flags], documents: int
) -> Document:
    """All methods' figures, and recall in detail."""
    return {
        "documents": documents,
        "queries": len(queries),
        "methods": [of_method(one, right[one.method], documents) for one in measured],
        "recall": recalls(queries, measured, right),
    }


def of_method(one: Measured, right: Flags, documents: int) -> Document:
    """A method's figures; for the paper's schemes beside what the paper has."""
    flagged = np.array([bool(found.posts) for found in one.found])
    return {
        "method": one.method,
        "rule": METHODS[one.method].rule,
        "milliseconds": _times(one),
        "ping_milliseconds": one.ping_seconds * MILLISECONDS,
        "probes": one.mean("probes"),
        "examined": one.mean("examined"),
        "index_bytes": one.index_bytes,
        "index_bytes_per_post": one.index_bytes / documents,
        "build_seconds": one.build_seconds,
        "recall": float(right.mean()),
        "wrong": float((flagged & ~right).mean()),
        "paper": _of_paper(one.method, documents),
    }


def _times(one: Measured) -> dict[str, float | None]:
    names = ("p50", "mean", "p99")
    if not one.seconds.size:
        return dict.fromkeys(names)
    times = one.seconds * MILLISECONDS
    values = np.percentile(times, 50), times.mean(), np.percentile(times, 99)
    return dict(zip(names, map(float, values), strict=True))


def _of_paper(method: str, documents: int) -> Document | None:
    if (scheme := SCHEMES.get(method)) is None:
        return None
    return {
        "worst_page_reads": scheme.worst_reads(documents),
        "worst_page_reads_at_1500000": scheme.worst_reads(DOCUMENTS),
        "printed_worst_page_reads": scheme.worst,
        "measured_page_reads": scheme.reads,
        "measured_trees": scheme.trees_read,
        "measured_seconds": scheme.seconds,
    }


def recalls(
    queries: Sequence[Query], measured: Sequence[Measured], right: dict[str, Flags]
) -> list[Document]:
    """Recall by the post's length and script and the number of edits, for each rule."""
    of_rule = {METHODS[one.method].rule: right[one.method] for one in reversed(measured)}
    groups: defaultdict[tuple[bool, int, int], list[int]] = defaultdict(list)
    for place, query in enumerate(queries):
        groups[query.cjk, _least(query.words), query.edits].append(place)
    return [
        {
            "cjk": cjk,
            "words": [least, _most(least)],
            "edits": edits,
            "copies": len(places),
            "recall": {rule: float(of_rule[rule][places].mean()) for rule in reversed(of_rule)},
        }
        for (cjk, least, edits), places in sorted(groups.items())
    ]


def _least(words: int) -> int:
    return max(least for least in LENGTHS if least <= words)


def _most(least: int) -> int | None:
    return next((upto - 1 for start, upto in pairwise(LENGTHS) if start == least), None)
