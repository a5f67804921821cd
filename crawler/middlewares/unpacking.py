"""Packed bodies: unpacked up to the limit of a body, with bounds on how they are packed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.http import Response
from scrapy.utils._compression import _DecompressionMaxSizeExceeded

from crawler.errors import Misbehaves, TooLarge
from crawler.middlewares.largebodies import LARGE_BYTES, LargeBodies, is_admitted
from crawler.utils.compression import MOST_PARTS, gunzipped, inflated

# As many as curl takes.
MOST_LAYERS = 5
# Zstandard's frames; the second with the last bytes of those that hold nothing.
FRAMES = (b"\x28\xb5\x2f\xfd", b"\x2a\x4d\x18")


class UnpackingMiddleware(HttpCompressionMiddleware):
    """Unpacks bodies; what is packed in too many layers or parts, or wrongly, costs its page."""

    def __init__(self, *, crawler: Crawler) -> None:
        super().__init__(crawler=crawler)
        self._large = LargeBodies.of(crawler)

    async def process_response(self, request: Request, response: Response) -> Request | Response:  # type: ignore[override] # Scrapy awaits what a middleware returns
        """Unpack the body; where it is large, when there is room for it."""
        packings = response.headers.getlist("Content-Encoding")
        limit = request.meta.get("download_maxsize") or self._max_size
        if packings and limit > LARGE_BYTES and not is_admitted(response):
            # Most bodies are small; what becomes of one shows only as it is unpacked.
            with suppress(TooLarge), _limited(request, LARGE_BYTES):
                return super().process_response(request, response)
            # What unpacks to too much is found out before anything waits for it. Unpacking twice
            # costs less than keeping the first result while it waits.
            size_bytes = len(self._handle_encoding(response.body, packings, limit)[0])
            flags = await self._large.admit(size_bytes)
            response = response.replace(flags=[*response.flags, *flags])
        return super().process_response(request, response)

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


@contextmanager
def _limited(request: Request, limit_bytes: int) -> Iterator[None]:
    """Let Scrapy's middleware unpack so much for a request."""
    given = request.meta.get("download_maxsize")
    request.meta["download_maxsize"] = limit_bytes
    try:
        yield
    finally:
        if given is None:
            del request.meta["download_maxsize"]
        else:
            request.meta["download_maxsize"] = given


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
    except (_DecompressionMaxSizeExceeded, TooLarge):
        problem: Misbehaves = TooLarge(limit_bytes)
    except Misbehaves as error:
        problem = Misbehaves(str(error))
    except Exception as error:  # noqa: BLE001 - each library has errors of its own
        said = f"cannot be unpacked as {coding.decode()}: {' '.join(str(error).split())}"
        problem = Misbehaves(said[:200])
    # Not from there: the error would keep all that was unpacked so far.
    raise problem
