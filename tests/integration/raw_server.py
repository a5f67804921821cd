"""A server that sends responses byte by byte as a test writes them, valid or not."""

from __future__ import annotations

import socketserver
import threading
from collections import Counter
from types import TracebackType
from typing import Self

MISSING = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


def page(body: str | bytes, *headers: str, status: str = "200 OK") -> bytes:
    """Return a response with an HTML page."""
    body = body.encode() if isinstance(body, str) else body
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    if not any(line.lower().startswith("content-type:") for line in headers):
        head.append("Content-Type: text/html; charset=utf-8")
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body


class RawServer:
    """An HTTP server at 127.0.0.1; closes each connection after a response.

    answers: by path: responses as bytes, in order; the last one is repeated. Without any bytes, the
             connection is closed
    asked:   paths requested so far; heads: the request line and headers of each
    """

    def __init__(self) -> None:
        self.answers: dict[str, bytes | list[bytes]] = {}
        self.asked: list[str] = []
        self.heads: list[str] = []
        self._count: Counter[str] = Counter()
        server = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                head = b""
                while line := self.rfile.readline().rstrip(b"\r\n"):
                    head += line + b"\n"
                if head:
                    self.wfile.write(server._answer(head.decode("latin-1")))

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """Do not print that a client closed its connection."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, head: str) -> bytes:
        path = head.split(" ", 2)[1]
        self.asked.append(path)
        self.heads.append(head)
        answers = self.answers.get(path, MISSING)
        if isinstance(answers, bytes):
            return answers
        n = self._count[path]
        self._count[path] += 1
        return answers[min(n, len(answers) - 1)]
