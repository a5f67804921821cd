"""Sign-in and sign-out, the user's own password and API tokens, and the audit list."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from crawler.storage.accounts import credentials, users
from crawler.storage.accounts.schemas import Role
from crawler.web import passwords
from crawler.web.auth import (
    LOCAL,
    EditorDep,
    User,
    UserDep,
    delete_session_cookie,
    for_viewers,
    public,
    session_cookie,
    set_session_cookie,
)
from crawler.web.dependencies import NowDep, PlaceDep, StoreDep, cursor_of
from crawler.web.forms import Form, new_password_hash, require_password
from crawler.web.options import client_address
from crawler.web.pages import page, redirect, redirect_to

router = APIRouter()
api = APIRouter(tags=["account"])
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
        await credentials.end_session(store.db, old)
    session = await credentials.begin_session(store.db, user.name, now)
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
        await credentials.end_session(store.db, user.session)
    response = redirect(request, "account.sign_in")
    delete_session_cookie(request, response)
    return response


@router.get("/account", name="account.index")
async def index(request: Request, user: UserDep, store: StoreDep) -> Response:
    """Show the account of the signed-in user."""
    return await _account_page(request, user, store, Form())


async def _account_page(
    request: Request, user: User, store: StoreDep, form: Form, status: int = 200
) -> Response:
    own = await credentials.tokens_of(store.db, user.name)
    return page(request, "account/index.html", status=status, form=form, tokens=own)


@router.post("/account/password", name="account.password")
@for_viewers
async def set_password(request: Request, user: UserDep, store: StoreDep, now: NowDep) -> Response:
    """Set the password of the signed-in user, and end all other sessions."""
    if user.name == LOCAL:
        raise HTTPException(409, "Without users there is no password. Run scrapy web user add NAME")
    form = await Form.read(request)
    await require_password(request, user, store, form)
    new_hash = await new_password_hash(request, form)
    if new_hash is None:
        return await _account_page(request, user, store, form, 422)
    await users.set_password(store.db, user.name, new_hash, now)
    # The old session ended with the password.
    session = await credentials.begin_session(store.db, user.name, now)
    response = redirect(request, "account.index")
    set_session_cookie(request, response, session)
    return response


@router.post("/account/tokens/revoke", name="account.revoke")
@for_viewers
async def revoke(request: Request, user: UserDep, store: StoreDep) -> Response:
    """Revoke an API token of the signed-in user."""
    form = await Form.read(request)
    token = await credentials.revoke_token(store.db, form["token"], user.name)
    request.state.audit = token.in_words
    return redirect(request, "account.index")


@router.get("/account/audit", name="account.audit")
async def audit_page(request: Request, _: EditorDep, store: StoreDep, place: PlaceDep) -> Response:
    """Show all changes, newest first."""
    part = await users.audit_entries(store.db, place.limit, place.after)
    entries = [AuditEntry.model_validate(row) for row in part.rows]
    return page(
        request, "account/audit.html", fragment="entries",
        entries=entries, next=cursor_of(part.last), place=place,
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


@api.get("/me", name="account.api_me")
async def me(user: UserDep) -> Me:
    """Return the user that the request acts for."""
    return Me(name=user.name, role=user.role, can_write=user.can_write)


@api.get("/audit", name="account.api_audit")
async def audit_entries(_: EditorDep, store: StoreDep, place: PlaceDep) -> AuditPage:
    """Return all changes, newest first."""
    part = await users.audit_entries(store.db, place.limit, place.after)
    entries = [AuditEntry.model_validate(row) for row in part.rows]
    return AuditPage(entries=entries, next=cursor_of(part.last))
