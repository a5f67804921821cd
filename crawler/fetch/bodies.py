"""Large bodies: how many of them a crawl has in memory at a time.

A page costs several times its body until it is stored: text, fields, the documents that the
database gets. A few large pages at a time would take more memory than all the rest of a crawl.
So a large body is received on disk, and waits there for its turn.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from tempfile import SpooledTemporaryFile
from typing import Self

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.http import Response
from scrapy.utils._compression import _DecompressionMaxSizeExceeded

from crawler.config import Config
from crawler.errors import Misbehaves, TooLarge
from crawler.utils.compression import MAX_PARTS, gunzipped, inflated

logger = logging.getLogger(__name__)
LARGE_BYTES = 1024 * 1024
# A body that waits looks for garbage that holds its room so often.
COLLECT_SECONDS = 1.0
# Of the GNU C library's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
# Of Scrapy, in a request's meta: bytes that it may download and unpack to.
LIMIT = "download_maxsize"
# As many as curl takes.
MOST_LAYERS = 5
# Zstandard's frames; the second with the last bytes of those that hold nothing.
FRAMES = (b"\x28\xb5\x2f\xfd", b"\x2a\x4d\x18")
_by_crawler: weakref.WeakKeyDictionary[Crawler, LargeBodies] = weakref.WeakKeyDictionary()


class LargeBodies:
    """Admits large bodies in the order of their arrival, while they fit into the limit together.

    limit_bytes: of all that are admitted; one that is larger is admitted alone
    max_seconds: no body waits longer, whatever happened to those before it
    """

    def __init__(self, limit_bytes: int, max_seconds: float) -> None:
        self._limit_bytes, self._max_seconds = limit_bytes, max_seconds
        self._used_bytes = 0
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    @classmethod
    def of(cls, crawler: Crawler) -> LargeBodies:
        """Return those of a crawl; its handler and its middlewares share them."""
        if crawler not in _by_crawler:
            config = Config.of(crawler.settings)
            limit_bytes = crawler.settings.getint("DOWNLOAD_MAXSIZE")
            _by_crawler[crawler] = cls(limit_bytes, config.response_seconds)
        return _by_crawler[crawler]

    async def admit(self, size_bytes: int) -> list[str]:
        """Wait until there is room for a body of this size; return flags for its response.

        The room is free again when no response has these flags any more: Scrapy keeps a response
        until all that came of it is stored, and a replaced response hands its flags on.
        """
        if size_bytes <= LARGE_BYTES:
            return []
        try:
            async with asyncio.timeout(self._max_seconds), self._turn:
                while self._used_bytes and self._used_bytes + size_bytes > self._limit_bytes:
                    await self._until_freed()
        except TimeoutError:
            logger.debug("A body of %d bytes has waited long enough", size_bytes)
        _return_large_blocks()
        flag = _Flag("large")
        self._used_bytes += size_bytes
        loop = asyncio.get_running_loop()
        watch = weakref.finalize(flag, _free_later, loop, lambda: self._free(size_bytes))
        watch.atexit = False
        return [flag]

    async def _until_freed(self) -> None:
        """Return when room is freed, or after a second, so that the caller looks again."""
        self._freed.clear()
        try:
            async with asyncio.timeout(COLLECT_SECONDS):
                await self._freed.wait()
        except TimeoutError:
            # An exception and the stack that it was raised from may hold each other, and with them
            # the response of a page that failed.
            gc.collect()

    def _free(self, size_bytes: int) -> None:
        self._used_bytes -= size_bytes
        self._freed.set()


@cache
def _return_large_blocks() -> None:
    """Let the C library return large blocks to the system when they are freed.

    The GNU library stops doing so after the first few, and what lies between them is then lost. A
    crawl without large pages is faster without this.
    """
    with suppress(AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        # To set the one stops the library from adapting the other.
        library.mallopt(M_TRIM_THRESHOLD, 8 * LARGE_BYTES)


class _Flag(str):
    """A flag of a response that says in the log what it is; unlike a `str` it can be watched."""


def is_admitted(response: Response) -> bool:
    """Whether a response has been admitted as a large one."""
    return any(isinstance(flag, _Flag) for flag in response.flags)


def _free_later(loop: asyncio.AbstractEventLoop, free: Callable[[], None]) -> None:
    """The last reference may be dropped in any thread, and when the loop has been closed."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(free)


