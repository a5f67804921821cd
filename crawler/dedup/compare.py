"""Explain why two posts are or are not duplicates. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np

from crawler.dedup.minhash import jaccard, library_estimate
from crawler.dedup.schemes import Scheme
from crawler.dedup.sketch import EXACT, SUPERSHINGLES, Shape, Sketch

REBUILD = "run scrapy duplicates rebuild"
# Twice the standard error of an estimate from 128 values, at the default threshold.
TOLERANCE = 0.08


@dataclass(frozen=True, slots=True)
class ComparedPost:
    """One of two posts to compare: its current text, and its stored signature.

    scheme:   scheme of the stored sketch; None if none is stored
    at:       when the post was compared
    original: `_id` of the cluster's original; None without a cluster
    item:     the item that the post is a source of; None if it is the only source
    """

    key: str
    text: str
    sketch: Sketch | None
    scheme: str | None = None
    stored: Sketch | None = None
    at: datetime | None = None
    cluster: Any = None
    original: str | None = None
    item: str | None = None

    @property
    def is_changed(self) -> bool:
        """Return whether the post's text has changed since it was compared."""
        if self.stored is None or self.sketch is None:
            return self.stored is not self.sketch
        return self.stored.encode() != self.sketch.encode()


@dataclass(frozen=True, slots=True)
class Measured:
    """Similarity of two texts.

    shared_bands, of_bands: number of shared bands, and of bands that could be shared
    exact:                  exact Jaccard similarity by kind of shingles
    datasketch:             datasketch's estimates of these from full MinHash values
    """

    shared_bands: int
    of_bands: int
    similarity: float
    exact: dict[str, float]
    datasketch: dict[str, float] = field(default_factory=dict)


def measure(a: ComparedPost, b: ComparedPost, *, by_datasketch: bool = True) -> Measured:
    """Measure the similarity of two texts by their sketches and by their shingles.

    by_datasketch: also by the library datasketch
    """
    if a.sketch is None or b.sketch is None:
        return Measured(0, 0, 0.0, {})
    shapes = [shape for shape in a.sketch.parts if shape in b.sketch.parts]
    bandings = [banding for banding in a.sketch.bandings if banding in b.sketch.bandings]
    of_bands = 0
    for shape in shapes:
        if shape == EXACT:
            of_bands += 1
        elif shape == SUPERSHINGLES:
            of_bands += shape.values * (shape.values - 1) // 2
        else:
            of_bands += sum(banding.bands for banding in bandings)
    return Measured(
        np.intersect1d(a.sketch.bands, b.sketch.bands).size,
        of_bands,
        a.sketch.similarity(b.sketch),
        {shape_name(shape): jaccard(a.text, b.text, shape) for shape in shapes},
        {
            shape_name(shape): library_estimate(a.text, b.text, shape)
            for shape in shapes
            if by_datasketch and shape != EXACT
        },
    )


def shape_name(shape: Shape) -> str:
    """Return the name of a shape's shingles."""
    if shape == EXACT:
        return "whole text"
    return f"{shape.width} {'words' if shape.words else 'characters'}"


def is_same_item(a: ComparedPost, b: ComparedPost) -> bool:
    """Return whether both posts are sources of one item, such as a page and its feed post."""
    return a.item is not None and a.item == b.item


def are_duplicates(a: ComparedPost, b: ComparedPost) -> bool:
    """Return whether both posts are in one cluster and are different items."""
    return a.cluster is not None and a.cluster == b.cluster and not is_same_item(a, b)


def verdict(
    a: ComparedPost,
    b: ComparedPost,
    measured: Measured,
    scheme: Scheme,
    label: bool | None = None,
) -> str:
    """Return whether the posts are duplicates, and why if their texts suggest otherwise.

    label: whether a person labeled the posts as the same; None without a label
    """
    if is_same_item(a, b):
        return f"one item, not duplicates: both are sources of {a.item}"
    if label is not None and label == are_duplicates(a, b):
        return "duplicates: labeled as the same" if label else "not duplicates: labeled as such"
    is_similar = a.sketch is not None and measured.similarity >= scheme.threshold
    if are_duplicates(a, b):
        return f"duplicates: {_describe_copies(a, b, is_similar=is_similar)}"
    if is_similar:
        return f"similar, but not marked as duplicates: {_why_unmarked(a, b, measured, scheme)}"
    for name, side in (("A", a), ("B", b)):
        if side.sketch is None:
            return f"not duplicates: {name} has no text to compare"
    if not measured.exact:
        why = "one text is too short for the shingles by which the other is compared"
        return f"not duplicates: {why}"
    below = f"similarity {measured.similarity:.2f} is below {scheme.threshold:.2f}"
    if max(measured.exact.values()) >= scheme.threshold:
        below += f" (an estimate, with an error of up to {TOLERANCE:.2f})"
    return f"not duplicates: {below}"


def _describe_copies(a: ComparedPost, b: ComparedPost, *, is_similar: bool) -> str:
    """Return which post is a copy, and why if the texts are not similar."""
    result = f"both are copies of {a.original}"
    for name, side, other, copy in (("A", a, "B", b), ("B", b, "A", a)):
        if side.original == side.key:
            since = f" since {copy.at:%Y-%m-%d %H:%M}" if copy.at else ""
            result = f"{other} is a copy of {name}{since}"
    if is_similar:
        return result
    if a.is_changed or b.is_changed:
        return f"{result} (a text has changed since they were compared; {REBUILD})"
    if a.key in (a.original, b.original) or b.key in (a.original, b.original):
        return f"{result} (through another copy, which is similar to both)"
    return f"{result} (each is similar to the original, but they are not to each other)"


def _why_unmarked(a: ComparedPost, b: ComparedPost, measured: Measured, scheme: Scheme) -> str:
    """Return why two similar posts are not in one cluster."""
    for name, side in (("A", a), ("B", b)):
        if side.scheme is None:
            return f"{name} has not been compared yet; {REBUILD}"
        if side.scheme != scheme.name:
            return f"{name} was compared by scheme {side.scheme}; {REBUILD}"
        if side.is_changed:
            return f"the text of {name} has changed since it was compared; {REBUILD}"
    if not measured.shared_bands:
        return "they share no bands, so a lookup of one does not find the other"
    if a.cluster is not None and b.cluster is not None:
        return "each was more similar to the posts of its own cluster when it was stored"
    return "the bands they share belonged to other posts when they were stored"
