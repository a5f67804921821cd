"""What a signature is of, and how it is cut into bands."""

from __future__ import annotations

from typing import NamedTuple

VALUES = 128
VALUES_A_BYTE = 256


class Shape(NamedTuple):
    """A kind of shingles and what is kept of them.

    code:       names the shape in a stored sketch
    width:      units a shingle; 0: the whole text is one
    words:      the units are words, else characters
    values:     how many values the signature has
    value_size: bytes a value
    """

    code: int
    width: int
    words: bool = False
    values: int = VALUES
    value_size: int = 1

    @property
    def size(self) -> int:
        """Bytes of a signature."""
        return self.values * self.value_size


class Banding(NamedTuple):
    """A signature cut into `bands` pieces of `rows` values."""

    bands: int
    rows: int


EXACT = Shape(0, 0, values=1, value_size=16)
OF_CJK = Shape(3, 3)
OF_CHARACTERS = Shape(5, 5)
OF_WORDS = Shape(10, 5, words=True)
SUPERSHINGLES = Shape(6, 5, words=True, values=6, value_size=8)
SHAPES = {shape.code: shape for shape in (EXACT, OF_CJK, OF_CHARACTERS, OF_WORDS, SUPERSHINGLES)}

SHORT, LONG = Banding(25, 5), Banding(16, 8)
