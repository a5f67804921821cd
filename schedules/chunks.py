"""A million targets in pieces: bounded memory, and as many threads as there are cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Part = slice
Made = TypeVar("Made")
CHUNK = 20_000


def parts(n: int) -> Iterator[Part]:
    """Slices that cover 0 to n; one, though empty, for none."""
    for begin in range(0, max(n, 1), CHUNK):
        yield slice(begin, min(begin + CHUNK, n))


def spread_over(work: Callable[[Part], Made], pieces: Iterator[Part]) -> list[Made]:
    """The results of `work` for each piece, in order; compiled kernels run side by side."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(work, pieces))
