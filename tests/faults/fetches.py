"""What the site's own log says of a pass: how often each page was fetched, and why again."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

Row = dict[str, Any]
# What a Redis that is killed has not written yet, and what is on its way when a server comes back.
AROUND_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Blow:
    """What happened to a worker or a server. began, ended: Unix times.

    agent: user agent of the worker that was killed; empty where a server was away
    """

    what: str
    began: float
    ended: float
    agent: str = ""


@dataclass(slots=True)
class Fetches:
    """Requests of a pass. pages: how often each path was answered.

    cut:         asked for by a worker that was gone when the answer came
    in_flight:   answered again, as the first worker was killed with the page in its hands
    while_away:  answered again, as a server was away
    unexplained: paths of all others that were answered again
    longest_seconds: from an answer to the kill that lost it, at most
    """

    pages: Counter[str] = field(default_factory=Counter)
    cut: int = 0
    in_flight: int = 0
    while_away: int = 0
    unexplained: list[str] = field(default_factory=list)
    longest_seconds: float = 0.0

    @property
    def answered(self) -> int:
        """All answers."""
        return self.pages.total()

    @property
    def again(self) -> int:
        """Answers beyond the first of each page."""
        return self.answered - len(self.pages)


def fetches(rows: Iterable[Row], blows: Sequence[Blow]) -> Fetches:
    """What the rows of the site's log say."""
    found = Fetches()
    by_path: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_path[row["path"]].append(row)
        found.cut += not row["complete"]
    for path, some in by_path.items():
        answered = sorted((row for row in some if row["complete"]), key=lambda row: row["at"])
        if answered:
            found.pages[path] = len(answered)
        for first, again in pairwise(answered):
            _explain(found, path, first, again["at"], blows)
    return found


def _explain(found: Fetches, path: str, first: Row, again: float, blows: Sequence[Blow]) -> None:
    for blow in blows:
        is_its = blow.agent == first["agent"]
        if is_its and first["at"] <= blow.ended and blow.began <= again:
            found.in_flight += 1
            found.longest_seconds = max(found.longest_seconds, blow.ended - first["answered"])
            return
    if any(_is_around(blow, first, again) for blow in blows if not blow.agent):
        found.while_away += 1
    else:
        found.unexplained.append(path)


def _is_around(blow: Blow, first: Row, again: float) -> bool:
    ends_late = first["answered"] >= blow.began - AROUND_SECONDS
    return ends_late and first["at"] <= blow.ended + AROUND_SECONDS and again >= blow.began
