"""Sketches of texts: shingles, MinHash values, bands.

Shingles and bands depend on the text, with overlapping ranges:

    CJK share   up to 0.6: 5 characters   from 0.4: 3 characters
    words       up to 60: 25 bands of 5   from 40: 16 bands of 7

Texts within an overlap have both kinds, so that a text is still found after an edit across a limit.
A text shorter than a shingle is represented by its hash, so that it matches only exactly. An empty
text has no sketch and matches nothing.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from crawler.dedup import kernels
from crawler.dedup.kernels import FNV_PRIME, FNV_START, Bytes, CodePoints, Values, band_keys, minima
from crawler.dedup.posts import compared_points, normal_text
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
# Number of minima in each of the paper's features, and bits of a feature.
GROUP, FEATURE_BITS = 14, 64
# Minimum share of CJK characters for CJK shingles, and maximum share for other shingles.
CJK_FROM, CJK_TO = 0.4, 0.6
# Minimum number of words for long bands, and maximum number for short bands.
LONG_FROM, SHORT_TO = 40.0, 60.0
CJK_A_WORD = 2


@cache
def permutations(count: int = VALUES) -> tuple[Values, Values]:
    """Return (count,) odd factors and (count,) summands, as datasketch's for its default seed."""
    random = np.random.RandomState(SEED)
    factors = random.randint(0, HALF, count, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    return factors, random.randint(0, WHOLE, count, dtype=np.uint32)


def values_of(hashes: Values, count: int = VALUES) -> Values:
    """Return (count,) MinHash values of 32-bit shingle hashes, which may have repetitions."""
    return minima(hashes, *permutations(count))


def low_bytes(values: Values) -> Bytes:
    """Return the stored form of a signature: the low 8 bits of each value (b-bit MinHash)."""
    return values.astype(np.uint8)


def similarity(left: Bytes, right: Bytes) -> float:
    """Return the estimated Jaccard similarity of two signatures of low bytes."""
    return jaccard_of(np.count_nonzero(left == right) / left.size)


def as_datasketch(values: Values) -> MinHash:
    """Return a MinHash of datasketch with these values, whose hash function is `shingle_hash`."""
    from datasketch import MinHash  # imports scipy, which takes half a second

    return MinHash(
        hashvalues=values,
        permutations=permutations(values.size),
        seed=SEED,
        scheme=SCHEME,
        hashfunc=shingle_hash,
    )


def shingle_hash(shingle: bytes) -> int:
    """Return the 32-bit hash of a shingle of UTF-8 characters, equal to that of the kernels."""
    value = int(FNV_START)
    for point in map(ord, shingle.decode("utf-8", "surrogatepass")):
        value = ((value ^ point) * int(FNV_PRIME)) & 0xFFFFFFFF
    return value


def features_of(hashes: Values) -> Bytes:
    """Return (48,) bytes: six features of 8 bytes of 32-bit shingle hashes."""
    values = values_of(hashes, FEATURES * GROUP).view(np.uint8)
    tag = SUPERSHINGLES.code
    return band_keys(values, FEATURES, GROUP * 4, tag, FEATURE_BITS).view(np.uint8)


def by_characters(text: str) -> Sketch | None:
    """Return the sketch of a text by its characters; None for an empty text."""
    points = compared_points(text)
    signatures = np.empty((2, VALUES), np.uint8)
    cjk, other, words = kernels.character_signatures(
        points, (CHARACTERS_SHAPE.width, CJK_SHAPE.width), (CJK_TO, CJK_FROM), *permutations(),
        np.empty(points.size + VALUES, np.uint32), signatures,
    )  # fmt: skip
    share = cjk / max(1, cjk + other)
    parts = {}
    if share <= CJK_TO and points.size >= CHARACTERS_SHAPE.width:
        parts[CHARACTERS_SHAPE] = signatures[0]
    if share >= CJK_FROM and points.size >= CJK_SHAPE.width:
        parts[CJK_SHAPE] = signatures[1]
    return Sketch(parts, bandings_of(words, cjk)) if parts else exactly(text)


def by_words(text: str) -> Sketch | None:
    """Return the sketch of a text by its words, each CJK character a word; None if empty."""
    points = compared_points(text)
    hashes = hashes_of(points, WORDS_SHAPE)
    if hashes is None:
        return exactly(text)
    bandings = bandings_of(hashes.size + WORDS_SHAPE.width - 1)
    return Sketch({WORDS_SHAPE: low_bytes(values_of(hashes))}, bandings)


def by_supershingles(text: str) -> Sketch | None:
    """Return the paper's features of a text; None for an empty text."""
    hashes = hashes_of(compared_points(text), SUPERSHINGLES)
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
    """Return the hashes of a compared text's shingles; None if the text is shorter than one."""
    units = kernels.tokens(points) if shape.words else points
    return kernels.shingle_hashes(units, shape.width) if units.size >= shape.width else None


def bandings_of(words: int, cjk: int = 0) -> tuple[Banding, ...]:
    """Return the bandings of a text by its numbers of words and CJK characters."""
    length = words + cjk / CJK_A_WORD
    short = (SHORT,) if length <= SHORT_TO else ()
    return short + ((LONG,) if length >= LONG_FROM else ())


def jaccard(left: str, right: str, shape: Shape) -> float:
    """Return the exact Jaccard similarity of two texts; 0 if one is shorter than a shingle."""
    if shape == EXACT:
        return float(normal_text(left) == normal_text(right))
    first, second = (hashes_of(compared_points(text), shape) for text in (left, right))
    if first is None or second is None:
        return 0.0
    a, b = np.unique(first), np.unique(second)
    shared = np.intersect1d(a, b, assume_unique=True).size
    return shared / (a.size + b.size - shared)


def library_estimate(left: str, right: str, shape: Shape) -> float:
    """Return datasketch's estimate of the Jaccard similarity, independent of our sketches.

    Returns 0 if one text is shorter than a shingle.
    """
    hashes = [hashes_of(compared_points(text), shape) for text in (left, right)]
    first, second = (
        None if values is None else as_datasketch(values_of(values)) for values in hashes
    )
    return 0.0 if first is None or second is None else float(first.jaccard(second))
