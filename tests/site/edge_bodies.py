"""Misbehaving resources with a broken body: odd, truncated, huge or slow."""

from __future__ import annotations

from twisted.internet.task import LoopingCall

from tests.site.edge_text import Text, item_html, latin_item
from tests.site.exchange import HTML, Answer, Exchange

HUGE_BYTES = 50_000_000
CHUNK = b"<p>" + b"the same long river " * 818 + b"</p>\n"
SLOW_PARTS = 60
PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x01\x00\x00\x00\x01\x00\x08\x06" + bytes(
    n * 37 % 256 for n in range(4000)
)
PDF = b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog >>\nendobj\ntrailer\n<< /Root 1 0 R >>\n%%EOF\n"
MOVING = b"""<!DOCTYPE html>
<html><head><title>Moving</title></head>
<body><h2>Back soon</h2>
<div class="notice">We are moving the shop to the other bank of the river.</div></body></html>
"""


class Fixed:
    """A resource that always sends the same body, without validators."""

    def __init__(self, body: bytes, content_type: str = HTML) -> None:
        self._answer = Answer(body, content_type)

    def serve(self, exchange: Exchange, rest: str) -> None:
        """Send the body."""
        exchange.send(self._answer)


class Empty(Fixed):
    """Status 200 without a body."""

    def __init__(self) -> None:
        super().__init__(b"")


class Binary(Fixed):
    """The bytes of an image, declared as HTML."""

    def __init__(self) -> None:
        super().__init__(PNG)


class Pdf(Fixed):
    """A PDF file."""

    def __init__(self) -> None:
        super().__init__(PDF, "application/pdf")


class NoFields(Fixed):
    """A valid page without any of an item's markup."""

    def __init__(self) -> None:
        super().__init__(MOVING)


class NoValidators(Fixed):
    """An item page without ETag and Last-Modified."""

    def __init__(self) -> None:
        super().__init__(latin_item("etag-less"))


class Encoded(Fixed):
    """An item page in an old encoding, declared in the header or not at all."""

    def __init__(self, text: Text, declared: bool) -> None:
        kind = f"text/html; charset={text.charset}" if declared else "text/html"
        super().__init__(item_html(text, text.title).encode(text.charset), kind)


class Truncated:
    """A truncated body: Content-Length is 5,000, but the connection closes earlier."""

    def serve(self, exchange: Exchange, rest: str) -> None:
        """Send part of the body and close."""
        exchange.start(200, [("Content-Type", HTML), ("Content-Length", "5000")])
        exchange.write(latin_item("truncated"))
        exchange.drop()


class ChunkedTruncated:
    """A chunked body without its last chunk."""

    def serve(self, exchange: Exchange, rest: str) -> None:
        """Send one chunk and close."""
        exchange.start(200, [("Content-Type", HTML)])
        exchange.write(latin_item("chunked-truncated"))
        exchange.drop()


class Huge:
    """A body of 50 MB, generated as the client reads it."""

    def serve(self, exchange: Exchange, rest: str) -> None:
        """Start the stream."""
        exchange.start(200, [("Content-Type", HTML), ("Content-Length", str(HUGE_BYTES))])
        exchange.request.registerProducer(_HugeBody(exchange), False)


class _HugeBody:
    """Produce the body as Twisted's pull producer, a chunk whenever the client can take more."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._left = HUGE_BYTES

    def resumeProducing(self) -> None:
        """Write the next chunk; after the last one, complete the answer."""
        data = CHUNK[: self._left]
        self._left -= len(data)
        self._exchange.write(data)
        if self._left == 0:
            self._exchange.request.unregisterProducer()
            self._exchange.finish()

    def stopProducing(self) -> None:
        """Do nothing, because the stream ends when Twisted stops requesting chunks."""


class Slow:
    """An item page that is sent in 60 parts, one per second."""

    def serve(self, exchange: Exchange, rest: str) -> None:
        """Start sending."""
        body = latin_item("slow")
        exchange.start(200, [("Content-Type", HTML), ("Content-Length", str(len(body)))])
        _Drip(exchange, body).begin()


class _Drip:
    """Write a body part by part, until it ends or the client disconnects."""

    def __init__(self, exchange: Exchange, body: bytes) -> None:
        size = -(-len(body) // SLOW_PARTS)
        self._parts = [body[n : n + size] for n in range(0, len(body), size)]
        self._exchange = exchange
        self._loop = LoopingCall(self._write)

    def begin(self) -> None:
        """Write the first part now and the others one per second."""
        self._exchange.request.notifyFinish().addErrback(self._lost)
        self._loop.start(1.0).addCallback(lambda _: self._exchange.finish())

    def _write(self) -> None:
        self._exchange.write(self._parts.pop(0))
        if not self._parts:
            self._loop.stop()

    def _lost(self, _: object) -> None:
        if self._loop.running:
            self._loop.stop()
