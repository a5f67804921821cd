"""`scrapy feeds push`: certificate checks of a hub."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.integration.certificates import certificate
from tests.integration.harness import Db, Freshet
from tests.integration.pushing import Push, push_of, put, wait_for


@pytest.mark.parametrize("trusted", [True, False])
def test_hub_certificates_are_verified(
    freshet: Freshet, database: Db, tmp_path: Path, trusted: bool
) -> None:
    files = certificate(tmp_path)
    with secure_hub(*files) as port:
        put(database, f"https://localhost:{port}/hub")
        authorities = files[0] if trusted else "/dev/null"
        env = {"SSL_CERT_FILE": authorities, "FRESHET_PRIVATE_HOSTS": f"localhost:{port}"}
        with Push(freshet, **env) as push:
            if not trusted:
                wait_for(lambda: "reason" in push_of(database))
                assert push_of(database)["reason"].startswith("TLS: ")
            wait_for(lambda: "attempts" in push_of(database))
    assert push.counts == {"requested": 1} | ({} if trusted else {"failed": 1})


class Accepting(BaseHTTPRequestHandler):
    """Answer 202 to all requests."""

    def do_POST(self) -> None:
        self.send_response(202)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def secure_hub(cert: Path, key: Path) -> Iterator[int]:
    """Run a TLS server and yield its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Accepting)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
