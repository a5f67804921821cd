"""The code points of texts as arrays, and how they are folded. Compiled code."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from schedules.compiled import compiled

Values = npt.NDArray[np.uint32]
CodePoints = npt.NDArray[np.uint32]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Keys = npt.NDArray[np.int64]

SPACE = np.uint32(32)
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
