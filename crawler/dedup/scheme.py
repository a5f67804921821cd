"""The ways to compare texts that a user can choose from.

A scheme's version is raised when anything changes by which a stored sketch would no longer match a
new one: the normal form, shingles, hashes, permutations, bands. It is stored with each sketch, and
what is stored under another is never compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from crawler.dedup.sketch import SUPERSHINGLES, Sketch

VERSION = 1
NAMES = ("characters", "words", "supershingles")
# The paper's rule: 2 of 6 features agree.
SUPERSHINGLES_THRESHOLD = 2 / SUPERSHINGLES.values


@dataclass(frozen=True, slots=True)
class Scheme:
    """How texts are compared.

    threshold: two texts are duplicates from this similarity on
    sketch:    makes a text's sketch; None for an empty text
    weighs:    the boilerplate of a source does not count
    """

    name: str
    threshold: float
    sketch: Callable[[str], Sketch | None]
    weighs: bool = False


def scheme_of(name: str, threshold: float) -> Scheme:
    """The scheme of this name; the paper's has a threshold of its own."""
    if name == "supershingles":
        threshold = SUPERSHINGLES_THRESHOLD

    def sketch(text: str) -> Sketch | None:
        from crawler.dedup import signature  # machine code, where a text comes first

        return getattr(signature, f"by_{name}")(text)  # type: ignore[no-any-return]

    return Scheme(f"{name}-{VERSION}", threshold, sketch, weighs=name == "characters")
