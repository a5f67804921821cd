"""MinHash signatures that datasketch 2 can read."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from crawler.sketches.arrays import Bytes, Values
from crawler.sketches.kernels import FNV_PRIME, FNV_START, minima
from crawler.sketches.shapes import VALUES
from crawler.sketches.stored import jaccard_of

if TYPE_CHECKING:
    from datasketch import MinHash

SEED = 1
SCHEME = "affine32"
HALF, WHOLE = 1 << 31, 1 << 32


@cache
def permutations(count: int = VALUES) -> tuple[Values, Values]:
    """Odd factors and summands, (count,) each, as datasketch draws them for its default seed."""
    random = np.random.RandomState(SEED)
    factors = random.randint(0, HALF, count, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    return factors, random.randint(0, WHOLE, count, dtype=np.uint32)


def values_of(hashes: Values, count: int = VALUES) -> Values:
    """(count,) the MinHash of a set of 32-bit shingle hashes, repetitions welcome."""
    return minima(hashes, *permutations(count))


def low_bytes(values: Values) -> Bytes:
    """The signature as it is stored: 8 bits a value tell as much as 32 (b-bit MinHash)."""
    return values.astype(np.uint8)


def similarity(one: Bytes, other: Bytes) -> float:
    """Estimated Jaccard of two signatures of low bytes."""
    return jaccard_of(np.count_nonzero(one == other) / one.size)


def as_datasketch(values: Values) -> MinHash:
    """A MinHash of datasketch with these values; it goes on with `shingle_hash`."""
    from datasketch import MinHash  # brings half a second of scipy

    return MinHash(
        hashvalues=values,
        permutations=permutations(values.size),
        seed=SEED,
        scheme=SCHEME,
        hashfunc=shingle_hash,
    )


def shingle_hash(shingle: bytes) -> int:
    """The 32-bit hash of a shingle of characters in UTF-8, as the kernels make it."""
    value = int(FNV_START)
    for point in map(ord, shingle.decode("utf-8", "surrogatepass")):
        value = ((value ^ point) * int(FNV_PRIME)) & 0xFFFFFFFF
    return value
