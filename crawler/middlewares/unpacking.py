"""Packed bodies: unpacked up to the limit of a body, with bounds on how they are packed."""

from __future__ import annotations

from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.utils._compression import _DecompressionMaxSizeExceeded

from crawler.misbehaving import Misbehaves
from crawler.packed import MOST_PARTS, TOO_MUCH, gunzipped, inflated

# As many as curl takes.
MOST_LAYERS = 5
# Zstandard's frames; the second with the last bytes of those that hold nothing.
FRAMES = (b"\x28\xb5\x2f\xfd", b"\x2a\x4d\x18")


class UnpackingMiddleware(HttpCompressionMiddleware):
    """Unpacks bodies; what is packed in too many layers or parts, or wrongly, costs its page."""

    def _handle_encoding(
        self, body: bytes, content_encoding: list[bytes], max_size: int
    ) -> tuple[bytes, list[bytes]]:
        layers, unknown = self._split_encodings(content_encoding)
        if len(layers) > MOST_LAYERS:
            raise Misbehaves(f"packed {len(layers)} times, {MOST_LAYERS} are the most")
        # A request that may download as much as it likes may not unpack as much as it likes.
        limit = max_size or self._max_size
        for coding in layers:
            body = _unpacked(body, coding, limit)
        return body, unknown


def _unpacked(body: bytes, coding: bytes, limit_bytes: int) -> bytes:
    if not body:  # 304, and answers to HEAD
        return body
    try:
        if coding in {b"gzip", b"x-gzip"}:
            return gunzipped(body, limit_bytes)
        if coding == b"deflate":
            return inflated(body, limit_bytes)
        if coding == b"zstd" and max(map(body.count, FRAMES)) > MOST_PARTS:
            raise Misbehaves(f"packed in more than {MOST_PARTS} parts")
        return HttpCompressionMiddleware._decode(body, coding, limit_bytes)
    except _DecompressionMaxSizeExceeded:
        said = TOO_MUCH.format(limit_bytes)
    except Misbehaves as error:
        said = str(error)
    except Exception as error:  # noqa: BLE001 - each library has errors of its own
        said = f"cannot be unpacked as {coding.decode()}: {' '.join(str(error).split())}"[:200]
    # Not from there: the error would keep all that was unpacked so far.
    raise Misbehaves(said)
