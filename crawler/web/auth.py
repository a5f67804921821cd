"""Authentication and authorization of requests, and protection against forged requests (CSRF).

The dependency `guard` runs before every route. Without a mark, a route requires a signed-in user,
and an editor if its method is not GET, HEAD or OPTIONS. `public`, `for_viewers`, `for_programs` and
`signed` mark exceptions.

As long as no user exists and only this machine can reach the app, requests act for `local`, an
editor who needs no password.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from fastapi import Depends, HTTPException
from python_multipart.multipart import parse_options_header
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope as ASGIScope

from crawler.storage import users
from crawler.storage.users import Role, Scope
from crawler.web.dependencies import WebDatabase
from crawler.web.middleware import SAFE_METHODS

# Paths of the JSON API, below the root path.
API = "/api/"
COOKIE = "freshet"
# Cookie of browsers that are not signed in; their forms are protected by it.
GUEST_COOKIE = "freshet-guest"
CSRF_FIELD, CSRF_HEADER = "csrf", "x-csrf-token"
LOCAL = "local"
BEARER = "bearer "
MAX_NEXT_CHARACTERS = 2000
FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data")
_ACCESS = "__freshet_access__"
_PUBLIC, _VIEWERS, _PROGRAMS, _SIGNED = "public", "viewers", "programs", "signed"
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class User:
    """The user that a request acts for.

    session: id of the session; None with a token and for `local`
    scopes:  what the request may do within the role of the user
    """

    name: str
    role: Role
    session: str | None = None
    scopes: frozenset[Scope] = frozenset(Scope)

    @property
    def can_write(self) -> bool:
        """Return whether the request may change anything."""
        return self.role is Role.EDITOR and Scope.WRITE in self.scopes

    @property
    def is_local(self) -> bool:
        """Return whether this is the user of an app without sign-in."""
        return self.name == LOCAL


class SignInRequired(Exception):
    """Raised if a request needs a user and has none."""


def _mark(access: str) -> Callable[[Endpoint], Endpoint]:
    def mark(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _ACCESS, access)
        return endpoint

    return mark


# Marks a route that needs no user: request.state.user is None in it.
public = _mark(_PUBLIC)
# Marks a route that viewers may use with any method: it only changes their own data. Programs need
# a token with the scope `write` to change it.
for_viewers = _mark(_VIEWERS)
# Marks a route outside of the JSON API that accepts API tokens.
for_programs = _mark(_PROGRAMS)
# Marks a route that checks a signature of its own: it needs no user, and is not audited.
signed = _mark(_SIGNED)


def is_signed_route(scope: ASGIScope) -> bool:
    """Return whether a request was handled by a route marked by `signed`."""
    return getattr(scope.get("endpoint"), _ACCESS, None) == _SIGNED


async def guard(request: Request) -> None:
    """Find the user of a request and check its rights; sets request.state.user."""
    access = getattr(request.scope["endpoint"], _ACCESS, None)
    if access == _SIGNED:
        request.state.user = None
        return
    if b"%00" in request.scope["query_string"]:
        # No stored text contains a NUL character, and patterns of MongoDB cannot contain one.
        raise HTTPException(422, "The query of this address contains %00. Remove it")
    is_write = request.method not in SAFE_METHODS
    token = bearer_token(request)
    user = None if access == _PUBLIC else await _user_of(request, token)
    request.state.user = user
    if access != _PUBLIC:
        if user is None:
            raise SignInRequired
        if is_write and Scope.WRITE not in user.scopes:
            raise HTTPException(403, "Not allowed: read-only token. Ask an editor")
        if is_write and access != _VIEWERS and not user.can_write:
            raise HTTPException(403, "Not allowed: viewers cannot change anything. Ask an editor")
    if is_write:
        # The form parser decodes with any codec that the header names, and some codecs, such as
        # punycode, take quadratic time.
        _, parameters = parse_options_header(request.headers.get("content-type"))
        charset = parameters.get(b"charset", b"utf-8")
        if charset.lower() not in (b"utf-8", b"utf8"):
            name = charset[:40].decode("latin-1")
            raise HTTPException(415, f"charset: {name!r} is not supported. Use utf-8")
        # Last, because it parses the body: the requests rejected above must not cause that.
        if token is None:
            await _refuse_forged(request)


async def _user_of(request: Request, token: str | None) -> User | None:
    database: WebDatabase = request.app.state.database
    now = database.config.clock.now()
    async with database.opened() as store:
        if token is not None:
            if not is_for_programs(request):
                raise HTTPException(
                    403, "Tokens are for /api/v1 and /metrics. Sign in to see pages"
                )
            valid = await users.find_token(store.db, token, now)
            user = await users.find(store.db, valid["user"]) if valid else None
            if not valid or not user:
                return None
            return User(user.name, user.role, scopes=frozenset(valid["scopes"]))
        session = request.cookies.get(session_cookie(request))
        if session is not None and (name := await users.user_of_session(store.db, session, now)):
            user = await users.find(store.db, name)
            return User(user.name, user.role, session) if user else None
        if not request.app.state.options.is_private or await users.any_exists(store.db):
            return None
    if request.state.was_forwarded:
        raise HTTPException(
            403,
            "This request came through a proxy, but the app has no users. Run scrapy web user add "
            "NAME, and start scrapy web with --trusted-proxy",
        )
    return User(LOCAL, Role.EDITOR)


def bearer_token(request: Request) -> str | None:
    """Return the token in the Authorization header; None without one."""
    value = request.headers.get("authorization", "")
    return value[len(BEARER) :].strip() if value.lower().startswith(BEARER) else None


def is_api(request: Request) -> bool:
    """Return whether a request is for the JSON API."""
    return request.url.path.removeprefix(request.scope.get("root_path", "")).startswith(API)


def is_for_programs(request: Request) -> bool:
    """Return whether a request is for the JSON API, or for a route marked by `for_programs`."""
    access = getattr(request.scope.get("endpoint"), _ACCESS, None)
    return access == _PROGRAMS or is_api(request)


async def _refuse_forged(request: Request) -> None:
    """Raise HTTPException for a write that another site may have sent from the user's browser."""
    origin = request.headers.get("origin")
    if origin is not None and origin != own_origin(request):
        raise HTTPException(403, f"This request came from another site: {origin[:200]}")
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise HTTPException(403, "This request came from another site")
    is_browser = origin is not None or "cookie" in request.headers
    if is_api(request) and not is_browser:
        # Browsers send Origin with all writes, so this is a program.
        return
    given = request.headers.get(CSRF_HEADER)
    if given is None and request.headers.get("content-type", "").startswith(FORM_TYPES):
        field = (await request.form()).get(CSRF_FIELD)
        given = field if isinstance(field, str) else None
    cookie = _secret_of_browser(request)
    if not given or not cookie or not hmac.compare_digest(_csrf(cookie).encode(), given.encode()):
        raise HTTPException(403, "This form has expired. Reload the page and send it again")


