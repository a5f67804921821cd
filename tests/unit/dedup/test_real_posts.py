"""12,300 real posts through an in-memory index: true and false matches.

Requires a folder that contains `posts.jsonl.xz`. Set the variable NEAR_DUP to the folder's path.
The texts belong to their publishers and are not part of this project.
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

from crawler.dedup.minhash import by_characters, hashes_of, jaccard
from crawler.dedup.points import Values
from crawler.dedup.sketch import CHARACTERS_SHAPE, CJK_SHAPE, EXACT, Shape, Sketch
from crawler.dedup.text import compared_points

NEAR_DUP = os.environ.get("NEAR_DUP")
pytestmark = [
    pytest.mark.skipif(not NEAR_DUP, reason="set NEAR_DUP to a folder with the 12,300 posts"),
    pytest.mark.soak,
]
THRESHOLD = 0.7
# Tolerance of the estimate; its standard error is 0.04.
TOLERANCE = 0.03
SIMILAR = 0.8
SEEDS = [1, 2, 3]

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Found:
    """A post flagged as a duplicate, and the earlier post that it matched."""

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
    """Return the numbers of the posts in their order of arrival."""
    return tuple(Random(seed).sample(range(len(posts())), len(posts())))


@cache
def flagged(seed: int) -> tuple[Found, ...]:
    """Let each post claim its bands, and compare it with the owners of bands that are taken.

    A duplicate keeps the bands that were free, so that copies of copies are found.
    """
    owners: dict[int, int] = {}
    duplicates = []
    for post in order(seed):
        if (made := sketches()[post]) is None:
            continue
        taken = {owners[band] for band in made.bands.tolist() if band in owners}
        scores = [(likeness(post, other), other) for other in taken]
        if scores and max(scores)[0] >= THRESHOLD:
            duplicates.append(Found(post, max(scores)[1]))
        for band in made.bands.tolist():
            owners.setdefault(band, post)
    return tuple(duplicates)


def likeness(one: int, other: int) -> float:
    a, b = sketches()[one], sketches()[other]
    return a.similarity(b) if a and b else 0.0


def exact_similarity(one: int, other: int) -> float:
    """Return the exact Jaccard similarity, using the shape with the higher value."""
    a, b = sketches()[one], sketches()[other]
    shared = a.parts.keys() & b.parts.keys() if a and b else set()
    return max(
        1.0 if shape == EXACT else jaccard(posts()[one], posts()[other], shape) for shape in shared
    )


# Exact similarities of all pairs, from the number of shingles that two posts share.


@cache
def pairs() -> dict[tuple[int, int], float]:
    """Return the exact Jaccard of all similar pairs, with shingles of 5 or of 3 characters."""
    similar: dict[tuple[int, int], float] = {}
    for shape in (CHARACTERS_SHAPE, CJK_SHAPE):
        sets = [shingles(post, shape) for post in range(len(posts()))]
        for pair, exact in pairs_of(sets, SIMILAR).items():
            similar[pair] = max(exact, similar.get(pair, 0.0))
    return similar


def shingles(post: int, shape: Shape) -> Values:
    made = sketches()[post]
    if made is None or shape not in made.parts:
        return np.empty(0, dtype=np.uint32)
    hashes = hashes_of(compared_points(posts()[post]), shape)
    assert hashes is not None
    return np.unique(hashes)


def pairs_of(sets: list[Values], least: float) -> dict[tuple[int, int], float]:
    """Return all pairs of sets with a Jaccard of `least` or more; the larger number comes first."""
    sizes = np.array([values.size for values in sets])
    _, shingle = np.unique(np.concatenate(sets), return_inverse=True)
    by_shingle = np.argsort(shingle, kind="stable")
    holders = np.repeat(np.arange(len(sets)), sizes)[by_shingle]
    first_holder = np.searchsorted(shingle[by_shingle], np.arange(shingle.max() + 2))
    first_shingle = np.concatenate(([0], np.cumsum(sizes)))
    matches = sharing(shingle, first_shingle, holders, first_holder, sizes, least)
    return {(one, other): exact for one, other, exact in matches}


@njit
def sharing(
    shingle: Numbers,
    first_shingle: Numbers,
    holders: Numbers,
    first_holder: Numbers,
    sizes: Numbers,
    least: float,
) -> list[tuple[int, int, float]]:
    """Return pairs of sets and their Jaccard; shingles are grouped by set, sets by shingle."""
    matches = [(0, 0, 0.0) for _ in range(0)]
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
                    matches.append((post, other, exact))
    return matches


def posts_with_earlier_match(seed: int, least: float) -> set[int]:
    """Return the posts that arrive after a post with at least this similarity."""
    place = {post: n for n, post in enumerate(order(seed))}
    return {max(pair, key=place.__getitem__) for pair, exact in pairs().items() if exact >= least}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("least", "share"), [(SIMILAR, 0.97), (0.85, 0.995), (0.95, 1)])
def test_posts_similar_to_earlier_posts_are_flagged(seed: int, least: float, share: float) -> None:
    duplicates = posts_with_earlier_match(seed, least)
    flagged_posts = {match.post for match in flagged(seed)}
    assert len(duplicates) > 50
    assert len(duplicates & flagged_posts) >= share * len(duplicates)


@pytest.mark.parametrize("seed", SEEDS)
def test_flagged_posts_are_similar(seed: int) -> None:
    matches = flagged(seed)
    scores = np.array([exact_similarity(match.post, match.by) for match in matches])
    assert len(matches) > 200
    assert np.mean(scores >= THRESHOLD - TOLERANCE) >= 0.97
    assert scores.min() > 0.5


def test_pairs_match_brute_force() -> None:
    """Compare with brute force over all pairs of the first 200 posts."""
    sets = [shingles(post, CHARACTERS_SHAPE) for post in range(200)]
    plain = [set(values.tolist()) for values in sets]
    each = {
        (one, other): len(plain[one] & plain[other]) / len(plain[one] | plain[other])
        for one in range(len(sets))
        for other in range(one)
        if plain[one] & plain[other]
    }
    assert pairs_of(sets, 0.0) == each != {}
