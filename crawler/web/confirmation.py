"""Checks of passwords in forms: the one of the signed-in user, and new ones."""

from __future__ import annotations

from starlette.requests import Request

from crawler.errors import ConfigError
from crawler.storage.accounts import users
from crawler.storage.store import Store
from crawler.web import passwords
from crawler.web.auth import User
from crawler.web.forms import Form


async def require_password(request: Request, user: User, store: Store, form: Form) -> None:
    """Reject the form unless its field `password` is the password of the signed-in user.

    An open browser or a stolen session is not enough then. Failures count as failed sign-ins.
    """
    limit: passwords.FailureLimit = request.app.state.failures
    hashing: passwords.Hashing = request.app.state.hashing
    key = f"user {user.name}"
    if limit.begin(key) > 0:
        form.reject("password", "Too many attempts. Try again later")
        return
    stored = await users.find(store.db, user.name)
    if await hashing.matches(stored.password_hash if stored else None, form.secret("password")):
        limit.succeeded(key)
    else:
        form.reject("password", "This is not your current password")


async def new_password_hash(request: Request, form: Form) -> str | None:
    """Return the hash of the field `new_password`, or None if the form has problems.

    A password that is too short or too long is one of them.
    """
    hashing: passwords.Hashing = request.app.state.hashing
    try:
        new = passwords.check(form.secret("new_password"))
    except ConfigError as error:
        form.reject("new_password", error)
    return await hashing.hashed(new) if form.is_valid else None
