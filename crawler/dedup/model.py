"""Candidates, claims and verdicts of posts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from crawler.dedup.boilerplate import Sourced
    from crawler.dedup.sketch import Sketch

# Blogs are younger; and clocks of sites go wrong by hours, not by days.
OLDEST = datetime(1995, 1, 1, tzinfo=UTC)
AHEAD = timedelta(hours=1)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A post to be claimed as an original or a copy.

    key:     `_id` of the post
    created: when it was written, by its own word as far as that can be
    edited:  a sketch of an older text may be stored
    item:    number of the item that the post is a source of; sources of one item are no copies
    text:    what boilerplate is learned from, and taken out of; None: the sketch is as it is
    fences:  numbers under which visits have stored it, by name (crawler/storage/fences.py)
    seen:    when it was first seen; None: when it was created
    source:  number of the feed or site that it comes from
    """

    key: str
    created: datetime
    sketch: Sketch
    edited: bool = False
    item: int | None = None
    text: Sourced | None = None
    fences: dict[str, int] = field(default_factory=dict, hash=False)
    seen: datetime | None = None
    source: int = 0

    @cached_property
    def id(self) -> int:
        """Return the post's number in the index."""
        return id_of(self.key)

    @cached_property
    def bands(self) -> frozenset[int]:
        """Return the keys under which the post is found."""
        return frozenset(self.sketch.bands.tolist())


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a claim.

    duplicate_of: `_id` of the original that is shown instead; None for an original
    similarity:   estimated, to that original
    cluster:      of all posts that are duplicates of one another; None where it is alone
    """

    duplicate_of: str | None = None
    similarity: float | None = None
    cluster: Any = None

    @property
    def is_original(self) -> bool:
        """Return whether searches show the post."""
        return self.duplicate_of is None


ALONE = Verdict()
Verdicts = dict[str, Verdict]


@dataclass(frozen=True, slots=True)
class Owner:
    """A stored post; cluster: None where it is alone.

    created, seen, source, item, fences: as of Candidate
    """

    id: int
    post: str
    created: datetime
    sketch: Sketch
    cluster: Any = None
    item: int | None = None
    seen: datetime | None = None
    source: int = 0
    fences: dict[str, int] = field(default_factory=dict, hash=False)

    def claimed_again(self) -> Candidate:
        """Return the post as one that is to be claimed again."""
        return Candidate(
            self.post, self.created, self.sketch, item=self.item, fences=self.fences,
            seen=self.seen, source=self.source,
        )  # fmt: skip


class Claim(NamedTuple):
    """What a post claims its bands with, where they are kept apart from its document.

    cluster: 12 bytes; the one that it founds, if it is nobody's copy
    """

    id: int
    cluster: bytes
    sketch: Sketch


def id_of(key: str) -> int:
    """A 64-bit number for a post's `_id` or item: indexes of numbers are a fraction of URLs'.

    Among a hundred million posts the chance that any two have the same is 1 in 3,700.
    """
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), signed=True)


def created_at(published: datetime | None, first_seen: datetime) -> datetime:
    """Return a post's stated date if it is plausible, else when it was first seen."""
    if published is None or not OLDEST <= published <= first_seen + AHEAD:
        return first_seen
    return min(published, first_seen)


def rank_of(created: datetime, seen: datetime, date_days: float) -> datetime:
    """The time by which posts of different sources are ordered: the smallest is the original's.

    Nobody can check the date that a post states, so it counts only from so many days before the
    (UTC) day on which the post was first seen. Of whole days, so that the dates of posts count
    that are all new to us on the same day, as when many feeds are added.
    """
    day = seen.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    try:
        return max(created, day - timedelta(days=date_days))
    except OverflowError:
        return created


def most_similar(sketch: Sketch, owners: Iterable[Owner], threshold: float) -> Owner | None:
    """Return the owner most similar to a sketch, the earliest of equals; None below threshold."""
    ranked = [
        (-similarity, owner.created, owner.id, owner)
        for owner in owners
        if (similarity := sketch.similarity(owner.sketch)) >= threshold
    ]
    return min(ranked)[-1] if ranked else None
