"""The exact similarity of two texts, for explanations and measurements."""

from __future__ import annotations

import numpy as np

from crawler.sketches.normal import code_points, normal_text
from crawler.sketches.shapes import EXACT, Shape
from crawler.sketches.sketch import hashes_of


def jaccard(one: str, other: str, shape: Shape) -> float:
    """Shared shingles among all shingles of two texts; 0 where one is shorter than a shingle."""
    if shape == EXACT:
        return float(normal_text(one) == normal_text(other))
    first, second = (hashes_of(code_points(normal_text(text)), shape) for text in (one, other))
    if first is None or second is None:
        return 0.0
    a, b = np.unique(first), np.unique(second)
    shared = np.intersect1d(a, b, assume_unique=True).size
    return shared / (a.size + b.size - shared)
