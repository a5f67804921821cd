"""The keys by which signatures are looked up. Compiled code."""

from __future__ import annotations

import numpy as np
from numba import njit

from crawler.dedup.points import Bytes, Keys
from schedules.compiled import compiled

MIX_1, MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def band_keys(signature: Bytes, bands: int, rows: int, tag: int, bits: int) -> Keys:
    """Return (bands,) keys of `bits` bits, one per band of `rows` values; tags never share keys."""
    keys = np.empty(bands, np.int64)
    _band_keys(signature, rows, tag, bits, keys)
    return keys


@compiled
def _band_keys(signature: Bytes, rows: int, tag: int, bits: int, keys: Keys) -> None:
    for band in range(keys.size):
        value = np.uint64(tag * 1024 + band) * GOLDEN
        for row in range(band * rows, (band + 1) * rows):
            value = _mix(value ^ np.uint64(signature[row]))
        keys[band] = np.int64(value >> np.uint64(64 - bits))


@njit(inline="always")
def _mix(value: np.uint64) -> np.uint64:
    """Mix the bits of a value: SplitMix64's finalizer."""
    value += GOLDEN
    value = (value ^ (value >> np.uint64(30))) * MIX_1
    value = (value ^ (value >> np.uint64(27))) * MIX_2
    return value ^ (value >> np.uint64(31))
