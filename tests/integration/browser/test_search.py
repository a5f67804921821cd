"""Search by keyboard, and the accessibility of results with marked words."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.integration.browser.test_hostile_views import accessibility_faults
from tests.integration.harness import Db
from tests.integration.web.served import Served
from tests.integration.web.test_web_search import put, put_copy, put_post

pytestmark = pytest.mark.soak


def test_a_search_needs_no_mouse(page: Page, app: Served, database: Db) -> None:
    put_post(database, "one", "The moon over the harbor.")
    put_post(database, "two", "The moon and the stars.", days=2)
    page.goto(app.url)
    page.keyboard.press("g")
    page.keyboard.press("s")
    field = page.get_by_role("searchbox")
    expect(field).to_be_focused()
    page.keyboard.type("moon")
    page.keyboard.press("Enter")
    expect(page.get_by_text("2 results, the best match first.")).to_be_visible()
    expect(page.locator("mark")).to_have_text(["moon", "moon"])
    page.keyboard.press("/")
    expect(field).to_be_focused()
    field.blur()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("o")
    expect(page.get_by_role("heading", level=1)).to_have_text("Two")


def test_results_are_accessible(page: Page, app: Served, database: Db, problems: list[str]) -> None:
    price = {"price": {"amount": 12.5, "currency": "£"}, "stock": "3"}
    name = f"Lamp {'x' * 300} {'of a very long name ' * 20}"
    lamp = put(database, "lamp", "A lamp. " * 90, title=name, fields=price, categories=["Lamps"])
    for number in range(4):
        put_copy(database, f"copy{number}", lamp, spider="mirror")
    for number in range(60):
        put_post(database, f"post{number}", "A lamp of walnut.", days=number)
    for query in ("?q=lamp", "?q=lamp&site=shop&from=2026-01-01", "?q=zeppelin", "?q=%21", ""):
        assert accessibility_faults(page, f"/search{query}", problems) == [], query
