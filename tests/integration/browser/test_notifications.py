"""Notifications in a browser: adding a rule with a preview, and resending a dead letter."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.integration.harness import Db, Freshet
from tests.integration.web.test_web_notifications import put_change, put_message

pytestmark = pytest.mark.soak
FILE = '[channels.team]\napprise = "json://127.0.0.1:9"\n'


@pytest.fixture
def freshet(freshet: Freshet, tmp_path: Path) -> Freshet:
    """Return commands with one channel."""
    path = tmp_path / "notify.toml"
    path.write_text(FILE, encoding="utf-8")
    freshet.env["FRESHET_NOTIFY_FILE"] = str(path)
    return freshet


def test_a_rule_is_previewed_and_added(page: Page, database: Db, problems: list[str]) -> None:
    put_change(database)
    page.goto("/notifications")
    page.get_by_role("link", name="More conditions").click()
    page.get_by_label("Name", exact=True).fill("cheap")
    page.get_by_role("checkbox", name="team").check()
    page.get_by_label("Conditions on fields").fill("price falls")
    page.get_by_role("button", name="Show messages").click()
    expect(page.locator("#messages article")).to_have_count(1)
    page.get_by_label("Conditions on fields").fill("price")
    page.get_by_role("button", name="Show messages").click()
    expect(page.locator("#messages .problem")).to_contain_text("invalid condition")
    # The response with the problem has status 422.
    problems.clear()
    page.get_by_label("Conditions on fields").fill("price falls")
    page.get_by_role("button", name="Add the rule").click()
    expect(page.locator("tbody th", has_text="cheap")).to_be_visible()
    assert database.notification_rules.count_documents({"_id": "cheap"}) == 1


def test_a_sentence_becomes_a_rule(page: Page, database: Db) -> None:
    put_change(database)
    page.goto("/notifications")
    page.get_by_label("What happens").select_option("there is a new item")
    expect(page.get_by_label("Percent")).to_be_hidden()
    page.get_by_label("What happens").select_option("a price falls")
    page.get_by_label("Percent").fill("10")
    page.get_by_role("button", name="What would it have sent?").click()
    expect(page.locator("#messages article")).to_have_count(1)
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("tbody th", has_text="price-falls")).to_be_visible()
    stored = database.notification_rules.find_one({"_id": "price-falls"})
    assert stored is not None
    assert stored["keys"]["when"] == ["price falls by 10 %"]


def test_board_links_dead_letter_to_its_channel(page: Page, database: Db) -> None:
    put_message(database, 1, reason="HTTP 404")
    page.goto("/")
    page.get_by_role("region", name="Alerts").get_by_role("link", name="team").click()
    expect(page.get_by_text("HTTP 404")).to_be_visible()
    page.get_by_role("button", name="Send again").click()
    expect(page.get_by_text("will be sent again")).to_be_visible()
    assert database.outbox.count_documents({"state": "waiting"}) == 1
