"""Common attacks on web apps (OWASP), and permissions of users."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.routing import APIRoute

from crawler.config import Config
from crawler.storage import users
from crawler.storage.store import opened
from crawler.storage.users import Scope
from crawler.web import passwords
from crawler.web.auth import guard, local_path
from crawler.web.dependencies import StoreDep
from crawler.web.middleware import SAFE_METHODS
from crawler.web.options import WebOptions
from crawler.web.routes import AREAS
from tests.integration.harness import Db
from tests.integration.web.browser import (
    BASE,
    NOW,
    OPEN,
    PASSWORD,
    Browser,
    Browsers,
    browsers_of,
    put_user,
)

HTTPS = "https://127.0.0.1:8787"


def routes(app: FastAPI) -> Iterator[Any]:
    """Yield path, methods, endpoint and dependencies of all routes."""
    for route in app.routes:
        if isinstance(route, APIRoute):
            yield route
        elif hasattr(route, "effective_route_contexts"):
            yield from route.effective_route_contexts()


def test_every_route_is_guarded(browsers: Browsers) -> None:
    found = list(routes(browsers.app))
    assert {"/", "/sign-in", "/account", "/api/v1/sites", "/health"} <= {r.path for r in found}
    for route in found:
        assert guard in {each.dependency for each in route.dependencies}, route.path


PUBLIC = {
    ("GET", "/health"), ("GET", "/sign-in"), ("POST", "/sign-in"), ("GET", "/changes/feed.atom"),
    ("GET", "/search/feed.atom"),
}  # fmt: skip
# Viewers can change only their own session, password, API tokens and read marks.
OF_VIEWERS = {
    ("POST", "/sign-out"), ("POST", "/account/password"), ("POST", "/account/tokens"),
    ("POST", "/account/tokens/revoke"),
} | {
    ("POST", f"/changes/{name}")
    for name in ("read", "read-all", "undo", "mute", "unmute", "since", "feed", "feed/end")
} | {
    ("POST", "/api/v1/changes/read"), ("POST", "/api/v1/changes/read-all"),
    ("POST", "/api/v1/changes/undo"),
    ("POST", "/api/v1/changes/mutes"), ("DELETE", "/api/v1/changes/mutes"),
    ("PUT", "/api/v1/changes/unread"),
    ("POST", "/api/v1/changes/feed"), ("DELETE", "/api/v1/changes/feed"),
    ("POST", "/feeds/read"), ("POST", "/feeds/read-all"), ("POST", "/feeds/undo"),
    ("POST", "/api/v1/feeds/read"), ("POST", "/api/v1/feeds/read-all"),
    ("POST", "/api/v1/feeds/undo"),
} | {
    ("POST", f"{area}/search/saved{name}")
    for area, name in product(("", "/api/v1"), ("", "/remove", "/feed", "/feed/end"))
}  # fmt: skip


def test_unauthenticated_users_reach_only_public_routes(browsers: Browsers) -> None:
    stranger = browsers()
    for route in routes(browsers.app):
        for method in route.methods:
            if (method, route.path) in PUBLIC:
                continue
            headers = {"Origin": stranger.origin, "X-CSRF-Token": stranger.token()}
            answer = stranger.request(method, route.path, headers=headers)
            assert answer.status_code in (401, 303), (method, route.path)
            if answer.status_code == 303:
                assert answer.headers["location"].startswith("/sign-in")


def test_viewers_reach_no_write_routes(browsers: Browsers, vic: Browser) -> None:
    @browsers.app.put("/api/v1/write")
    async def write(store: StoreDep) -> None:
        raise AssertionError("a viewer reached a write")

    writes = [
        (method, route.path)
        for route in routes(browsers.app)
        for method in route.methods - SAFE_METHODS
        if (method, route.path) not in PUBLIC | OF_VIEWERS
    ]
    assert ("PUT", "/api/v1/write") in writes, "new routes are not guarded"
    headers = {"Origin": vic.origin, "X-CSRF-Token": vic.token("/account")}
    for method, path in writes:
        answer = vic.request(method, path, headers=headers)
        assert answer.status_code == 403, (method, path)
        assert "viewers cannot change anything" in answer.text
    assert vic.get("/account/audit").status_code == 403
    assert vic.get("/").status_code == 200


def test_cross_site_form_is_refused(anna: Browser) -> None:
    token = anna.token("/account")
    fields = {"password": PASSWORD, "new_password": "another long password"}
    forged = [
        anna.post("/account/password", fields),
        anna.post("/account/password", fields | {"csrf": "0" * 64}),
        anna.post("/account/password", fields | {"csrf": "é"}),
        anna.post("/account/password", fields | {"csrf": token}, Origin="https://evil.example"),
        anna.post("/account/password", fields | {"csrf": token}, Origin="null"),
        anna.request(
            "POST", "/account/password", data=fields | {"csrf": token},
            headers={"Sec-Fetch-Site": "cross-site"},
        ),
    ]  # fmt: skip
    assert [answer.status_code for answer in forged] == [403] * len(forged)
    assert anna.post("/account/password", fields | {"csrf": token}).status_code == 303


def test_csrf_token_of_another_session_is_refused(anna: Browser, vic: Browser) -> None:
    assert anna.post("/sign-out", {"csrf": vic.token("/account")}).status_code == 403
    assert anna.get("/").status_code == 200


def test_session_fixation_is_prevented(browsers: Browsers, database: Db) -> None:
    victim = browsers()
    victim.cookies.set("freshet", "known-to-the-attacker", domain="127.0.0.1")
    assert victim.sign_in("anna").status_code == 303
    ids = [cookie.value for cookie in victim.cookies.jar if cookie.name == "freshet"]
    assert "known-to-the-attacker" not in ids[-1:]
    attacker = browsers()
    attacker.cookies.set("freshet", "known-to-the-attacker", domain="127.0.0.1")
    assert attacker.get("/").status_code == 303
    assert database.sessions.count_documents({}) == 1


def test_sign_in_replaces_the_session(browsers: Browsers, anna: Browser) -> None:
    before = anna.cookies["freshet"]
    assert anna.sign_in("anna").status_code == 303
    assert anna.cookies["freshet"] != before
    assert anna.get("/").status_code == 200
    thief = browsers()
    thief.cookies.set("freshet", before, domain="127.0.0.1")
    assert thief.get("/").headers["location"].startswith("/sign-in")


def test_active_session_ends_after_its_maximum_age(stored: tuple[Db, str]) -> None:
    async def days() -> int:
        async with opened(Config.load(mongo_uri=stored[1])) as db:
            session = await users.begin_session(db, "anna", NOW)
            for day in range(100):
                if not await users.user_of_session(db, session, NOW + timedelta(days=day)):
                    return day
        return 100

    assert asyncio.run(days()) == users.LONGEST.days


def test_signing_out_ends_the_session_on_the_server(anna: Browser, database: Db) -> None:
    kept = anna.cookies["freshet"]
    assert anna.post("/sign-out", {"csrf": anna.token("/account")}).status_code == 303
    assert "freshet" not in anna.cookies
    assert database.sessions.count_documents({}) == 0
    anna.cookies.set("freshet", kept, domain="127.0.0.1")
    assert anna.get("/").status_code == 303


def test_password_change_ends_other_sessions(browsers: Browsers, anna: Browser) -> None:
    other = browsers(address="203.0.113.11")
    assert other.sign_in("anna").status_code == 303
    form = {"password": PASSWORD, "new_password": "another long password"}
    done = anna.post("/account/password", form | {"csrf": anna.token("/account")})
    assert done.status_code == 303
    assert (anna.get("/").status_code, other.get("/").status_code) == (200, 303)


@pytest.mark.parametrize(
    "path",
    [
        "https://evil.example/", "//evil.example", "///evil.example", "/\\evil.example",
        "\\\\evil.example", "javascript:alert(1)", "/\t/evil.example", "/%0d%0aX-A: b\r\nX-B: c",
        "evil.example", "", "/" + "x" * 5000, "http:evil.example", "/é",
    ],
)  # fmt: skip
def test_redirects_stay_in_the_app(browsers: Browsers, path: str) -> None:
    answer = browsers().sign_in("anna", next=path)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "x-b" not in answer.headers


def test_sign_in_redirects_to_the_requested_page(browsers: Browsers) -> None:
    browser = browsers()
    location = browser.get("/account?x=1").headers["location"]
    assert location == "/sign-in?next=/account%3Fx%3D1"
    assert browser.sign_in("anna", next="/account?x=1").headers["location"] == "/account?x=1"
    assert local_path("/a?b=c#d", "/") == "/a?b=c#d"
    # After the end of a session, also to the page whose form or part was requested.
    page = f"{BASE}/setup/sites/shop?x=1"
    expected = "/sign-in?next=/setup/sites/shop%3Fx%3D1"
    stranger = browsers()
    assert stranger.post("/setup/sites", {}, Referer=page).headers["location"] == expected
    htmx = {"HX-Request": "true", "HX-Current-URL": page}
    assert stranger.get("/setup/preview", headers=htmx).headers["hx-redirect"] == expected
    for other in ("https://evil.example/", "http://[", ""):
        assert stranger.post("/setup/sites", {}, Referer=other).headers["location"] == "/sign-in"


def test_failed_sign_ins_are_limited_by_user_and_address(browsers: Browsers, database: Db) -> None:
    attacker = browsers()
    for _ in range(passwords.MAX_FAILURES):
        assert attacker.sign_in("anna", "wrong").status_code == 401
    blocked = attacker.sign_in("anna")
    assert blocked.status_code == 429, "even with the right password"
    assert int(blocked.headers["retry-after"]) <= passwords.WAIT_SECONDS
    assert attacker.sign_in("vic").status_code == 429, "by address"
    elsewhere = browsers(address="198.51.100.7")
    assert elsewhere.sign_in("anna").status_code == 429, "by user"
    assert elsewhere.sign_in("vic").status_code == 303
    failed = list(database.audit.find({"action": "sign-in failed"}))
    assert len(failed) == passwords.MAX_FAILURES
    assert {row["user"] for row in failed} == {"anna"}


def test_unknown_users_cannot_be_distinguished(
    browsers: Browsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[bool] = []
    original = passwords._HASHER.verify

    def count(*args: Any) -> bool:
        checked.append(True)
        return original(*args)

    monkeypatch.setattr(type(passwords._HASHER), "verify", lambda _, *args: count(*args))
    known, unknown = browsers().sign_in("anna", "wrong"), browsers().sign_in("nobody", "wrong")
    assert (known.status_code, unknown.status_code) == (401, 401)
    assert len(checked) == 2

    def strip(text: str) -> list[str]:
        lines = text.splitlines()
        return [line for line in lines if "value=" not in line and "csrf" not in line]

    assert strip(known.text) == strip(unknown.text)
    assert PASSWORD not in known.text
    assert "wrong" not in "".join(strip(known.text)).lower().replace("wrong name or password", "")


def test_only_hashes_are_stored(anna: Browser, database: Db) -> None:
    session = anna.cookies["freshet"]
    kept = str(list(database.users.find())) + str(list(database.sessions.find()))
    assert session not in kept
    assert PASSWORD not in kept
    assert kept.count("$argon2id$") == 2


def test_cookies_have_security_attributes(browsers: Browsers) -> None:
    plain = browsers().sign_in("anna")
    cookies = [value for value in plain.headers.get_list("set-cookie") if "freshet=" in value]
    assert len(cookies) == 1
    assert "HttpOnly" in cookies[0]
    assert "SameSite=lax" in cookies[0]
    assert "Path=/" in cookies[0]
    encrypted = browsers(HTTPS).sign_in("anna")
    (cookie,) = [v for v in encrypted.headers.get_list("set-cookie") if "freshet=" in v]
    assert cookie.startswith("__Host-freshet=")
    assert "Secure" in cookie


@pytest.mark.parametrize("path", ["/", "/nope", "/static/freshet.css", "/api/v1/sites", "/health"])
def test_every_response_has_the_security_headers(local: Browser, path: str) -> None:
    headers = local.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert "permissions-policy" in headers
    assert headers["cache-control"] == ("no-cache" if "static" in path else "no-store")


def test_pages_have_no_inline_scripts_and_styles(local: Browser) -> None:
    for path in ("/", "/account", "/account/audit", "/api/docs", "/sign-in", "/nope"):
        text = local.get(path).text
        assert "<style" not in text
        assert " style=" not in text
        assert " on" not in "".join(
            part
            for part in text.split("<")[1:]
            if "=" in part.split(">")[0]
            and part.split(">")[0].split("=")[0].rsplit(" ", 1)[-1].startswith("on")
        )
        for script in text.split("<script")[1:]:
            assert script.startswith(" src=")


def test_server_error_hides_details_and_keeps_headers(
    local: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    @local.app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("secret detail")

    answer = local.get("/broken")
    assert answer.status_code == 500
    assert "secret detail" not in answer.text
    assert "content-security-policy" in answer.headers
    assert "secret detail" in caplog.text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8787", 200), ("localhost:8787", 200), ("[::1]:8787", 200),
        ("evil.example", 421), ("evil.example:8787", 421), ("192.168.1.5", 421), ("", 421),
        ("localhost.evil.example", 421), ("127.0.0.1.evil.example", 421), ("a b", 421),
    ],
)  # fmt: skip
def test_non_local_host_headers_are_refused(local: Browser, host: str, status: int) -> None:
    assert local.get("/", headers={"Host": host}).status_code == status
    assert local.get("/static/freshet.css", headers={"Host": host}).status_code == status


def test_host_headers_of_a_public_app(stored: tuple[Db, str]) -> None:
    put_user(stored[0], "anna")
    with browsers_of(stored[1], WebOptions(host="0.0.0.0", hosts=("freshet.example",))) as make:
        for host, status in (("freshet.example", 200), ("intranet", 200), ("10.0.0.5:80", 200),
                             ("evil.example", 421)):  # fmt: skip
            assert make().get("/sign-in", headers={"Host": host}).status_code == status, host


def test_local_access_requires_sign_in_once_users_exist(local: Browser, database: Db) -> None:
    assert local.get("/").status_code == 200
    put_user(database, "anna")
    assert local.get("/").status_code == 303
    database.users.delete_many({})
    assert local.get("/").status_code == 200


def test_public_app_without_users_denies_access(stored: tuple[Db, str]) -> None:
    with browsers_of(stored[1], OPEN) as make:
        assert make(address="127.0.0.1").get("/").status_code == 303
        assert make(address="127.0.0.1").get("/api/v1/sites").status_code == 401


def test_forwarded_request_is_denied_without_users(local: Browser) -> None:
    answer = local.get("/", headers={"X-Forwarded-For": "203.0.113.9"})
    assert answer.status_code == 403
    assert "scrapy web user add" in answer.text


def test_forwarded_headers_require_a_trusted_proxy(stored: tuple[Db, str]) -> None:
    put_user(stored[0], "anna")
    stated = {
        "X-Forwarded-For": "6.6.6.6, 198.51.100.7", "X-Forwarded-Proto": "https",
        "X-Forwarded-Host": "freshet.example",
    }  # fmt: skip
    options = WebOptions(
        proxies=(__import__("ipaddress").ip_network("127.0.0.1"),), hosts=("freshet.example",)
    )
    form = {"name": "anna", "password": "wrong"}
    with browsers_of(stored[1], options) as make:
        for address, expected in (("127.0.0.1", "198.51.100.7"), ("203.0.113.9", "203.0.113.9")):
            browser = make(address=address)
            page = browser.get("/sign-in", headers=stated)
            assert ("Secure" in page.headers["set-cookie"]) == (address == "127.0.0.1")
            token = page.text.split('name="csrf" value="')[1].split('"')[0]
            cookie = page.headers["set-cookie"].split(";")[0]
            origin = "https://freshet.example" if address == "127.0.0.1" else browser.origin
            answer = browser.post(
                "/sign-in", form | {"csrf": token}, Origin=origin, Cookie=cookie, **stated
            )
            assert answer.status_code == 401
            (row,) = stored[0].audit.find({"address": expected})
            assert row["user"] == "anna"


def test_api_tokens_are_limited_by_role_and_scope(
    browsers: Browsers, stored: tuple[Db, str]
) -> None:
    @browsers.app.put("/api/v1/write")
    async def write(request: Request) -> dict[str, str]:
        return {"by": request.state.user.name}

    async def make() -> dict[str, str]:
        made = {}
        async with opened(browsers.app.state.database.config) as db:
            for name, user, scopes in (
                ("read", "anna", [Scope.READ]), ("write", "anna", list(Scope)),
                ("vic", "vic", list(Scope)),
            ):  # fmt: skip
                made[name], _ = await users.add_token(db, user, name, scopes, NOW)
            made["old"], _ = await users.add_token(db, "anna", "old", [Scope.READ], NOW, NOW)
        return made

    secrets = asyncio.run(make())
    program = browsers()

    def status(method: str, path: str, token: str) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return program.request(method, path, headers=headers).status_code

    for name, read, write_status in (("read", 200, 403), ("write", 200, 200), ("vic", 200, 403)):
        assert status("GET", "/api/v1/sites", secrets[name]) == read
        assert status("PUT", "/api/v1/write", secrets[name]) == write_status, name
    assert status("GET", "/api/v1/sites", secrets["old"]) == 401
    assert status("GET", "/api/v1/sites", "freshet_guess") == 401
    assert status("GET", "/", secrets["write"]) == 403, "tokens are for the API"
    assert stored[0].api_tokens.find_one({"label": "write"})["_id"] not in secrets.values()
    (row,) = stored[0].audit.find({"action": "PUT /api/v1/write"})
    assert (row["user"], row["status"]) == ("anna", 200)


def test_read_only_tokens_reach_no_write_routes(browsers: Browsers, stored: tuple[Db, str]) -> None:
    async def make() -> list[str]:
        async with opened(browsers.app.state.database.config) as db:
            return [
                (await users.add_token(db, user, "x", [Scope.READ], NOW))[0]
                for user in ("anna", "vic")
            ]

    writes = [
        (method, route.path)
        for route in routes(browsers.app)
        for method in route.methods - SAFE_METHODS
        if route.path.startswith("/api/")
    ]
    assert set(writes) >= {key for key in OF_VIEWERS if key[1].startswith("/api/")}
    program = browsers()
    for secret in asyncio.run(make()):
        headers = {"Authorization": f"Bearer {secret}"}
        for method, path in writes:
            answer = program.request(method, path, headers=headers)
            assert answer.status_code == 403, (method, path)
            assert "read-only token" in answer.text


def test_local_programs_can_write_without_csrf_token(local: Browser) -> None:
    @local.app.put("/api/v1/write")
    async def write() -> None:
        return None

    assert local.request("PUT", "/api/v1/write").status_code == 200
    for headers in ({"Origin": "https://evil.example"}, {"Origin": local.origin},
                    {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}):  # fmt: skip
        assert local.request("PUT", "/api/v1/write", headers=headers).status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py",
        "/static/vendor/../../app.py", "/static//etc/passwd", "/static/%2fetc%2fpasswd",
        "/static/..%5capp.py", "/static/%00", "/static/vendor",
    ],
)  # fmt: skip
def test_static_paths_cannot_escape_their_folder(browsers: Browsers, path: str) -> None:
    sent: list[dict[str, Any]] = []

    async def ask() -> None:
        from urllib.parse import unquote

        scope = {
            "type": "http", "method": "GET", "path": unquote(path), "raw_path": path.encode(),
            "query_string": b"", "headers": [(b"host", b"localhost")], "client": ("1.2.3.4", 1),
            "scheme": "http", "http_version": "1.1", "server": ("127.0.0.1", 80), "asgi": {},
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b""}

        async def send(message: Any) -> None:
            sent.append(message)

        await browsers.app(scope, receive, send)

    browsers.loop.run_until_complete(ask())
    assert sent[0]["status"] == 404
    assert b"create_app" not in b"".join(part.get("body", b"") for part in sent)


def test_redirect_url_cannot_inject_headers(anna: Browser) -> None:
    answer = anna.get("/account%0d%0aX-Evil:%201?a=%0d%0aX-Evil:%201")
    assert answer.status_code == 404
    assert "x-evil" not in answer.headers


def test_an_oversized_body_is_refused(anna: Browser) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": anna.origin}
    answer = anna.request("POST", "/sign-in", content=b"a=" + b"b" * 3_000_000, headers=headers)
    assert answer.status_code == 413

    async def chunks() -> Any:
        for _ in range(40):
            yield b"a=" + b"b" * 100_000 + b"&"

    answer = anna.request("POST", "/sign-in", content=chunks(), headers=headers)
    assert answer.status_code == 413


def test_writes_are_in_the_audit_log(anna: Browser, database: Db) -> None:
    form = {"password": PASSWORD, "new_password": "another long password"}
    anna.post("/account/password", form | {"csrf": anna.token("/account")})
    rows = list(database.audit.find().sort("at"))
    assert [(row["user"], row["action"]) for row in rows] == [
        ("anna", "POST /sign-in"), ("anna", "POST /account/password"),
    ]  # fmt: skip
    assert rows[1]["address"] == "203.0.113.9"
    page = anna.get("/account/audit")
    assert "POST /account/password" in page.text
    found = anna.get("/api/v1/audit?limit=1").json()
    assert found["entries"][0]["action"] == "POST /account/password"
    rest = anna.get(f"/api/v1/audit?limit=1&cursor={found['next']}").json()
    assert (rest["entries"][0]["action"], rest["next"]) == ("POST /sign-in", None)


def test_viewer_routes_are_exactly_the_listed_ones() -> None:
    marked = {
        route.path
        for area in AREAS
        for route in (*area.router.routes, *area.api.routes)
        if getattr(route.endpoint, "__freshet_access__", None) == "viewers"
    }
    assert marked == {path.removeprefix("/api/v1") for _, path in OF_VIEWERS}
