"""What is measured of an index of near-duplicates: over its whole fill, and at the end of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from tests.bench.claimsposts import Made

BATCH = 200
MOST_TIMED = 10_000


def window(size: int, most: int = MOST_TIMED) -> int:
    """Number of the first post that is timed for a size: those before it only fill."""
    return size - min(size // 10, most)


@dataclass(frozen=True, slots=True)
class Measured:
    """An index at a size. Rates are of the median batch of posts.

    claimed: a second: checked and claimed (datasketch: queried and inserted)
    signed:  a second, with the signature in MongoDB; None where there is none
    stored:  a second, with the post's document
    filling: a second, all of that over the whole fill
    p50_ms, p99_ms: of so many posts as are claimed `together`
    size:    bytes a post of index and signature; beside: in MongoDB, where Redis claims;
             files: of MongoDB, which have room for more
    found:   share of the timed posts made as copies that were flagged
    parts:   share of each step in the time
    """

    posts: int
    claimed: float
    filling: float
    p50_ms: float
    p99_ms: float
    together: int
    size: float
    found: float
    signed: float | None = None
    stored: float | None = None
    beside: float | None = None
    files: float | None = None
    parts: dict[str, float] = field(default_factory=dict)


class Meter:
    """A stop watch: `start`, a `lap` after each step, `end`; the window's times are kept."""

    def __init__(self) -> None:
        self.posts, self.seconds = 0, 0.0
        self.kept: list[dict[str, float]] | None = None
        self.found = self.made = 0

    def open_window(self) -> None:
        """Keep times from here on, and those alone."""
        self.kept, self.found, self.made = [], 0, 0

    def close_window(self) -> None:
        """Keep none any more."""
        self.kept = None

    def start(self) -> None:
        """Now."""
        self._steps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, step: str) -> None:
        """The step ends here."""
        now = time.perf_counter()
        self._steps[step] = now - self._last
        self._last = now

    def part(self, step: str, name: str, seconds: float) -> None:
        """So much of a step was another."""
        self._steps[step] -= seconds
        self._steps[name] = seconds

    def end(self, batch: list[Made], flagged: set[int]) -> None:
        """The batch is done. flagged: numbers of those that are taken for copies."""
        self.posts += len(batch)
        self.seconds += sum(self._steps.values())
        if self.kept is not None:
            self.kept.append(self._steps)
            copies = {one.number for one in batch if one.is_copy}
            self.made += len(copies)
            self.found += len(copies & flagged)

    def percentile_ms(self, percent: float) -> float:
        """Of the kept times, each with all its steps."""
        return float(np.percentile(self._sums(), percent)) * 1000

    def a_second(self, posts: int, *steps: str) -> float:
        """Posts of these steps in a second, over the median of batches; each time is of `posts`."""
        sums = self._sums(*steps)
        together = BATCH // posts
        batches = sums[: len(sums) // together * together].reshape(-1, together).sum(axis=1)
        return BATCH / float(np.median(batches))

    def _sums(self, *steps: str) -> np.ndarray:
        assert self.kept is not None
        return np.array([sum(row[step] for step in steps or row) for row in self.kept])

    def parts(self) -> dict[str, float]:
        """Share of each step."""
        assert self.kept is not None
        sums = {step: self._sums(step).sum() for step in self.kept[0]}
        return {step: float(one / sum(sums.values())) for step, one in sums.items()}
