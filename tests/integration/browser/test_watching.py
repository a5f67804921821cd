"""The fixtures of this folder report errors of tabs and requests to other origins."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.integration.web.served import Served

pytestmark = pytest.mark.soak


@pytest.mark.parametrize(
    ("script", "begins"),
    [
        ("setTimeout(() => { throw new Error('broken') })", "error: broken"),
        ("console.error('broken')", "console: broken"),
        ("document.body.innerHTML = '<b style=\"color:red\">'", "console: Applying inline style"),
        ("document.body.innerHTML = '<a href=http://other.test/>x</a>'; "
         "document.querySelector('a').click()", "request: http://other.test/"),
    ],
)  # fmt: skip
def test_errors_and_requests_to_other_origins_are_reported(
    page: Page, app: Served, problems: list[str], script: str, begins: str
) -> None:
    page.goto(app.url)
    assert problems == []
    page.evaluate(f"() => {{ {script} }}")
    page.wait_for_timeout(300)
    assert [each for each in problems if each.startswith(begins)], problems
    problems.clear()
