"""The output folder as a web server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted.internet.error import CannotListenError
from twisted.web.resource import Resource
from twisted.web.server import Site

from crawler.errors import ConfigError
from crawler.pages.files import ALWAYS, Asked, answer
from crawler.pages.options import Listening

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
        Folder(root), timeout=IDLE_SECONDS, reactor=reactor, parsePOSTFormSubmission=False
    )
    try:
        return reactor.listenTCP(order.port, site, interface=order.bind)
    except (CannotListenError, OSError) as error:
        reason = getattr(error, "socketError", error)
        reason = getattr(reason, "strerror", None) or reason
        raise ConfigError(f"--bind {order.bind} --port {order.port}: {reason}") from None


def url_of(listening: Any) -> str:
    """Where a listening port is found."""
    host = listening.getHost()
    name = f"[{host.host}]" if ":" in host.host else host.host
    return f"http://{name}:{host.port}/"


def _asked(request: Any) -> Asked:
    hosts = request.requestHeaders.getRawHeaders(b"host", [])
    return Asked(
        method=request.method.decode("latin-1"),
        path=request.uri.decode("latin-1"),
        hosts=tuple(host.decode("latin-1") for host in hosts),
        etag=(request.getHeader(b"if-none-match") or b"").decode("latin-1"),
    )
