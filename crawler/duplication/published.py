"""What the paper printed, and what its formulas give (Lee, Lee, Kim 2010). Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

PAGE_BYTES = 1024
DOCUMENTS = 1_500_000


@dataclass(frozen=True, slots=True)
class Scheme:
    """An index scheme of the paper.

    trees:     that are searched at worst
    key_bytes: of an entry; a page holds 1,024 bytes of them
    entries:   of a document in one tree
    worst:     page reads at worst as printed for 1.5 M documents
    reads:     mean page reads as measured there
    seconds:   a query as measured there
    """

    trees: int
    key_bytes: int
    entries: int
    worst: float
    reads: float
    seconds: float

    def reads_a_tree(self, documents: int) -> float:
        """Pages from the root of one tree down, by the paper's formula."""
        return math.log(self.entries * documents, PAGE_BYTES // self.key_bytes)

    def worst_reads(self, documents: int) -> float:
        """Page reads of a query that finds nothing, without post-processing."""
        return self.trees * self.reads_a_tree(documents)

    @property
    def trees_read(self) -> float:
        """How many trees the printed mean of page reads amounts to."""
        return self.reads / self.reads_a_tree(DOCUMENTS)


SCHEMES = {
    "B6D1": Scheme(6, 4, 1, worst=14.9, reads=23.3, seconds=0.244),
    "R15D2": Scheme(15, 8, 1, worst=42.6, reads=29.9, seconds=0.214),
    "R1D3": Scheme(15, 12, 15, worst=55.0, reads=38.9, seconds=0.417),
}
