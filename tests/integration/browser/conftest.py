"""Fixtures of the tests that use the web app in Chromium.

`page` is a tab of an app on the test's database. The test fails if the tab reports a JavaScript
error or a violation of the content policy, or sends a request to an origin other than the app's.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.integration.harness import Freshet
from tests.integration.web.served import Served

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OPTIONS = (
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    # No request leaves the machine, even if a test fails.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
# Steps that usually take a tenth of a second take several seconds on a busy machine.
PATIENCE_MILLISECONDS = 60_000
# Schemes of URLs that the browser loads without a request.
LOCAL_SCHEMES = ("data:", "blob:", "about:")
expect.set_options(timeout=PATIENCE_MILLISECONDS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start the system's Chromium with an empty profile; skip the test if there is none.

    Playwright's event loop is the thread's current one until it stops, and tests of other modules
    run loops of their own: a browser for the whole session would break them.
    """
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no browser found. Install the package chromium")
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(
            executable_path=path,
            args=OPTIONS,
            # Chromium's sandbox does not run as root.
            chromium_sandbox=os.geteuid() != 0,
        )
        yield made
        made.close()


@pytest.fixture
def app(freshet: Freshet) -> Iterator[Served]:
    """Serve the web app on the test's database."""
    served = Served(freshet)
    yield served
    served.stop()


@pytest.fixture
def problems() -> list[str]:
    """Return problems that tabs of `context` report; clear the list after an expected error."""
    return []


@pytest.fixture
def context(browser: Browser, app: Served, problems: list[str]) -> Iterator[BrowserContext]:
    """Return a browser without cookies, whose tabs are watched."""
    made = browser.new_context(base_url=app.url, locale="en-US", timezone_id="UTC")
    made.set_default_timeout(PATIENCE_MILLISECONDS)
    watch(made, app.url, problems)
    yield made
    made.close()
    assert problems == []


@pytest.fixture
def page(context: BrowserContext) -> Page:
    """Open a tab."""
    return context.new_page()


def watch(context: BrowserContext, origin: str, problems: list[str]) -> None:
    """Add errors of a browser's tabs to `problems`, and requests to other origins.

    A violation of the content policy is an error in the console.
    """
    context.on(
        "console",
        lambda message: (
            problems.append(f"console: {message.text} ({message.location['url']})")
            if message.type == "error"
            else None
        ),
    )
    context.on("weberror", lambda error: problems.append(f"error: {error.error}"))
    context.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((origin, *LOCAL_SCHEMES))
            else problems.append(f"request: {request.url}")
        ),
    )
