"""The output folder as a web server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted.web.resource import Resource
from twisted.web.server import Site

from crawler.pages.files import ALWAYS, Asked, answer
from crawler.pages.options import Listening
from crawler.reactor import Bodiless, open_port

IDLE_SECONDS = 30


class Folder(Resource):
    """Answers each request from the files in a folder."""

    isLeaf = True  # noqa: N815 - Twisted's name

    def __init__(self, root: Path) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._root = root.resolve()

    def render(self, request: Any) -> bytes:
        """Answer a request."""
        found = answer(self._root, _asked(request))
        request.setResponseCode(found.status)
        headers = {**ALWAYS, **found.headers, "Content-Length": str(len(found.body))}
        if found.status == 304:
            del headers["Content-Length"]
        for name, value in headers.items():
            request.setHeader(name, value)
        return found.body


def listen(reactor: Any, order: Listening, root: Path) -> Any:
    """Begin to listen; raises ConfigError where the address cannot be had."""
    site = Site(  # type: ignore[no-untyped-call]
        Folder(root),
        requestFactory=Bodiless,
        timeout=IDLE_SECONDS,
        reactor=reactor,
        parsePOSTFormSubmission=False,
    )
    option = f"--bind {order.bind} --port {order.port}"
    return open_port(reactor, order.port, site, order.bind, option)


def _asked(request: Any) -> Asked:
    hosts = request.requestHeaders.getRawHeaders(b"host", [])
    return Asked(
        method=request.method.decode("latin-1"),
        path=request.uri.decode("latin-1"),
        hosts=tuple(host.decode("latin-1") for host in hosts),
        etag=(request.getHeader(b"if-none-match") or b"").decode("latin-1"),
    )
