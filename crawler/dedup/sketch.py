"""A text's sketch as it is stored: signatures to compare it by, from which its bands are made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import NamedTuple

import numpy as np

from crawler.dedup.arrays import Bytes, Keys

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
CJK_SHAPE = Shape(3, 3)
CHARACTERS_SHAPE = Shape(5, 5)
WORDS_SHAPE = Shape(10, 5, words=True)
SUPERSHINGLES = Shape(6, 5, words=True, values=6, value_size=8)
SHAPES = {
    shape.code: shape for shape in (EXACT, CJK_SHAPE, CHARACTERS_SHAPE, WORDS_SHAPE, SUPERSHINGLES)
}

SHORT, LONG = Banding(25, 5), Banding(16, 8)
# Between posts of one source that share boilerplate: so alike has to be what else they have.
MIN_OWN_SIMILARITY = 0.4
# Between other posts: so much of what a post has besides its boilerplate has to be in the other.
MIN_CONTAINED = 0.2
SHARE_STEPS = 255
# Where the shape's code would stand. Then: bandings, tags of source and title, share.
OWN_CODE, OWN_HEAD, TAG_BYTES = 255, 7, 2
UNTITLED = bytes(TAG_BYTES)
# 47 bits are the most that MongoDB's index keeps in six bytes.
KEY_BITS = 47
FEATURES = SUPERSHINGLES.values
AGREEING = 2
PAIRS = np.array(list(combinations(range(FEATURES), AGREEING)))
PAIR_TAG = SUPERSHINGLES.code * 16


@dataclass(frozen=True, eq=False)
class OwnText:
    """The part of a text outside of its source's boilerplate.

    tag:      two bytes that name the source
    title:    two bytes that name the title; UNTITLED where there is none
    steps:    its share of the text, in steps of 1 / SHARE_STEPS
    parts:    signature by shape; none where next to nothing is left
    bandings: how it is found
    """

    tag: bytes
    title: bytes
    steps: int
    parts: dict[Shape, Bytes]
    bandings: tuple[Banding, ...] = ()

    @property
    def share(self) -> float:
        """Its share of the text."""
        return self.steps / SHARE_STEPS


@dataclass(frozen=True, eq=False)
class Sketch:
    """The stored form of a text.

    parts:    signature by shape
    bandings: how the text is found, where its shape is cut into bands
    own:      None where no boilerplate is known in it
    """

    parts: dict[Shape, Bytes]
    bandings: tuple[Banding, ...] = ()
    own: OwnText | None = None

    @cached_property
    def bands(self) -> Keys:
        """Return all keys under which the text is found; shapes never share keys."""
        keys = [_bands(shape, part, self.bandings) for shape, part in self.parts.items()]
        if (own := self.own) is not None:
            keys += [_bands(shape, part, own.bandings) for shape, part in own.parts.items()]
        return np.unique(np.concatenate(keys))

    def similarity(self, other: Sketch) -> float:
        """Estimated Jaccard of two texts, by the shape that shows more of it.

        Boilerplate tells nothing: where it is known, texts are as alike as what else they have.
        An edited copy may be more alike as a whole; that counts if what else they have is alike
        to some degree. It does not count between posts of one source with different titles: their
        publisher tells them apart.
        """
        whole = _likeness(self.parts, other.parts)
        if self.own is None and other.own is None:
            return whole
        mine, its = self._own_parts, other._own_parts
        if not mine and not its:
            return whole
        own = _likeness(mine, its)
        if own >= whole or not (self._is_alike(other, own) and other._is_alike(self, own)):
            return own
        return whole

    @property
    def _own_parts(self) -> dict[Shape, Bytes]:
        return self.parts if self.own is None else self.own.parts

    def _is_alike(self, other: Sketch, own: float) -> bool:
        """Return whether enough of the text outside of boilerplate is in the other text."""
        if self.own is None:
            return True
        if other.own is not None and other.own.tag == self.own.tag:
            titles = {self.own.title, other.own.title}
            return own >= MIN_OWN_SIMILARITY and (len(titles) == 1 or UNTITLED in titles)
        if not self.own.parts:
            return True
        # The other text may have this one's boilerplate, and its own may not be known yet.
        return _likeness(self.own.parts, other.parts) >= MIN_CONTAINED * self.own.share

    def encode(self) -> bytes:
        """As it is stored: a byte for the bandings, then each shape's code and values.

        What is besides boilerplate follows in the same form, after OWN_CODE.
        """
        stored = bytes([_flags_of(self.bandings)]) + _encoded(self.parts)
        if self.own is None:
            return stored
        tags = self.own.tag + self.own.title
        head = bytes([OWN_CODE, _flags_of(self.own.bandings), *tags, self.own.steps])
        return stored + head + _encoded(self.own.parts)

    @classmethod
    def decode(cls, stored: bytes) -> Sketch:
        """Return the sketch of a stored form; raise ValueError if the form is invalid."""
        if len(stored) < 2:
            raise ValueError("a sketch has at least one signature")
        at = 1
        whole: dict[Shape, Bytes] = {}
        parts, own = whole, None
        while at < len(stored):
            if stored[at] == OWN_CODE and own is None and len(stored) >= at + OWN_HEAD:
                parts, flags, mid, end = {}, stored[at + 1], at + 2 + TAG_BYTES, at + OWN_HEAD - 1
                tags = stored[at + 2 : mid], stored[mid:end]
                own = OwnText(*tags, stored[end], parts, _bandings_of(flags))
                at += OWN_HEAD
                continue
            shape = SHAPES.get(stored[at])
            if shape is None:
                raise ValueError(f"no shape of shingles has the code {stored[at]}")
            parts[shape] = np.frombuffer(stored, np.uint8, shape.size, at + 1)
            at += 1 + shape.size
        return cls(whole, _bandings_of(stored[0]), own)


def _flags_of(bandings: tuple[Banding, ...]) -> int:
    return (SHORT in bandings) + 2 * (LONG in bandings)


def _bandings_of(flags: int) -> tuple[Banding, ...]:
    return ((SHORT,) if flags & 1 else ()) + ((LONG,) if flags & 2 else ())


def _encoded(parts: dict[Shape, Bytes]) -> bytes:
    return b"".join(bytes([shape.code]) + part.tobytes() for shape, part in parts.items())


def _likeness(left: dict[Shape, Bytes], right: dict[Shape, Bytes]) -> float:
    """Estimated Jaccard by the shape that shows more of it; 0 where they have none in common."""
    most = 0.0
    for shape in left.keys() & right.keys():
        same = left[shape] == right[shape]
        if shape.value_size == 1:
            alike = jaccard_of(np.count_nonzero(same) / shape.values)
        else:
            alike = float(same.reshape(shape.values, shape.value_size).all(axis=1).mean())
        most = max(most, alike)
    return most


def _bands(shape: Shape, part: Bytes, bandings: tuple[Banding, ...]) -> Keys:
    # Machine code is loaded only where something is looked up.
    from crawler.dedup import kernels

    if shape == EXACT:
        return kernels.band_keys(part, 1, shape.size, shape.code, KEY_BITS)
    if shape == SUPERSHINGLES:
        return pair_keys(part, KEY_BITS)
    keys = [
        kernels.band_keys(part, bands, rows, shape.code * 16 + rows, KEY_BITS)
        for bands, rows in bandings
    ]
    return np.concatenate(keys)


def pair_keys(features: Bytes, bits: int) -> Keys:
    """Return (15,) keys of `bits` bits, one per pair of features."""
    from crawler.dedup.kernels import band_keys

    size = SUPERSHINGLES.value_size
    pairs = features.reshape(FEATURES, size)[PAIRS].reshape(len(PAIRS), -1)
    width = AGREEING * size
    return band_keys(np.ascontiguousarray(pairs).ravel(), len(PAIRS), width, PAIR_TAG, bits)


def jaccard_of(agreeing: float) -> float:
    """Estimated Jaccard where this share of the bytes agrees; standard error .04 at .7.

    Two different values agree in their low byte once in 256 (Li and König 2010, equation 5).
    """
    return max(0.0, float(agreeing * VALUES_A_BYTE - 1) / (VALUES_A_BYTE - 1))
