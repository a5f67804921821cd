"""12,300 real posts through an index in memory: what is found, and what is found wrongly.

Needs a folder with them in `posts.jsonl.xz`, named by the variable NEAR_DUP; their texts belong to
their publishers and are not part of this project.
"""

from __future__ import annotations

import json
import lzma
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from numba import njit

from crawler.dedup.kernels import Values
from crawler.dedup.post_text import code_points, normal_text
from crawler.dedup.signature import by_characters, hashes_of, jaccard
from crawler.dedup.sketch import CHARACTERS_SHAPE, CJK_SHAPE, EXACT, Shape, Sketch

NEAR_DUP = os.environ.get("NEAR_DUP")
pytestmark = [
    pytest.mark.skipif(not NEAR_DUP, reason="NEAR_DUP names no folder with the 12,300 posts"),
    pytest.mark.soak,
]
THRESHOLD = 0.7
# Of the estimate; its standard error is .04.
TOLERANCE = 0.03
MUCH = 0.8
SEEDS = [1, 2, 3]

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Found:
    """A post that was taken for a duplicate, and the earlier one that it was found by."""

    post: int
    by: int


@cache
def posts() -> tuple[str, ...]:
    with lzma.open(Path(str(NEAR_DUP)) / "posts.jsonl.xz", "rt") as lines:
        return tuple(json.loads(line)["text"] for line in lines)


@cache
def sketches() -> tuple[Sketch | None, ...]:
    return tuple(map(by_characters, posts()))


@cache
def order(seed: int) -> tuple[int, ...]:
    """Numbers of the posts as they arrive."""
    return tuple(Random(seed).sample(range(len(posts())), len(posts())))


@cache
def flagged(seed: int) -> tuple[Found, ...]:
    """Each post claims its bands; those that are taken lead to posts that may be like it.

    A duplicate keeps what was free of its bands, so that copies of copies are found.
    """
    owners: dict[int, int] = {}
    found = []
    for post in order(seed):
        if (made := sketches()[post]) is None:
            continue
        taken = {owners[band] for band in made.bands.tolist() if band in owners}
        alike = [(likeness(post, other), other) for other in taken]
        if alike and max(alike)[0] >= THRESHOLD:
            found.append(Found(post, max(alike)[1]))
        for band in made.bands.tolist():
            owners.setdefault(band, post)
    return tuple(found)


def likeness(one: int, other: int) -> float:
    a, b = sketches()[one], sketches()[other]
    return a.similarity(b) if a and b else 0.0


def exactly_alike(one: int, other: int) -> float:
    """Exact Jaccard, by the shape that shows more of it."""
    a, b = sketches()[one], sketches()[other]
    shared = a.parts.keys() & b.parts.keys() if a and b else set()
    return max(
        1.0 if shape == EXACT else jaccard(posts()[one], posts()[other], shape) for shape in shared
    )


# All pairs, by counting the shingles that each post shares with each other one.


@cache
def pairs() -> dict[tuple[int, int], float]:
    """The exact Jaccard of all pairs of posts that have much in common, by 5 characters or by 3."""
    found: dict[tuple[int, int], float] = {}
    for shape in (CHARACTERS_SHAPE, CJK_SHAPE):
        sets = [shingles(post, shape) for post in range(len(posts()))]
        for pair, exact in pairs_of(sets, MUCH).items():
            found[pair] = max(exact, found.get(pair, 0.0))
    return found


def shingles(post: int, shape: Shape) -> Values:
    made = sketches()[post]
    if made is None or shape not in made.parts:
        return np.empty(0, dtype=np.uint32)
    hashes = hashes_of(code_points(normal_text(posts()[post])), shape)
    assert hashes is not None
    return np.unique(hashes)


def pairs_of(sets: list[Values], least: float) -> dict[tuple[int, int], float]:
    """The Jaccard of all pairs of sets where it is `least` or more; the greater number first."""
    sizes = np.array([one.size for one in sets])
    _, shingle = np.unique(np.concatenate(sets), return_inverse=True)
    by_shingle = np.argsort(shingle, kind="stable")
    holders = np.repeat(np.arange(len(sets)), sizes)[by_shingle]
    first_holder = np.searchsorted(shingle[by_shingle], np.arange(shingle.max() + 2))
    first_shingle = np.concatenate(([0], np.cumsum(sizes)))
    found = sharing(shingle, first_shingle, holders, first_holder, sizes, least)
    return {(one, other): exact for one, other, exact in found}


@njit
def sharing(
    shingle: Numbers,
    first_shingle: Numbers,
    holders: Numbers,
    first_holder: Numbers,
    sizes: Numbers,
    least: float,
) -> list[tuple[int, int, float]]:
    """Pairs of sets and their Jaccard; a set's shingles and a shingle's sets are in runs."""
    found = [(0, 0, 0.0) for _ in range(0)]
    shared = np.zeros(sizes.size, np.int64)
    for post in range(sizes.size):
        shared[:post] = 0
        for at in range(first_shingle[post], first_shingle[post + 1]):
            for holder in range(first_holder[shingle[at]], first_holder[shingle[at] + 1]):
                other = holders[holder]
                if other >= post:
                    break
                shared[other] += 1
        for other in range(post):
            if shared[other]:
                exact = shared[other] / (sizes[post] + sizes[other] - shared[other])
                if exact >= least:
                    found.append((post, other, exact))
    return found


def with_an_earlier_one(seed: int, least: float) -> set[int]:
    """The posts that come after one that is as like as that."""
    place = {post: n for n, post in enumerate(order(seed))}
    return {max(pair, key=place.__getitem__) for pair, exact in pairs().items() if exact >= least}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("least", "share"), [(MUCH, 0.97), (0.85, 0.995), (0.95, 1)])
def test_posts_with_an_earlier_one_like_them_are_found(
    seed: int, least: float, share: float
) -> None:
    duplicates = with_an_earlier_one(seed, least)
    found = {one.post for one in flagged(seed)}
    assert len(duplicates) > 50
    assert len(duplicates & found) >= share * len(duplicates)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_found_is_alike(seed: int) -> None:
    found = flagged(seed)
    alike = np.array([exactly_alike(one.post, one.by) for one in found])
    assert len(found) > 200
    assert np.mean(alike >= THRESHOLD - TOLERANCE) >= 0.97
    assert alike.min() > 0.5


def test_the_pairs_are_all_that_there_are() -> None:
    """Of some posts, against each with each."""
    sets = [shingles(post, CHARACTERS_SHAPE) for post in range(200)]
    plain = [set(one.tolist()) for one in sets]
    each = {
        (one, other): len(plain[one] & plain[other]) / len(plain[one] | plain[other])
        for one in range(len(sets))
        for other in range(one)
        if plain[one] & plain[other]
    }
    assert pairs_of(sets, 0.0) == each != {}
