"""What the service did, for the line of each pass and the summary at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from crawler.utils.text import count

# Counts of the summary, and what they are called in a pass.
SUMS = {
    "visits": "fetched",
    "new": "new",
    "changed": "changed",
    "gone": "gone",
    "errors": "error",
    "blocked": "blocked",
    "posts": "posts",
    "missed": "missed_visits",
}


class Report:
    """Sums over all passes, by spider."""

    def __init__(self, words: Iterable[str]) -> None:
        self.names = {word: word for word in words}
        self.sums: dict[str, Counter[str]] = {word: Counter() for word in self.names}
        self.chores: Counter[str] = Counter()

    def meet(self, word: str) -> None:
        """Take up a site that was not known at the start."""
        self.names[word] = word
        self.sums[word] = Counter()

    def add(self, word: str, counts: dict[str, Any]) -> None:
        """Count a pass that ended well."""
        self.names[word] = counts["name"]
        self.sums[word]["passes"] += 1
        for name, in_a_pass in SUMS.items():
            self.sums[word][name] += int(counts[in_a_pass])

    def failed(self, word: str) -> None:
        """Count a pass that failed."""
        self.sums[word]["failed"] += 1

    def as_json(self, seconds: float) -> dict[str, Any]:
        """All of it."""
        return {
            "seconds": round(seconds, 1),
            "replans": self.chores["replan"],
            "prunes": self.chores["prune"],
            "spiders": [
                {"name": self.names[word]}
                | {name: sums[name] for name in ("passes", "failed", *SUMS)}
                for word, sums in self.sums.items()
            ],
        }


def line_of_a_pass(counts: dict[str, Any], seconds: float) -> str:
    """One pass in a line."""
    named = {name: int(counts[of]) for name, of in SUMS.items() if name != "visits"}
    named["still due"] = int(counts["due"])
    more = "".join(f", {n} {name}" for name, n in named.items() if n)
    return f"{counts['name']}: {count(int(counts['fetched']), 'visit')}{more}; {seconds:.1f} s"


def lines_at_the_end(done: dict[str, Any]) -> list[str]:
    """The summary for people."""
    lines = [
        f"{row['name']}: {_passes(row['passes'])}, {count(row['visits'], 'visit')}"
        + "".join(f", {row[name]} {name}" for name in (*SUMS, "failed") if _is_said(row, name))
        for row in done["spiders"]
    ]
    chores = f"{count(done['replans'], 'replan')}, {count(done['prunes'], 'prune')}"
    return [*lines, f"{chores}; {done['seconds']:.0f} s"]


def _is_said(row: dict[str, Any], name: str) -> bool:
    return name != "visits" and bool(row[name])


def _passes(n: int) -> str:
    return "1 pass" if n == 1 else f"{n:,} passes"
