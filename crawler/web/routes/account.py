"""Sign-in, the user's own password and API tokens; and for editors, all users and the audit list.

Everything that changes a user requires the password of the editor, and a signed-in browser: an API
token can neither add users nor set passwords. Without users, the local user adds the first editor.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request
from pydantic import BaseModel, Field, field_validator
from starlette.responses import Response

from crawler.errors import ConfigError
from crawler.storage import readers, users
from crawler.storage.store import Store
from crawler.storage.users import Role, Scope, TokenRow, UserRow
from crawler.web import passwords
from crawler.web.auth import (
    LOCAL,
    EditorDep,
    User,
    UserDep,
    delete_session_cookie,
    for_viewers,
    own_origin,
    public,
    session_cookie,
    set_session_cookie,
)
from crawler.web.dependencies import NowDep, PaginationDep, StoreDep, cursor_of
from crawler.web.options import client_address
from crawler.web.pages import Form, not_found, page, redirect, redirect_to

router = APIRouter()
api = APIRouter()
SIGN_IN = "/sign-in"
# Anyone may send this form: a password of 1,000 characters takes up to 12 kB in it.
MAX_SIGN_IN_BYTES = 32_000
WRONG = "Wrong name or password"


@router.get(SIGN_IN, name="account.sign_in")
@public
async def sign_in_page(
    request: Request, next_path: Annotated[str, Query(alias="next", max_length=2000)] = ""
) -> Response:
    """Show the sign-in form."""
    return page(request, "account/sign_in.html", form=Form(), next_path=next_path)


@router.post(SIGN_IN, name="account.do_sign_in")
@public
async def sign_in(request: Request, store: StoreDep, now: NowDep) -> Response:
    """Check name and password, and begin a new session."""
    form = await Form.read(request)
    address = request.client.host if request.client else ""
    # Unknown names are limited as well, so that the limit does not show which names exist.
    name = form["name"].strip().lower()[:64]
    limit: passwords.FailureLimit = request.app.state.failures
    keys = f"user {name}", f"address {client_address(address)}"
    if wait := limit.begin(*keys):
        form.reject("", f"Too many failed sign-ins. Try again in {math.ceil(wait / 60)} min")
        response = _form_again(request, form, 429)
        response.headers["Retry-After"] = str(math.ceil(wait))
        return response
    user = await users.find(store.db, name)
    hashing: passwords.Hashing = request.app.state.hashing
    if not await hashing.matches(user.password_hash if user else None, form.secret("password")):
        await users.record(
            store.db, now, name if user else "?", "sign-in failed", address=address, status=401
        )
        form.reject("", WRONG)
        return _form_again(request, form, 401)
    assert user is not None
    limit.succeeded(*keys)
    # Always a new id, to prevent session fixation.
    if old := request.cookies.get(session_cookie(request)):
        await users.end_session(store.db, old)
    # The first user is the person who has used the app without users.
    like = LOCAL if await users.is_only(store.db) else None
    await readers.begin(store.db, user.name, now, like)
    session = await users.begin_session(store.db, user.name, now)
    request.state.user = User(user.name, user.role, session)
    response = redirect_to(request, form["next"])
    set_session_cookie(request, response, session)
    return response


def _form_again(request: Request, form: Form, status: int) -> Response:
    return page(request, "account/sign_in.html", status=status, form=form, next_path=form["next"])


@router.post("/sign-out", name="account.sign_out")
@for_viewers
async def sign_out(request: Request, user: UserDep, store: StoreDep) -> Response:
    """End the session of this browser."""
    if user.session is not None:
        await users.end_session(store.db, user.session)
    response = redirect(request, "account.sign_in")
    delete_session_cookie(request, response)
    return response


@router.get("/account", name="account.index")
async def index(request: Request, user: UserDep, store: StoreDep) -> Response:
    """Show the account of the signed-in user."""
    return await _account_page(request, user, store, Form())


async def _account_page(
    request: Request, user: User, store: StoreDep, form: Form, status: int = 200, secret: str = ""
) -> Response:
    own = await users.tokens_of(store.db, user.name)
    return page(
        request, "account/index.html", status=status, form=form, tokens=own, secret=secret,
        scopes=[scope for scope in Scope if user.can_write or scope is Scope.READ],
        origin=own_origin(request),
    )  # fmt: skip


@router.post("/account/password", name="account.password")
@for_viewers
async def set_password(request: Request, user: UserDep, store: StoreDep, now: NowDep) -> Response:
    """Set the password of the signed-in user, and end all other sessions."""
    if user.name == LOCAL:
        raise HTTPException(409, "Without users there is no password. Run scrapy web user add NAME")
    form = await Form.read(request)
    await _require_password(request, user, store, form)
    new_hash = await _new_password_hash(request, form)
    if new_hash is None:
        return await _account_page(request, user, store, form, 422)
    await users.set_password(store.db, user.name, new_hash, now)
    # The old session ended with the password.
    session = await users.begin_session(store.db, user.name, now)
    response = redirect(request, "account.index")
    set_session_cookie(request, response, session)
    return response


class NewToken(BaseModel):
    """An API token to add."""

    label: str = Field("", max_length=users.MAX_LABEL_CHARACTERS, description="purpose")
    scope: Scope = Field(Scope.READ, description="read, or write, which includes read")
    days: int | None = Field(None, ge=1, le=3650, description="days until it expires; None: never")

    @field_validator("days", mode="before")
    @classmethod
    def _absent(cls, value: object) -> object:
        return value or None


@router.post("/account/tokens", name="account.add_token")
@for_viewers
async def add_token(request: Request, user: UserDep, store: StoreDep, now: NowDep) -> Response:
    """Add an API token of the signed-in user, and show it once."""
    if user.is_local:
        raise HTTPException(409, "Without users, the API needs no token. Add a user first")
    form = await Form.read(request)
    new = form.parse(NewToken)
    await _require_password(request, user, store, form, "token_password")
    if new is None or not form.is_valid:
        return await _account_page(request, user, store, form, 422)
    scopes = [Scope.READ] if new.scope is Scope.READ else list(Scope)
    expires = now + timedelta(days=new.days) if new.days is not None else None
    secret, token = await users.add_token(
        store.db, user.name, new.label.strip(), scopes, now, expires
    )
    request.state.audit = users.token_in_words(token)
    return await _account_page(request, user, store, Form(), secret=secret)


@router.post("/account/tokens/revoke", name="account.revoke")
@for_viewers
async def revoke(request: Request, user: UserDep, store: StoreDep) -> Response:
    """Revoke an API token of the signed-in user."""
    form = await Form.read(request)
    token = await users.revoke_token(store.db, form["token"], user.name)
    request.state.audit = users.token_in_words(token)
    return redirect(request, "account.index")


@router.get("/account/audit", name="account.audit")
async def audit_page(
    request: Request, _: EditorDep, store: StoreDep, pagination: PaginationDep
) -> Response:
    """Show all changes, newest first."""
    part = await audit_entries(_, store, pagination)
    return page(
        request, "account/audit.html", fragment="entries", entries=part.entries, next=part.next,
        pagination=pagination,
    )  # fmt: skip


class Me(BaseModel):
    """The user that the request acts for."""

    name: str = Field(description="name of the user; `local` if the app has no users")
    role: Role = Field(description="role of the user")
    can_write: bool = Field(description="whether this request could change anything")


class AuditEntry(BaseModel):
    """A change."""

    at: datetime = Field(description="time of the change")
    user: str = Field(description="name of the user")
    action: str = Field(description="method and path of the request, or the command")
    detail: str | None = Field(None, description="what was changed; null if the action says all")
    address: str | None = Field(None, description="IP address of the client; null for commands")
    status: int | None = Field(None, description="HTTP status; null for commands")


class AuditPage(BaseModel):
    """A part of the audit list, newest first."""

    entries: list[AuditEntry]
    next: str | None = Field(description="cursor of the next page; null at the end")


@api.get("/me", name="account.api_me", tags=["account"])
async def me(user: UserDep) -> Me:
    """Return the user that the request acts for."""
    return Me(name=user.name, role=user.role, can_write=user.can_write)


@api.get("/audit", name="account.api_audit", tags=["account"])
async def audit_entries(_: EditorDep, store: StoreDep, pagination: PaginationDep) -> AuditPage:
    """Return all changes, newest first."""
    part = await users.audit_entries(store.db, pagination.limit, pagination.after)
    entries = [AuditEntry.model_validate(row) for row in part.rows]
    return AuditPage(entries=entries, next=cursor_of(part.last))


class NewUser(BaseModel):
    """A user to add, without the password."""

    name: str = Field(max_length=200, description="name that the user signs in with")
    role: Role = Field(Role.VIEWER, description="role of the user")


class ChosenRole(BaseModel):
    """The new role of a user."""

    role: Role = Field(description="role of the user")


class Users(BaseModel):
    """All users."""

    users: list[UserRow] = Field(description="users by name")


class Tokens(BaseModel):
    """The API tokens of all users."""

    tokens: list[TokenRow] = Field(description="tokens, the oldest first")


@router.get("/users", name="users.index")
async def users_page(request: Request, user: EditorDep, store: StoreDep) -> Response:
    """Show all users and API tokens, and the form to add a user."""
    first = Role.EDITOR if user.is_local else Role.VIEWER
    return await _users_page(request, store, Form.of({"role": first}))


async def _users_page(request: Request, store: Store, form: Form, status: int = 200) -> Response:
    return page(
        request, "users/index.html", status=status, form=form, roles=list(Role),
        everyone=await users.everyone(store.db), tokens=await users.tokens_of(store.db),
    )  # fmt: skip


@router.post("/users", name="users.add")
async def add_user(request: Request, user: EditorDep, store: StoreDep, now: NowDep) -> Response:
    """Add a user."""
    form = await Form.read(request)
    new = form.parse(NewUser)
    await _require_password(request, user, store, form)
    if new is not None and user.is_local and new.role is not Role.EDITOR:
        form.reject(
            "role", "The first user must be an editor; otherwise no one can change anything"
        )
    password_hash = await _new_password_hash(request, form)
    if new is not None and password_hash is not None:
        with form.rejecting("name"):
            name = users.name_of(new.name)
            if user.is_local and await users.any_exists(store.db):
                raise ConfigError("Another user was added in the meantime. Sign in")
            await users.add(store.db, name, new.role, password_hash, now)
            request.state.audit = f"{name}, {new.role}"
            return redirect(request, "users.index")
    return await _users_page(request, store, form, 422)


@router.get("/users/{name}", name="users.user")
async def user_page(request: Request, _: EditorDep, store: StoreDep, name: str) -> Response:
    """Show a user, and the forms to edit the user."""
    return await _user_page(request, store, name, Form())


async def _user_page(
    request: Request, store: Store, name: str, form: Form, status: int = 200
) -> Response:
    shown = await users.find(store.db, name)
    if shown is None:
        raise not_found(f"User {name[:64]!r}")
    user_tokens = await users.tokens_of(store.db, shown.name)
    return page(
        request, "users/user.html", status=status, form=form, shown=shown, roles=list(Role),
        tokens=user_tokens,
    )  # fmt: skip


@router.post("/users/{name}/role", name="users.set_role")
async def set_role(request: Request, user: EditorDep, store: StoreDep, name: str) -> Response:
    """Change the role of a user, from the next request on."""
    form = await Form.read(request)
    new = form.parse(ChosenRole)
    await _require_password(request, user, store, form)
    if new is not None and form.is_valid:
        request.state.audit = f"{name}, {new.role}"
        with form.rejecting("role"):
            if new.role is Role.EDITOR:
                await users.set_role(store.db, name, new.role)
            else:
                async with users.keeping_an_editor(store.db, name):
                    await users.set_role(store.db, name, new.role)
            return redirect(request, "users.index")
    return await _user_page(request, store, name, form, 422)


@router.post("/users/{name}/password", name="users.set_password")
async def set_password_of(
    request: Request, user: EditorDep, store: StoreDep, now: NowDep, name: str
) -> Response:
    """Set the password of a user, and end all sessions of the user."""
    form = await Form.read(request)
    await _require_password(request, user, store, form)
    password_hash = await _new_password_hash(request, form)
    if password_hash is None:
        return await _user_page(request, store, name, form, 422)
    request.state.audit = name
    await users.set_password(store.db, name, password_hash, now)
    return redirect(request, "users.index")


@router.post("/users/{name}/remove", name="users.remove")
async def remove_user(request: Request, user: EditorDep, store: StoreDep, name: str) -> Response:
    """Remove a user with all sessions, API tokens and read marks."""
    form = await Form.read(request)
    await _require_password(request, user, store, form)
    if form.is_valid:
        request.state.audit = name
        with form.rejecting(""):
            async with users.keeping_an_editor(store.db, name):
                await users.remove(store.db, name)
            return redirect(request, "users.index")
    return await _user_page(request, store, name, form, 422)


@router.post("/users/tokens/revoke", name="users.revoke")
async def revoke_any(request: Request, _: EditorDep, store: StoreDep) -> Response:
    """Revoke an API token of any user."""
    form = await Form.read(request)
    token = await users.revoke_token(store.db, form["token"])
    request.state.audit = users.token_in_words(token)
    return redirect(request, "users.index")


@api.get("/users", name="users.api", tags=["users"])
async def users_api(_: EditorDep, store: StoreDep) -> Users:
    """Return all users."""
    everyone = await users.everyone(store.db)
    return Users(users=[each.row for each in everyone])


@api.get("/tokens", name="users.api_tokens", tags=["users"])
async def tokens_api(_: EditorDep, store: StoreDep) -> Tokens:
    """Return the API tokens of all users, without their secrets."""
    return Tokens(tokens=await users.tokens_of(store.db))


@api.delete("/tokens/{token_id}", name="users.api_revoke", tags=["users"])
async def revoke_api(request: Request, _: EditorDep, store: StoreDep, token_id: str) -> TokenRow:
    """Revoke an API token."""
    token = await users.revoke_token(store.db, token_id)
    request.state.audit = users.token_in_words(token)
    return token


async def _require_password(
    request: Request, user: User, store: Store, form: Form, field: str = "password"
) -> None:
    """Reject the form unless a field is the password of the signed-in user.

    So an unattended browser or a stolen session is not enough. Failures count as failed sign-ins.
    The local user has no password.
    """
    if user.is_local:
        return
    limit: passwords.FailureLimit = request.app.state.failures
    hashing: passwords.Hashing = request.app.state.hashing
    key = f"user {user.name}"
    if limit.begin(key) > 0:
        form.reject(field, "Too many attempts. Try again later")
        return
    stored = await users.find(store.db, user.name)
    if await hashing.matches(stored.password_hash if stored else None, form.secret(field)):
        limit.succeeded(key)
    else:
        form.reject(field, "This is not your current password")


async def _new_password_hash(request: Request, form: Form) -> str | None:
    """Return the hash of the field `new_password`, or None if the form has problems.

    A password that is too short or too long is recorded as a problem.
    """
    hashing: passwords.Hashing = request.app.state.hashing
    try:
        new = passwords.check(form.secret("new_password"))
    except ConfigError as error:
        form.reject("new_password", error)
    return await hashing.hashed(new) if form.is_valid else None
