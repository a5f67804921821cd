"""Users and API tokens in the web app."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime

import httpx
import pytest

from crawler.errors import ConfigError
from crawler.storage import users
from crawler.storage.store import opened
from crawler.storage.users import Scope
from crawler.web import passwords
from tests.integration.harness import Db
from tests.integration.web.browser import OPEN, PASSWORD, Browser, Browsers, browsers_of, put_user

NEW = "another long password"


def send(browser: Browser, path: str, **fields: str) -> httpx.Response:
    """Send a form of the users pages with the editor's password."""
    form = {"password": PASSWORD, "csrf": browser.token("/users")} | fields
    return browser.post(f"/users{path}", form)


def add_token(browsers: Browsers, user: str, *scopes: Scope) -> tuple[str, str]:
    """Add a token; return its secret and its id."""

    async def work() -> tuple[str, str]:
        async with opened(browsers.app.state.database.config) as db:
            now = datetime.now(UTC)
            secret, token = await users.add_token(db, user, "<b>backup</b>", scopes, now)
            return secret, token["id"]

    return asyncio.run(work())


def test_added_user_can_sign_in(anna: Browser, browsers: Browsers, database: Db) -> None:
    assert send(anna, "", name=" Ben ", role="viewer", new_password=NEW).status_code == 303
    assert database.users.find_one({"_id": "ben"})["role"] == "viewer"
    ben = browsers()
    assert ben.sign_in("ben", NEW).status_code == 303
    assert ben.get("/users").status_code == 403
    page = anna.get("/users").text
    assert 'href="/users/ben"' in page
    entry = database.audit.find_one({"action": "POST /users"})
    assert (entry["user"], entry["detail"], entry["status"]) == ("anna", "ben, viewer", 303)
    assert NEW not in str(list(database.audit.find()))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": "a b"}, "invalid user name"),
        ({"name": "local"}, "invalid user name"),
        ({"name": "vic"}, "user exists"),
        ({"name": "ben", "new_password": "short"}, "the password has 5 characters"),
        ({"name": "ben", "password": "wrong"}, "This is not your current password"),
        ({"name": "ben", "password": ""}, "This is not your current password"),
        ({"name": "ben", "role": "admin"}, "unknown value 'admin'. Use "),
    ],
)
def test_invalid_form_adds_no_user(
    anna: Browser, database: Db, fields: dict[str, str], problem: str
) -> None:
    page = send(anna, "", **{"role": "viewer", "new_password": NEW} | fields)
    assert page.status_code == 422
    assert problem in page.text.replace("&#39;", "'")
    assert f'value="{fields["name"]}"' in page.text
    assert NEW not in page.text
    assert database.users.count_documents({}) == 2


def test_role_change_ends_the_sessions_of_the_user(anna: Browser, vic: Browser) -> None:
    assert vic.get("/users").status_code == 403
    assert send(anna, "/vic/role", role="editor").status_code == 303
    assert vic.get("/users").headers["location"].startswith("/sign-in")
    vic.sign_in("vic")
    assert vic.get("/users").status_code == 200
    assert send(vic, "/vic/role", role="viewer").status_code == 303
    vic.sign_in("vic")
    assert vic.get("/users").status_code == 403


def test_password_change_ends_the_sessions_of_the_user(
    anna: Browser, vic: Browser, browsers: Browsers, database: Db
) -> None:
    short = send(anna, "/vic/password", new_password="short")
    assert short.status_code == 422
    assert vic.get("/").status_code == 200
    assert send(anna, "/vic/password", new_password=NEW).status_code == 303
    assert vic.get("/").status_code == 303
    assert browsers().sign_in("vic").status_code == 401
    assert browsers().sign_in("vic", NEW).status_code == 303
    assert anna.get("/").status_code == 200
    assert database.audit.find_one({"action": "POST /users/vic/password", "status": 303})


def test_a_removed_user_is_signed_out_and_has_no_tokens(
    anna: Browser, vic: Browser, browsers: Browsers, database: Db
) -> None:
    secret, _ = add_token(browsers, "vic", Scope.READ)
    bearer = {"Authorization": f"Bearer {secret}"}
    assert browsers().get("/api/v1/me", headers=bearer).status_code == 200
    assert send(anna, "/vic/remove", password="wrong").status_code == 422
    assert vic.get("/").status_code == 200
    assert send(anna, "/vic/remove").status_code == 303
    assert vic.get("/").status_code == 303
    assert browsers().get("/api/v1/me", headers=bearer).status_code == 401
    assert database.sessions.count_documents({"user": "vic"}) == 0
    assert database.audit.find_one({"action": "POST /users/vic/remove", "detail": "vic"})
    assert send(anna, "/vic/remove").status_code == 404
    assert anna.get("/users/vic").status_code == 404


