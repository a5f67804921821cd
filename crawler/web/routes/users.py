"""Users and the API tokens of all users, for editors.

Everything that changes a user requires the password of the editor, and a signed-in browser: an API
token can neither add users nor set passwords. Without users, the local user adds the first editor.
"""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from crawler.errors import ConfigError
from crawler.storage.accounts import credentials, users
from crawler.storage.accounts.schemas import Role, Scope
from crawler.storage.client import Store
from crawler.web.auth import EditorDep
from crawler.web.dependencies import NowDep, StoreDep
from crawler.web.forms import Form, new_password_hash, require_password
from crawler.web.pages import not_found, page, redirect

router = APIRouter(prefix="/users")
api = APIRouter(tags=["users"])


class NewUser(BaseModel):
    """A user to add, without the password."""

    name: str = Field(max_length=200, description="name that the user signs in with")
    role: Role = Field(Role.VIEWER, description="role of the user")


class ChosenRole(BaseModel):
    """The new role of a user."""

    role: Role = Field(description="role of the user")


class UserRow(BaseModel):
    """A user."""

    name: str = Field(description="name that the user signs in with")
    role: Role = Field(description="role of the user")
    created_at: datetime = Field(description="time when the user was added")
    password_at: datetime = Field(description="time when the password was set")


class Users(BaseModel):
    """All users."""

    users: list[UserRow] = Field(description="users by name")


class TokenRow(BaseModel):
    """An API token without its secret."""

    id: str = Field(description="public part of the token")
    user: str = Field(description="name of the user that the token acts for")
    label: str = Field(description="what the token is for")
    scopes: list[Scope] = Field(description="read, or read and write")
    created_at: datetime = Field(description="time when the token was added")
    used_at: datetime | None = Field(description="time of a recent request; null before any")
    expires_at: datetime | None = Field(description="end of the token; null: no end")


class Tokens(BaseModel):
    """The API tokens of all users."""

    tokens: list[TokenRow] = Field(description="tokens, the oldest first")


@router.get("", name="users.index")
async def index(request: Request, user: EditorDep, store: StoreDep) -> Response:
    """Show all users and API tokens, and the form to add a user."""
    first = Role.EDITOR if user.is_local else Role.VIEWER
    return await _index(request, store, Form.of({"role": first}))


async def _index(request: Request, store: Store, form: Form, status: int = 200) -> Response:
    return page(
        request, "users/index.html", status=status, form=form, roles=list(Role),
        everyone=await users.everyone(store.db), tokens=await credentials.tokens_of(store.db),
        area="account",
    )  # fmt: skip


@router.post("", name="users.add")
async def add(request: Request, user: EditorDep, store: StoreDep, now: NowDep) -> Response:
    """Add a user."""
    form = await Form.read(request)
    new = form.parse(NewUser)
    await require_password(request, user, store, form)
    if new is not None and user.is_local and new.role is not Role.EDITOR:
        form.reject(
            "role", "The first user must be an editor; otherwise no one can change anything"
        )
    password_hash = await new_password_hash(request, form)
    if new is not None and password_hash is not None:
        try:
            name = users.name_of(new.name)
            if user.is_local and await users.any_exists(store.db):
                raise ConfigError("Another user was added in the meantime. Sign in")
            await users.add(store.db, name, new.role, password_hash, now)
        except ConfigError as error:
            form.reject("name", error)
        else:
            request.state.audit = f"{name}, {new.role}"
            return redirect(request, "users.index")
    return await _index(request, store, form, 422)


@router.get("/{name}", name="users.user")
async def user_page(request: Request, _: EditorDep, store: StoreDep, name: str) -> Response:
    """Show a user, and the forms to edit the user."""
    return await _user_page(request, store, name, Form())


async def _user_page(
    request: Request, store: Store, name: str, form: Form, status: int = 200
) -> Response:
    shown = await users.find(store.db, name)
    if shown is None:
        raise not_found(f"User {name[:64]!r}")
    user_tokens = await credentials.tokens_of(store.db, shown.name)
    return page(
        request, "users/user.html", status=status, form=form, shown=shown, roles=list(Role),
        tokens=user_tokens, area="account",
    )  # fmt: skip


@router.post("/{name}/role", name="users.set_role")
async def set_role(request: Request, user: EditorDep, store: StoreDep, name: str) -> Response:
    """Change the role of a user, from the next request on."""
    form = await Form.read(request)
    new = form.parse(ChosenRole)
    await require_password(request, user, store, form)
    if new is not None and form.is_valid:
        request.state.audit = f"{name}, {new.role}"
        try:
            if new.role is Role.EDITOR:
                await users.set_role(store.db, name, new.role)
            else:
                async with users.keeping_an_editor(store.db, name):
                    await users.set_role(store.db, name, new.role)
        except ConfigError as error:
            form.reject("role", error)
        else:
            return redirect(request, "users.index")
    return await _user_page(request, store, name, form, 422)


@router.post("/{name}/password", name="users.set_password")
async def set_password(
    request: Request, user: EditorDep, store: StoreDep, now: NowDep, name: str
) -> Response:
    """Set the password of a user, and end all sessions of the user."""
    form = await Form.read(request)
    await require_password(request, user, store, form)
    password_hash = await new_password_hash(request, form)
    if password_hash is None:
        return await _user_page(request, store, name, form, 422)
    request.state.audit = name
    await users.set_password(store.db, name, password_hash, now)
    return redirect(request, "users.index")


@router.post("/{name}/remove", name="users.remove")
async def remove(request: Request, user: EditorDep, store: StoreDep, name: str) -> Response:
    """Remove a user with all sessions, API tokens and read marks."""
    form = await Form.read(request)
    await require_password(request, user, store, form)
    if form.is_valid:
        request.state.audit = name
        try:
            async with users.keeping_an_editor(store.db, name):
                await users.remove(store.db, name)
        except ConfigError as error:
            form.reject("", error)
        else:
            return redirect(request, "users.index")
    return await _user_page(request, store, name, form, 422)


@router.post("/tokens/revoke", name="users.revoke")
async def revoke(request: Request, _: EditorDep, store: StoreDep) -> Response:
    """Revoke an API token of any user."""
    form = await Form.read(request)
    token = await credentials.revoke_token(store.db, form["token"])
    request.state.audit = token.in_words
    return redirect(request, "users.index")


@api.get("/users", name="users.api")
async def users_api(_: EditorDep, store: StoreDep) -> Users:
    """Return all users."""
    everyone = await users.everyone(store.db)
    return Users(users=[UserRow.model_validate(each, from_attributes=True) for each in everyone])


@api.get("/tokens", name="users.api_tokens")
async def tokens_api(_: EditorDep, store: StoreDep) -> Tokens:
    """Return the API tokens of all users, without their secrets."""
    return Tokens(tokens=[_row(token) for token in await credentials.tokens_of(store.db)])


@api.delete("/tokens/{token_id}", name="users.api_revoke")
async def revoke_api(request: Request, _: EditorDep, store: StoreDep, token_id: str) -> TokenRow:
    """Revoke an API token."""
    token = await credentials.revoke_token(store.db, token_id)
    request.state.audit = token.in_words
    return _row(token)


def _row(token: credentials.Token) -> TokenRow:
    return TokenRow(
        id=token.id, user=token.user, label=token.label, scopes=sorted(token.scopes),
        created_at=token.created_at, used_at=token.used_at, expires_at=token.expires_at,
    )  # fmt: skip
