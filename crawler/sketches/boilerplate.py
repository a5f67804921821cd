"""What the posts of one source have in common: menus, footers, notices. Pure.

A passage is boilerplate once MIN_POSTS posts of a source had it that each brought a passage of
their own besides. Repeated posts and edited copies bring none, so nothing in them becomes
boilerplate however often they come.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from crawler.sketches.arrays import CodePoints, Values
from crawler.sketches.normal import code_points, normal_text
from crawler.sketches.stored import SHARE_STEPS, TAG_BYTES, Own, Sketch

# Machine code is loaded only where a text is looked at.
if TYPE_CHECKING:
    from crawler.sketches.marks import Flags, Marks

MIN_POSTS = 3
# An edited word leaves some 15 characters unknown, a title of a few words this much or more.
MIN_OWN_WEIGHT = 30
# Of a source: the latest posts that can teach, marks of each, and learned marks.
MAX_POSTS, MAX_MARKS_A_POST, MAX_COMMON = 48, 192, 8192
# Boilerplate that is less of a text than this does not change what it is like.
MIN_COVERED = 0.1
MIN_OWN_SHINGLES = 10
# What is compared of longer texts is theirs, whatever surrounds it.
MAX_CHARACTERS = 50_000


@dataclass(frozen=True, eq=False)
class Sourced:
    """A text that is compared, and the source of its post."""

    source: str
    text: str

    @cached_property
    def points(self) -> CodePoints:
        """The code points of the normal text."""
        return code_points(normal_text(self.text))

    @cached_property
    def marks(self) -> Marks:
        """The marks of the normal text."""
        from crawler.sketches import marks

        return marks.marks_of(self.points)


def sourced(source: str, text: str) -> Sourced | None:
    """Return a text from which boilerplate is learned; None where it is too long."""
    return Sourced(source, text) if len(text) <= MAX_CHARACTERS else None


@dataclass(frozen=True, slots=True)
class Learned:
    """A post that taught. version: of the table that the post was last compared with."""

    post: str
    marks: Values
    version: int


@dataclass(frozen=True, slots=True)
class Common:
    """Marks that became common. version: that the table has had since then."""

    version: int
    marks: Values


@dataclass(slots=True)
class Table:
    """What is known of a source.

    version: how often something has become common
    posts:   the latest that taught, the oldest first
    common:  what was learned, the oldest first
    taught:  posts that have taught since the table was read
    """

    source: str
    version: int = 0
    posts: list[Learned] = field(default_factory=list)
    common: list[Common] = field(default_factory=list)
    taught: list[str] = field(default_factory=list)

    def learn(self, post: str, text: Sourced) -> bool:
        """Let a post teach, if it has a passage that no earlier post of the source has."""
        from crawler.sketches import marks

        others = [one for one in self.posts if one.post != post]
        counts = marks.occurrences(text.marks.hashes, _joined(one.marks for one in others))
        known = (counts > 0) | self.knows(text)
        mask = marks.covered(text.points, text.marks, known)
        if marks.longest_passage(text.points, mask) < MIN_OWN_WEIGHT:
            return False
        # The smallest hashes: posts with the same passage keep the same marks of it.
        own = np.unique(text.marks.hashes)[:MAX_MARKS_A_POST]
        self.posts = [*others, Learned(post, own, self.version)][-MAX_POSTS:]
        self.taught.append(post)
        known_to_most = marks.occurrences(own, _joined(one.marks for one in others))
        self._promote(own[known_to_most + 1 >= MIN_POSTS])
        return True

    def _promote(self, found: Values) -> None:
        from crawler.sketches import marks

        known = marks.occurrences(found, self.marks) > 0
        if not known.all():
            self.version += 1
            self.common.append(Common(self.version, found[~known]))
            while sum(one.marks.size for one in self.common) > MAX_COMMON:
                del self.common[0]

    @property
    def marks(self) -> Values:
        """All common marks."""
        return _joined(one.marks for one in self.common)

    def knows(self, text: Sourced) -> Flags:
        """(m,) which marks of a text are common."""
        from crawler.sketches import marks

        return marks.occurrences(text.marks.hashes, self.marks) > 0

    def due(self) -> list[str]:
        """Posts that have something that became common after they were compared."""
        from crawler.sketches import marks

        return [
            one.post
            for one in self.posts
            if any(
                new.version > one.version and marks.occurrences(one.marks, new.marks).any()
                for new in self.common
            )
        ]


def _joined(arrays: Iterable[Values]) -> Values:
    return np.concatenate([np.empty(0, np.uint32), *arrays])


def weighed(sketch: Sketch, text: Sourced, table: Table) -> Sketch:
    """Return the sketch of a text with what it has besides the boilerplate of its source."""
    from crawler.sketches import kernels, marks, minhash
    from crawler.sketches.sketch import bandings_of, hashes_of

    known = table.knows(text)
    if not known.any():
        return sketch
    mask = marks.covered(text.points, text.marks, known)
    share = 1 - float(mask.mean())
    if share > 1 - MIN_COVERED:
        return sketch
    parts = {}
    for shape in sketch.parts:
        hashes = hashes_of(text.points, shape)
        own = np.empty(0, np.uint32) if hashes is None else marks.outside(hashes, mask, shape.width)
        if own.size >= MIN_OWN_SHINGLES:
            parts[shape] = minhash.low_bytes(minhash.values_of(own))
    cjk, _, words = kernels.count(text.points[~mask])
    tag = blake2b(text.source.encode("utf-8", "surrogatepass"), digest_size=TAG_BYTES).digest()
    steps = max(1, round(share * SHARE_STEPS))
    return replace(sketch, own=Own(tag, steps, parts, bandings_of(words, cjk)))