def test_last_editor_cannot_be_removed_or_demoted(anna: Browser, database: Db) -> None:
    for path, fields in (("/anna/remove", {}), ("/anna/role", {"role": "viewer"})):
        page = send(anna, path, **fields)
        assert page.status_code == 422
        assert "anna is the only editor" in page.text
    assert database.users.find_one({"_id": "anna"})["role"] == "editor"
    put_user(database, "ben")
    assert send(anna, "/anna/remove").status_code == 303
    assert anna.get("/").status_code == 303, "the removed editor's session is still valid"


def test_two_editors_cannot_remove_each_other(browsers: Browsers, database: Db) -> None:
    put_user(database, "ben")
    config = browsers.app.state.database.config

    async def remove(name: str) -> bool:
        try:
            async with opened(config) as db, users.keeping_an_editor(db, name):
                await asyncio.sleep(0.05)
                await users.remove(db, name)
        except ConfigError:
            return False
        return True

    async def remove_both() -> list[bool]:
        return await asyncio.gather(remove("anna"), remove("ben"))

    assert sorted(browsers.loop.run_until_complete(remove_both())) == [False, True]
    assert database.users.count_documents({"role": "editor"}) == 1


def test_editor_password_attempts_are_limited(anna: Browser, database: Db) -> None:
    for _ in range(passwords.MAX_FAILURES):
        assert send(anna, "/vic/remove", password="guess").status_code == 422
    page = send(anna, "/vic/remove")
    assert page.status_code == 422
    assert "Too many attempts" in page.text
    assert database.users.find_one({"_id": "vic"})


def test_first_user_is_an_editor_and_enables_sign_in(local: Browser, database: Db) -> None:
    assert 'href="/users"' in local.get("/account").text
    viewer = send(local, "", name="anna", role="viewer", new_password=NEW)
    assert viewer.status_code == 422
    assert "The first user must be an editor" in viewer.text
    assert database.users.count_documents({}) == 0
    assert send(local, "", name="anna", role="editor", new_password=NEW).status_code == 303
    assert local.get("/users").status_code == 303
    assert local.sign_in("anna", NEW).status_code == 303
    assert local.get("/users").status_code == 200
    assert database.audit.find_one({"action": "POST /users", "user": "local"})


def test_tokens_are_listed_without_secrets_and_revoked(
    anna: Browser, vic: Browser, browsers: Browsers, database: Db
) -> None:
    secret, token_id = add_token(browsers, "vic", Scope.READ)
    page = anna.get("/users").text
    assert token_id in page
    assert "&lt;b&gt;backup" in page
    assert secret not in page
    assert token_id in anna.get("/users/vic").text
    form = {"token": token_id, "csrf": anna.token("/account")}
    assert anna.post("/account/tokens/revoke", form).status_code == 422, "not anna's token"
    assert anna.post("/users/tokens/revoke", form).status_code == 303
    bearer = {"Authorization": f"Bearer {secret}"}
    assert browsers().get("/api/v1/me", headers=bearer).status_code == 401
    entry = database.audit.find_one({"action": "POST /users/tokens/revoke"})
    assert entry["detail"] == f"{token_id} of vic, <b>backup</b>"
    _, own = add_token(browsers, "vic", Scope.READ)
    assert own in vic.get("/account").text
    own_token_form = {"token": own, "csrf": vic.token("/account")}
    assert vic.post("/users/tokens/revoke", own_token_form).status_code == 403
    assert vic.post("/account/tokens/revoke", own_token_form).status_code == 303
    assert database.api_tokens.count_documents({}) == 0


