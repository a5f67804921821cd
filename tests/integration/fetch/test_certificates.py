"""Site certificates must be valid unless a site definition allows otherwise."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.integration.certificates import authority, certificate
from tests.integration.harness import Db, Freshet, outcomes, visits

FAULTS = {
    "good": None,
    "expired": "the certificate has expired",
    "early": "the certificate is not valid yet",
    "other": "the certificate is not valid for localhost",
    "self_signed": "the certificate is self-signed",
}


class Page(BaseHTTPRequestHandler):
    """Serve the same page at every path."""

    def do_GET(self) -> None:
        body = b"<h1>A page</h1>"
        self.send_response(404 if self.path == "/robots.txt" else 200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@dataclass(frozen=True)
class Sites:
    """Hold local sites, each with its own certificate; `trusted` is the file of trusted issuers."""

    urls: dict[str, str]
    trusted: Path


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    folder = tmp_path_factory.mktemp("certificates")
    signer, trusted = authority(folder)
    files = {
        "good": certificate(folder, signed_by=signer),
        "expired": certificate(folder, days=(-9, -2), signed_by=signer),
        "early": certificate(folder, days=(2, 9), signed_by=signer),
        "other": certificate(folder, host="other.example", signed_by=signer),
        "self_signed": certificate(folder, days=(-1, 3)),
    }
    with contextlib.ExitStack() as stack:
        ports = {name: stack.enter_context(secure(*two)) for name, two in files.items()}
        yield Sites({name: f"https://localhost:{port}/" for name, port in ports.items()}, trusted)


@contextlib.contextmanager
def secure(cert: Path, key: Path) -> Iterator[int]:
    """Run a TLS server and yield its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    # The handshake runs in the connection's thread, because it may never finish.
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def crawled(freshet: Freshet, sites: Sites, **keys: object) -> str:
    """Crawl all sites and return the log."""
    given = {"start_urls": list(sites.urls.values()), "item_pages": "/item/", **keys}
    wrapper = freshet.wrapper("secure", **given)
    return freshet.crawl(wrapper, code=1, SSL_CERT_FILE=sites.trusted).err


def test_bad_certificate_fails_its_site_with_logged_reason(
    freshet: Freshet, database: Db, sites: Sites
) -> None:
    log = crawled(freshet, sites)
    by_target = {visit["target"]: visit for visit in visits(database)}
    for name, fault in FAULTS.items():
        visit = by_target[sites.urls[name]]
        if fault is None:
            assert visit["outcome"] == "new"
        else:
            assert visit["outcome"] == "error"
            assert (
                visit["reason"]
                == f"{fault} (to accept it: verify_tls = false in the site definition)"
            )
            assert f"{visit['target']}: error: {visit['reason']}" in log
    assert "Traceback" not in log


def test_verify_tls_false_accepts_bad_certificates(
    freshet: Freshet, database: Db, sites: Sites
) -> None:
    crawled(freshet, sites, verify_tls=False)
    assert outcomes(database) == {"new": len(FAULTS)}


def test_verify_tls_applies_to_feeds(freshet: Freshet, database: Db, sites: Sites) -> None:
    freshet("feeds", "add", "--no-fetch", sites.urls["expired"])
    for verify, reason in ((True, "the certificate has expired"), (False, "not a feed")):
        wrapper = freshet.wrapper("feeds", verify_tls=verify)
        result = freshet(
            "crawl",
            "feeds",
            "-a",
            f"wrapper={wrapper}",
            "-a",
            "full=1",
            SSL_CERT_FILE=sites.trusted,
        )
        assert result.code == 1, result.err
        assert visits(database)[-1]["reason"].startswith(reason)
