"""Decompress data up to a size limit: HTTP bodies, gzip and deflate with common errors.

Python's `gzip` module reads header fields byte by byte and does not limit the number of members: a
hostile file keeps it busy for seconds.
"""

from __future__ import annotations

import zlib
from io import BytesIO
from typing import Any

from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.utils._compression import brotli, zstd  # type: ignore[attr-defined] # by version

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
TOO_SHORT = "the data ends too early"


class CorruptData(Exception):
    """Data cannot be decompressed; `str()` is the cause."""


def decoded_body(
    body: bytes, content_encoding: list[bytes], limit_bytes: int
) -> tuple[bytes, list[bytes]]:
    """Return a body without its content codings, and the codings that are not supported.

    limit_bytes: maximum size after each coding

    Raises BadResponse for a body that is too large, corrupt, incomplete or compressed too often:
    the beginning of a page would count as a change of the page.
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
            return gunzipped(body, limit_bytes, is_whole=True)
        if coding == b"deflate":
            return inflated(body, limit_bytes)
        if coding == b"zstd" and max(map(body.count, FRAMES)) > MAX_PARTS:
            raise BadResponse(f"has more than {MAX_PARTS} compressed parts")
        return (_unzstd if coding == b"zstd" else _unbrotli)(body, limit_bytes)
    except TooLarge:
        problem: BadResponse = TooLarge(limit_bytes)
    except BadResponse as error:
        problem = BadResponse(str(error))
    except Exception as error:  # noqa: BLE001 - each library has its own exceptions
        reason = f"cannot be decompressed as {coding.decode()}: {' '.join(str(error).split())}"
        problem = BadResponse(reason[:200])
    # Raised outside the except clause: the original error would keep the partial output in memory.
    raise problem


def _unbrotli(data: bytes, limit_bytes: int) -> bytes:
    decompressor = brotli.Decompressor()
    result = bytearray(decompressor.process(data, output_buffer_limit=PIECE_BYTES))
    while not decompressor.is_finished():
        piece = decompressor.process(b"", output_buffer_limit=PIECE_BYTES)
        if not piece:
            raise CorruptData(TOO_SHORT)
        _extend(result, piece, limit_bytes)
    return bytes(result)


def _unzstd(data: bytes, limit_bytes: int) -> bytes:
    result, file = bytearray(), zstd.ZstdFile(BytesIO(data))
    try:
        while piece := file.read(PIECE_BYTES):
            _extend(result, piece, limit_bytes)
    except EOFError:
        raise CorruptData(TOO_SHORT) from None
    return bytes(result)


def _extend(result: bytearray, piece: bytes, limit_bytes: int) -> None:
    result += piece
    if len(result) > limit_bytes:
        result.clear()  # the traceback of the error would keep the data in memory
        raise TooLarge(limit_bytes)


def gunzipped(data: bytes, limit_bytes: int, *, is_whole: bool = False) -> bytes:
    """Decompress a gzip file with one or more members, up to the first corrupt one.

    limit_bytes: maximum size of the result
    is_whole:    raise CorruptData if a member is corrupt or incomplete

    Raises CorruptData if nothing can be decompressed, and BadResponse if the result is larger than
    the limit or the file has too many members. Checksums are not compared.
    """
    result, at = bytearray(), 0
    for _ in range(MAX_PARTS):
        decompressor = zlib.decompressobj(RAW)
        try:
            at = _decompress(decompressor, data, _end_of_header(data, at), result, limit_bytes)
        except zlib.error as error:
            if is_whole or not result:
                raise CorruptData(str(error)) from None
            return bytes(result)
        if is_whole and not decompressor.eof:
            raise CorruptData(TOO_SHORT)
        # Ignore trailing data: some programs pad files.
        if not decompressor.eof or not data.startswith(GZIP, at + TRAILER_BYTES):
            return bytes(result)
        at += TRAILER_BYTES
    raise BadResponse(f"has more than {MAX_PARTS} compressed parts")


def inflated(data: bytes, limit_bytes: int) -> bytes:
    """Decompress a deflate stream, with or without the zlib header that HTTP requires.

    limit_bytes: maximum size of the result

    Raises CorruptData for other and incomplete data, and BadResponse if the result is larger than
    the limit.
    """
    cause = ""
    for bits in (zlib.MAX_WBITS, RAW):
        result, decompressor = bytearray(), zlib.decompressobj(bits)
        try:
            _decompress(decompressor, data, 0, result, limit_bytes)
        except zlib.error as error:
            cause = cause or str(error)
        else:
            if decompressor.eof:
                return bytes(result)
            cause = TOO_SHORT
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
        _extend(result, read, limit_bytes)
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