def test_api_lists_users_and_revokes_tokens_only(browsers: Browsers, database: Db) -> None:
    secret, token_id = add_token(browsers, "anna", Scope.READ, Scope.WRITE)
    bearer = {"Authorization": f"Bearer {secret}"}
    program = browsers()
    found = program.get("/api/v1/users", headers=bearer).json()["users"]
    assert [(row["name"], row["role"]) for row in found] == [("anna", "editor"), ("vic", "viewer")]
    assert "password_hash" not in found[0]
    (row,) = program.get("/api/v1/tokens", headers=bearer).json()["tokens"]
    assert (row["id"], row["scopes"]) == (token_id, ["read", "write"])
    refused = program.request("POST", "/users/vic/remove", headers=bearer)
    assert refused.status_code == 403
    assert "Tokens are for" in refused.text
    _, other = add_token(browsers, "vic", Scope.READ)
    done = program.request("DELETE", f"/api/v1/tokens/{other}", headers=bearer)
    assert done.json()["user"] == "vic"
    missing = program.request("DELETE", f"/api/v1/tokens/{other}", headers=bearer)
    assert missing.status_code == 422
    assert database.users.count_documents({}) == 2


def test_read_token_cannot_revoke_tokens(browsers: Browsers, database: Db) -> None:
    secret, token_id = add_token(browsers, "anna", Scope.READ)
    bearer = {"Authorization": f"Bearer {secret}"}
    answer = browsers().request("DELETE", f"/api/v1/tokens/{token_id}", headers=bearer)
    assert answer.status_code == 403
    assert database.api_tokens.count_documents({}) == 1


def test_public_app_without_users_adds_no_user(stored: tuple[Db, str]) -> None:
    with browsers_of(stored[1], OPEN) as make:
        browser = make()
        form = {"name": "eve", "role": "editor", "new_password": NEW, "csrf": browser.token()}
        answer = browser.post("/users", form)
        assert answer.headers["location"].startswith("/sign-in")
    assert stored[0].users.count_documents({}) == 0


def test_user_adds_a_token_that_is_shown_once(
    anna: Browser, browsers: Browsers, database: Db
) -> None:
    form = {"label": "<b>scraper</b>", "scope": "read", "days": "30", "token_password": PASSWORD}
    shown = anna.post("/account/tokens", form | {"csrf": anna.token("/account")})
    assert shown.status_code == 200
    found = re.search(r'class="command">(freshet_[\w-]+)<', shown.text)
    assert found
    assert found[1] not in anna.get("/account").text
    assert "&lt;b&gt;scraper&lt;/b&gt;" in anna.get("/account").text
    bearer = {"Authorization": f"Bearer {found[1]}"}
    me = browsers().get("/api/v1/me", headers=bearer).json()
    assert me == {"name": "anna", "role": "editor", "can_write": False}
    assert browsers().get("/metrics", headers=bearer).status_code in (200, 503)
    (token,) = database.api_tokens.find()
    assert (token["expires_at"] - token["created_at"]).days == 30
    assert found[1] not in str(list(database.audit.find()))
    assert "<b>scraper</b>" in database.audit.find_one({"action": "POST /account/tokens"})["detail"]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"token_password": "wrong"}, "This is not your current password"),
        ({"token_password": ""}, "This is not your current password"),
        ({"label": "x" * 101}, "100 characters"),
        ({"scope": "admin"}, "unknown value"),
        ({"days": "0"}, ""), ({"days": "x"}, ""),
    ],
)  # fmt: skip
def test_invalid_form_adds_no_token(
    anna: Browser, database: Db, fields: dict[str, str], problem: str
) -> None:
    form = {"label": "x", "scope": "read", "days": "", "token_password": PASSWORD} | fields
    page = anna.post("/account/tokens", form | {"csrf": anna.token("/account")})
    assert page.status_code == 422
    assert problem in page.text.replace("&#39;", "'")
    assert "<details open>" in page.text
    assert database.api_tokens.count_documents({}) == 0


def test_token_of_a_viewer_cannot_write(vic: Browser, browsers: Browsers, database: Db) -> None:
    page = vic.get("/account").text
    assert '<option value="read">' in page
    assert '<option value="write">' not in page
    form = {"scope": "write", "token_password": PASSWORD, "csrf": vic.token("/account")}
    shown = vic.post("/account/tokens", form)
    found = re.search(r'class="command">(freshet_[\w-]+)<', shown.text)
    assert found
    bearer = {"Authorization": f"Bearer {found[1]}"}
    assert browsers().get("/api/v1/me", headers=bearer).json()["can_write"] is False
    assert browsers().request("POST", "/api/v1/backups", headers=bearer).status_code == 403


def test_app_without_users_has_no_tokens(local: Browser, database: Db) -> None:
    form = {"token_password": "", "csrf": local.token("/users")}
    assert local.post("/account/tokens", form).status_code == 409
    assert database.api_tokens.count_documents({}) == 0
