"""Layers around the web app: headers, errors, proxies, Host check, body sizes, audit list.

They see every request, including those for files and for paths without a route.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crawler.fetch.guard import is_in_network, is_local
from crawler.web.options import WebOptions

logger = logging.getLogger(__name__)
# Nothing is loaded from other hosts, and scripts and styles only from files. A response may set its
# own policy, for example to show a page in a sandboxed frame.
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Permissions-Policy": (
        "camera=(), clipboard-read=(), display-capture=(), geolocation=(), microphone=(), "
        "payment=(), usb=()"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
# Limit for paths whose routes limit the body themselves.
UNLIMITED = -1
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
ErrorPage = Callable[[Scope, int, str], Any]


class Layer:
    """Base class of layers. Messages about the start and the end of the app pass unchanged."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or pass on another message."""
        handle = self.handle if scope["type"] == "http" else self._app
        await handle(scope, receive, send)

    @abstractmethod
    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""


class SecurityHeaders(Layer):
    """Adds the security headers to all responses that do not set their own."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class ProxyAndHost(Layer):
    """Applies the headers of trusted proxies, and rejects requests for unknown hosts.

    A web page in a user's browser can point its own host name to this machine (DNS rebinding), but
    cannot change the Host header.
    """

    def __init__(self, app: ASGIApp, options: WebOptions, error_page: ErrorPage) -> None:
        super().__init__(app)
        self._options = options
        self._error_page = error_page

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        scope = {**scope, "root_path": self._options.root_path}
        is_head = scope["method"] == "HEAD"
        if is_head:
            # uvicorn omits the body of the response, because it received HEAD.
            scope["method"] = "GET"
        root = self._options.root_path
        if root and not (scope["path"] == root or scope["path"].startswith(f"{root}/")):
            # The proxy removed the prefix.
            scope["path"] = root + scope["path"]
        headers = Headers(scope=scope)
        scope["state"] = scope.get("state", {}) | {
            "was_forwarded": any(name in headers for name in FORWARDED),
            "was_head": is_head,
        }
        client = scope.get("client") or ("", 0)
        if self._options.trusts(client[0]):
            _apply_forwarded(scope, headers, self._options)
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        host = hosts[0].decode("latin-1") if len(hosts) == 1 else ""
        options = self._options
        is_accepted = is_local(host) or (
            not options.is_private and is_in_network(host, options.hosts)
        )
        if not is_accepted:
            problem = (
                "This server is only available on this machine. Use http://localhost with the port"
                if options.is_private
                else f"Unknown host name. Add it to {options.hosts_setting}"
            )
            await self._error_page(scope, 421, problem)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _apply_forwarded(scope: Scope, headers: Headers, options: WebOptions) -> None:
    """Replace the client, scheme and Host with those that the proxies report."""
    hops = [hop.strip() for hop in ",".join(headers.getlist("x-forwarded-for")).split(",")]
    # The last address that is not one of our proxies: clients can forge the ones before it.
    for hop in reversed([hop for hop in hops if hop]):
        scope["client"] = (hop.strip("[]"), 0)
        if not options.trusts(hop):
            break
    scheme = headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()
    if scheme in ("http", "https"):
        scope["scheme"] = scheme
    if host := headers.get("x-forwarded-host", "").rpartition(",")[2].strip():
        others = [pair for pair in scope["headers"] if pair[0] != b"host"]
        scope["headers"] = [*others, (b"host", host.encode("latin-1"))]


class Errors(Layer):
    """Responds to unexpected errors with a page, and logs them with their traceback."""

    def __init__(self, app: ASGIApp, error_page: ErrorPage) -> None:
        super().__init__(app)
        self._error_page = error_page

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        has_started = False

        async def watch(message: Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except ClientDisconnect:
            # Or the body was not valid HTTP, to which the server has responded.
            logger.debug("Request ended early: %s %s", scope["method"], scope["path"])
        except Exception:
            logger.exception("Request failed: %s %s", scope["method"], scope["path"])
            if has_started:
                raise
            problem = "An unexpected error occurred. The log of the server has the details"
            await self._error_page(scope, 500, problem)(scope, receive, send)


class BodyLimit(Layer):
    """Refuses bodies that are too large, or whose end is ambiguous.

    Large ones are refused before the app reads them if their length is stated.

    uploads: limit in bytes by path, for paths with their own limit; a path with a trailing slash
             covers all paths below it
    """

    def __init__(
        self, app: ASGIApp, max_bytes: int, uploads: Mapping[str, int], error_page: ErrorPage
    ) -> None:
        super().__init__(app)
        self._max_bytes = max_bytes
        self._uploads = uploads
        self._error_page = error_page

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        headers = Headers(scope=scope)
        is_old = scope.get("http_version") == "1.0"
        if "transfer-encoding" in headers and (is_old or "content-length" in headers):
            # A proxy may see another end of the body (RFC 9112, section 6.1).
            problem = "Transfer-Encoding is not allowed with Content-Length or in HTTP/1.0"
            response = self._error_page(scope, 400, problem)
            response.headers["Connection"] = "close"
            await response(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        limit = self._limit_of(path)
        if limit == UNLIMITED:
            await self._app(scope, receive, send)
            return
        problem = f"The request is larger than {limit / 1e6:g} MB"
        stated = headers.get("content-length", "0")
        if not stated.isdecimal() or int(stated) > limit:
            response = self._error_page(scope, 413, problem)
            response.headers["Connection"] = "close"
            await response(scope, receive, send)
            return
        received = 0

        async def receive_limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise HTTPException(413, problem, {"Connection": "close"})
            return message

        await self._app(scope, receive_limited, send)

    def _limit_of(self, path: str) -> int:
        below = (
            limit
            for place, limit in self._uploads.items()
            if place.endswith("/") and path.startswith(place)
        )
        return self._uploads.get(path) or next(below, self._max_bytes)


class Audit(Layer):
    """Adds each successful write to the audit list, before its response is sent.

    record: stores an entry for a scope and a status
    """

    def __init__(self, app: ASGIApp, record: Callable[[Scope, int], Awaitable[None]]) -> None:
        super().__init__(app)
        self._record = record

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["method"] in SAFE_METHODS:
            await self._app(scope, receive, send)
            return

        async def record_first(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 400:
                await self._record(scope, message["status"])
            await send(message)

        await self._app(scope, receive, record_first)
