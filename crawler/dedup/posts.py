"""Posts as they are compared: their text and its normal form, candidates, claims and verdicts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crawler.dedup.boilerplate import Sourced
    from crawler.dedup.sketch import Sketch

# Limits of plausible dates: blogs are younger, and the clocks of sites are wrong by hours, not
# days.
OLDEST = datetime(1995, 1, 1, tzinfo=UTC)
AHEAD = timedelta(hours=1)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A post to be claimed as an original or a copy.

    key:     `_id` of the post
    created: the stated date if it is plausible, else when the post was first seen
    edited:  whether a sketch of an older text may be stored
    item:    number of the item that the post is a source of; sources of one item are not copies
    text:    text to learn boilerplate from and to remove it from; None: keep the sketch as it is
    fences:  fence numbers of the visits that stored the post, by name (crawler/storage/leases.py)
    seen:    when this text of the post was first seen; None: the same as `created`
    source:  number of the post's feed or site
    absent:  last visit of the source that did not show this text; None: it had no visit before
    claimed: time from which the post counts among sources; None: the same as `seen`
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
    absent: datetime | None = None
    claimed: datetime | None = None

    @cached_property
    def id(self) -> int:
        """Return the post's number in the index."""
        return id_of(self.key)

    @cached_property
    def bands(self) -> frozenset[int]:
        """Return the keys under which the post is found."""
        return frozenset(self.sketch.repeated_bands().tolist())


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a claim.

    duplicate_of: `_id` of the original, which is shown instead; None for an original
    similarity:   estimated similarity to the original
    cluster:      cluster of the post; None without duplicates
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
    """A stored post. cluster: None without duplicates.

    created, seen, source, item, fences, absent, claimed: as in Candidate
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
    absent: datetime | None = None
    claimed: datetime | None = None

    def claimed_again(self) -> Candidate:
        """Return the post as a candidate for another claim."""
        return Candidate(
            self.post, self.created, self.sketch, item=self.item, fences=self.fences,
            seen=self.seen, source=self.source, absent=self.absent, claimed=self.claimed,
        )  # fmt: skip


@lru_cache(maxsize=4096)  # needed for each post of a batch, and its source, several times
def id_of(key: str) -> int:
    """Return a 64-bit hash of a post's `_id` or item: indexes of numbers are far smaller.

    Among a hundred million posts, the probability of any collision is 1 in 3,700.
    """
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), signed=True)


def created_at(published: datetime | None, first_seen: datetime) -> datetime:
    """Return a post's stated date if it is plausible, else when it was first seen."""
    if published is None or not OLDEST <= published <= first_seen + AHEAD:
        return first_seen
    return min(published, first_seen)


def claimed_at(created: datetime, seen: datetime, absent: datetime | None) -> datetime:
    """Return the time from which a post counts among sources.

    created: as in Candidate
    absent:  last visit of the source that did not show the post; None: it had no visit before

    A stated date cannot be verified, but our visits limit it: a post that the last visit did not
    show is younger than that visit. Without such a visit the date does not count.
    """
    return created if absent is not None and absent < created <= seen else seen


def most_similar(
    sketch: Sketch, owners: Iterable[Owner | Candidate], threshold: float
) -> Owner | Candidate | None:
    """Return the owner most similar to a sketch, the earliest of equals; None below threshold."""
    ranked = [
        (-similarity, owner.created, owner.id, owner)
        for owner in owners
        if (similarity := sketch.similarity(owner.sketch)) >= threshold
    ]
    return min(ranked)[-1] if ranked else None
