"""Attacks on all routes, on sessions, and on input that is accepted before sign-in."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx

from crawler.storage import users
from crawler.storage.store import opened
from crawler.storage.users import Role
from crawler.web import passwords
from crawler.web.middleware import SAFE_METHODS
from crawler.web.options import WebOptions
from crawler.web.passwords import FailureLimit
from crawler.web.routes.account import MAX_SIGN_IN_BYTES
from tests.integration.harness import Db
from tests.integration.web.browser import Browser, Browsers, browsers_of
from tests.integration.web.test_web_security import routes

FORM = "application/x-www-form-urlencoded"
MULTIOUTSIDE = (
    "//evil.example", "/\\evil.example", "https://evil.example", "/%09/evil.example\t",
    "\t//evil.example", "/changes\r\nX-Evil: 1", "/changes//evil.example\\@x", "javascript:a",
    "/changes@evil.example\x00", "/changes\u2028",
)  # fmt: skip
MULTIPART = "multipart/form-data; boundary=x"
PARTS = b'--x\r\nContent-Disposition: form-data; name=""\r\n\r\n\r\n' * 500
OUTSIDE = (
    "//evil.example", "/\\evil.example", "https://evil.example", "/%09/evil.example\t",
    "\t//evil.example", "/changes\r\nX-Evil: 1", "/changes//evil.example\\@x", "javascript:a",
    "/changes@evil.example\x00", "/changes\u2028",
)  # fmt: skip


def write_routes(browser: Browser) -> list[tuple[str, str]]:
    """Return method and path of all routes that write."""
    return [
        (method, route.path)
        for route in routes(browser.app)
        for method in route.methods - SAFE_METHODS
    ]


def test_cross_site_writes_are_refused(anna: Browser, vic: Browser) -> None:
    own, others = anna.token("/account"), vic.token("/account")
    forged: list[dict[str, str]] = [
        {},
        {"Origin": anna.origin, "X-CSRF-Token": others},
        {"Origin": "https://evil.example", "X-CSRF-Token": own},
        {"Sec-Fetch-Site": "same-site", "X-CSRF-Token": own},
    ]
    found = write_routes(anna)
    assert {("POST", "/sign-out"), ("PUT", "/api/v1/sites/{name:path}/tags")} <= set(found)
    for method, path in found:
        for headers in forged:
            answer = anna.request(method, path, headers=headers, json={})
            assert answer.status_code == 403, (method, path, headers)
    # Forms of other sites can send JSON with these types without a CORS preflight.
    for kind in ("text/plain", FORM, MULTIPART):
        answer = anna.request(
            "POST", "/api/v1/changes/read-all", content=b'{"site": "a"}',
            headers={"Content-Type": kind, "Origin": "https://evil.example"},
        )  # fmt: skip
        assert answer.status_code == 403, kind


def test_role_change_ends_the_sessions(anna: Browser, vic: Browser, browsers: Browsers) -> None:
    async def promote() -> None:
        async with opened(browsers.app.state.database.config) as store:
            await users.set_role(store, "vic", Role.EDITOR)

    session = vic.cookies["freshet"]
    asyncio.run(promote())
    assert (vic.get("/").status_code, anna.get("/").status_code) == (303, 200)
    assert vic.sign_in("vic").status_code == 303
    assert vic.cookies["freshet"] != session
    assert vic.get("/account/audit").status_code == 200


def test_feed_token_gives_access_to_one_feed_only(
    anna: Browser, vic: Browser, browsers: Browsers
) -> None:
    def make(browser: Browser) -> str:
        headers = {"Origin": browser.origin, "X-CSRF-Token": browser.token("/account")}
        made = browser.request("POST", "/api/v1/changes/feed", headers=headers)
        url: str = made.json()["url"]
        return url.removeprefix(browser.origin)

    def end(browser: Browser) -> int:
        headers = {"Origin": browser.origin, "X-CSRF-Token": browser.token("/account")}
        return browser.request("DELETE", "/api/v1/changes/feed", headers=headers).status_code

    of_anna, of_vic = make(anna), make(vic)
    reader = browsers()
    assert (reader.get(of_anna).status_code, reader.get(of_vic).status_code) == (200, 200)
    assert "set-cookie" not in reader.get(of_anna).headers
    assert end(vic) == 204
    assert (reader.get(of_anna).status_code, reader.get(of_vic).status_code) == (200, 404)
    session = anna.cookies["freshet"]
    for token in ("", "x", session, "%00", of_anna.rpartition("=")[2][:-1]):
        answer = anna.get(f"/changes/feed.atom?token={token}")
        assert answer.status_code in (404, 422), token
    assert reader.get(of_anna.replace("/changes/feed.atom", "/changes")).status_code == 303


def test_form_fields_cannot_redirect_to_another_site(anna: Browser) -> None:
    token = anna.token("/account")
    for path in OUTSIDE:
        for form in ("/changes/read-all", "/budget/again", "/changes/since"):
            fields = {"csrf": token, "here": path, "back": path, "next": path, "budget": path}
            answer = anna.post(form, fields)
            location = answer.headers.get("location", "/")
            assert httpx.URL(anna.origin).join(location).host == "127.0.0.1", (form, path)
            assert re.match(r"/$|/(changes|budget)\b", location), (form, path)
            assert "x-evil" not in answer.headers


def test_ipv6_network_shares_one_sign_in_limit(browsers: Browsers) -> None:
    for number in range(passwords.MAX_FAILURES):
        # One user usually controls a whole /64 network.
        attacker = browsers(address=f"2001:db8:1:1::{number + 1:x}")
        assert attacker.sign_in(f"user{number}", "wrong").status_code == 401
    assert browsers(address="2001:db8:1:1:ffff::1").sign_in("vic").status_code == 429
    assert browsers(address="2001:db8:1:2::1").sign_in("vic").status_code == 303


def test_failed_sign_ins_use_bounded_memory() -> None:
    limit = FailureLimit(lambda: 0.0)
    for number in range(passwords.MAX_REMEMBERED):
        limit.begin(f"user {number}", f"address {number}")
    assert len(limit._failures) == passwords.MAX_REMEMBERED


def form_of(text: bytes) -> bytes:
    """Return a multipart form with one part that contains this text."""
    return b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + text + b"\r\n--x--"


def test_unauthenticated_bodies_are_parsed_quickly(browsers: Browsers) -> None:
    stranger = browsers()
    for kind, body, status in (
        # Decoding these 30 kB as punycode takes 0.1 s; decoding a megabyte would take minutes.
        (f"{MULTIPART}; charset=punycode", form_of(b"b" * 30_000), 415),
        (f"{MULTIPART}; charset=unicode_escape", form_of(b"\\ud800"), 415),
        ("application/json; charset=utf-7", b"{}", 415),
        (MULTIPART, PARTS, 403),
        (MULTIPART, b"--x\r\nA: b\r\n\r\nc\r\n--x--", 400),
        (MULTIPART, b"--x\r\n" + b"A: b\r\n" * 5000, 400),
        (MULTIPART, b"--x\r\n" + b"A" * 31_000, 400),
        (f"{MULTIPART}y", form_of(b"a"), 400),
        ("multipart/form-data", form_of(b"a"), 400),
        (FORM, b"a=b&" * 7000, 400),
        (FORM, b"&" * 31_000, 403),
        (FORM, b"name=%ff%fe&password=%00&csrf=%ed%a0%80", 403),
        (FORM, b"name=" + b"a" * MAX_SIGN_IN_BYTES, 413),
    ):
        headers = {"Origin": stranger.origin, "Content-Type": kind}
        began = time.process_time()
        answer = stranger.request("POST", "/sign-in", content=body, headers=headers)
        assert time.process_time() - began < 0.5, kind
        assert answer.status_code == status, (kind, body[:50])
        assert len(answer.content) < 10_000


def test_unauthorized_bodies_are_not_read(browsers: Browsers, vic: Browser) -> None:
    read = 0

    async def upload() -> AsyncIterator[bytes]:
        nonlocal read
        while True:
            read += 1
            yield b"a" * 65_536

    token = vic.token("/account")
    for browser, status in ((browsers(), 303), (vic, 403)):
        headers = {"Origin": browser.origin, "Content-Type": MULTIPART, "X-CSRF-Token": token}
        answer = browser.request("POST", "/feeds/import", content=upload(), headers=headers)
        assert answer.status_code == status
    assert read == 0


def test_longest_password_fits_into_the_form(browsers: Browsers) -> None:
    longest = "\U0001f511" * passwords.MAX_CHARACTERS
    answer = browsers().sign_in("anna", longest, next=f"/account?{'é' * 600}")
    assert answer.status_code == 401


def test_dashboard_paths_cannot_escape_their_folder(stored: tuple[Db, str], tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret")
    root = tmp_path / "templates"
    (root / "folder").mkdir(parents=True)
    (root / "index.html").write_text("a page")
    (root / ".hidden").write_text("a secret")
    (root / "_part.html").write_text("a secret")

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    with browsers_of(stored[1], WebOptions(dashboards=root)) as make:
        for path in (
            "../secret", "%2e%2e/secret", "..%2fsecret", "a/../../secret", "/secret", "%2fsecret",
            "..%5csecret", "%00", "_part.html", "folder/../../secret", ".hidden", "....//secret",
            "a/%2e%2e/%2e%2e/secret", "%252e%252e/secret",
        ):  # fmt: skip
            sent: list[dict[str, Any]] = []

            async def send(message: Any, sent: list[dict[str, Any]] = sent) -> None:
                sent.append(message)

            scope = {
                "type": "http", "method": "GET", "path": unquote(f"/dashboards/{path}"),
                "raw_path": f"/dashboards/{path}".encode(), "query_string": b"", "scheme": "http",
                "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1),
                "http_version": "1.1", "server": ("127.0.0.1", 80), "asgi": {},
            }  # fmt: skip
            make.loop.run_until_complete(make.app(scope, receive, send))
            assert sent[0]["status"] == 404, path
            assert b"a secret" not in b"".join(part.get("body", b"") for part in sent)


def test_deep_or_invalid_json_is_refused(local: Browser) -> None:
    headers = {"Content-Type": "application/json"}
    for content in (b"[" * 1_900_000, b'{"a":' * 300_000, b"9" * 5000, b"\xff\xfe", b""):
        answer = local.request("POST", "/api/v1/changes/read-all", content=content, headers=headers)
        assert answer.status_code in (400, 422)
        assert len(answer.content) < 10_000
