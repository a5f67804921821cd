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
    seen:    when the post was first seen; None: the same as `created`
    source:  number of the post's feed or site
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

    created, seen, source, item, fences: as in Candidate
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
        """Return the post as a candidate for another claim."""
        return Candidate(
            self.post, self.created, self.sketch, item=self.item, fences=self.fences,
            seen=self.seen, source=self.source,
        )  # fmt: skip


class Claim(NamedTuple):
    """A claim of a post's bands, for a backend that stores bands separately from posts.

    cluster: 12 bytes; the cluster that the post founds if it is not a copy
    """

    id: int
    cluster: bytes
    sketch: Sketch


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


def rank_of(created: datetime, seen: datetime, date_days: float) -> datetime:
    """Return the date by which posts of different sources are ordered, the original's first.

    Stated dates cannot be verified, so a date counts only up to `date_days` days before the day
    (UTC) on which the post was first seen. The limit is a whole day, so that stated dates decide
    between posts that were first seen on the same day, for example after many feeds were added.
    """
    day = seen.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    try:
        return max(created, day - timedelta(days=date_days))
    except OverflowError:
        return created


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
