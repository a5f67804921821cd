"""Return freed memory to the operating system."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache

# Blocks from this size on are returned when they are freed.
LARGE_BYTES = 1024 * 1024
# Options of mallopt(3).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


@cache
def return_large_blocks() -> None:
    """Make the C library return large blocks to the operating system when they are freed.

    By default the GNU C library raises its threshold with each freed block, so that later blocks
    fragment the heap. Call this only before work with large blocks: other processes run faster with
    the default.
    """
    with suppress(AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        # Setting one threshold stops the library from adapting the other.
        library.mallopt(M_TRIM_THRESHOLD, 8 * LARGE_BYTES)
