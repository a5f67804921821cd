"""Fixtures of the web app: a loopback app, and a public app with users."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from crawler.storage.users import Role
from crawler.web.options import WebOptions
from tests.integration.harness import Db
from tests.integration.web.browser import OPEN, Browser, Browsers, browsers_of, put_user


@pytest.fixture
def local(stored: tuple[Db, str]) -> Iterator[Browser]:
    """Return a browser on the same machine, of a loopback app without users."""
    with browsers_of(stored[1], WebOptions()) as make:
        yield make(address="127.0.0.1")


@pytest.fixture
def browsers(stored: tuple[Db, str]) -> Iterator[Browsers]:
    """Make browsers of a public app with the users `anna` (editor) and `vic` (viewer)."""
    put_user(stored[0], "anna")
    put_user(stored[0], "vic", Role.VIEWER)
    with browsers_of(stored[1], OPEN) as make:
        yield make


@pytest.fixture
def anna(browsers: Browsers) -> Browser:
    """Return the browser of a signed-in editor."""
    browser = browsers()
    assert browser.sign_in("anna").status_code == 303
    return browser


@pytest.fixture
def vic(browsers: Browsers) -> Browser:
    """Return the browser of a signed-in viewer."""
    browser = browsers(address="203.0.113.10")
    assert browser.sign_in("vic").status_code == 303
    return browser
