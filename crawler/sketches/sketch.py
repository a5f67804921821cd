"""How a text becomes a sketch: which shingles, and which bands.

By the kind of text:

    CJK share   up to .6: 5 characters   from .4: 3 characters   (both between)
    words       up to 60: 25 bands of 5  from 40: 16 bands of 8  (both between)

so that an edit across a border finds what stands on the other side. A text shorter than a shingle
is known by its exact hash; an empty one has no sketch and is like nothing.
"""

from __future__ import annotations

import hashlib

import numpy as np

from crawler.sketches import kernels, minhash
from crawler.sketches.arrays import CodePoints, Values
from crawler.sketches.normal import code_points, normal_text
from crawler.sketches.shapes import (
    EXACT,
    LONG,
    OF_CHARACTERS,
    OF_CJK,
    OF_WORDS,
    SHORT,
    SUPERSHINGLES,
    Banding,
    Shape,
)
from crawler.sketches.stored import Sketch
from crawler.sketches.supershingles import features_of

CJK_FROM, CJK_TO = 0.4, 0.6
LONG_FROM, SHORT_TO = 40.0, 60.0
CJK_A_WORD = 2


def by_characters(text: str) -> Sketch | None:
    """The sketch of a text by its characters; None for an empty one."""
    normal = normal_text(text)
    points = code_points(normal)
    cjk, other, words = kernels.count(points)
    share = cjk / max(1, cjk + other)
    shapes: tuple[Shape, ...] = (OF_CHARACTERS,) if share <= CJK_TO else ()
    shapes += (OF_CJK,) if share >= CJK_FROM else ()
    return _sketch(normal, points, shapes, bandings_of(words, cjk))


def by_words(text: str) -> Sketch | None:
    """The sketch of a text by its words, each CJK character being one; None for an empty one."""
    normal = normal_text(text)
    points = code_points(normal)
    return _sketch(normal, points, (OF_WORDS,), bandings_of(kernels.tokens(points).size))


def by_supershingles(text: str) -> Sketch | None:
    """The paper's features of a text; None for an empty one."""
    normal = normal_text(text)
    hashes = hashes_of(code_points(normal), SUPERSHINGLES)
    if hashes is None:
        return exactly(text)
    return Sketch({SUPERSHINGLES: features_of(hashes)})


def exactly(text: str) -> Sketch | None:
    """A sketch that is like the same normal text only; None for an empty one."""
    normal = normal_text(text)
    if not normal:
        return None
    data = normal.encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(data, digest_size=EXACT.size).digest()
    return Sketch({EXACT: np.frombuffer(digest, np.uint8)})


def hashes_of(points: CodePoints, shape: Shape) -> Values | None:
    """Hashes of a normal text's shingles; None where it is shorter than one."""
    units = kernels.tokens(points) if shape.words else points
    return kernels.shingle_hashes(units, shape.width) if units.size >= shape.width else None


def bandings_of(words: int, cjk: int = 0) -> tuple[Banding, ...]:
    """The bands of a text with so many words and, besides, CJK characters."""
    length = words + cjk / CJK_A_WORD
    short = (SHORT,) if length <= SHORT_TO else ()
    return short + ((LONG,) if length >= LONG_FROM else ())


def _sketch(
    normal: str, points: CodePoints, shapes: tuple[Shape, ...], bandings: tuple[Banding, ...]
) -> Sketch | None:
    parts = {
        shape: minhash.low_bytes(minhash.values_of(hashes))
        for shape in shapes
        if (hashes := hashes_of(points, shape)) is not None
    }
    if not parts:
        return exactly(normal)
    return Sketch(parts, bandings)
