"""Run a handler of exchanges as a web server on 127.0.0.1 until SIGTERM."""

from __future__ import annotations

import os
from typing import Any, Protocol

from twisted.internet import reactor as twisted_reactor
from twisted.internet.task import LoopingCall
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Request, Site

from tests.site.exchange import Exchange, RequestLog
from tests.site.running import CLIENT

CHECK_SECONDS = 1.0
reactor: Any = twisted_reactor  # The reactor is a module whose methods have no type annotations.


class Handler(Protocol):
    """Answer requests."""

    def handle(self, exchange: Exchange) -> None:
        """Answer a request, now or later."""

    def quick(self, request: Request) -> bytes | None:
        """Return a body if the request needs neither the log nor an Exchange, else None."""


class Root(Resource):
    """The server's only resource, which passes every request to the handler."""

    isLeaf = True

    def __init__(self, handler: Handler, log: RequestLog) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._handler = handler
        self._log = log

    def render(self, request: Request) -> bytes | int:
        """Answer a request; Twisted turns an exception in the handler into a 500."""
        body = self._handler.quick(request)
        if body is not None:
            return body
        exchange = Exchange(request)
        self._log.watch(exchange)
        self._handler.handle(exchange)
        return NOT_DONE_YET


def run(handler: Handler, log: RequestLog, port: int) -> None:
    """Listen (0: any free port), print the address on one line, and serve until SIGTERM.

    If CLIENT names a process, the server also ends after that process, which may be killed.
    """
    factory = Site(Root(handler, log))  # type: ignore[no-untyped-call]
    listening = reactor.listenTCP(port, factory, interface="127.0.0.1")
    print(f"http://127.0.0.1:{listening.getHost().port}", flush=True)
    if client := os.environ.get(CLIENT):
        LoopingCall(_end_with, int(client)).start(CHECK_SECONDS, now=False)
    reactor.run()


def _end_with(client: int) -> None:
    try:
        os.kill(client, 0)
    except OSError:
        reactor.stop()
