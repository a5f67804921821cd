"""Results of the experiment: values for JSON, the paper's published values, and tables."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from crawler.storage.client import Document
from crawler.utils.terminal import stdout
from crawler.utils.text import amount, count
from tests.bench.dedup.indexes import METHODS

if TYPE_CHECKING:
    from tests.bench.dedup.experiment import Flags, Measured, Query

# Lower bounds of the length classes, in words.
LENGTHS = (0, 20, 50, 100, 300)
MILLISECONDS = 1000
# Number of documents in the paper's experiment, and bytes of a page of its trees.
DOCUMENTS = 1_500_000
PAGE_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Scheme:
    """An index scheme of the paper.

    trees:     number of trees searched in the worst case
    key_bytes: bytes of an entry; a page holds 1,024 bytes of entries
    entries:   number of entries of a document in one tree
    worst:     published page reads in the worst case for 1.5 M documents
    reads:     published mean of the page reads
    seconds:   published time of a query
    """

    trees: int
    key_bytes: int
    entries: int
    worst: float
    reads: float
    seconds: float

    def reads_a_tree(self, documents: int) -> float:
        """Return the pages from the root of one tree to a leaf, by the paper's formula."""
        return math.log(self.entries * documents, PAGE_BYTES // self.key_bytes)

    def worst_reads(self, documents: int) -> float:
        """Return the page reads of a query without a result, without post-processing."""
        return self.trees * self.reads_a_tree(documents)

    @property
    def trees_read(self) -> float:
        """Return the number of trees that matches the published mean number of page reads."""
        return self.reads / self.reads_a_tree(DOCUMENTS)


SCHEMES = {
    "B6D1": Scheme(6, 4, 1, worst=14.9, reads=23.3, seconds=0.244),
    "R15D2": Scheme(15, 8, 1, worst=42.6, reads=29.9, seconds=0.214),
    "R1D3": Scheme(15, 12, 15, worst=55.0, reads=38.9, seconds=0.417),
}


def of_all(
    queries: Sequence[Query], measured: Sequence[Measured], right: dict[str, Flags], documents: int
) -> Document:
    """Return the results of all methods, and the recall in detail."""
    return {
        "documents": documents,
        "queries": len(queries),
        "methods": [of_method(one, right[one.method], documents) for one in measured],
        "recall": recalls(queries, measured, right),
    }


def of_method(one: Measured, right: Flags, documents: int) -> Document:
    """Return a method's results; for the paper's schemes, also the published values."""
    flagged = np.array([bool(result.posts) for result in one.found])
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
    """Return the recall by length and script of the post and number of edits, for each rule."""
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


def show(done: Document) -> None:
    """Print the results as tables."""
    console = stdout()
    console.print(_heading(done), soft_wrap=True)
    console.print(_methods(done["methods"]))
    if rows := [row for row in done["methods"] if row["paper"]]:
        console.print(f"The paper's schemes: measured, and published for {DOCUMENTS:,} documents")
        console.print(_beside_paper(rows))
    console.print("Recall by the words of the post and the number of changed words")
    console.print(_recalls(done["recall"]))


def _heading(done: Document) -> str:
    least, most = done["edits"]
    edits = count(most, "word") if least == most else f"{least} to {most} words"
    change = "replaced" if done["kinds"] == "replace" else "replaced, inserted or deleted"
    posts = "made posts (synthetic)" if done["synthetic"] else f"posts of {done['posts']}"
    return f"{done['documents']:,} {posts}; {count(done['queries'], 'copy')}, {edits} {change}"


def _methods(rows: list[Document]) -> Table:
    names = ("p50 ms", "mean", "p99", "ping", "probes", "posts", "B/post", "recall", "wrong")
    table = _table("method", *names)
    for row in rows:
        times = row["milliseconds"].values()
        table.add_row(
            row["method"],
            *("" if time is None else f"{time:.2f}" for time in times),
            f"{row['ping_milliseconds']:.2f}",
            amount(row["probes"]),
            amount(row["examined"]),
            f"{row['index_bytes_per_post']:,.0f}",
            _share(row["recall"]),
            _share(row["wrong"]),
        )
    return table


def _beside_paper(rows: list[Document]) -> Table:
    """Compare the trees read with the published page reads, which are converted to trees."""
    table = _table(
        "scheme",
        "seconds\nhere",
        "paper",
        "trees read\nhere",
        "paper",
        "page reads\npaper",
        "worst\nhere",
        "paper",
    )
    for row in rows:
        paper, mean = row["paper"], row["milliseconds"]["mean"]
        table.add_row(
            row["method"],
            "" if mean is None else f"{mean / 1000:.4f}",
            f"{paper['measured_seconds']:.3f}",
            f"{row['probes']:.1f}",
            f"{paper['measured_trees']:.1f}",
            f"{paper['measured_page_reads']:.1f}",
            f"{paper['worst_page_reads']:.1f}",
            f"{paper['printed_worst_page_reads']:.1f}",
        )
    return table


def _recalls(rows: list[Document]) -> Table:
    rules = list(rows[0]["recall"])
    table = _table("words", "edits", "copies", *rules)
    before = ""
    for row in rows:
        values = [_share(row["recall"][rule]) for rule in rules]
        shown = "" if (length := _length(row)) == before else length
        table.add_row(shown, str(row["edits"]), f"{row['copies']:,}", *values)
        before = length
    return table


def _length(row: Document) -> str:
    least, most = row["words"]
    words = f"{least}+" if most is None else f"{least}-{most}"
    return f"CJK {words}" if row["cjk"] else words


def _share(value: float) -> str:
    return f"{value:.3f}"


def _table(first: str, *others: str) -> Table:
    table = Table(first, box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for name in others:
        table.add_column(name, justify="right")
    return table
