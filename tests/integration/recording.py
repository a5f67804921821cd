"""Servers that record the headers of each request and send responses set by a test."""

from __future__ import annotations

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class Recorder:
    """An HTTP server at 127.0.0.1 and plain proxy for every host, which records requests.

    answers: by path or by full URL: the HTML of a page, or a status and a redirect target
    asked:   pairs of the request target as sent and its headers in lower case
    """

    def __init__(self, certificate: tuple[Path, Path] | None = None) -> None:
        self.answers: dict[str, str | tuple[int, str]] = {}
        self.extra: dict[str, dict[str, str]] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                recorder.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_address[1]
        scheme = "http" if certificate is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Record a request and send a response."""
        self.asked.append((handler.path, {k.lower(): v for k, v in handler.headers.items()}))
        response = self.answers.get(handler.path)
        headers = {"Content-Type": "text/html", **self.extra.get(handler.path, {})}
        body = b""
        if response is None:
            status = 404
        elif isinstance(response, str):
            status, body = 200, response.encode()
            if response.startswith("<?xml"):
                headers["Content-Type"] = "application/xml"
        else:
            status, headers["Location"] = response
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def headers(self, path: str) -> dict[str, str]:
        """Return the headers of the only request for a path."""
        (only,) = [headers for target, headers in self.asked if target == path]
        return only
