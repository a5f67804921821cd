"""Explanations of why two posts are or are not duplicates. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np

from crawler.dedup.scheme import Scheme
from crawler.dedup.signature import jaccard, library_estimate
from crawler.dedup.sketch import EXACT, SUPERSHINGLES, Shape, Sketch

REBUILD = "scrapy duplicates rebuild compares all anew"
# Of an estimate from 128 values: twice its standard error at the usual threshold.
TOLERANCE = 0.08


@dataclass(frozen=True, slots=True)
class ComparedPost:
    """One of two compared posts: its current text, and its stored signature.

    scheme:   of the stored sketch; None if none is stored
    at:       time of the comparison
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

    shared_bands, of_bands: keys under which both are found, among those that could be the same
    exact:                  Jaccard by kind of shingles
    datasketch:             the same, as datasketch estimates it from full MinHash values
    """

    shared_bands: int
    of_bands: int
    similarity: float
    exact: dict[str, float]
    datasketch: dict[str, float] = field(default_factory=dict)


def measure(a: ComparedPost, b: ComparedPost) -> Measured:
    """Compare two texts by their sketches, and exactly."""
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
            if shape != EXACT
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


def verdict(a: ComparedPost, b: ComparedPost, measured: Measured, scheme: Scheme) -> str:
    """Return whether the posts are duplicates, and why if their texts suggest otherwise."""
    if is_same_item(a, b):
        return f"one item, not duplicates: both are sources of {a.item}"
    alike = a.sketch is not None and measured.similarity >= scheme.threshold
    if are_duplicates(a, b):
        return f"duplicates: {_together(a, b, alike=alike)}"
    if alike:
        return f"alike, but not marked as duplicates: {_apart(a, b, measured, scheme)}"
    for name, side in (("A", a), ("B", b)):
        if side.sketch is None:
            return f"no duplicates: {name} has no text to compare"
    if not measured.exact:
        why = "one text is too short for the kind of shingles that the other is compared by"
        return f"no duplicates: {why}"
    below = f"similarity {measured.similarity:.2f} is below {scheme.threshold:.2f}"
    if max(measured.exact.values()) >= scheme.threshold:
        below += f"; the estimate is off by up to {TOLERANCE:.2f}, mostly by less"
    return f"no duplicates: {below}"


def _together(a: ComparedPost, b: ComparedPost, *, alike: bool) -> str:
    """Return which post is a copy, and why if the texts are not similar."""
    result = f"both are copies of {a.original}"
    for name, side, other, copy in (("A", a, "B", b), ("B", b, "A", a)):
        if side.original == side.key:
            since = f" since {copy.at:%Y-%m-%d %H:%M}" if copy.at else ""
            result = f"{other} is a copy of {name}{since}"
    if alike:
        return result
    if a.is_changed or b.is_changed:
        return f"{result} (a text has changed since; {REBUILD})"
    if a.key in (a.original, b.original) or b.key in (a.original, b.original):
        return f"{result} (by a copy between them)"
    return f"{result} (not alike enough themselves; each is compared with the original)"


def _apart(a: ComparedPost, b: ComparedPost, measured: Measured, scheme: Scheme) -> str:
    for name, side in (("A", a), ("B", b)):
        if side.scheme is None:
            return f"{name} has not been compared yet; {REBUILD}"
        if side.scheme != scheme.name:
            return f"{name} was compared by {side.scheme}; {REBUILD}"
        if side.is_changed:
            return f"the text of {name} has changed since it was compared; {REBUILD}"
    if not measured.shared_bands:
        return "they share no band, so neither is found by the other"
    if a.cluster is not None and b.cluster is not None:
        return "each is in the cluster of what it was more alike when it came"
    return "the bands they share belonged to other posts when they came"
