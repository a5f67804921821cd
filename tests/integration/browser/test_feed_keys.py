"""The keys of the feed reader do not take those of the navigation."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.integration.harness import Db
from tests.integration.web.served import Served
from tests.integration.web.test_web_feeds import put_feed, put_post

pytestmark = pytest.mark.soak
FEED = "feeds https://a.example/feed"


def test_keys_open_a_post_and_the_areas(page: Page, app: Served, database: Db) -> None:
    put_feed(database, FEED)
    put_post(database, FEED, "one")
    page.goto(f"{app.url}feeds")
    page.keyboard.press("j")
    page.keyboard.press("g")
    page.keyboard.press("o")
    expect(page.get_by_role("heading", level=1)).to_have_text("Alerts")
    page.go_back()
    page.keyboard.press("j")
    page.keyboard.press("o")
    expect(page.get_by_role("heading", level=1)).to_have_text("Title one")
