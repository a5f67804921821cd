"""Decompress data up to a size limit: HTTP bodies, gzip and deflate with common errors.

Python's `gzip` module reads header fields byte by byte and does not limit the number of members: a
hostile file keeps it busy for seconds.
"""

from __future__ import annotations

import zlib
from typing import Any

from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.utils._compression import _DecompressionMaxSizeExceeded

from crawler.errors import BadResponse, TooLarge

PIECE_BYTES = 65_536
# Members of a gzip file. Most files have one; some programs write one for every 64 kB.
MAX_PARTS = 2000
GZIP = b"\x1f\x8b\x08"
RAW = -zlib.MAX_WBITS
FIXED_BYTES, TRAILER_BYTES = 10, 8
EXTRA, NAME, COMMENT, CHECK = 4, 8, 16, 2
# Content codings of one body; the limit of curl.
MAX_LAYERS = 5
# Magic numbers of Zstandard frames; of skippable frames, only the bytes that are always the same.
FRAMES = (b"\x28\xb5\x2f\xfd", b"\x2a\x4d\x18")


class CorruptData(Exception):
    """Data cannot be decompressed; `str()` is the cause."""


def decoded_body(
    body: bytes, content_encoding: list[bytes], limit_bytes: int
) -> tuple[bytes, list[bytes]]:
    """Return a body without its content codings, and the codings that are not supported.

    limit_bytes: maximum size after each coding

    Raises BadResponse for a body that is too large, corrupt or compressed too often.
    """
    layers, unknown = HttpCompressionMiddleware._split_encodings(content_encoding)
    if len(layers) > MAX_LAYERS:
        raise BadResponse(f"compressed {len(layers)} times (maximum: {MAX_LAYERS})")
    for coding in layers:
        body = _decompressed(body, coding, limit_bytes)
    return body, unknown


def _decompressed(body: bytes, coding: bytes, limit_bytes: int) -> bytes:
    """Decode one content coding; raises BadResponse without a reference to partial output."""
    if not body:  # responses with status 304, or to HEAD
        return body
    try:
        if coding in {b"gzip", b"x-gzip"}:
            return gunzipped(body, limit_bytes)
        if coding == b"deflate":
            return inflated(body, limit_bytes)
        if coding == b"zstd" and max(map(body.count, FRAMES)) > MAX_PARTS:
            raise BadResponse(f"has more than {MAX_PARTS} compressed parts")
        return HttpCompressionMiddleware._decode(body, coding, limit_bytes)
    except (_DecompressionMaxSizeExceeded, TooLarge):
        problem: BadResponse = TooLarge(limit_bytes)
    except BadResponse as error:
        problem = BadResponse(str(error))
    except Exception as error:  # noqa: BLE001 - each library has its own exceptions
        reason = f"cannot be decompressed as {coding.decode()}: {' '.join(str(error).split())}"
        problem = BadResponse(reason[:200])
    # Raised outside the except clause: the original error would keep the partial output in memory.
    raise problem


def gunzipped(data: bytes, limit_bytes: int) -> bytes:
    """Decompress a gzip file with one or more members, up to the first corrupt one.

    limit_bytes: maximum size of the result

    Raises CorruptData if nothing can be decompressed, and BadResponse if the result is larger than
    the limit or the file has too many members.
    """
    result, at = bytearray(), 0
    for _ in range(MAX_PARTS):
        decompressor = zlib.decompressobj(RAW)
        try:
            at = _decompress(decompressor, data, _end_of_header(data, at), result, limit_bytes)
        except zlib.error as error:
            if not result:
                raise CorruptData(str(error)) from None
            return bytes(result)
        # Ignore trailing data: some programs pad files.
        if not decompressor.eof or not data.startswith(GZIP, at + TRAILER_BYTES):
            return bytes(result)
        at += TRAILER_BYTES
    raise BadResponse(f"has more than {MAX_PARTS} compressed parts")


def inflated(data: bytes, limit_bytes: int) -> bytes:
    """Decompress a deflate stream, with or without the zlib header that HTTP requires.

    limit_bytes: maximum size of the result

    Raises CorruptData for other data, and BadResponse if the result is larger than the limit.
    """
    for bits in (zlib.MAX_WBITS, RAW):
        result = bytearray()
        try:
            _decompress(zlib.decompressobj(bits), data, 0, result, limit_bytes)
        except zlib.error as error:
            cause = str(error)
        else:
            return bytes(result)
    raise CorruptData(cause)


def _decompress(
    decompressor: Any, data: bytes, at: int, result: bytearray, limit_bytes: int
) -> int:
    """Decompress the stream at `at` into `result`, and return the index of its end.

    A truncated stream is not an error. Raises BadResponse if the result exceeds the limit.
    """
    while not decompressor.eof:
        waiting = decompressor.unconsumed_tail
        piece = waiting or data[at : at + PIECE_BYTES]
        at += 0 if waiting else len(piece)
        read = decompressor.decompress(piece, PIECE_BYTES)
        result += read
        if len(result) > limit_bytes:
            result.clear()  # the traceback of the error would keep the data in memory
            raise TooLarge(limit_bytes)
        if not piece and not read:
            break
    return at - len(decompressor.unused_data)


def _end_of_header(data: bytes, at: int) -> int:
    """Return the index at which the compressed data of a member begins. Raises CorruptData."""
    if not data.startswith(GZIP, at) or len(data) < at + FIXED_BYTES:
        raise CorruptData("not a gzip file")
    flags, end = data[at + 3], at + FIXED_BYTES
    if flags & EXTRA:
        end += 2 + int.from_bytes(data[end : end + 2], "little")
    for flag in (NAME, COMMENT):
        if flags & flag:
            end = data.find(b"\0", end) + 1 or len(data)
    return end + 2 if flags & CHECK else end