def own_origin(request: Request) -> str:
    """Return the origin under which the browser sees the app."""
    return f"{request.scope['scheme']}://{request.headers.get('host', '')}"


def csrf_token(request: Request) -> str:
    """Return the token that forms of this page must send.

    It depends on the session, so it changes with each sign-in. Browsers without a session get a
    random cookie instead; `set_guest_cookie` adds it to the response.
    """
    secret = _secret_of_browser(request)
    if secret is None:
        secret = request.state.new_guest = secrets.token_urlsafe(users.ID_BYTES)
    return _csrf(secret)


def _secret_of_browser(request: Request) -> str | None:
    user = getattr(request.state, "user", None)
    if user is not None and user.session is not None:
        session: str = user.session
        return session
    guest = request.cookies.get(_cookie_name(request, GUEST_COOKIE))
    return guest or getattr(request.state, "new_guest", None)


def _csrf(secret: str) -> str:
    return hmac.new(secret.encode(), b"freshet csrf", hashlib.sha256).hexdigest()


def set_guest_cookie(request: Request, response: Response) -> None:
    """Add the cookie that belongs to the token of `csrf_token`, if it is new."""
    if guest := getattr(request.state, "new_guest", None):
        _set_cookie(request, response, _cookie_name(request, GUEST_COOKIE), guest)


def set_session_cookie(request: Request, response: Response, session: str) -> None:
    """Add the cookie of a new session."""
    seconds = int(users.LONGEST.total_seconds())
    _set_cookie(request, response, session_cookie(request), session, seconds)


def delete_session_cookie(request: Request, response: Response) -> None:
    """Remove the cookie of the session from the browser."""
    _set_cookie(request, response, session_cookie(request), "", 0)


def session_cookie(request: Request) -> str:
    """Return the name of the cookie with the id of the session."""
    return _cookie_name(request, COOKIE)


def _cookie_name(request: Request, name: str) -> str:
    """Return the name of a cookie; browsers accept the prefixes only over TLS, from this host."""
    if request.scope["scheme"] != "https":
        return name
    return f"__Secure-{name}" if request.scope["root_path"] else f"__Host-{name}"


def _set_cookie(
    request: Request, response: Response, name: str, value: str, seconds: int | None = None
) -> None:
    # Not "strict": a link in an email or a feed would lead to the sign-in page.
    response.set_cookie(
        name, value, max_age=seconds, path=request.scope["root_path"] or "/",
        secure=request.scope["scheme"] == "https", httponly=True, samesite="lax",
    )  # fmt: skip


def local_path(text: str | None, default: str) -> str:
    """Return `text` if it is a path of this app to redirect to, else the default.

    Anything that a browser could take for another host is replaced: two slashes at the start,
    backslashes, control characters, which browsers remove, and URLs with a scheme.
    """
    if not text or len(text) > MAX_NEXT_CHARACTERS or not text.isascii() or not text.isprintable():
        return default
    if not text.startswith("/") or text.startswith(("//", "/\\")) or "\\" in text:
        return default
    try:
        parts = urlsplit(text)
    except ValueError:
        return default
    return default if parts.scheme or parts.netloc else text


def current_user(request: Request) -> User:
    """Return the user of a request; raises SignInRequired without one."""
    user: User | None = request.state.user
    if user is None:
        raise SignInRequired
    return user


def current_editor(request: Request) -> User:
    """Return the user of a request; raises HTTPException (403) if the user may not write."""
    user = current_user(request)
    if not user.can_write:
        raise HTTPException(403, "Not allowed: viewers cannot change anything. Ask an editor")
    return user


UserDep = Annotated[User, Depends(current_user)]
EditorDep = Annotated[User, Depends(current_editor)]
