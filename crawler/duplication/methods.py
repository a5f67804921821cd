"""The methods of the experiment: what each compares posts by, and what it looks them up in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from crawler.dedup.post_text import code_points, normal_text
from crawler.dedup.scheme import scheme_of
from crawler.dedup.signature import by_characters, by_supershingles, by_words, hashes_of, values_of
from crawler.dedup.sketch import OF_CHARACTERS, OF_WORDS, Shape, Sketch
from crawler.duplication.indexes import (
    Key,
    OfBands,
    OfFeatures,
    Opened,
    Tell,
    in_memory,
    in_mongodb,
)
from crawler.storage.client import Database

# As the settings have it by default.
THRESHOLD = 0.7
FEATURES = "features"


@dataclass(frozen=True, slots=True)
class Method:
    """A rule that says which posts are duplicates, and a way to find by it.

    opened: the index of posts with these keys, for the length of a `with` block
    """

    rule: str
    opened: Callable[[Database, Sequence[Key], Tell], Opened]


def _sketched(sketch: Callable[[str], Sketch | None], text: str) -> Key:
    made = sketch(text)
    return made.encode() if made else None


def _signed(shape: Shape, text: str) -> Key:
    hashes = hashes_of(code_points(normal_text(text)), shape)
    return None if hashes is None else values_of(hashes).tobytes()


def _paper(name: str) -> Method:
    return Method(FEATURES, partial(in_mongodb, partial(OfFeatures, name), name))


def _freshet(name: str, rule: str) -> Method:
    threshold = scheme_of(name, THRESHOLD).threshold
    return Method(rule, partial(in_mongodb, partial(OfBands, threshold), name))


RULES: dict[str, Callable[[str], Key]] = {
    FEATURES: partial(_sketched, by_supershingles),
    "characters": partial(_sketched, by_characters),
    "words": partial(_sketched, by_words),
    "LSH words": partial(_signed, OF_WORDS),
    "LSH characters": partial(_signed, OF_CHARACTERS),
}
METHODS = {
    "B6D1": _paper("B6D1"),
    "R15D2": _paper("R15D2"),
    "R1D3": _paper("R1D3"),
    "supershingles": _freshet("supershingles", FEATURES),
    "characters": _freshet("characters", "characters"),
    "words": _freshet("words", "words"),
    "datasketch-words": Method("LSH words", partial(in_memory, 0.8)),
    "datasketch-chars": Method("LSH characters", partial(in_memory, 0.7)),
}
