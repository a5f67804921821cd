"""Measurements of a near-duplicate index, while it is filled and at the end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from tests.bench.claimsposts import Made

BATCH = 200
MAX_TIMED = 10_000


def window(size: int, most: int = MAX_TIMED) -> int:
    """Return the number of the first timed post for a size; earlier posts only fill the index."""
    return size - min(size // 10, most)


@dataclass(frozen=True, slots=True)
class Measured:
    """Results at a size. Rates are posts per second of the median batch.

    claimed: rate of checking and claiming (datasketch: querying and inserting)
    stored:  rate with the post's document
    filling: rate of all steps over the whole fill
    p50_ms, p99_ms: latency of the number of posts claimed `together`
    size:    bytes per post of index and signature
    files: bytes per post of MongoDB's files, including reusable space
    found:   share of the timed copies that were flagged
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
    stored: float | None = None
    files: float | None = None
    parts: dict[str, float] = field(default_factory=dict)


class Meter:
    """A stopwatch for the window: call `start`, `lap` after each step, and `end`."""

    def __init__(self) -> None:
        self.posts, self.seconds = 0, 0.0
        self.kept: list[dict[str, float]] | None = None
        self.found = self.made = 0

    def open_window(self) -> None:
        """Drop all times so far, and keep the following ones."""
        self.kept, self.found, self.made = [], 0, 0

    def close_window(self) -> None:
        """Stop keeping times."""
        self.kept = None

    def start(self) -> None:
        """Start timing a batch."""
        self._steps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, step: str) -> None:
        """End a step."""
        now = time.perf_counter()
        self._steps[step] = now - self._last
        self._last = now

    def part(self, step: str, name: str, seconds: float) -> None:
        """Attribute part of a step's time to another step."""
        self._steps[step] -= seconds
        self._steps[name] = seconds

    def end(self, batch: list[Made], flagged: set[int]) -> None:
        """End a batch. flagged: numbers of the posts flagged as copies."""
        self.posts += len(batch)
        self.seconds += sum(self._steps.values())
        if self.kept is not None:
            self.kept.append(self._steps)
            copies = {one.number for one in batch if one.is_copy}
            self.made += len(copies)
            self.found += len(copies & flagged)

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile of the kept batch times."""
        return float(np.percentile(self._sums(), percent)) * 1000

    def a_second(self, posts: int, *steps: str) -> float:
        """Return the rate of these steps in the median batch; each time is for `posts` posts."""
        sums = self._sums(*steps)
        together = BATCH // posts
        batches = sums[: len(sums) // together * together].reshape(-1, together).sum(axis=1)
        return BATCH / float(np.median(batches))

    def _sums(self, *steps: str) -> np.ndarray:
        assert self.kept is not None
        return np.array([sum(row[step] for step in steps or row) for row in self.kept])

    def parts(self) -> dict[str, float]:
        """Return the share of each step."""
        assert self.kept is not None
        sums = {step: self._sums(step).sum() for step in self.kept[0]}
        return {step: float(one / sum(sums.values())) for step, one in sums.items()}
