"""Responses of misbehaving resources, as raw bytes."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import pytest
from parsel import Selector

from tests.site.edge_bodies import CHUNK, HUGE_BYTES, PDF, PNG
from tests.site.edge_text import TEXTS
from tests.site.running import RunningSite


@pytest.fixture(scope="module")
def site() -> Iterator[RunningSite]:
    """Run one site for all tests of this file."""
    with RunningSite() as running:
        yield running


def raw(site: RunningSite, name: str, most: int = 1_000_000) -> bytes:
    """Return everything the server sends for an edge item, up to `most` bytes."""
    parts = urlsplit(site.url)
    received = bytearray()
    with socket.create_connection((parts.hostname, parts.port), timeout=10) as connection:
        head = f"GET /edge/item/{name} HTTP/1.1\r\nHost: edge\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode())
        while len(received) < most and (data := connection.recv(65536)):
            received += data
    return bytes(received)


def fetch(site: RunningSite, name: str) -> tuple[int, dict[str, str], bytes]:
    """Return the status, the headers (names in lower case), and the raw body."""
    head, _, body = raw(site, name).partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.split(": ", 1) for line in lines)
    return int(status.split()[1]), {name.lower(): value for name, value in pairs}, body


def test_empty_body(site: RunningSite) -> None:
    status, headers, body = fetch(site, "empty")
    assert (status, headers["content-length"], body) == (200, "0", b"")


@pytest.mark.parametrize(
    ("name", "kind", "data"),
    [("binary", "text/html; charset=utf-8", PNG), ("pdf", "application/pdf", PDF)],
)
def test_other_content_types(site: RunningSite, name: str, kind: str, data: bytes) -> None:
    status, headers, body = fetch(site, name)
    assert (status, headers["content-type"], body) == (200, kind, data)


def logged(site: RunningSite) -> list[dict[str, Any]]:
    """Return the log once it has a row; lost connections are logged after the client notices."""
    deadline = time.monotonic() + 5
    while not (rows := site.requests()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return rows


def test_truncated_body(site: RunningSite) -> None:
    site.clear_log()
    _, headers, body = fetch(site, "truncated")
    assert headers["content-length"] == "5000"
    assert 200 < len(body) < 5000
    (row,) = logged(site)
    assert (row["complete"], row["bytes"]) == (False, len(body))


def test_truncated_chunked_body(site: RunningSite) -> None:
    _, headers, body = fetch(site, "chunked-truncated")
    assert headers["transfer-encoding"] == "chunked"
    assert b"<h1>" in body
    assert not body.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("name", list(TEXTS))
def test_encodings(site: RunningSite, name: str) -> None:
    charset = TEXTS[name].charset
    _, declared, body = fetch(site, name)
    _, undeclared, same = fetch(site, f"{name}-undeclared")
    assert declared["content-type"] == f"text/html; charset={charset}"
    assert undeclared["content-type"] == "text/html"
    assert body == same
    page = Selector(body.decode(charset))
    assert page.css("h1::text").get() == TEXTS[name].title
    assert page.css("p.price::text").get() == TEXTS[name].price
    with pytest.raises(UnicodeDecodeError):
        body.decode("utf-8")


def test_huge_body_is_complete(site: RunningSite) -> None:
    body = raw(site, "huge", HUGE_BYTES * 2).partition(b"\r\n\r\n")[2]
    assert len(body) == HUGE_BYTES
    assert body.startswith(CHUNK * 3)


def test_huge_stops_when_client_disconnects(site: RunningSite) -> None:
    raw(site, "huge", 100_000)
    site.clear_log()
    fetch(site, "plain")
    assert [row["path"] for row in site.requests()][-1] == "/edge/item/plain"


def test_slow_starts_with_a_few_bytes(site: RunningSite) -> None:
    body = raw(site, "slow", 100).partition(b"\r\n\r\n")[2]
    assert len(body) < 50


@pytest.mark.parametrize("code", [204, 403, 404, 410, 500, 503])
def test_status(site: RunningSite, code: int) -> None:
    assert fetch(site, f"status/{code}")[0] == code


@pytest.mark.parametrize("name", ["status/x", "status/", "status/99", "redirect/200/x"])
def test_invalid_resource_is_400(site: RunningSite, name: str) -> None:
    assert fetch(site, name)[0] == 400


def test_unknown_resource_is_404(site: RunningSite) -> None:
    assert fetch(site, "nothing")[0] == 404


def test_retry_after(site: RunningSite) -> None:
    status, headers, _ = fetch(site, "retry-after/3")
    assert (status, headers["retry-after"]) == (429, "3")
    assert fetch(site, "retry-after/3")[0] == 200
    assert fetch(site, "retry-after/4")[0] == 429


def test_retry_after_date(site: RunningSite) -> None:
    status, headers, _ = fetch(site, "retry-after-date/30")
    wait = parsedate_to_datetime(headers["retry-after"]) - datetime.now(UTC)
    assert status == 429
    assert 20 < wait.total_seconds() <= 30
    assert fetch(site, "retry-after-date/30")[0] == 200


def test_always_429(site: RunningSite) -> None:
    assert [fetch(site, "always-429")[0] for _ in range(3)] == [429] * 3


def test_flaky(site: RunningSite) -> None:
    assert [fetch(site, "flaky")[0] for _ in range(4)] == [503, 503, 200, 200]


@pytest.mark.parametrize(("name", "code", "target"), [
    ("redirect/301/edge/item/plain", 301, "/edge/item/plain"),
    ("redirect/308/shop/tools/", 308, "/shop/tools/"),
    ("redirect-loop", 302, "/edge/item/redirect-loop/back"),
    ("redirect-loop/back", 302, "/edge/item/redirect-loop"),
    ("redirect-offsite", 302, "http://offsite.invalid/item.html"),
])  # fmt: skip
def test_redirects(site: RunningSite, name: str, code: int, target: str) -> None:
    status, headers, _ = fetch(site, name)
    assert (status, headers["location"]) == (code, target)


def test_gone_after_an_edit(site: RunningSite) -> None:
    assert fetch(site, "gone-after")[0] == 200
    site.edit("/edge/item/gone-after")
    assert fetch(site, "gone-after")[0] == 404


def test_page_without_fields(site: RunningSite) -> None:
    page = Selector(fetch(site, "no-fields")[2].decode())
    assert not page.css("h1, article, main, .price, .stock, .description, p")


def test_header_flood(site: RunningSite) -> None:
    head = raw(site, "headers-flood").partition(b"\r\n\r\n")[0]
    assert head.lower().count(b"x-flood-") == 400


def test_close_sends_nothing(site: RunningSite) -> None:
    site.clear_log()
    assert raw(site, "close") == b""
    assert [(row["status"], row["complete"]) for row in logged(site)] == [(0, False)]


def test_page_without_validators(site: RunningSite) -> None:
    assert not {"etag", "last-modified"} & set(fetch(site, "etag-less")[1])
    assert "etag" in fetch(site, "plain")[1]


def test_the_list_links_every_resource(site: RunningSite) -> None:
    links = Selector(fetch(site, "")[2].decode()).css("li.product a::attr(href)").getall()
    names = {link.removeprefix("/edge/item/").partition("/")[0] for link in links}
    assert len(names) == 27
