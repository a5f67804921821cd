"""In-process browser: requests to the web app without a network, with cookies."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from typing import Any

import httpx
from fastapi import FastAPI

from crawler.config import Config
from crawler.storage.users import Role
from crawler.web import passwords
from crawler.web.app import close, create_app
from crawler.web.options import WebOptions
from tests.integration.harness import Db

NOW = datetime(2026, 11, 22, tzinfo=UTC)
PASSWORD = "correct horse battery"
ADDRESS = "203.0.113.9"
# Listens on all addresses, so users must sign in.
OPEN = WebOptions(host="0.0.0.0")
BASE = "http://127.0.0.1:8787"
CSRF = re.compile(r'name="csrf" value="([0-9a-f]+)"')


class Browser:
    """Sends requests to an app and keeps its cookies."""

    def __init__(self, app: FastAPI, loop: asyncio.AbstractEventLoop, base: str, address: str):
        self.app = app
        self._loop = loop
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=(address, 50_000))
        self._client = httpx.AsyncClient(transport=transport, base_url=base)
        self.cookies = self._client.cookies
        self.origin = base

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request without browser headers, and return the response."""
        return self._loop.run_until_complete(self._client.request(method, path, **options))

    def get(self, path: str, **options: Any) -> httpx.Response:
        """Load a page."""
        return self.request("GET", path, **options)

    def post(self, path: str, data: dict[str, str], **headers: str) -> httpx.Response:
        """Send a form with the Origin header that browsers add."""
        return self.request("POST", path, data=data, headers={"Origin": self.origin} | headers)

    def token(self, path: str = "/sign-in") -> str:
        """Return the CSRF token of a page."""
        match = CSRF.search(self.get(path).text)
        assert match
        return match[1]

    def sign_in(self, name: str, password: str = PASSWORD, **more: str) -> httpx.Response:
        """Fill in and send the form."""
        form = {"name": name, "password": password, "csrf": self.token()} | more
        return self.post("/sign-in", form)


class Browsers:
    """Makes browsers of one app."""

    def __init__(self, app: FastAPI, loop: asyncio.AbstractEventLoop) -> None:
        self.app = app
        self.loop = loop

    def __call__(self, base: str = BASE, address: str = ADDRESS) -> Browser:
        """Return a browser without cookies."""
        return Browser(self.app, self.loop, base, address)


@contextmanager
def browsers_of(uri: str, options: WebOptions, **settings: Any) -> Iterator[Browsers]:
    """Create an app on a database; close the app at the end."""
    loop = asyncio.new_event_loop()
    app = create_app(Config.load(mongo_uri=uri, **settings), options)
    try:
        yield Browsers(app, loop)
    finally:
        loop.run_until_complete(close(app))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def put_user(db: Db, name: str, role: Role = Role.EDITOR) -> None:
    """Store a user with PASSWORD."""
    db.users.insert_one(
        {"_id": name, "role": str(role), "password_hash": _password_hash(),
         "created_at": NOW, "password_at": NOW}
    )  # fmt: skip


@cache
def _password_hash() -> str:
    """Return the hash of PASSWORD; cached, because hashing takes tens of milliseconds."""
    return passwords.hashed(PASSWORD)
