"""Metrics and health as a web server: /metrics, /-/healthy and /-/ready."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from twisted.internet.defer import maybeDeferred
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site

from crawler.addresses import is_in_network, is_local, is_loopback
from crawler.metrics.address import Address
from crawler.reactor import Bodiless, open_port, url_of

logger = logging.getLogger(__name__)
IDLE_SECONDS = 30
TEXT = "text/plain; charset=utf-8"
INDEX = b"Freshet: /metrics /-/healthy /-/ready\n"


@dataclass(frozen=True, slots=True)
class Told:
    """What there is to tell.

    metrics: in the text format; None: nothing yet
    trouble: why the process cannot do its work, in a line; None if it can
    """

    metrics: Callable[[], Awaitable[bytes | None]]
    trouble: Callable[[], Awaitable[str | None]]


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, body and what kind of text it is."""

    status: int
    body: bytes
    kind: str = TEXT


async def answer(told: Told, method: str, path: str) -> Answer:
    """Return the answer to a request; may raise what `told` raises."""
    if method not in ("GET", "HEAD"):
        return Answer(405, b"GET, please\n")
    if path == "/metrics":
        text = await told.metrics()
        if text is None:
            return Answer(503, b"the first reading is not done yet\n")
        return Answer(200, text, CONTENT_TYPE_PLAIN_0_0_4)
    if path == "/-/ready":
        trouble = await told.trouble()
        return Answer(503, f"{trouble}\n".encode()) if trouble else Answer(200, b"ready\n")
    if path == "/-/healthy":
        return Answer(200, b"healthy\n")
    return Answer(200, INDEX) if path == "/" else Answer(404, INDEX)


class Telling(Resource):
    """Answers each request, a little later."""

    isLeaf = True  # noqa: N815 - Twisted's name

    def __init__(self, told: Told, address: Address, hosts: Collection[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._told = told
        self._is_private = is_loopback(address.host)
        self._hosts = hosts
        self._tasks: set[asyncio.Task[None]] = set()

    def render(self, request: Any) -> int:
        """Begin to answer.

        Other names than those of this machine come from web pages whose name was pointed here.
        """
        hosts = request.requestHeaders.getRawHeaders(b"host", [])
        host = hosts[0].decode("latin-1") if len(hosts) == 1 else ""
        if self._is_private and not is_local(host):
            _send(request, Answer(403, b"only for this machine; say localhost\n"))
            return NOT_DONE_YET
        if not self._is_private and not is_in_network(host, self._hosts):
            _send(request, Answer(403, b"unknown host name; add it to FRESHET_METRICS_HOSTS\n"))
            return NOT_DONE_YET
        task = asyncio.get_running_loop().create_task(self._answer(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return NOT_DONE_YET

    async def _answer(self, request: Any) -> None:
        gone: list[object] = []
        request.notifyFinish().addErrback(gone.append)
        method = request.method.decode("latin-1")
        try:
            found = await answer(self._told, method, request.path.decode("latin-1"))
        except Exception:  # Whoever asks gets an answer, whatever it is.
            logger.exception("metrics cannot be told")
            found = Answer(500, b"an error, see the log\n")
        if not gone:
            _send(request, found)


@asynccontextmanager
async def served(
    told: Told, address: Address, option: str, hosts: Collection[str]
) -> AsyncIterator[str]:
    """The URL where it is told while inside; raises ConfigError, which names the option.

    hosts: further names by which it may be asked for
    """
    from twisted.internet import reactor

    said = f"{option} {address.host}:{address.port}"
    port = open_port(
        reactor, address.port, _site(reactor, told, address, hosts), address.host, said
    )
    try:
        yield url_of(port)
    finally:
        await maybeDeferred(port.stopListening).asFuture(asyncio.get_running_loop())


def _site(reactor: Any, told: Told, address: Address, hosts: Collection[str]) -> Site:
    return Site(  # type: ignore[no-untyped-call]
        Telling(told, address, hosts),
        requestFactory=Bodiless,
        timeout=IDLE_SECONDS,
        reactor=reactor,
        parsePOSTFormSubmission=False,
    )


def _send(request: Any, found: Answer) -> None:
    request.setResponseCode(found.status)
    request.setHeader("Server", "Freshet")
    request.setHeader("Content-Type", found.kind)
    request.setHeader("Content-Length", str(len(found.body)))
    request.setHeader("X-Content-Type-Options", "nosniff")
    if found.status == 405:
        request.setHeader("Allow", "GET, HEAD")
    if request.method != b"HEAD":
        request.write(found.body)
    request.finish()
