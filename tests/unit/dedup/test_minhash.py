"""Signatures equal datasketch's, and one byte per value is as accurate as four."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from crawler.dedup import minhash
from crawler.dedup.minhash import (
    as_datasketch,
    hashes_of,
    low_bytes,
    shingle_hash,
    similarity,
    values_of,
)
from crawler.dedup.sketch import CHARACTERS_SHAPE, CJK_SHAPE, SUPERSHINGLES, VALUES
from crawler.dedup.text import compared_points
from tests.unit.prose import Writer

if TYPE_CHECKING:
    from datasketch import MinHash

TEXTS = [
    Writer(1).text(80),
    "short",
    "The same, the same, the same, the same.",
    Writer(2).chinese(120),
    "Ein Wort 你好世界 слово 🦀🦀🦀 ąęß",
    "lone \ud800 surrogates \udfff",
    "long " * 5000,
]


def values(text: str, width: int = 5) -> minhash.Values:
    shape = CHARACTERS_SHAPE if width == CHARACTERS_SHAPE.width else CJK_SHAPE
    hashes = hashes_of(compared_points(text), shape)
    assert hashes is not None
    return values_of(hashes)


def shingles(text: str, width: int = 5) -> list[bytes]:
    """Return shingles as a datasketch user would build them."""
    normal = "".join(map(chr, compared_points(text).tolist()))
    return [
        normal[at : at + width].encode("utf-8", "surrogatepass")
        for at in range(len(normal) - width + 1)
    ]


def reference(text: str, width: int = 5) -> MinHash:
    """Return datasketch's MinHash of the text, with datasketch's own permutations."""
    # Not in every test process: it loads slowly.
    from datasketch import MinHash

    made = MinHash(num_perm=VALUES, hashfunc=shingle_hash)
    made.update_batch(shingles(text, width))
    return made


@pytest.mark.parametrize("width", [3, 5])
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_values_match_datasketch(text: str, width: int) -> None:
    assert values(text, width).tolist() == reference(text, width).hashvalues.tolist()


@pytest.mark.parametrize("count", [1, SUPERSHINGLES.values * 14, VALUES])
def test_permutations_match_datasketch(count: int) -> None:
    from datasketch import MinHash

    drawn = MinHash(num_perm=count, seed=minhash.SEED, scheme=minhash.SCHEME).permutations
    for ours, its in zip(minhash.permutations(count), drawn, strict=True):
        assert ours.dtype == its.dtype
        assert ours.tolist() == its.tolist()


def test_converted_minhash_is_comparable_with_datasketch() -> None:
    one, other = TEXTS[0], TEXTS[0].replace(" ", " and ", 3)
    ours = as_datasketch(values(one))
    assert ours.jaccard(reference(one)) == 1
    assert reference(other).jaccard(ours) == reference(other).jaccard(reference(one)) < 1
    equal = np.mean(values(one) == values(other))
    assert as_datasketch(values(other)).jaccard(ours) == equal


def test_converted_minhash_can_be_updated() -> None:
    text = TEXTS[0]
    begun = as_datasketch(values(text[:200]))
    for shingle in shingles(text):
        begun.update(shingle)
    assert begun.hashvalues.tolist() == values(text).tolist()


def test_converted_minhashes_merge_to_their_union() -> None:
    from datasketch import MinHash

    one, other = Writer(3).text(30), Writer(4).text(30)
    merged = as_datasketch(values(one))
    merged.merge(as_datasketch(values(other)))
    both = MinHash(num_perm=VALUES, hashfunc=shingle_hash)
    both.update_batch(shingles(one) + shingles(other))
    assert merged.hashvalues.tolist() == both.hashvalues.tolist()


def test_converted_minhash_serializes_as_lean_minhash() -> None:
    from datasketch import LeanMinHash

    lean = LeanMinHash(as_datasketch(values(TEXTS[0])))
    stored = bytearray(lean.bytesize())
    lean.serialize(stored)
    read = LeanMinHash.deserialize(stored)
    assert read == LeanMinHash(reference(TEXTS[0]))
    assert np.array_equal(read.hashvalues, values(TEXTS[0]))


def test_converted_minhash_is_found_in_datasketch_index() -> None:
    from datasketch import MinHashLSH

    index = MinHashLSH(threshold=0.7, num_perm=VALUES)
    for n, text in enumerate(TEXTS):
        index.insert(n, reference(text))
    assert [index.query(as_datasketch(values(text))) for text in TEXTS] == [
        [n] for n in range(len(TEXTS))
    ]


def pairs(jaccard: float, size: int = 500, count: int = 400) -> list[tuple[minhash.Values, ...]]:
    """Return the values of random pairs of sets; each pair has `size` hashes and this Jaccard."""
    random = np.random.default_rng(7)
    shared = round(size * jaccard)
    own = (size - shared) // 2
    samples = []
    for _ in range(count):
        hashes = random.integers(0, 1 << 32, size, dtype=np.uint32)
        one, other = hashes[: shared + own], np.r_[hashes[:shared], hashes[shared + own :]]
        samples.append((values_of(one), values_of(other)))
    return samples


@pytest.mark.parametrize("jaccard", [0.3, 0.5, 0.7, 0.9, 1.0])
def test_one_byte_per_value_is_as_accurate_as_four(jaccard: float) -> None:
    made = pairs(jaccard)
    wide = np.array([np.mean(one == other) for one, other in made]) - jaccard
    narrow = np.array([similarity(low_bytes(one), low_bytes(other)) for one, other in made])
    narrow -= jaccard
    assert abs(narrow.mean()) < 0.01
    assert np.sqrt(np.mean(narrow**2)) <= 1.1 * np.sqrt(np.mean(wide**2))


def test_disjoint_sets_have_near_zero_similarity() -> None:
    seeming = [similarity(low_bytes(one), low_bytes(other)) for one, other in pairs(0.0)]
    assert np.mean(seeming) < 0.005
    assert max(seeming) < 0.05


def test_standard_error_matches_128_independent_values() -> None:
    errors = [similarity(low_bytes(one), low_bytes(other)) - 0.7 for one, other in pairs(0.7)]
    assert np.std(errors) == pytest.approx(0.04, abs=0.006)


def test_similarity_is_never_negative() -> None:
    one = np.zeros(VALUES, dtype=np.uint8)
    assert similarity(one, one + 1) == 0
    assert similarity(one, one) == 1
