"""The paper's features: groups of 14 minima, each group one number (Broder 1997; Lee et al. 2010).

84 permutations make 6 features. Two texts are duplicates where 2 of the 6 agree at the same place:
where one of the 15 pairs of features agrees, so a pair is the key to look up.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from crawler.sketches.arrays import Bytes, Keys, Values
from crawler.sketches.kernels import band_keys
from crawler.sketches.minhash import values_of
from crawler.sketches.shapes import SUPERSHINGLES

FEATURES, GROUP = SUPERSHINGLES.values, 14
AGREEING = 2
PAIRS = np.array(list(combinations(range(FEATURES), AGREEING)))
FEATURE_BITS = 64
PAIR_TAG = SUPERSHINGLES.code * 16


def features_of(hashes: Values) -> Bytes:
    """(48,) six features of 8 bytes of a set of 32-bit shingle hashes."""
    values = values_of(hashes, FEATURES * GROUP).view(np.uint8)
    tag = SUPERSHINGLES.code
    return band_keys(values, FEATURES, GROUP * 4, tag, FEATURE_BITS).view(np.uint8)


def pair_keys(features: Bytes, bits: int) -> Keys:
    """(15,) a key of `bits` bits for each pair of features."""
    size = SUPERSHINGLES.value_size
    pairs = features.reshape(FEATURES, size)[PAIRS].reshape(len(PAIRS), -1)
    width = AGREEING * size
    return band_keys(np.ascontiguousarray(pairs).ravel(), len(PAIRS), width, PAIR_TAG, bits)
