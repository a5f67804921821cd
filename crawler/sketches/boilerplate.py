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
    from crawler.sketches.marks import Flags, Marks, Tally

MIN_POSTS = 3
# An edited word leaves some 15 characters unknown, two that are neighbors 25; a title is longer.
MIN_OWN_WEIGHT = 40
# Of a source: the latest posts that can teach, marks of each, and learned marks.
MAX_POSTS, MAX_MARKS_A_POST, MAX_COMMON = 48, 192, 8192
# Boilerplate that is less of a text than this does not change what it is like.
MIN_COVERED = 0.1
MIN_OWN_SHINGLES = 10
# What is compared of longer texts is theirs, whatever surrounds it.
MAX_CHARACTERS = 20_000


@dataclass(frozen=True, eq=False)
class Sourced:
    """A text that is compared, and the source of its post.

    points: of the normal text; marks: of these
    """

    source: str
    text: str
    points: CodePoints
    marks: Marks


def sourced(source: str, text: str) -> Sourced | None:
    """Return a text from which boilerplate is learned; None where it is too long."""
    from crawler.sketches import marks

    if len(text) > MAX_CHARACTERS:
        return None
    points = code_points(normal_text(text))
    return Sourced(source, text, points, marks.marks_of(points))


@dataclass(eq=False)
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

    @cached_property
    def tally(self) -> Tally:
        """Where all marks are looked up."""
        from crawler.sketches.marks import Tally

        return Tally(self.posts.values(), self.common)

    def learn(self, post: str, text: Sourced) -> bool:
        """Let a post teach, if it has a passage that no earlier post of the source has."""
        from crawler.sketches import marks

        before = self.posts.get(post)
        if before is not None:
            self.tally.remove(before)
        known = self.tally.states(text.marks.hashes) > 0
        has_own = known.size > 0
        if known.any():
            mask = marks.covered(text.points, text.marks, known)
            has_own = marks.longest_passage(text.points, mask) >= MIN_OWN_WEIGHT
        if not has_own:
            if before is not None:
                self.tally.add(before)
            return False
        # The smallest hashes: two posts with the same passage keep the same marks of it.
        its = marks.few_of(text.marks.hashes, MAX_MARKS_A_POST)
        self.posts.pop(post, None)
        self.posts[post] = its
        self.tally.add(its)
        states = self.tally.states(its)
        self._promote(its[(states >= MIN_POSTS) & (states < marks.COMMON)])
        if len(self.posts) > MAX_POSTS:
            self.tally.remove(self.posts.pop(next(iter(self.posts))))
        self.taught.append(post)
        return True

    def _promote(self, new: Values) -> None:
        if not new.size:
            return
        self.version += 1
        self.tally.make_common(new)
        self.common = np.concatenate([self.common, new])
        if self.common.size > MAX_COMMON:
            self.common = self.common[-MAX_COMMON:]
            del self.tally
        for post, its in self.posts.items():
            if np.isin(its, new).any():
                self.pending[post] = self.version

    def knows(self, text: Sourced) -> Flags:
        """(m,) which marks of a text are common."""
        from crawler.sketches.marks import COMMON

        return self.tally.states(text.marks.hashes) >= COMMON


def weighed(sketch: Sketch, text: Sourced, table: Table) -> Sketch:
    """Return the sketch of a text with what it has besides the boilerplate of its source."""
    from crawler.sketches import kernels, marks, minhash
    from crawler.sketches.sketch import bandings_of, hashes_of

    known = table.knows(text) if table.common.size else np.empty(0, np.bool_)
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
