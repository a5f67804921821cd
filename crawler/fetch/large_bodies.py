"""Limit how many large response bodies a crawl holds in memory.

Until a page is stored, it takes several times the memory of its body, for its text, its fields and
its database documents. A few large pages would take more memory than the rest of the crawl, so a
large body is buffered on disk until there is room for it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Callable
from contextlib import suppress
from tempfile import SpooledTemporaryFile
from typing import Self

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.http import Response

from crawler.config import Config
from crawler.errors import BadResponse, TooLarge
from crawler.utils.compression import decoded_body
from crawler.utils.process import LARGE_BYTES, return_large_blocks

logger = logging.getLogger(__name__)
# A waiting body triggers garbage collection at this interval, to free bodies in reference cycles.
COLLECT_SECONDS = 1.0
# Scrapy's key in request.meta for the maximum size in bytes, both compressed and decompressed.
LIMIT = "download_maxsize"
_by_crawler: weakref.WeakKeyDictionary[Crawler, LargeBodies] = weakref.WeakKeyDictionary()


class LargeBodies:
    """Admits large bodies in order of arrival, as long as their total size is within a limit.

    limit_bytes: maximum total size; a larger body is admitted when no other body is in memory
    max_seconds: maximum time that a body waits
    """

    def __init__(self, limit_bytes: int, max_seconds: float) -> None:
        self._limit_bytes, self._max_seconds = limit_bytes, max_seconds
        self._used_bytes = 0
        self._order = asyncio.Lock()
        self._freed = asyncio.Event()

    @classmethod
    def of(cls, crawler: Crawler) -> LargeBodies:
        """Return the instance that the handler and the middlewares of a crawl share."""
        if crawler not in _by_crawler:
            config = Config.of(crawler.settings)
            limit_bytes = crawler.settings.getint("DOWNLOAD_MAXSIZE")
            _by_crawler[crawler] = cls(limit_bytes, config.response_seconds)
        return _by_crawler[crawler]

    async def admit(self, size_bytes: int) -> list[str]:
        """Wait until a body of this size fits; return flags for its response.

        The body counts as long as a response has these flags: Scrapy keeps a response until its
        items are stored, and response.replace() copies the flags.
        """
        if size_bytes <= LARGE_BYTES:
            return []
        try:
            async with asyncio.timeout(self._max_seconds), self._order:
                while self._used_bytes and self._used_bytes + size_bytes > self._limit_bytes:
                    await self._until_freed()
        except TimeoutError:
            logger.debug("Body of %d bytes admitted after the maximum wait", size_bytes)
        return_large_blocks()
        flag = _Flag("large")
        self._used_bytes += size_bytes
        loop = asyncio.get_running_loop()
        watch = weakref.finalize(flag, _free_later, loop, lambda: self._free(size_bytes))
        watch.atexit = False
        return [flag]

    async def _until_freed(self) -> None:
        """Wait until a body is freed, at most COLLECT_SECONDS; then collect garbage."""
        self._freed.clear()
        try:
            async with asyncio.timeout(COLLECT_SECONDS):
                await self._freed.wait()
        except TimeoutError:
            # An exception and its traceback can form a reference cycle that keeps the response of
            # a failed page.
            gc.collect()

    def _free(self, size_bytes: int) -> None:
        self._used_bytes -= size_bytes
        self._freed.set()


class _Flag(str):
    """Response flag that, unlike a plain `str`, supports weak references."""


def is_admitted(response: Response) -> bool:
    """Return whether a response was admitted as a large one."""
    return any(isinstance(flag, _Flag) for flag in response.flags)


def _free_later(loop: asyncio.AbstractEventLoop, free: Callable[[], None]) -> None:
    """Run `free` in the event loop: finalizers run in any thread, even after the loop closed."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(free)


class SpooledBody:
    """Buffer of a body during the download: in memory up to LARGE_BYTES, then a temporary file.

    It replaces the `io.BytesIO` of Scrapy's response reader, which returns it as the body.
    """

    def __init__(self, received: bytes) -> None:
        self._file = SpooledTemporaryFile[bytes](max_size=LARGE_BYTES)
        self._problem: OSError | None = None
        self.size_bytes = 0
        self.write(received)

    def __del__(self) -> None:
        """Close the file of a body that was never loaded, because its request failed."""
        # Closing flushes the buffer, which fails if the disk is full.
        with suppress(OSError):
            self._file.close()

    def write(self, data: bytes) -> None:
        """Append data. `load` raises any error; raised here, it would hang the request."""
        self.size_bytes += len(data)
        if self._problem is None:
            try:
                self._file.write(data)
            except OSError as error:
                self._problem = error

    def truncate(self, size_bytes: int) -> None:
        """Drop all but the first `size_bytes` bytes."""
        self._file.truncate(size_bytes)

    def getvalue(self) -> Self:
        """Return the buffer itself, so that Scrapy passes it on without loading it."""
        return self

    def load(self) -> bytes:
        """Return the body and delete the file; raises BadResponse if buffering failed."""
        with self._file:
            if self._problem is not None:
                reason = f"body of {self.size_bytes} bytes could not be buffered: {self._problem}"
                raise BadResponse(reason)
            self._file.seek(0)
            return self._file.read()


class UnpackingMiddleware(HttpCompressionMiddleware):
    """Decompresses bodies within limits on size, layers and parts; raises BadResponse."""

    def __init__(self, *, crawler: Crawler) -> None:
        super().__init__(crawler=crawler)
        self._large = LargeBodies.of(crawler)

    async def process_response(self, request: Request, response: Response) -> Request | Response:  # type: ignore[override] # Scrapy awaits what a middleware returns
        """Decompress the body; wait for room first if the result is large."""
        encodings = response.headers.getlist("Content-Encoding")
        if not encodings:
            return response
        limit = request.meta.get(LIMIT) or self._max_size
        if limit > LARGE_BYTES and not is_admitted(response):
            # Try with the small limit first: most bodies are small, and the decompressed size is
            # not known in advance.
            given = {key: request.meta[key] for key in [LIMIT] if key in request.meta}
            request.meta[LIMIT] = LARGE_BYTES
            try:
                return super().process_response(request, response)
            except TooLarge:
                pass
            finally:
                del request.meta[LIMIT]
                request.meta.update(given)
            # Measure before waiting, so that a decompression bomb fails immediately. Drop the
            # result: decompressing again costs less than keeping it in memory meanwhile.
            size_bytes = len(self._handle_encoding(response.body, encodings, limit)[0])
            flags = await self._large.admit(size_bytes)
            response = response.replace(flags=[*response.flags, *flags])
        return super().process_response(request, response)

    def _handle_encoding(
        self, body: bytes, content_encoding: list[bytes], max_size: int
    ) -> tuple[bytes, list[bytes]]:
        # A request without a download limit (0) still gets the default limit here.
        return decoded_body(body, content_encoding, max_size or self._max_size)
