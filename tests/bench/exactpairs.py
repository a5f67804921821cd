"""All pairs of similar texts, by an exact comparison of each text with all earlier ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from numba import njit

from crawler.dedup import minhash
from crawler.dedup.minhash import hashes_of
from crawler.dedup.sketch import CHARACTERS_SHAPE, CJK_SHAPE
from crawler.dedup.text import compared_points

Ints = npt.NDArray[np.int64]


def earlier_at_least(texts: Sequence[str], least: float) -> list[int]:
    """Return the numbers of texts with at least this exact Jaccard to an earlier text."""
    sets = [_shingles(text) for text in texts]
    sizes = np.array([one.size for one in sets])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    _, shingle = np.unique(np.concatenate(sets), return_inverse=True)
    order = np.argsort(shingle, kind="stable")
    text_of = np.repeat(np.arange(len(sets)), sizes)[order]
    first = np.searchsorted(shingle[order], np.arange(shingle.max() + 2))
    return np.flatnonzero(_best(shingle, starts, text_of, first, sizes) >= least).tolist()


def _shingles(text: str) -> Ints:
    points = compared_points(text)
    cjk, other, _ = minhash.count_outside(points, np.zeros(points.size, np.bool_))
    shape = CJK_SHAPE if 2 * cjk >= cjk + other else CHARACTERS_SHAPE
    hashes = hashes_of(points, shape)
    if hashes is None:
        return np.empty(0, np.int64)
    return np.unique(hashes).astype(np.int64) + (shape.code << 33)


@njit
def _best(shingle, starts, text_of, first, sizes):  # type: ignore[no-untyped-def]
    best = np.zeros(sizes.size)
    shared = np.zeros(sizes.size, np.int64)
    for i in range(sizes.size):
        shared[:i] = 0
        for at in range(starts[i], starts[i + 1]):
            for place in range(first[shingle[at]], first[shingle[at] + 1]):
                j = text_of[place]
                if j >= i:
                    break
                shared[j] += 1
        for j in range(i):
            both = sizes[i] + sizes[j] - shared[j]
            if both:
                best[i] = max(best[i], shared[j] / both)
    return best
