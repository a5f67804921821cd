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
from numba import njit

from crawler.dedup.band_keys import band_keys
from crawler.dedup.points import SPACE, Bytes, CodePoints, Flags, Values, is_of_cjk
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
from crawler.dedup.text import compared_points, normal_text
from schedules.compiled import compiled

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
FNV_START, FNV_PRIME = np.uint32(0x811C9DC5), np.uint32(0x01000193)
FMIX_1, FMIX_2 = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
LARGEST = np.uint32(0xFFFFFFFF)
# Scripts without spaces have long runs of letters; a run counts as one word per LETTERS_A_WORD.
LETTERS_A_WORD = 12


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


def stored_minhash(stored: bytes) -> MinHash | None:
    """Return a stored sketch as a MinHash of datasketch, to explore a collection with its indexes.

    stored: the field `sketch` of a document in `signatures`

    Its values are the stored low bytes, so its `jaccard` is up to 1/256 too high, and it cannot be
    updated. None for a text that matches only exactly, and for supershingles. Of a text with two
    kinds of shingles, it has those of more characters.
    """
    shapes = {shape: part for shape, part in Sketch.decode(stored).parts.items() if part.size > 0}
    own = [shape for shape in shapes if shape.value_size == 1]
    if not own:
        return None
    values = shapes[max(own, key=lambda shape: shape.width)]
    return as_datasketch(values.astype(np.uint32))


def shingle_hash(shingle: bytes) -> int:
    """Return the 32-bit hash of a shingle of UTF-8 characters, equal to the compiled one."""
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
    cjk, other, words = character_signatures(
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
    units = tokens(points) if shape.words else points
    return shingle_hashes(units, shape.width) if units.size >= shape.width else None


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


@compiled
def count_outside(points: CodePoints, mask: Flags) -> tuple[int, int, int]:
    """Return the numbers of CJK characters, of other characters except spaces, and of words.

    mask: (n,) characters to leave out
    """
    cjk = other = words = run = 0
    for at in range(points.size):
        if mask[at]:
            continue
        point = points[at]
        is_cjk = is_of_cjk(point)
        if is_cjk:
            cjk += 1
        if is_cjk or point == SPACE:
            words += (run + LETTERS_A_WORD - 1) // LETTERS_A_WORD
            run = 0
        else:
            other += 1
            run += 1
    return cjk, other, words + (run + LETTERS_A_WORD - 1) // LETTERS_A_WORD


def tokens(points: CodePoints) -> Values:
    """Return (n,) hashes, one for each word; a CJK character is a word."""
    hashes = np.empty(points.size, np.uint32)
    return hashes[: _tokens(points, hashes)]


@compiled
def _tokens(points: CodePoints, hashes: Values) -> int:
    n, run, value = 0, 0, FNV_START
    for point in points:
        is_cjk = is_of_cjk(point)
        if run and (is_cjk or point == SPACE):
            hashes[n] = value
            n, run, value = n + 1, 0, FNV_START
        if is_cjk:
            hashes[n] = _fnv(FNV_START, point)
            n += 1
        elif point != SPACE:
            value = _fnv(value, point)
            run += 1
    if run:
        hashes[n] = value
        n += 1
    return n


def shingle_hashes(units: Values, width: int) -> Values:
    """Return (n - width + 1,) 32-bit FNV-1a hashes of each `width` consecutive units."""
    hashes = np.empty(units.size - width + 1, np.uint32)
    _shingle_hashes(units, width, hashes)
    return hashes


@compiled
def _shingle_hashes(units: Values, width: int, hashes: Values) -> None:
    for start in range(hashes.size):
        value = FNV_START
        for i in range(start, start + width):
            value = _fnv(value, units[i])
        hashes[start] = value


def minima(hashes: Values, a: Values, b: Values) -> Values:
    """Return (k,) minima over the hashes h of each permutation a * fmix(h) + b mod 2**32.

    This is the scheme affine32 of datasketch 2 with its pre-mixing (MurmurHash3's finalizer).
    """
    mixed, least = np.empty(hashes.size, np.uint32), np.empty(a.size, np.uint32)
    _minima(hashes, a, b, mixed, least)
    return least


@compiled
def _minima(hashes: Values, a: Values, b: Values, mixed: Values, least: Values) -> None:
    for i in range(hashes.size):
        mixed[i] = _fmix(hashes[i])
    _permute(mixed, hashes.size, a, b, least)


def minima_outside(
    units: Values, mask: Flags, width: int, a: Values, b: Values
) -> tuple[int, Values]:
    """Return the number of shingles that are completely outside of a mask, and their minima.

    mask: (n,) of the units
    """
    mixed, least = np.empty(units.size, np.uint32), np.empty(a.size, np.uint32)
    return _minima_outside(units, mask, width, a, b, mixed, least), least


@compiled
def _minima_outside(
    units: Values, mask: Flags, width: int, a: Values, b: Values, mixed: Values, least: Values
) -> int:
    count = run = 0
    for at in range(units.size):
        run = 0 if mask[at] else run + 1
        if run >= width:
            value = FNV_START
            for i in range(at - width + 1, at + 1):
                value = _fnv(value, units[i])
            mixed[count] = _fmix(value)
            count += 1
    _permute(mixed, count, a, b, least)
    return count


@compiled
def character_signatures(
    points: CodePoints,
    widths: tuple[int, int],
    limits: tuple[float, float],
    a: Values,
    b: Values,
    mixed: Values,
    signatures: Bytes,
) -> tuple[int, int, int]:
    """Fill the signatures of a text by its characters; return the numbers of `count_outside`.

    One call in place of several, which take longer than the work on a short text.

    widths:     characters per shingle of the first and the second signature
    limits:     maximum share of CJK characters for the first, minimum share for the second
    mixed:      (n + k,) buffer
    signatures: (2, k) low bytes of the minima; not written beyond a limit, or for a text that is
                shorter than a shingle
    """
    cjk, other, words = count_outside(points, np.zeros(points.size, np.bool_))
    share, least = cjk / max(1, cjk + other), mixed[points.size :]
    for each in range(2):
        width = widths[each]
        is_wanted = share <= limits[0] if each == 0 else share >= limits[1]
        if not is_wanted or points.size < width:
            continue
        hashes = mixed[: points.size - width + 1]
        _shingle_hashes(points, width, hashes)
        _minima(hashes, a, b, hashes, least)
        for k in range(least.size):
            signatures[each, k] = np.uint8(least[k] & np.uint32(0xFF))
    return cjk, other, words


@njit(inline="always")
def _fmix(value: np.uint32) -> np.uint32:
    """Mix the bits of a hash: MurmurHash3's finalizer."""
    # Numba widens products to 64 bits, so each is cast back to 32.
    value = np.uint32((value ^ (value >> np.uint32(16))) * FMIX_1)
    value = np.uint32((value ^ (value >> np.uint32(13))) * FMIX_2)
    return np.uint32(value ^ (value >> np.uint32(16)))


@njit(inline="always")
def _permute(mixed: Values, size: int, a: Values, b: Values, least: Values) -> None:
    """Write the minimum of each permutation over the first `size` values."""
    for k in range(a.size):
        smallest, factor, summand = LARGEST, a[k], b[k]
        for i in range(size):
            smallest = min(smallest, np.uint32(factor * mixed[i] + summand))
        least[k] = smallest


@njit(inline="always")
def _fnv(value: np.uint32, unit: np.uint32) -> np.uint32:
    return np.uint32((value ^ unit) * FNV_PRIME)
