"""Somebody who never opens a terminal watches the prices of a shop.

After `scrapy web`, all is done in the browser: the site, a mailbox and a webhook, two alerts, the
first useful change, a chart, a spreadsheet, a pause and the end. The clicks and the words typed
are counted.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.integration.browser.person import JOB_MILLISECONDS, Person, add_site, until
from tests.integration.harness import Db, Freshet, Pages
from tests.integration.notify.test_sending import MailServer, running
from tests.integration.notify.webhooks import Hooks, serving
from tests.integration.web.served import Served

pytestmark = pytest.mark.soak
# What a person needs at most, from the empty app to the first message.
MAX_CLICKS, MAX_WORDS = 25, 15
PRICES = {"oak-lamp": 289.9, "walnut-lamp": 321.0, "wool-rug": 86.0, "jute-rug": 41.5}


def write(shop: Pages, prices: dict[str, float]) -> None:
    """Write the pages of the shop: a list of each category, with a box of other items."""
    for category in ("lamp", "rug"):
        own = [f"/p/{name}.html" for name in prices if name.endswith(category)]
        links = "".join(f'<li><a href="{path}">{path[3:-5]}</a></li>' for path in own)
        shop.file(f"/c/{category}s.html", f"<h1>{category.title()}s</h1><ul>{links}</ul>")
    shop.file("/index.html", '<a href="/c/lamps.html">Lamps</a> <a href="/c/rugs.html">Rugs</a>')
    for name, price in prices.items():
        title = name.replace("-", " ").title()
        shop.file(
            f"/p/{name}.html",
            f"<!DOCTYPE html><html><head><title>{title}</title></head><body><h1>{title}</h1>"
            f'<p class="price">£{price:.2f}</p><p class="stock">In stock</p></body></html>',
        )


@pytest.fixture
def shop() -> Iterator[Pages]:
    with Pages() as site:
        write(site, PRICES)
        yield site


@pytest.fixture
def hooks() -> Iterator[Hooks]:
    with serving() as server:
        yield server


@pytest.fixture
def mail() -> Iterator[MailServer]:
    with running(MailServer()) as server:
        yield server


@pytest.fixture
def app(
    freshet: Freshet, shop: Pages, hooks: Hooks, mail: MailServer, tmp_path: Path
) -> Iterator[Served]:
    """Serve the web app, which crawls by itself, on an empty database."""
    hosts = (shop.url.removeprefix("http://"), hooks.place, f"127.0.0.1:{mail.port}")
    served = Served(
        freshet, service=True, FRESHET_PRIVATE_HOSTS=",".join(hosts),
        FRESHET_NOTIFY_FILE=tmp_path / "notify.toml",
    )  # fmt: skip
    yield served
    served.stop()


def test_shop_is_watched_without_a_terminal(
    page: Page, app: Served, shop: Pages, hooks: Hooks, mail: MailServer, database: Db
) -> None:
    person = Person(page)
    page.goto(app.url)
    found = "A shop: 4 items so far, in 2 categories (Lamps, Rugs)"
    add_site(person, "shop", f"{shop.url}/index.html", found)
    until(lambda: database.posts.count_documents({}) == len(PRICES), "nothing was crawled")
    add_channels(person, hooks, mail)
    for channel in ("mail", "webhook"):
        page.goto(f"{app.url}notifications")
        person.choose("Channel", channel)
        person.press("Save")
    write(shop, PRICES | {"walnut-lamp": 289.9, "silk-rug": 120.0})
    person.follow("Sites")
    person.follow("shop")
    person.click(page.get_by_role("button", name=re.compile("Check now")).first)
    # The item is due in hours; all are checked at once.
    until(lambda: database.visits.count_documents({"news": True}) == 2, "no change was found")
    until(lambda: mail.emails and hooks.received, "no message was sent")
    assert person.needed_at_most(MAX_CLICKS, MAX_WORDS)
    assert b"Walnut Lamp" in mail.emails[0]
    read_changes(person)
    look_at_items(person)
    end(person, database)


def add_channels(person: Person, hooks: Hooks, mail: MailServer) -> None:
    page = person.page
    person.follow("Alerts")
    person.follow("Add a channel")
    person.follow("Mail")
    person.type("Send to", "me@example.org")
    person.type("From", "freshet@example.org")
    person.type("Mail server", "127.0.0.1")
    person.choose("Encryption", "none (port 25)")
    person.type("Port", str(mail.port))
    person.press("Save")
    person.press("Send a test message")
    expect(page.get_by_role("status")).to_contain_text("accepted the test message")
    mail.emails.clear()
    person.follow("Alerts")
    person.follow("Add a channel")
    person.follow("Webhook")
    person.type("URL", f"http://{hooks.place}/prices")
    person.press("Save")
    person.press("Send a test message")
    expect(page.get_by_role("status")).to_contain_text("accepted the test message")
    hooks.received.clear()


def read_changes(person: Person) -> None:
    page = person.page
    person.follow("Changes")
    expect(page.get_by_text("2 changes", exact=True)).to_be_visible()
    cheaper = page.locator("[data-change]", has_text="Walnut Lamp")
    expect(cheaper).to_contain_text("£321 → ")
    expect(cheaper).to_contain_text("£289.90")
    expect(cheaper).to_contain_text("\N{MINUS SIGN}9.7 %")
    expect(page.locator("[data-change]", has_text="Silk Rug")).to_contain_text("£120")
    person.press("Mark all read")
    expect(page.get_by_role("heading", name="You have read everything")).to_be_visible()


def look_at_items(person: Person) -> None:
    page = person.page
    person.follow("Sites")
    person.follow("shop")
    row = page.get_by_role("row", name=re.compile("Walnut Lamp"))
    expect(row).to_contain_text("\N{MINUS SIGN}9.7 %")
    with page.expect_download() as download:
        person.follow("XLSX")
    content = Path(str(download.value.path())).read_bytes()
    with zipfile.ZipFile(io.BytesIO(content)) as workbook:
        sheet = workbook.read("xl/worksheets/sheet1.xml").decode()
    assert "289.9" in sheet
    person.follow("Walnut Lamp")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Walnut Lamp")
    expect(page.get_by_text("£289.90").first).to_be_visible()
    expect(page.locator("svg, canvas").first).to_be_visible()


def end(person: Person, database: Db) -> None:
    page = person.page
    person.follow("Sites")
    person.click(page.get_by_role("button", name=re.compile("Pause")).first)
    expect(page.get_by_text("paused").first).to_be_visible()
    person.follow("shop")
    person.click(page.locator(".site-more > summary"))
    person.click(page.get_by_role("link", name=re.compile("Delete the site")))
    person.type("Name of the site", "shop")
    person.press("Delete the site")
    expect(page.get_by_role("heading", name="Deleted shop")).to_be_visible(timeout=JOB_MILLISECONDS)
    assert database.targets.count_documents({}) == 0
    assert database.versions.count_documents({}) == 0
