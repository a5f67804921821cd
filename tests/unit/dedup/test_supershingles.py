"""The paper's features: six groups of 14 minima; two features that agree mean a duplicate."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler.dedup.minhash import by_supershingles, features_of, hashes_of, jaccard, values_of
from crawler.dedup.schemes import scheme_of
from crawler.dedup.sketch import EXACT, PAIRS, SUPERSHINGLES, Sketch, pair_keys
from crawler.dedup.text import compared_points

SCHEME = scheme_of("supershingles", 0.7)
WORDS = [f"{first}{second}" for first in "abcdefghij" for second in "klmnopqrst"]


def sketch(text: str) -> Sketch:
    made = by_supershingles(text)
    assert made is not None
    return made


def features(text: str) -> list[int]:
    """Return the six features of a text."""
    numbers: list[int] = sketch(text).parts[SUPERSHINGLES].view(np.int64).tolist()
    return numbers


def random_words(count: int, seed: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def test_parameters_match_the_paper() -> None:
    assert SUPERSHINGLES.width == 5
    assert SUPERSHINGLES.values == 6
    assert [tuple(pair) for pair in PAIRS.tolist()] == [
        (0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 2), (1, 3), (1, 4), (1, 5),
        (2, 3), (2, 4), (2, 5), (3, 4), (3, 5), (4, 5),
    ]  # fmt: skip
    assert SCHEME.threshold == 2 / 6


def test_each_feature_hashes_14_of_84_minima() -> None:
    hashes = hashes_of(compared_points(random_words(100, seed=1)), SUPERSHINGLES)
    assert hashes is not None
    minima = values_of(hashes, 84)
    usual = features_of(hashes).view(np.int64)
    for place in range(84):
        # Removing the shingle with the smallest value in one permutation changes that feature;
        # other features change only if that shingle is their minimum too.
        less = hashes[values_of_each(hashes)[place] != minima[place]]
        changed = np.flatnonzero(values_of(less, 84) != minima) // 14
        assert set(np.flatnonzero(features_of(less).view(np.int64) != usual)) == set(changed)
        assert place // 14 in changed


def values_of_each(hashes: np.ndarray) -> np.ndarray:
    """Return the (84, n) values of each shingle in each permutation."""
    return np.stack([values_of(hashes[i : i + 1], 84) for i in range(hashes.size)], axis=1)


def test_copy_shares_all_features_and_other_text_none() -> None:
    text, other = random_words(100, seed=1), random_words(100, seed=2)
    assert sketch(text).similarity(sketch(f"  {text.upper()}\n")) == 1
    assert not set(features(text)) & set(features(other))


@given(
    one=st.lists(st.integers(0, 2), min_size=6, max_size=6),
    other=st.lists(st.integers(0, 2), min_size=6, max_size=6),
)
def test_pair_key_is_shared_if_two_features_agree(one: list[int], other: list[int]) -> None:
    a, b = (Sketch({SUPERSHINGLES: np.array(f, np.int64).view(np.uint8)}) for f in (one, other))
    agreeing = sum(x == y for x, y in zip(one, other, strict=True))
    assert a.similarity(b) == pytest.approx(agreeing / 6)
    assert (a.similarity(b) >= SCHEME.threshold) == (agreeing >= 2)
    assert bool(np.intersect1d(a.bands, b.bands).size) == (agreeing >= 2)


def test_pair_keys_depend_on_feature_positions() -> None:
    equal = np.zeros(6, np.int64).view(np.uint8)
    assert len(set(pair_keys(equal, 47).tolist())) == 15
    turned = np.array([2, 1, 3, 4, 5, 6], np.int64).view(np.uint8)
    straight = np.array([1, 2, 13, 14, 15, 16], np.int64).view(np.uint8)
    assert not np.intersect1d(pair_keys(turned, 47), pair_keys(straight, 47)).size


def test_feature_agreement_is_similarity_to_the_14th_power() -> None:
    agreeing, expected = [], []
    for seed in range(400):
        words = random_words(200, seed).split()
        words[seed % 150] = "another"
        text, copy = random_words(200, seed), " ".join(words)
        agreeing.append(sketch(text).similarity(sketch(copy)))
        expected.append(jaccard(text, copy, SUPERSHINGLES) ** 14)
    assert np.mean(agreeing) == pytest.approx(np.mean(expected), abs=0.03)


def test_text_shorter_than_a_shingle_matches_exactly() -> None:
    assert set(sketch("four words are few").parts) == {EXACT}
    assert sketch("four words are few").similarity(sketch("Four  words are few")) == 1
    assert sketch("four words are few").similarity(sketch("four words are many")) == 0
    assert set(sketch("but five words are enough").parts) == {SUPERSHINGLES}
    assert by_supershingles(" \n") is None


def test_stored_features_and_bands_are_stable() -> None:
    """Pin the stored values: a change requires a new scheme version and a rebuilt index."""
    text = random_words(100, seed=1)
    assert features(text)[:2] == [-4458218482218336599, -6999137484204539417]
    assert sketch(text).bands.tolist()[:2] == [6256179857659, 7073567624580]
