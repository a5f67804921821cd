"""Stored sketches of texts.

A sketch has a signature for comparison, from which the bands are derived. Increase VERSION with
every change to the normal form, shingles, hashes, permutations or bands that makes new sketches
incompatible with stored ones. Sketches of different versions are never compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from crawler.dedup.points import Bytes, Keys


VALUES = 128
VALUES_A_BYTE = 256


class Shape(NamedTuple):
    """A kind of shingles and the format of their signature.

    code:       number of the shape in stored sketches
    width:      units per shingle; 0: the whole text is one shingle
    words:      whether units are words; else they are characters
    values:     number of values in the signature
    value_size: bytes per value
    """

    code: int
    width: int
    words: bool = False
    values: int = VALUES
    value_size: int = 1

    @property
    def size(self) -> int:
        """Return the number of bytes of a signature."""
        return self.values * self.value_size


class Banding(NamedTuple):
    """The split of a signature into `bands` pieces of `rows` values."""

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

SHORT, LONG = Banding(25, 5), Banding(16, 7)
# If two posts of one source share boilerplate: minimum similarity of their own parts.
MIN_OWN_SIMILARITY = 0.4
# For posts of different sources: minimum share of a post's own part that the other must contain.
MIN_CONTAINED = 0.2
SHARE_STEPS = 255
# The own part begins with OWN_CODE in place of a shape's code, then: bandings, tags of source and
# title, share.
OWN_CODE, OWN_HEAD, TAG_BYTES = 255, 7, 2
UNTITLED = bytes(TAG_BYTES)
# Maximum number of bits that MongoDB's index stores in six bytes.
KEY_BITS = 47
FEATURES = SUPERSHINGLES.values
VERSION = 3
NAMES = ("characters", "words", "supershingles")
# The paper's rule: 2 of 6 features agree.
SUPERSHINGLES_THRESHOLD = 2 / FEATURES
AGREEING = 2
PAIRS = np.array(list(combinations(range(FEATURES), AGREEING)))
PAIR_TAG = SUPERSHINGLES.code * 16


@dataclass(frozen=True, eq=False)
class OwnText:
    """The own part of a text: the text without its source's boilerplate.

    tag:      two-byte hash of the source
    title:    two-byte hash of the title; UNTITLED without a title
    steps:    share of the text, in steps of 1 / SHARE_STEPS
    parts:    signature by shape; empty if almost nothing is left
    bandings: of the own part
    """

    tag: bytes
    title: bytes
    steps: int
    parts: dict[Shape, Bytes]
    bandings: tuple[Banding, ...] = ()

    @property
    def share(self) -> float:
        """Return the own part's share of the text."""
        return self.steps / SHARE_STEPS


@dataclass(frozen=True, eq=False)
class Sketch:
    """The stored form of a text.

    parts:    signature by shape
    bandings: of the shapes that are split into bands
    own:      the own part; None if the text has no known boilerplate
    """

    parts: dict[Shape, Bytes]
    bandings: tuple[Banding, ...] = ()
    own: OwnText | None = None

    @cached_property
    def bands(self) -> Keys:
        """Return all keys under which the text is found, in order; shapes never share keys."""
        keys = self.repeated_bands()
        keys.sort()
        # np.unique takes twice as long, and few sketches repeat a key.
        is_same = keys[1:] == keys[:-1]
        return np.delete(keys, np.flatnonzero(is_same)) if is_same.any() else keys

    def repeated_bands(self) -> Keys:
        """Return the keys of `bands` in any order; some may be repeated."""
        keys = [_bands(shape, part, self.bandings) for shape, part in self.parts.items()]
        if (own := self.own) is not None:
            keys += [_bands(shape, part, own.bandings) for shape, part in own.parts.items()]
        return np.concatenate(keys)

    def similarity(self, other: Sketch) -> float:
        """Return the estimated Jaccard similarity, by the shape for which it is higher.

        If boilerplate is known, only the own parts are compared. However, an edited copy may be
        more similar as a whole text: that similarity counts if the own parts are similar to some
        degree. It does not count for posts of one source with different titles, because their
        publisher considers them different.
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
        # Compare with the whole other text, because its boilerplate may not be known yet.
        return _likeness(self.own.parts, other.parts) >= MIN_CONTAINED * self.own.share

    def encode(self) -> bytes:
        """Return the stored form: a byte for the bandings, then each shape's code and values.

        The own part follows OWN_CODE in the same format.
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
            raise ValueError("the sketch has no signature")
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
                raise ValueError(f"unknown shape code in a sketch: {stored[at]}")
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
    """Return the highest estimated Jaccard similarity by shape; 0 without a common shape."""
    most = 0.0
    for shape in left.keys() & right.keys():
        same = left[shape] == right[shape]
        if shape.value_size == 1:
            similarity = jaccard_of(np.count_nonzero(same) / shape.values)
        else:
            similarity = float(same.reshape(shape.values, shape.value_size).all(axis=1).mean())
        most = max(most, similarity)
    return most


def _bands(shape: Shape, part: Bytes, bandings: tuple[Banding, ...]) -> Keys:
    # Imported here, so that compiled code is loaded only for lookups.
    from crawler.dedup.band_keys import band_keys

    if shape == EXACT:
        return band_keys(part, 1, shape.size, shape.code, KEY_BITS)
    if shape == SUPERSHINGLES:
        return pair_keys(part, KEY_BITS)
    keys = [
        band_keys(part, bands, rows, shape.code * 16 + rows, KEY_BITS) for bands, rows in bandings
    ]
    return np.concatenate(keys)


def pair_keys(features: Bytes, bits: int) -> Keys:
    """Return (15,) keys of `bits` bits, one per pair of features."""
    from crawler.dedup.band_keys import band_keys

    size = SUPERSHINGLES.value_size
    pairs = features.reshape(FEATURES, size)[PAIRS].reshape(len(PAIRS), -1)
    width = AGREEING * size
    return band_keys(np.ascontiguousarray(pairs).ravel(), len(PAIRS), width, PAIR_TAG, bits)


def jaccard_of(agreeing: float) -> float:
    """Return the estimated Jaccard similarity for a share of equal bytes.

    Corrected for different values with the same low byte, which occur with a probability of 1/256
    (Li and König 2010, equation 5). The standard error is 0.04 at a similarity of 0.7.
    """
    return max(0.0, float(agreeing * VALUES_A_BYTE - 1) / (VALUES_A_BYTE - 1))
