"""The items of a site in a browser: sorting, marks, cards on phones, charts, and versions."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.integration.harness import Db
from tests.integration.web.items import SITE, id_of, price, put_item

pytestmark = pytest.mark.soak
PAGE = f"/sites/{SITE}"
PHONE = {"width": 390, "height": 844}


@pytest.fixture
def items(database: Db) -> None:
    """Store items with two versions each."""
    for number in range(12):
        first = {"title": f"Lamp {number:02}", "price": price(100 - number), "stock": number}
        second = first | {"price": price(90 - number), "main_text": "A lamp.\nOf walnut."}
        put_item(database, f"{number}", (20, first), (2, second), categories=("Lamps", "Oak"))


def test_a_click_on_a_head_sorts_the_items(items: None, page: Page) -> None:
    page.goto(PAGE)
    names = page.locator(".items .name")
    expect(names).to_have_count(12)
    page.get_by_role("columnheader", name="price").get_by_role("link").click()
    expect(names.first).to_have_text("Lamp 11")
    expect(page.get_by_role("columnheader", name="price")).to_have_attribute(
        "aria-sort", "ascending"
    )
    page.get_by_role("columnheader", name="price").get_by_role("link").click()
    expect(names.first).to_have_text("Lamp 00")
    mark = page.locator(".chip.lower").first
    expect(mark).to_have_text(re.compile("−10 %fell by 10 % in the last seven days, from £100"))
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    assert download.value.suggested_filename == "shop.csv"


def test_an_item_is_a_card_of_two_lines_on_a_phone(items: None, page: Page) -> None:
    page.set_viewport_size(PHONE)
    page.goto(PAGE)
    heights = page.eval_on_selector_all(
        ".items tbody tr", "rows => rows.map(row => row.getBoundingClientRect().height)"
    )
    assert len(heights) == 12
    assert max(heights) < 72
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    box, row = (
        page.locator(each).first.bounding_box() for each in (".items .when", ".items .name")
    )
    assert box
    assert row
    assert abs(box["y"] - row["y"]) < 8, "the time is on the first line"
    page.locator(".site-more summary").click()
    expect(page.get_by_role("link", name="Delete the site…")).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.get_by_label("Order").select_option(label="Name")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".items .name").first).to_have_text("Lamp 00")


def test_chosen_items_are_drawn_in_one_chart(items: None, page: Page) -> None:
    page.goto(f"{PAGE}?sort=name")
    for name in ("Lamp 02", "Lamp 05"):
        page.get_by_label(f"Compare {name}").check()
    page.get_by_role("button", name="Compare chosen").click()
    expect(page).to_have_url(re.compile(r"/compare\?id=.+&id=.+"))
    expect(page.locator(".chart canvas")).to_have_count(1)
    rows = page.locator("table.cards tbody tr")
    expect(rows).to_have_count(2)
    page.locator(".chips").get_by_role("link", name="stock").click()
    expect(rows.first).to_contain_text("Lamp 02")


def test_the_page_of_an_item_leads_to_its_versions(items: None, page: Page) -> None:
    page.goto(f"/targets/{id_of('3')}")
    expect(page.get_by_role("heading", level=1)).to_have_text("Lamp 03")
    expect(page.locator(".vals b").first).to_have_text("£87")
    expect(page.locator(".chart canvas")).to_have_count(1)
    page.locator(".happened").get_by_role("link", name="Read").first.click()
    expect(page.locator(".read-text")).to_contain_text("Of walnut.")
    page.get_by_role("link", name="Earlier version").click()
    expect(page.locator(".read")).to_contain_text("£97")
