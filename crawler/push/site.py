"""The callback as a web server: few connections, bounded bodies, little time for each."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site

from crawler.errors import FreshetError
from crawler.push.receiving import Answer, Delivery, Receiving

logger = logging.getLogger(__name__)
# Of all requests that are being received together.
MOST_BYTES_AT_ONCE = 64_000_000
IDLE_SECONDS = 30
RETRY_SECONDS = "60"
AWAY = Answer(503, b"not now\n")
BROKEN = Answer(500)
WRONG_METHOD = Answer(405)


class CallbackSite(Site):
    """Knows the limits, and how many bytes are being received.

    body_bytes: longest body      request_seconds: longest time for a body to come in
    """

    def __init__(
        self, reactor: Any, receiving: Receiving, body_bytes: int, request_seconds: float
    ) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            Callback(receiving),
            requestFactory=CallbackRequest,
            timeout=IDLE_SECONDS,
            reactor=reactor,
            parsePOSTFormSubmission=False,
        )
        self.body_bytes = body_bytes
        self.request_seconds = request_seconds
        self.receiving_bytes = 0


class CallbackRequest(Request):
    """A request whose body is read as far as it is allowed to go; what is more is thrown away."""

    too_large = False
    too_busy = False
    _limits: CallbackSite
    _bytes = 0

    def gotLength(self, length: int | None) -> None:  # noqa: N802 - Twisted's name
        """The headers are in: the body is counted from now on."""
        super().gotLength(length)  # type: ignore[no-untyped-call]
        channel: Any = self.channel
        self._limits = channel.site

    def handleContentChunk(self, data: bytes) -> None:  # noqa: N802 - Twisted's name
        """Keep a part of the body if it may be kept."""
        limits = self._limits
        self.too_large |= self._bytes + len(data) > limits.body_bytes
        self.too_busy |= limits.receiving_bytes + len(data) > MOST_BYTES_AT_ONCE
        if self.too_large or self.too_busy:
            self.let_go()
            return
        self._bytes += len(data)
        limits.receiving_bytes += len(data)
        super().handleContentChunk(data)  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Any) -> None:  # noqa: N802 - Twisted's name
        """The hub has gone."""
        self.let_go()
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def let_go(self) -> None:
        """The body is done with; its bytes are free for others."""
        if self._bytes:
            self._limits.receiving_bytes -= self._bytes
            self._bytes = 0
            if self.content is not None:
                self.content.truncate(0)


class Callback(Resource):
    """The one resource: the last part of a path is the token, whatever a proxy put before it."""

    isLeaf = True  # noqa: N815 - Twisted's name

    def __init__(self, receiving: Receiving) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._receiving = receiving
        self._tasks: set[asyncio.Task[None]] = set()

    def render(self, request: Request) -> int:
        """Answer a request, a little later."""
        task = asyncio.get_running_loop().create_task(self._handle(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return NOT_DONE_YET

    async def drain(self, seconds: float) -> None:
        """Wait until what was received is answered, so many seconds at most."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def _handle(self, request: Any) -> None:
        gone: list[object] = []
        request.notifyFinish().addErrback(gone.append)
        try:
            answer = await self._answer(request)
        except FreshetError as error:
            logger.warning("a hub is told to come again: %s", error)
            answer = AWAY
        except Exception:  # A hub gets an answer, whatever it is.
            logger.exception("a request of a hub failed")
            answer = BROKEN
        request.let_go()
        if not gone:
            _send(request, answer)

    async def _answer(self, request: Any) -> Answer:
        token = request.path.rpartition(b"/")[2].decode("latin-1")
        if request.method == b"GET":
            return await self._receiving.verify(token, _query(request))
        if request.method != b"POST":
            return WRONG_METHOD
        if request.too_busy:
            return AWAY
        body = None if request.too_large else request.content.read()
        delivery = Delivery(
            _header(request, "X-Hub-Signature"),
            _header(request, "Content-Type") or "",
            _header(request, "Content-Encoding") or "",
            body,
        )
        return await self._receiving.deliver(token, delivery)


def _query(request: Any) -> dict[str, str]:
    """Parameters that stand once, decoded; others are as good as absent."""
    query: dict[str, str] = {}
    for name, values in request.args.items():
        if len(values) == 1:
            try:
                query[name.decode("ascii")] = values[0].decode("utf-8")
            except UnicodeDecodeError:
                continue
    return query


def _header(request: Any, name: str) -> str | None:
    value: bytes | None = request.getHeader(name.encode("ascii"))
    return None if value is None else value.decode("latin-1")


def _send(request: Any, answer: Answer) -> None:
    request.setResponseCode(answer.status)
    request.setHeader("Server", "Freshet")
    request.setHeader("Content-Type", "text/plain; charset=utf-8")
    request.setHeader("X-Content-Type-Options", "nosniff")
    request.setHeader("Content-Length", str(len(answer.text)))
    if answer.status == 405:
        request.setHeader("Allow", "GET, POST")
    if answer.status == 503:
        request.setHeader("Retry-After", RETRY_SECONDS)
    request.write(answer.text)
    request.finish()
