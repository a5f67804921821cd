"""What the posts of one source have in common: menus, footers, notices. Pure.

A passage is boilerplate once MIN_POSTS posts of a source had it that each brought a passage of
their own besides. Repeated posts and edited copies bring none, so nothing in them becomes
boilerplate however often they come.
"""

from __future__ import annotations

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


@dataclass(slots=True)
class Table:
    """What is known of a source.

    version: how often something has become common
    posts:   (up to MAX_MARKS_A_POST,) marks of the latest posts that taught, the oldest first
    common:  (up to MAX_COMMON,) marks of boilerplate, the oldest first
    pending: posts that have something which became common after they were compared, and the
             version since which it is
    taught:  posts that have taught since the table was read
    """

    source: str
    version: int = 0
    posts: dict[str, Values] = field(default_factory=dict)
    common: Values = field(default_factory=lambda: np.empty(0, np.uint32))
    pending: dict[str, int] = field(default_factory=dict)
    taught: list[str] = field(default_factory=list)

    def learn(self, post: str, text: Sourced) -> bool:
        """Let a post teach, if it has a passage that no earlier post of the source has."""
        from crawler.sketches import marks

        given = text.marks.hashes
        others = [its for other, its in self.posts.items() if other != post]
        pool = np.concatenate([self.common[:0], *others])
        counts = marks.occurrences(given, pool)
        mask = marks.covered(text.points, text.marks, (counts > 0) | self.knows(text))
        if marks.longest_passage(text.points, mask) < MIN_OWN_WEIGHT:
            return False
        # The smallest hashes: posts with the same passage keep the same marks of it.
        own, places = np.unique(given, return_index=True)
        own, places = own[:MAX_MARKS_A_POST], places[:MAX_MARKS_A_POST]
        self._promote(own[counts[places] + 1 >= MIN_POSTS])
        self.posts.pop(post, None)
        self.posts[post] = own
        if len(self.posts) > MAX_POSTS:
            del self.posts[next(iter(self.posts))]
        self.taught.append(post)
        return True

    def _promote(self, found: Values) -> None:
        from crawler.sketches import marks

        if not found.size:
            return
        new = found[marks.occurrences(found, self.common) == 0]
        if not new.size:
            return
        self.version += 1
        self.common = np.concatenate([self.common, new])[-MAX_COMMON:]
        for post, its in self.posts.items():
            if marks.occurrences(new, its).any():
                self.pending[post] = self.version

    def knows(self, text: Sourced) -> Flags:
        """(m,) which marks of a text are common."""
        from crawler.sketches import marks

        return marks.occurrences(text.marks.hashes, self.common) > 0


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
