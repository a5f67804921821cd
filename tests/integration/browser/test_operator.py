"""An operator lets a second person look, gives a program access, backs up, and reads metrics.

After `scrapy web`, all is done in the browser: the first user, a viewer, a token of the API and a
backup. What the operator's programs do, `httpx` does. The clicks and the words typed are counted.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.integration.browser.conftest import PATIENCE_MILLISECONDS, watch
from tests.integration.browser.person import JOB_MILLISECONDS, Person, add_site, until
from tests.integration.browser.test_shop_watcher import PRICES, write
from tests.integration.harness import Db, Freshet, Pages
from tests.integration.web.browser import PASSWORD
from tests.integration.web.served import Served
from tests.integration.web.test_web_security import OF_VIEWERS

pytestmark = pytest.mark.soak
# What the operator needs at most, from the empty app to the backup.
MAX_CLICKS, MAX_WORDS = 30, 25
OTHER_PASSWORD = "a quiet place to look"
# Paths of the forms on a page, below the root path.
FORMS = """() => [...document.querySelectorAll("form[method=post], [hx-post]")]
    .map(each => new URL(each.getAttribute("hx-post") ?? each.action, location).pathname)"""
AREAS = ("Sites", "Changes", "Feeds", "Search", "Alerts")
IN_MENU = ("Find a page", "Budget", "Near-duplicates", "Dashboards", "Account and users")
# Links that lead viewers to a refusal.
OF_EDITORS = re.compile(
    r"^(Add|Edit|Delete|Forget|Backups|Remove)|Users and their|All changes that"
)


@pytest.fixture
def shop() -> Iterator[Pages]:
    with Pages() as site:
        write(site, PRICES)
        yield site


@pytest.fixture
def app(freshet: Freshet, shop: Pages) -> Iterator[Served]:
    """Serve the web app, which crawls by itself, on an empty database."""
    served = Served(
        freshet, service=True, FRESHET_PRIVATE_HOSTS=shop.url.removeprefix("http://")
    )  # fmt: skip
    yield served
    served.stop()


@pytest.fixture
def other(browser: Browser, app: Served, problems: list[str]) -> Iterator[BrowserContext]:
    """Return the browser of another person."""
    made = browser.new_context(base_url=app.url, locale="en-US", timezone_id="UTC")
    made.set_default_timeout(PATIENCE_MILLISECONDS)
    watch(made, app.url, problems)
    yield made
    made.close()


def test_an_installation_is_operated_without_a_terminal(
    page: Page, app: Served, shop: Pages, database: Db, other: BrowserContext, tmp_path: Path
) -> None:
    person = Person(page)
    page.goto(app.url)
    add_site(person, "shop", f"{shop.url}/index.html")
    until(lambda: database.posts.count_documents({}) == len(PRICES), "nothing was crawled")
    add_users(person)
    viewer = Person(other.new_page())
    viewer.page.goto(app.url)
    sign_in(viewer, "vera", OTHER_PASSWORD)
    look_around(viewer)
    use_token(add_token(person), app)
    back_up(person, tmp_path)
    assert person.needed_at_most(MAX_CLICKS, MAX_WORDS)


def sign_in(person: Person, name: str, password: str) -> None:
    person.type("Name", name)
    person.type("Password", password)
    person.press("Sign in")
    expect(person.page.get_by_role("navigation", name="Areas")).to_be_visible()


def add_users(person: Person) -> None:
    """Add the operator, which makes everyone sign in, then a viewer."""
    page = person.page
    person.open_from_menu("Account and users")
    person.follow("Add the first user")
    person.type("Name", "anna")
    person.type("Password of the new user", PASSWORD)
    person.press("Add the user")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    sign_in(person, "anna", PASSWORD)
    # Signing in leads back to the users.
    expect(page.get_by_role("heading", name="Users", exact=True)).to_be_visible()
    person.type("Name", "vera")
    person.type("Password of the new user", OTHER_PASSWORD)
    person.type("Your own password", PASSWORD)
    person.press("Add the user")
    expect(page.get_by_role("row", name=re.compile("vera"))).to_contain_text("viewer")


def look_around(viewer: Person) -> None:
    """Open all areas and an item: a viewer sees everything, and no button that is refused."""
    page = viewer.page
    for name in AREAS:
        viewer.follow(name)
        expect_nothing_to_change(page, name)
    for name in IN_MENU:
        viewer.open_from_menu(name)
        expect_nothing_to_change(page, name)
    viewer.follow("Sites")
    viewer.follow("shop")
    expect(page.get_by_role("heading", level=1)).to_contain_text("shop")
    expect_nothing_to_change(page, "shop")
    viewer.follow("Walnut Lamp")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Walnut Lamp")
    expect(page.get_by_text("£321").first).to_be_visible()
    expect_nothing_to_change(page, "Walnut Lamp")


def expect_nothing_to_change(page: Page, name: str) -> None:
    """Check a page of a viewer: all forms may be sent, and all links opened."""
    page.wait_for_load_state("load")
    expect(page.locator("main h1")).to_be_visible()
    allowed = {path for _, path in OF_VIEWERS}
    assert [path for path in page.evaluate(FORMS) if path not in allowed] == [], name
    links = page.locator("main").get_by_role("link").all_inner_texts()
    assert [text for text in links if OF_EDITORS.search(text)] == [], name
    assert page.get_by_role("link", name=re.compile("^(Add a site|Backups)$")).count() == 0


def add_token(person: Person) -> str:
    """Add a token that may only read, and return it as it is shown."""
    page = person.page
    person.open_from_menu("Account and users")
    person.click(page.get_by_text("Add a token", exact=True))
    person.type("What the token is for", "prometheus")
    person.type("Your password", PASSWORD)
    person.press("Add the token")
    token = page.locator(".notice .command").first.inner_text()
    expect(page.get_by_role("table", name="API tokens")).to_contain_text("prometheus")
    person.open_from_menu("Account and users")
    expect(page.get_by_text("prometheus")).to_be_visible()
    expect(page.get_by_text(token)).to_have_count(0)
    return token


def use_token(token: str, app: Served) -> None:
    """Read the API and the metrics as programs of the operator do."""
    with httpx.Client(base_url=app.url, timeout=60) as program:
        for path in ("api/v1/sites", "metrics"):
            assert program.get(path).status_code == 401, path
        program.headers["Authorization"] = f"Bearer {token}"
        (site,) = program.get("api/v1/sites").json()["sites"]
        assert site["name"] == "shop"
        assert program.post("api/v1/backups").status_code == 403, "the token may only read"
        text = ""

        def is_read() -> bool:
            nonlocal text
            text = program.get("metrics").text
            return "freshet_database_up 1" in text

        until(is_read, "the metrics are not read")
        assert f'freshet_posts{{spider="shop"}} {len(PRICES)}' in text


def back_up(person: Person, data: Path) -> None:
    """Make a backup, and find the file with its size, its time and how to restore it."""
    page = person.page
    person.open_from_menu("Backups")
    expect(page.get_by_role("heading", name="No backups yet")).to_be_visible()
    person.press("Back up now")
    row = page.get_by_role("row", name=re.compile(r"freshet-.+\.zip"))
    expect(row).to_contain_text(re.compile(r"[1-9]\d* kB"), timeout=JOB_MILLISECONDS)
    expect(page.get_by_role("status")).to_contain_text("read again and checked")
    command = page.get_by_text("scrapy restore").inner_text()
    path = Path(command.split()[2])
    assert path.is_file()
    assert path.stat().st_mode & 0o077 == 0
    with zipfile.ZipFile(path) as archive:
        assert "collections/posts.bson" in archive.namelist()
