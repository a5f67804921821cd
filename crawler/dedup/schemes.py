"""The schemes by which texts are sketched and compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from crawler.dedup.sketch import SUPERSHINGLES_THRESHOLD, VERSION, Sketch


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
        from crawler.dedup import minhash  # compiled code, loaded with the first text

        return getattr(minhash, f"by_{name}")(text)  # type: ignore[no-any-return]

    return Scheme(f"{name}-{VERSION}", threshold, sketch, weighs=name == "characters")
