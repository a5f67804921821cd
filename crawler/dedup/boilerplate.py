"""Boilerplate that the posts of a source share: menus, footers, notices. No I/O.

A passage becomes boilerplate when MIN_POSTS posts of a source have it, each of which also has a
passage that no earlier post has. Repeated posts and edited copies have no such passage, so their
text never becomes boilerplate, however often they are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from crawler.dedup.sketch import SHARE_STEPS, TAG_BYTES, UNTITLED, OwnText, Sketch
from crawler.dedup.text import compared_points, normal_text

if TYPE_CHECKING:
    from crawler.dedup.marks import Marks, Tally
    from crawler.dedup.points import CodePoints, Values

MIN_POSTS = 3
# Minimum length of a post's own passage. An edited word makes about 15 characters of a text new,
# two neighboring words 25; a title is longer.
MIN_OWN_WEIGHT = 40
# Limits per source: the latest posts learned from, marks per post, and common marks.
MAX_POSTS, MAX_MARKS_A_POST, MAX_COMMON = 48, 192, 8192
# Learn from the first posts of a source, then from one post in SAMPLED_POSTS, and from each post
# that is judged a copy.
EAGER_POSTS, SAMPLED_POSTS = 8, 8
# Posts are compared again after this many posts of their source, or as soon as one of its posts is
# judged a copy: posts with several new passages are compared once.
POSTS_A_REVIEW = 200
# Changes by other processes to a table that rarely changes may go unnoticed for at most this long.
MAX_UNCHECKED_SECONDS = 1.0
# A smaller share of boilerplate does not affect similarity, and is ignored.
MIN_COVERED = 0.1
MIN_OWN_SHINGLES = 10
# In longer texts, boilerplate is a negligible part of the compared text.
MAX_CHARACTERS = 20_000


@dataclass(frozen=True, eq=False)
class Sourced:
    """A text to compare, with the source and the title of its post."""

    source: str
    text: str
    title: str | None = None

    @cached_property
    def points(self) -> CodePoints:
        """Return the (n,) code points by which the text is compared."""
        return compared_points(self.text)

    @cached_property
    def marks(self) -> Marks:
        """Return the marks of these code points."""
        from crawler.dedup import marks

        return marks.marks_of(self.points)


def sourced(source: str, text: str, title: str | None = None) -> Sourced | None:
    """Return a text from which to learn boilerplate; None if it is too long.

    Call this right after sketching the text, while `compared_points` still has it cached.
    """
    if len(text) > MAX_CHARACTERS:
        return None
    post = Sourced(source, text, title)
    post.points  # noqa: B018 - computes the property
    return post


@dataclass(eq=False)
class Table:
    """The boilerplate learned from the posts of a source.

    version:  number of times that marks have become common
    posts:    (up to MAX_MARKS_A_POST,) marks of the latest posts learned from, the oldest first
    common:   (up to MAX_COMMON,) marks of boilerplate, the oldest first
    pending:  posts with marks that became common after the posts were compared, and the version
              in which they did
    at:       when the table was last used
    revision: revision of the stored table that this one is based on; 0: none is stored
    learned:   posts learned from since that revision
    has_new_common: whether marks have become common since that revision
    review_in: number of posts to wait before the pending ones are compared again
    changed_at, checked_at: when marks last became common, and when the stored table was last known
                            to be the same; seconds of the monotonic clock
    """

    source: str
    version: int = 0
    posts: dict[str, Values] = field(default_factory=dict)
    common: Values = field(default_factory=lambda: np.empty(0, np.uint32))
    pending: dict[str, int] = field(default_factory=dict)
    at: datetime | None = None
    revision: int = 0
    learned: dict[str, None] = field(default_factory=dict)
    has_new_common: bool = False
    review_in: int = 0
    changed_at: float = 0.0
    checked_at: float = 0.0

    @cached_property
    def tally(self) -> Tally:
        """Return the counts of all marks."""
        from crawler.dedup.marks import Tally

        return Tally(self.posts.values(), self.common)

    @property
    def is_new(self) -> bool:
        """Return whether the source is so new that all its posts are learned from."""
        return len(self.posts) < EAGER_POSTS

    def learns_from(self, post: str, number: int) -> bool:
        """Return whether to learn from a post.

        number: a hash of the post's key, so that all workers choose the same posts
        """
        return self.is_new or number % SAMPLED_POSTS == 0 or post in self.posts

    def is_fresh(self, seconds: float) -> bool:
        """Return whether other processes have probably not changed the stored table.

        Tables that have not changed for a long time are checked less often.
        """
        steady_seconds = self.checked_at - self.changed_at
        return seconds < self.checked_at + min(MAX_UNCHECKED_SECONDS, steady_seconds / 10)

    def needs_review(self, more: int) -> bool:
        """Return whether to compare the pending posts again now.

        more: number of posts of the source since the last call
        """
        self.review_in -= more
        if self.pending and not self.is_new and self.review_in > 0:
            return False
        self.review_in = POSTS_A_REVIEW
        return bool(self.pending)

    def learn(self, post: str, text: Sourced) -> bool:
        """Learn from a post if it has a passage that no earlier post of the source has."""
        before = self.posts.get(post)
        if before is not None:
            self.tally.remove(before)
        # Keeps the smallest hashes, so that two posts keep the same marks of a common passage.
        learned = self.tally.learn(text, MAX_MARKS_A_POST, MIN_OWN_WEIGHT, MIN_POSTS)
        if learned is None:
            if before is not None:
                self.tally.add(before)
            return False
        self._note(post, learned.marks, learned.frequent)
        return True

    def take_over(self, earlier: Table) -> None:
        """Add the posts that an earlier state of the table learned from, but did not store."""
        self.review_in = earlier.review_in
        for post in earlier.learned:
            marks = earlier.posts.get(post)
            if marks is None:
                continue
            if (before := self.posts.get(post)) is not None:
                self.tally.remove(before)
            self.tally.add(marks)
            states = self.tally.states(marks)
            # The post was compared when fewer marks were common.
            if (np.isin(marks, self.common) & ~np.isin(marks, earlier.common)).any():
                self.pending[post] = self.version
            from crawler.dedup.marks import COMMON

            self._note(post, marks, marks[(states >= MIN_POSTS) & (states < COMMON)])

    def _note(self, post: str, marks: Values, frequent: Values) -> None:
        """Record the counted marks of a post."""
        self.posts.pop(post, None)
        self.posts[post] = marks
        self.learned.pop(post, None)
        self.learned[post] = None
        if frequent.size:
            self._promote(frequent)
        if len(self.posts) > MAX_POSTS:
            oldest = next(iter(self.posts))
            self.tally.remove(self.posts.pop(oldest))
            self.learned.pop(oldest, None)

    def _promote(self, new: Values) -> None:
        self.version += 1
        self.has_new_common = True
        self.tally.make_common(new)
        self.common = np.concatenate([self.common, new])
        if self.common.size > MAX_COMMON:
            self.common = self.common[-MAX_COMMON:]
            del self.tally
        # One lookup for all posts: one for each would take most of the time of learning.
        ends = np.cumsum([marks.size for marks in self.posts.values()])
        is_new = np.isin(np.concatenate(list(self.posts.values())), new)
        counts = np.diff(np.append(0, np.cumsum(is_new))[ends], prepend=0)
        for post, count in zip(self.posts, counts.tolist(), strict=True):
            if count:
                self.pending[post] = self.version

    def note(self, compared: Mapping[str, int]) -> None:
        """Record that pending posts were compared again, as the stored table does.

        compared: version of the table by post
        """
        newest = max(compared.values())
        for post in compared:
            if self.pending.get(post, newest + 1) <= newest:
                del self.pending[post]
        self.revision += 1

    @cached_property
    def tag(self) -> bytes:
        """Return the tag of the source in sketches."""
        return _tag(self.source)


def weighed(sketch: Sketch, text: Sourced, table: Table) -> Sketch:
    """Add to the sketch of a text its own part, which is the text without boilerplate."""
    if not table.common.size or not text.points.size:
        return sketch
    covered, mask = table.tally.covered(text)
    share = 1 - covered / mask.size
    if share > 1 - MIN_COVERED:
        return sketch
    from crawler.dedup.minhash import (
        bandings_of,
        count_outside,
        low_bytes,
        minima_outside,
        permutations,
    )

    parts = {}
    for shape in sketch.parts:
        size, values = minima_outside(text.points, mask, shape.width, *permutations())
        if size >= MIN_OWN_SHINGLES:
            parts[shape] = low_bytes(values)
    cjk, _, words = count_outside(text.points, mask)
    title = _tag(normal_text(text.title)) if text.title else UNTITLED
    steps = max(1, round(share * SHARE_STEPS))
    return replace(sketch, own=OwnText(table.tag, title, steps, parts, bandings_of(words, cjk)))


def _tag(name: str) -> bytes:
    return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=TAG_BYTES).digest()
