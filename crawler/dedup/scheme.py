"""The comparison schemes that users can choose from.

Increase VERSION with every change that makes new sketches incompatible with stored ones: of the
normal form, shingles, hashes, permutations or bands. Sketches of different versions are never
compared.
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
    """A way to compare texts.

    threshold: minimum similarity of duplicates
    sketch:    returns the sketch of a text; None for an empty text
    weighs:    whether to remove boilerplate
    """

    name: str
    threshold: float
    sketch: Callable[[str], Sketch | None]
    weighs: bool = False


def scheme_of(name: str, threshold: float) -> Scheme:
    """Return a scheme by name; the paper's scheme ignores `threshold` and has its own."""
    if name == "supershingles":
        threshold = SUPERSHINGLES_THRESHOLD

    def sketch(text: str) -> Sketch | None:
        from crawler.dedup import signature  # compiled code, loaded with the first text

        return getattr(signature, f"by_{name}")(text)  # type: ignore[no-any-return]

    return Scheme(f"{name}-{VERSION}", threshold, sketch, weighs=name == "characters")
