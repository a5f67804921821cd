"""Analyze the site's own log of a run: the number of fetches of each page, and the reasons."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Row = dict[str, Any]
# Redis may lose its last writes when killed, and requests may be in flight when a server returns.
AROUND_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of a worker or a server. began, ended: Unix times.

    agent: user agent of the worker that was killed; empty if a server was unavailable
    """

    what: str
    began: float
    ended: float
    agent: str = ""


@dataclass(slots=True)
class Fetches:
    """The requests of a run. pages: number of answers of each path.

    cut:         requests of a worker that was killed before the answer
    in_flight:   requests repeated because the first worker was killed while processing the page
    while_away:  requests repeated because a server was unavailable
    unexplained: paths of all other repeated requests
    longest_seconds: longest time from an answer to the kill that lost it
    """

    pages: Counter[str] = field(default_factory=Counter)
    cut: int = 0
    in_flight: int = 0
    while_away: int = 0
    unexplained: list[str] = field(default_factory=list)
    longest_seconds: float = 0.0

    @property
    def answered(self) -> int:
        """Return the number of answers."""
        return self.pages.total()

    @property
    def again(self) -> int:
        """Return the number of answers beyond the first of each page."""
        return self.answered - len(self.pages)


def fetches(rows: Iterable[Row], faults: Sequence[Fault]) -> Fetches:
    """Analyze the rows of the site's log."""
    counts = Fetches()
    by_path: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_path[row["path"]].append(row)
        counts.cut += not row["complete"]
    for path, requests in by_path.items():
        answered = sorted((row for row in requests if row["complete"]), key=lambda row: row["at"])
        if answered:
            counts.pages[path] = len(answered)
        for first, again in pairwise(answered):
            _explain(counts, path, first, again["at"], faults)
    return counts


def _explain(counts: Fetches, path: str, first: Row, again: float, faults: Sequence[Fault]) -> None:
    for fault in faults:
        is_its = fault.agent == first["agent"]
        if is_its and first["at"] <= fault.ended and fault.began <= again:
            counts.in_flight += 1
            counts.longest_seconds = max(counts.longest_seconds, fault.ended - first["answered"])
            return
    if any(_is_around(fault, first, again) for fault in faults if not fault.agent):
        counts.while_away += 1
    else:
        counts.unexplained.append(path)


def _is_around(fault: Fault, first: Row, again: float) -> bool:
    ends_late = first["answered"] >= fault.began - AROUND_SECONDS
    return ends_late and first["at"] <= fault.ended + AROUND_SECONDS and again >= fault.began