class SpooledBody:
    """A body while it is received: in memory up to LARGE_BYTES, beyond that in a temporary file.

    It stands in for the `io.BytesIO` of Scrapy's reader, which hands it on as the body.
    """

    def __init__(self, received: bytes) -> None:
        self._file = SpooledTemporaryFile[bytes](max_size=LARGE_BYTES)
        self._problem: OSError | None = None
        self.size_bytes = 0
        self.write(received)

    def __del__(self) -> None:
        """Close the file; requests that end early never load their bodies."""
        # What is still buffered need not reach a full disk.
        with suppress(OSError):
            self._file.close()

    def write(self, data: bytes) -> None:
        """Append to it. An exception would leave the request to its timeout, so `load` raises."""
        self.size_bytes += len(data)
        if self._problem is None:
            try:
                self._file.write(data)
            except OSError as error:
                self._problem = error

    def truncate(self, size_bytes: int) -> None:
        """Drop what is behind the first bytes."""
        self._file.truncate(size_bytes)

    def getvalue(self) -> Self:
        """Return itself: nothing is loaded yet."""
        return self

    def load(self) -> bytes:
        """Return the body and drop the file; raises Misbehaves where it could not be kept."""
        with self._file:
            if self._problem is not None:
                reason = f"a body of {self.size_bytes} bytes could not be kept: {self._problem}"
                raise Misbehaves(reason)
            self._file.seek(0)
            return self._file.read()


class UnpackingMiddleware(HttpCompressionMiddleware):
    """Unpacks bodies; what is packed in too many layers or parts, or wrongly, costs its page."""

    def __init__(self, *, crawler: Crawler) -> None:
        super().__init__(crawler=crawler)
        self._large = LargeBodies.of(crawler)

    async def process_response(self, request: Request, response: Response) -> Request | Response:  # type: ignore[override] # Scrapy awaits what a middleware returns
        """Unpack the body; where it is large, when there is room for it."""
        packings = response.headers.getlist("Content-Encoding")
        limit = request.meta.get(LIMIT) or self._max_size
        if packings and limit > LARGE_BYTES and not is_admitted(response):
            # Most bodies are small; what becomes of one shows only as it is unpacked.
            given = {key: request.meta[key] for key in [LIMIT] if key in request.meta}
            request.meta[LIMIT] = LARGE_BYTES
            try:
                return super().process_response(request, response)
            except TooLarge:
                pass
            finally:
                del request.meta[LIMIT]
                request.meta.update(given)
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


def _unpacked(body: bytes, coding: bytes, limit_bytes: int) -> bytes:
    if not body:  # 304, and answers to HEAD
        return body
    try:
        if coding in {b"gzip", b"x-gzip"}:
            return gunzipped(body, limit_bytes)
        if coding == b"deflate":
            return inflated(body, limit_bytes)
        if coding == b"zstd" and max(map(body.count, FRAMES)) > MAX_PARTS:
            raise Misbehaves(f"packed in more than {MAX_PARTS} parts")
        return HttpCompressionMiddleware._decode(body, coding, limit_bytes)
    except (_DecompressionMaxSizeExceeded, TooLarge):
        problem: Misbehaves = TooLarge(limit_bytes)
    except Misbehaves as error:
        problem = Misbehaves(str(error))
    except Exception as error:  # noqa: BLE001 - each library has errors of its own
        reason = f"cannot be unpacked as {coding.decode()}: {' '.join(str(error).split())}"
        problem = Misbehaves(reason[:200])
    # Not from there: the error would keep all that was unpacked so far.
    raise problem
