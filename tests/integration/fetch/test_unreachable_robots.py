"""No page of a host is fetched while its robots.txt cannot be read (RFC 9309, section 2.3.1.4)."""

from __future__ import annotations

import socket
import socketserver
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from tests.integration.harness import Db, Freshet, outcomes, visits
from tests.integration.raw_server import RawServer, page

CLOSED = b""
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nUser-agent: *\n"
GARBLED = b"This is not HTTP\r\n\r\n"
HINT = "(to ignore robots.txt: robots = false in the site definition)"


@pytest.fixture
def server() -> Iterator[RawServer]:
    with RawServer() as server:
        server.answers["/list"] = page("<a href=/item/1>1</a><a href=/item/2>2</a>")
        server.answers |= {f"/item/{n}": page(f"<h1>{n}</h1>") for n in (1, 2)}
        yield server


def shop(freshet: Freshet, server: RawServer, **keys: object) -> Path:
    given: dict[str, object] = {"start_urls": [f"{server.url}/list"], "item_pages": "/item/"}
    return freshet.wrapper("shop", **given | {"fields": {"title": "h1"}} | keys)


def pages_asked(server: RawServer) -> list[str]:
    return [path for path in server.asked if path != "/robots.txt"]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (CLOSED, "connection closed"),
        (CUT, "connection closed before the end of the body"),
        (GARBLED, "invalid HTTP response"),
    ],
)
def test_no_page_is_fetched_if_robots_txt_cannot_be_read(
    freshet: Freshet, database: Db, server: RawServer, answer: bytes, why: str
) -> None:
    server.answers["/robots.txt"] = answer
    result = freshet.crawl(shop(freshet, server), code=1)
    assert pages_asked(server) == []
    (visit,) = visits(database)
    assert visit["outcome"] == "error"
    assert visit["reason"].startswith(f"{server.url}/robots.txt could not be read ({why}")
    assert visit["reason"].endswith(f", so no page may be fetched {HINT}")
    assert result.err.count(f"WARNING: {server.url}/robots.txt could not be read") == 1
    freshet.crawl(shop(freshet, server, robots=False))
    assert sorted(pages_asked(server)) == ["/item/1", "/item/2", "/list"]


def test_lost_connections_are_retried(freshet: Freshet, database: Db, server: RawServer) -> None:
    server.answers["/robots.txt"] = [CLOSED, CUT, page("User-agent: *\nDisallow: /item/2")]
    freshet.crawl(shop(freshet, server))
    assert outcomes(database) == {"new": 2, "blocked": 1}
    assert server.asked.count("/robots.txt") == 3


def test_slow_robots_txt_forbids_all_pages(freshet: Freshet, database: Db) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        definition = freshet.wrapper("shop", start_urls=[f"{url}/list"], item_pages="/item/")
        freshet.crawl(definition, code=1, FRESHET_RESPONSE_SECONDS=1)
    (visit,) = visits(database)
    assert visit["reason"].startswith(
        f"{url}/robots.txt could not be read (Timeout: no complete response in 1 s"
    )


def test_robots_txt_that_redirects_to_an_unreachable_host(
    freshet: Freshet, database: Db, server: RawServer
) -> None:
    to = "Location: http://nowhere.invalid/robots.txt"
    server.answers["/robots.txt"] = page("", to, status="302 Found")
    freshet.crawl(shop(freshet, server), code=1)
    assert pages_asked(server) == []
    (visit,) = visits(database)
    assert visit["reason"].startswith(f"{server.url}/robots.txt could not be read (")
    assert "nowhere.invalid" in visit["reason"]


def test_redirect_loop_counts_as_missing(freshet: Freshet, database: Db, server: RawServer) -> None:
    server.answers["/robots.txt"] = page("", "Location: /robots.txt", status="302 Found")
    result = freshet.crawl(shop(freshet, server))
    assert outcomes(database) == {"new": 3}
    assert f"Reading {server.url}/robots.txt failed, so every URL is allowed" in result.err


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:9/list", "refused"),
        ("http://nowhere.invalid/list", "nowhere.invalid"),
    ],
)
def test_error_of_an_unreachable_host_does_not_mention_robots_txt(
    freshet: Freshet, database: Db, url: str, why: str
) -> None:
    definition = freshet.wrapper("shop", start_urls=[url], item_pages="/item/")
    result = freshet.crawl(definition, code=1)
    (visit,) = visits(database)
    assert why in visit["reason"]
    assert "robots.txt" not in visit["reason"] + result.err


def test_host_that_accepts_no_connection_is_named(freshet: Freshet, database: Db) -> None:
    # A full backlog: the kernel answers no further connections.
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        definition = freshet.wrapper("shop", start_urls=[f"{url}/list"], item_pages="/item/")
        freshet.crawl(definition, code=1, FRESHET_RESPONSE_SECONDS=1)
        for each in waiting:
            each.close()
    (visit,) = visits(database)
    assert visit["reason"] == ("Timeout: no connection in 1 s (FRESHET_RESPONSE_SECONDS)")


class NoTls(socketserver.BaseRequestHandler):
    """Answer a TLS handshake in plain text."""

    def handle(self) -> None:
        self.request.recv(10_000)
        self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def test_host_without_tls_is_named(freshet: Freshet, database: Db) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), NoTls) as plain:
        Thread(target=plain.serve_forever, args=(0.05,), daemon=True).start()
        start = f"https://127.0.0.1:{plain.server_address[1]}/list"
        definition = freshet.wrapper("shop", start_urls=[start], item_pages="/item/")
        result = freshet.crawl(definition, code=1)
        plain.shutdown()
    (visit,) = visits(database)
    assert visit["reason"] == "no TLS connection: wrong version number"
    assert "robots.txt" not in result.err
