"""Boilerplate that the posts of a source share: menus, footers, notices. Pure.

A passage is boilerplate once MIN_POSTS posts of a source had it that each brought a passage of
their own besides. Repeated posts and edited copies bring none, so nothing in them becomes
boilerplate however often they come.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from crawler.dedup.arrays import CodePoints, Values
from crawler.dedup.post_text import code_points, normal_text
from crawler.dedup.sketch import SHARE_STEPS, TAG_BYTES, UNTITLED, OwnText, Sketch

if TYPE_CHECKING:
    from crawler.dedup.marks import Flags, Marks, Tally

MIN_POSTS = 3
# An edited word leaves some 15 characters unknown, two that are neighbors 25; a title is longer.
MIN_OWN_WEIGHT = 40
# Of a source: the latest posts that can teach, marks of each, and learned marks.
MAX_POSTS, MAX_MARKS_A_POST, MAX_COMMON = 48, 192, 8192
# Each of a source's first posts teaches, later one in so many, and each that is taken for a copy.
EAGER_POSTS, SAMPLED_POSTS = 8, 8
# Boilerplate that is less of a text than this does not change what it is like.
MIN_COVERED = 0.1
MIN_OWN_SHINGLES = 10
# What is compared of longer texts is theirs, whatever surrounds it.
MAX_CHARACTERS = 20_000


@dataclass(frozen=True, eq=False)
class Sourced:
    """A text that is compared, with the source and the title of its post."""

    source: str
    text: str
    title: str | None = None

    @cached_property
    def points(self) -> CodePoints:
        """(n,) code points of the normal text."""
        return code_points(normal_text(self.text))

    @cached_property
    def marks(self) -> Marks:
        """Marks of the normal text."""
        from crawler.dedup import marks

        return marks.marks_of(self.points)


def sourced(source: str, text: str, title: str | None = None) -> Sourced | None:
    """Return a text from which boilerplate is learned; None where it is too long."""
    return Sourced(source, text, title) if len(text) <= MAX_CHARACTERS else None


@dataclass(eq=False)
class Table:
    """The boilerplate learned of a source.

    version:  how often something has become common
    posts:    (up to MAX_MARKS_A_POST,) marks of the latest posts that taught, the oldest first
    common:   (up to MAX_COMMON,) marks of boilerplate, the oldest first
    pending:  posts that have something which became common after they were compared, and the
              version since which it is
    at:       when it was used last
    revision: which of the stored ones it began as; 0: none is stored
    taught:   posts that have taught since
    has_news: something has become common since
    """

    source: str
    version: int = 0
    posts: dict[str, Values] = field(default_factory=dict)
    common: Values = field(default_factory=lambda: np.empty(0, np.uint32))
    pending: dict[str, int] = field(default_factory=dict)
    at: datetime | None = None
    revision: int = 0
    taught: dict[str, None] = field(default_factory=dict)
    has_news: bool = False

    @cached_property
    def tally(self) -> Tally:
        """Return the counts of all marks."""
        from crawler.dedup.marks import Tally

        return Tally(self.posts.values(), self.common)

    @property
    def is_new(self) -> bool:
        """Return whether all posts of the source are learned from."""
        return len(self.posts) < EAGER_POSTS

    def wants(self, post: str, number: int) -> bool:
        """Return whether to learn from a post.

        number: a hash of its key, so that the same posts teach wherever they come
        """
        return self.is_new or number % SAMPLED_POSTS == 0 or post in self.posts

    def learn(self, post: str, text: Sourced) -> bool:
        """Learn from a post if it has a passage that no earlier post of the source has."""
        before = self.posts.get(post)
        if before is not None:
            self.tally.remove(before)
        # The smallest hashes: two posts with the same passage keep the same marks of it.
        taught = self.tally.teach(text, MAX_MARKS_A_POST, MIN_OWN_WEIGHT, MIN_POSTS)
        if taught is None:
            if before is not None:
                self.tally.add(before)
            return False
        self._note(post, taught.marks, taught.frequent)
        return True

    def take_over(self, earlier: Table) -> None:
        """Add what an earlier state of the table learned and did not store."""
        for post in earlier.taught:
            its = earlier.posts.get(post)
            if its is None:
                continue
            if (before := self.posts.get(post)) is not None:
                self.tally.remove(before)
            self.tally.add(its)
            states = self.tally.states(its)
            # The post was compared when less was common.
            if (np.isin(its, self.common) & ~np.isin(its, earlier.common)).any():
                self.pending[post] = self.version
            from crawler.dedup.marks import COMMON

            self._note(post, its, its[(states >= MIN_POSTS) & (states < COMMON)])

    def _note(self, post: str, its: Values, frequent: Values) -> None:
        """Record the counted marks of a post."""
        self.posts.pop(post, None)
        self.posts[post] = its
        self.taught.pop(post, None)
        self.taught[post] = None
        if frequent.size:
            self._promote(frequent)
        if len(self.posts) > MAX_POSTS:
            oldest = next(iter(self.posts))
            self.tally.remove(self.posts.pop(oldest))
            self.taught.pop(oldest, None)

    def _promote(self, new: Values) -> None:
        self.version += 1
        self.has_news = True
        self.tally.make_common(new)
        self.common = np.concatenate([self.common, new])
        if self.common.size > MAX_COMMON:
            self.common = self.common[-MAX_COMMON:]
            del self.tally
        for post, its in self.posts.items():
            if np.isin(its, new).any():
                self.pending[post] = self.version

    def knows(self, text: Sourced) -> Flags:
        """Return an (m,) mask of the common marks of a text."""
        from crawler.dedup.marks import COMMON

        return self.tally.states(text.marks.hashes) >= COMMON


def weighed(sketch: Sketch, text: Sourced, table: Table) -> Sketch:
    """Return the sketch of a text with its text outside of boilerplate added."""
    if not table.common.size or not (common := table.knows(text)).any():
        return sketch
    from crawler.dedup import kernels, marks
    from crawler.dedup.signature import bandings_of, hashes_of, low_bytes, values_of

    mask = marks.covered(text.points, text.marks, common)
    share = 1 - float(mask.mean())
    if share > 1 - MIN_COVERED:
        return sketch
    parts = {}
    for shape in sketch.parts:
        hashes = hashes_of(text.points, shape)
        own = np.empty(0, np.uint32) if hashes is None else marks.outside(hashes, mask, shape.width)
        if own.size >= MIN_OWN_SHINGLES:
            parts[shape] = low_bytes(values_of(own))
    cjk, _, words = kernels.count(text.points[~mask])
    tag, title = _tag(text.source), _tag(normal_text(text.title)) if text.title else UNTITLED
    steps = max(1, round(share * SHARE_STEPS))
    return replace(sketch, own=OwnText(tag, title, steps, parts, bandings_of(words, cjk)))


def _tag(name: str) -> bytes:
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=TAG_BYTES).digest()
