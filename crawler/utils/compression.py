"""Gzip and deflate, unpacked up to a limit, however oddly they are packed.

Python's own reader of gzip looks at file names byte by byte, and at parts one by one: a file of
nothing but these keeps it busy for seconds.
"""

from __future__ import annotations

import zlib
from typing import Any

from crawler.errors import Misbehaves, TooLarge

PIECE_BYTES = 65_536
# A file is one part as a rule; some programs make one of every 64 kB.
MOST_PARTS = 2000
GZIP = b"\x1f\x8b\x08"
RAW = -zlib.MAX_WBITS
FIXED_BYTES, TRAILER_BYTES = 10, 8
EXTRA, NAME, COMMENT, CHECK = 4, 8, 16, 2


class Broken(Exception):
    """Bytes that are not packed as they should be; `str()` says what is wrong."""


def gunzipped(data: bytes, limit_bytes: int) -> bytes:
    """What a gzip file of one or more parts holds, as far as it can be read.

    Raises Broken where nothing can be, Misbehaves where it is more than the limit.
    """
    found, at = bytearray(), 0
    for _ in range(MOST_PARTS):
        unpacker = zlib.decompressobj(RAW)
        try:
            at = _unpack(unpacker, data, _behind_header(data, at), found, limit_bytes)
        except zlib.error as error:
            if not found:
                raise Broken(str(error)) from None
            return bytes(found)
        # Programs pad files; whatever else follows was not packed.
        if not unpacker.eof or not data.startswith(GZIP, at + TRAILER_BYTES):
            return bytes(found)
        at += TRAILER_BYTES
    raise Misbehaves(f"packed in more than {MOST_PARTS} parts")


def inflated(data: bytes, limit_bytes: int) -> bytes:
    """What a deflate stream holds, with the frame that it should have or without; raises alike."""
    for bits in (zlib.MAX_WBITS, RAW):
        found = bytearray()
        try:
            _unpack(zlib.decompressobj(bits), data, 0, found, limit_bytes)
        except zlib.error as error:
            said = str(error)
        else:
            return bytes(found)
    raise Broken(said)


def _unpack(unpacker: Any, data: bytes, at: int, found: bytearray, limit_bytes: int) -> int:
    """Add to `found` what begins at `at`; where its end is. An end that is missing is no error."""
    while not unpacker.eof:
        waiting = unpacker.unconsumed_tail
        piece = waiting or data[at : at + PIECE_BYTES]
        at += 0 if waiting else len(piece)
        read = unpacker.decompress(piece, PIECE_BYTES)
        found += read
        if len(found) > limit_bytes:
            found.clear()  # who keeps the error would keep this too
            raise TooLarge(limit_bytes)
        if not piece and not read:
            break
    return at - len(unpacker.unused_data)


def _behind_header(data: bytes, at: int) -> int:
    """Where the packed bytes of a part begin; raises Broken where it is no part."""
    if not data.startswith(GZIP, at) or len(data) < at + FIXED_BYTES:
        raise Broken("no gzip file")
    flags, end = data[at + 3], at + FIXED_BYTES
    if flags & EXTRA:
        end += 2 + int.from_bytes(data[end : end + 2], "little")
    for flag in (NAME, COMMENT):
        if flags & flag:
            end = data.find(b"\0", end) + 1 or len(data)
    return end + 2 if flags & CHECK else end
