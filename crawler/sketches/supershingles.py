"""The paper's features: groups of 14 minima, each group one number (Broder 1997; Lee et al. 2010).

84 permutations make 6 features. Two texts are duplicates where 2 of the 6 agree at the same place:
where one of the 15 pairs of features agrees, so a pair is the key to look up.
"""

from __future__ import annotations

import numpy as np

from crawler.sketches.arrays import Bytes, Values
from crawler.sketches.kernels import band_keys
from crawler.sketches.minhash import values_of
from crawler.sketches.shapes import SUPERSHINGLES
from crawler.sketches.stored import FEATURES

GROUP = 14
FEATURE_BITS = 64


def features_of(hashes: Values) -> Bytes:
    """(48,) six features of 8 bytes of a set of 32-bit shingle hashes."""
    values = values_of(hashes, FEATURES * GROUP).view(np.uint8)
    tag = SUPERSHINGLES.code
    return band_keys(values, FEATURES, GROUP * 4, tag, FEATURE_BITS).view(np.uint8)
