"""Webhook receiver on the loopback interface."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver(BaseHTTPRequestHandler):
    """Sends the next of `answers` to each POST request; repeats the last one."""

    server: Hooks
    body: dict[str, Any]
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) < length:
            # The sender was killed.
            self.close_connection = True
            return
        hooks = self.server
        self.body = json.loads(body)
        hooks.received.append((self.path, dict(self.headers), body))
        answer = hooks.answers.pop(0) if len(hooks.answers) > 1 else hooks.answers[0]
        answer(self)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is given
        pass


Answer = Callable[[Receiver], None]


class Hooks(ThreadingHTTPServer):
    """A server for webhooks on a free port."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Receiver)
        self.answers: list[Answer] = [status(204)]
        self.received: list[tuple[str, dict[str, str], bytes]] = []
        self.is_over = threading.Event()

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server_port}"


def status(code: int, body: bytes = b"", **headers: str) -> Answer:
    def answer(request: Receiver) -> None:
        request.send_response(code)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return answer


@contextmanager
def serving() -> Iterator[Hooks]:
    """Run a receiver."""
    with Hooks() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.is_over.set()
            server.shutdown()
            thread.join()
