"""Bounds on what a server may send besides a body: the head of its answer, the frames of chunks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scrapy.core.downloader.handlers.http11 import (
    _LenientHTTP11ClientFactory,
    _LenientHTTP11ClientProtocol,
    _LenientHTTPClientParser,
)
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure
from twisted.web.http import _ChunkedTransferDecoder

from crawler.errors import Misbehaves

# As much as Chrome takes; curl takes 300 kB.
HEAD_BYTES = 262_144
LINE_BYTES = 16_384
# Sizes of chunks may take so much more than the chunks themselves.
FRAMES_BYTES = 65_536
MOST_INTERIM = 100


class BoundedChunks(_ChunkedTransferDecoder):
    """Chunks, handed on by the read and not one by one: crumbs would cost more time than pages."""

    def __init__(self, hand_on: Callable[[bytes], None], end: Callable[[bytes], None]) -> None:
        self._pieces: list[bytes] = []
        self._rest: list[bytes] = []
        super().__init__(self._pieces.append, self._rest.append)
        self._hand_on, self._end = hand_on, end
        self._surplus = 0

    def dataReceived(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """Read what came; raises Misbehaves where it is frames rather than body."""
        super().dataReceived(data)
        read = b"".join(self._pieces)
        self._pieces.clear()
        self._surplus += len(data) - 2 * len(read)
        if self._surplus > FRAMES_BYTES + len(self._buffer):
            raise Misbehaves("chunks that are smaller than what frames them")
        if read:
            self._hand_on(read)
        if self._rest:
            self._end(self._rest.pop())


class BoundedParser(_LenientHTTPClientParser):
    """Reads the head of an answer, and of those before it (1xx), up to a limit."""

    MAX_LENGTH = LINE_BYTES
    _transferDecoders: dict[bytes, Any] = {b"chunked": BoundedChunks}  # noqa: N815, RUF012
    head_bytes = 0
    interim = 0

    def allHeadersReceived(self) -> None:  # noqa: N802
        """Go on to the body, or to the next head; raises Misbehaves where there were too many."""
        self.interim += self.response.code < 200
        if self.interim > MOST_INTERIM:
            raise Misbehaves(f"more than {MOST_INTERIM} interim answers")
        super().allHeadersReceived()  # type: ignore[no-untyped-call]

    def lineReceived(self, line: bytes) -> None:  # noqa: N802
        """Read a line; raises Misbehaves where there were too many."""
        self.head_bytes += len(line) + 1
        if self.head_bytes > HEAD_BYTES:
            raise Misbehaves(f"headers of more than {HEAD_BYTES // 1024} kB")
        super().lineReceived(line)

    def lineLengthExceeded(self, line: bytes) -> None:  # noqa: N802
        """Raise Misbehaves."""
        raise Misbehaves(f"a line of more than {LINE_BYTES // 1024} kB before the body")


class BoundedProtocol(_LenientHTTP11ClientProtocol):
    """A connection that is cut at once where its bytes make no sense, or too much of it."""

    def request(self, request: Any) -> Deferred[Any]:
        """Send a request, and read its answer within bounds."""
        answer = super().request(request)
        # As Scrapy gives the parser its class: Twisted names no way.
        if self._parser is not None:
            self._parser.__class__ = BoundedParser
            self._parser.finisher = self._ended
        return answer

    def _ended(self, rest: bytes) -> None:
        """What comes behind an answer must not be taken for the next page's."""
        if rest and self._parser is not None:
            self._parser.connHeaders.setRawHeaders(b"Connection", [b"close"])
        self._finishResponse(rest)

    def dataReceived(self, data: bytes) -> None:  # noqa: N802
        """Read what came. Twisted would say goodbye and wait, as long as an endless answer goes."""
        try:
            if self._parser is None:
                raise Misbehaves("an answer that nobody asked for")
            self._parser.dataReceived(data)  # type: ignore[no-untyped-call]
        except Exception:  # noqa: BLE001 - whatever it is, it ends this answer
            failure = Failure()  # type: ignore[no-untyped-call]
            transport: Any = self.transport
            transport.abortConnection()
            self._disconnectParser(failure)  # type: ignore[no-untyped-call]


class BoundedFactory(_LenientHTTP11ClientFactory):
    """Makes such connections."""

    def buildProtocol(self, addr: Any) -> BoundedProtocol:  # noqa: N802
        """One of them."""
        return BoundedProtocol(self._quiescentCallback)  # type: ignore[no-untyped-call]
