"""How a text becomes a sketch: which shingles, and which bands.

By the kind of text:

    CJK share   up to .6: 5 characters   from .4: 3 characters   (both between)
    words       up to 60: 25 bands of 5  from 40: 16 bands of 8  (both between)

so that an edit across a border finds what stands on the other side. A text shorter than a shingle
is known by its exact hash; an empty one has no sketch and is like nothing.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from crawler.dedup import kernels
from crawler.dedup.arrays import Bytes, CodePoints, Values
from crawler.dedup.kernels import FNV_PRIME, FNV_START, band_keys, minima
from crawler.dedup.post_text import code_points, normal_text
from crawler.dedup.sketch import (
    CHARACTERS_SHAPE,
    CJK_SHAPE,
    EXACT,
    FEATURES,
    LONG,
    SHORT,
    SUPERSHINGLES,
    VALUES,
    WORDS_SHAPE,
    Banding,
    Shape,
    Sketch,
    jaccard_of,
)

if TYPE_CHECKING:
    from datasketch import MinHash

SEED = 1
SCHEME = "affine32"
HALF, WHOLE = 1 << 31, 1 << 32
# Minima of one of the paper's features, and bits of the feature.
GROUP, FEATURE_BITS = 14, 64
# From which share of CJK characters on a text is cut as such, up to which as any other.
CJK_FROM, CJK_TO = 0.4, 0.6
# From how many words on a text has long bands, up to how many short ones.
LONG_FROM, SHORT_TO = 40.0, 60.0
CJK_A_WORD = 2


@cache
def permutations(count: int = VALUES) -> tuple[Values, Values]:
    """Odd factors and summands, (count,) each, as datasketch draws them for its default seed."""
    random = np.random.RandomState(SEED)
    factors = random.randint(0, HALF, count, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    return factors, random.randint(0, WHOLE, count, dtype=np.uint32)


def values_of(hashes: Values, count: int = VALUES) -> Values:
    """(count,) the MinHash of a set of 32-bit shingle hashes, repetitions welcome."""
    return minima(hashes, *permutations(count))


def low_bytes(values: Values) -> Bytes:
    """The signature as it is stored: 8 bits a value tell as much as 32 (b-bit MinHash)."""
    return values.astype(np.uint8)


def similarity(left: Bytes, right: Bytes) -> float:
    """Estimated Jaccard of two signatures of low bytes."""
    return jaccard_of(np.count_nonzero(left == right) / left.size)


def as_datasketch(values: Values) -> MinHash:
    """A MinHash of datasketch with these values; it goes on with `shingle_hash`."""
    from datasketch import MinHash  # brings half a second of scipy

    return MinHash(
        hashvalues=values,
        permutations=permutations(values.size),
        seed=SEED,
        scheme=SCHEME,
        hashfunc=shingle_hash,
    )


def shingle_hash(shingle: bytes) -> int:
    """The 32-bit hash of a shingle of characters in UTF-8, as the kernels make it."""
    value = int(FNV_START)
    for point in map(ord, shingle.decode("utf-8", "surrogatepass")):
        value = ((value ^ point) * int(FNV_PRIME)) & 0xFFFFFFFF
    return value


def features_of(hashes: Values) -> Bytes:
    """(48,) six features of 8 bytes of a set of 32-bit shingle hashes."""
    values = values_of(hashes, FEATURES * GROUP).view(np.uint8)
    tag = SUPERSHINGLES.code
    return band_keys(values, FEATURES, GROUP * 4, tag, FEATURE_BITS).view(np.uint8)


def by_characters(text: str) -> Sketch | None:
    """Return the sketch of a text by its characters; None for an empty text."""
    normal = normal_text(text)
    points = code_points(normal)
    cjk, other, words = kernels.count(points)
    share = cjk / max(1, cjk + other)
    shapes: tuple[Shape, ...] = (CHARACTERS_SHAPE,) if share <= CJK_TO else ()
    shapes += (CJK_SHAPE,) if share >= CJK_FROM else ()
    return _sketch(normal, points, shapes, bandings_of(words, cjk))


def by_words(text: str) -> Sketch | None:
    """Return the sketch of a text by its words, each CJK character a word; None if empty."""
    normal = normal_text(text)
    points = code_points(normal)
    return _sketch(normal, points, (WORDS_SHAPE,), bandings_of(kernels.tokens(points).size))


def by_supershingles(text: str) -> Sketch | None:
    """Return the paper's features of a text; None for an empty text."""
    normal = normal_text(text)
    hashes = hashes_of(code_points(normal), SUPERSHINGLES)
    if hashes is None:
        return exactly(text)
    return Sketch({SUPERSHINGLES: features_of(hashes)})


def exactly(text: str) -> Sketch | None:
    """Return a sketch that matches only the same normal text; None for an empty text."""
    normal = normal_text(text)
    if not normal:
        return None
    data = normal.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(data, digest_size=EXACT.size).digest()
    return Sketch({EXACT: np.frombuffer(digest, np.uint8)})


def hashes_of(points: CodePoints, shape: Shape) -> Values | None:
    """Return the hashes of a normal text's shingles; None if the text is shorter than one."""
    units = kernels.tokens(points) if shape.words else points
    return kernels.shingle_hashes(units, shape.width) if units.size >= shape.width else None


def bandings_of(words: int, cjk: int = 0) -> tuple[Banding, ...]:
    """Return the bandings of a text by its numbers of words and CJK characters."""
    length = words + cjk / CJK_A_WORD
    short = (SHORT,) if length <= SHORT_TO else ()
    return short + ((LONG,) if length >= LONG_FROM else ())


def _sketch(
    normal: str, points: CodePoints, shapes: tuple[Shape, ...], bandings: tuple[Banding, ...]
) -> Sketch | None:
    parts = {
        shape: low_bytes(values_of(hashes))
        for shape in shapes
        if (hashes := hashes_of(points, shape)) is not None
    }
    if not parts:
        return exactly(normal)
    return Sketch(parts, bandings)


def jaccard(left: str, right: str, shape: Shape) -> float:
    """Shared shingles among all shingles of two texts; 0 where one is shorter than a shingle."""
    if shape == EXACT:
        return float(normal_text(left) == normal_text(right))
    first, second = (hashes_of(code_points(normal_text(text)), shape) for text in (left, right))
    if first is None or second is None:
        return 0.0
    a, b = np.unique(first), np.unique(second)
    shared = np.intersect1d(a, b, assume_unique=True).size
    return shared / (a.size + b.size - shared)


def library_estimate(left: str, right: str, shape: Shape) -> float:
    """The Jaccard of two texts' shingles as datasketch estimates it; independent of our sketches.

    0 where one is shorter than a shingle.
    """
    hashes = [hashes_of(code_points(normal_text(text)), shape) for text in (left, right)]
    first, second = (
        None if values is None else as_datasketch(values_of(values)) for values in hashes
    )
    return 0.0 if first is None or second is None else float(first.jaccard(second))
