"""Compiled code for sketches: character counts, shingle hashes and MinHash minima.

In Python, shingling takes a millisecond per post with any library; compiled together with the
permutations it takes tens of microseconds. The compiled functions only write to arrays given
by their callers: without allocations of their own, they load in half the time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from schedules.compiled import compiled

FNV_START, FNV_PRIME = np.uint32(0x811C9DC5), np.uint32(0x01000193)
FMIX_1, FMIX_2 = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
SPACE = np.uint32(32)
LARGEST = np.uint32(0xFFFFFFFF)
# Scripts without spaces have long runs of letters; a run counts as one word per LETTERS_A_WORD.
LETTERS_A_WORD = 12
# What the table of `folded` has in place of a letter: drop the character, or drop it unless it is
# between two digits, like the point in 1.5.
DROP, BETWEEN_DIGITS = np.uint32(0), np.uint32(1)
ZERO, NINE = np.uint32(ord("0")), np.uint32(ord("9"))


@njit(inline="always")
def is_of_cjk(point: np.uint32) -> bool:
    """Return whether a code point is Chinese, Japanese or Korean."""
    return bool(
        point >= 0x3040
        and (
            point <= 0x312F  # kana, bopomofo
            or (0x31F0 <= point <= 0x31FF)
            or (0x3400 <= point <= 0x4DBF)
            or (0x4E00 <= point <= 0x9FFF)
            or (0xAC00 <= point <= 0xD7AF)  # hangul
            or (0xF900 <= point <= 0xFAFF)
            or (0x20000 <= point <= 0x3FFFF)
        )
    )


@njit(inline="always")
def _separates(before: np.uint32, after: np.uint32) -> bool:
    """Return whether a space between two characters separates words, as in all but Han and kana."""
    return not (
        (is_of_cjk(before) and not 0xAC00 <= before <= 0xD7AF)
        or (is_of_cjk(after) and not 0xAC00 <= after <= 0xD7AF)
    )


@njit(inline="always")
def _is_digit(point: np.uint32) -> bool:
    return bool(ZERO <= point <= NINE)


def folded(points: CodePoints, table: Values) -> CodePoints:
    """Return the (m,) code points of a text after replacing its first `table.size` characters.

    table: by code point, the character in its place, a space, DROP or BETWEEN_DIGITS. Spaces at
           the ends, repeated spaces, and spaces next to Chinese and Japanese are dropped as well.
    """
    result = np.empty(points.size, np.uint32)
    return result[: _fold(points, table, result)]


@compiled
def _fold(points: CodePoints, table: Values, result: Values) -> int:
    n, has_space = 0, False
    for at in range(points.size):
        point = points[at]
        if point < table.size:
            point = table[point]
            if point == BETWEEN_DIGITS:
                following = points[at + 1] if at + 1 < points.size else DROP
                if following < table.size:
                    following = table[following]
                is_kept = n > 0 and not has_space and _is_digit(result[n - 1])
                point = points[at] if is_kept and _is_digit(following) else DROP
            if point == DROP:
                continue
            if point == SPACE:
                has_space = True
                continue
        if has_space and n > 0 and _separates(result[n - 1], point):
            result[n] = SPACE
            n += 1
        has_space = False
        result[n] = point
        n += 1
    return n


def count(points: CodePoints) -> tuple[int, int, int]:
    """Return the numbers of CJK characters, of other characters except spaces, and of words."""
    return count_outside(points, np.zeros(points.size, np.bool_))


@compiled
def count_outside(points: CodePoints, mask: Flags) -> tuple[int, int, int]:
    """Return the numbers of `count` for a text without the masked characters."""
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
    """Fill the signatures of a text by its characters; return the numbers of `count`.

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


def band_keys(signature: Bytes, bands: int, rows: int, tag: int, bits: int) -> Keys:
    """Return (bands,) keys of `bits` bits, one per band of `rows` values; tags never share keys."""
    keys = np.empty(bands, np.int64)
    _band_keys(signature, rows, tag, bits, keys)
    return keys


@compiled
def _band_keys(signature: Bytes, rows: int, tag: int, bits: int, keys: Keys) -> None:
    for band in range(keys.size):
        value = np.uint64(tag * 1024 + band) * GOLDEN
        for row in range(band * rows, (band + 1) * rows):
            value = _mix(value ^ np.uint64(signature[row]))
        keys[band] = np.int64(value >> np.uint64(64 - bits))


@njit(inline="always")
def _mix(value: np.uint64) -> np.uint64:
    """Mix the bits of a value: SplitMix64's finalizer."""
    value += GOLDEN
    value = (value ^ (value >> np.uint64(30))) * MIX_1
    value = (value ^ (value >> np.uint64(27))) * MIX_2
    return value ^ (value >> np.uint64(31))


Values = npt.NDArray[np.uint32]
CodePoints = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Keys = npt.NDArray[np.int64]
