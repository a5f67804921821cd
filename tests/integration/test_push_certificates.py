"""`scrapy feeds push`: the certificate of a hub."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.integration.harness import Db, Freshet
from tests.integration.pushing import (
    DAY,
    Push,
    push_of,
    put,
    wait_for,
)


@pytest.mark.parametrize("trusted", [True, False])
def test_a_hub_s_certificate_has_to_be_good(
    freshet: Freshet, database: Db, tmp_path: Path, trusted: bool
) -> None:
    files = certificate(tmp_path)
    with secure_hub(*files) as port:
        put(database, f"https://localhost:{port}/hub")
        with Push(freshet, SSL_CERT_FILE=files[0] if trusted else "/dev/null") as push:
            if not trusted:
                wait_for(lambda: "reason" in push_of(database))
                assert "certificate verify failed" in push_of(database)["reason"]
            wait_for(lambda: "attempts" in push_of(database))
    assert push.counts == {"asked": 1} | ({} if trusted else {"failed": 1})


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for localhost that has signed itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "cert.pem", folder / "key.pem"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    return files


class Accepting(BaseHTTPRequestHandler):
    """Answers 202 to everything."""

    def do_POST(self) -> None:
        self.send_response(202)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def secure_hub(cert: Path, key: Path) -> Iterator[int]:
    """The port of a server that speaks TLS."""
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
