"""Views of hostile pages run no scripts, load no external content, and are accessible.

The tests check all views with axe, in both color schemes and at the width of a phone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest
from axe_playwright_python.base import AXE_FILE_PATH
from lxml import html
from playwright.sync_api import Error, Page

from crawler.config import Config
from crawler.web.app import create_app
from tests.conftest import Databases
from tests.integration.web.browser import CSRF, PASSWORD, put_user
from tests.integration.web.hostile import HOURS, Crawled, crawled, views
from tests.integration.web.served import Served
from tests.integration.web.test_web_security import routes
from tests.site.hostile_markup import ATTACKS, EVIL

pytestmark = pytest.mark.soak
# Less than the title of 1 MB; the reference of the API has 710 kB.
MAX_BYTES = 900_000
# Routes that do not return HTML.
FILES = {
    "/health", "/metrics", "/changes/feed.atom", "/search/feed.atom", "/feeds/export",
    "/api/openapi.json",    "/sites/{name:path}/items.csv", "/sites/{name:path}/items.xlsx",
}  # fmt: skip
KINDS = (
    "application/json", "application/atom+xml", "text/plain", "text/x-opml", "text/csv",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
)  # fmt: skip
# Page fragments, without a title and a language.
PARTS = {"/budget/jobs", "/setup/alert", "/setup/preview"}
BUDGETS, POLLS = ("/budget", "/budget/feeds"), 'hx-trigger="every 1s"'
FRAME = "/setup/frame"
# Operators write the dashboard templates, which may show images from all hosts.
DASHBOARD = "/dashboards/{path:path}"
# Needs a backup.
DOWNLOAD = "/backups/file"
# Requires a stored user, and then the app requires a sign-in.
USER_ROUTE = "/users/{name}"
DANGEROUS = """() => [...document.querySelectorAll("*")].flatMap(
    element => [...element.attributes]
        .filter(({name, value}) => name.startsWith("on") || /^\\s*javascript:/i.test(value))
        .map(({name, value}) => `${element.tagName} ${name}=${value}`))"""
# Marks leaf elements with the same contrast-related styles as three earlier elements.
MARK_SAME = """() => {
    const seen = new Map();
    for (const element of document.querySelectorAll("body *:not(:has(*))")) {
        const {color, fontSize, fontWeight} = getComputedStyle(element);
        let key = color + fontSize + fontWeight;
        for (let each = element; each; each = each.parentElement) {
            const {backgroundColor, backgroundImage, opacity} = getComputedStyle(each);
            key += each.tagName + backgroundColor + backgroundImage + opacity;
        }
        seen.set(key, (seen.get(key) ?? 0) + 1);
        if (seen.get(key) > 3) element.dataset.same = "";
    }
    axe.configure({rules: [{id: "color-contrast", selector: "*:not([data-same])"}]});
}"""
# Marks elements that a narrow screen hides.
MARK_HIDDEN = """() => {
    const hidden = [...document.querySelectorAll("body *:not(:has(*)):not([data-same])")]
        .filter(element => !element.checkVisibility() && element.textContent.trim());
    for (const element of hidden) element.dataset.hidden = "";
    return hidden.length;
}"""
AXE = """async ({include, ...rules}) => (
    await axe.run(include ?? document, {resultTypes: ["violations"], preload: false, ...rules})
    ).violations.filter(({impact}) => ["serious", "critical"].includes(impact))
    .map(({id, nodes}) => `${id}: ${nodes.map(node => node.html).slice(0, 3).join(" | ")}`)"""
TOO_WIDE = """() => document.documentElement.scrollWidth <= innerWidth ? [] : [
    ...document.querySelectorAll("main *")].filter(
        each => each.getBoundingClientRect().right > innerWidth && !each.closest(".scroll"))
    .map(element => `wider than a phone: ${element.outerHTML.slice(0, 100)}`).slice(0, 3)"""
WCAG = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}}
CONTRAST_OF_HIDDEN = {"runOnly": ["color-contrast"], "include": "[data-hidden]"}
# Rules that depend on the width: hidden, scrolling or overlapping elements, and touch targets.
LAYOUT = {
    "runOnly": [
        "color-contrast", "scrollable-region-focusable", "target-size", "label", "link-name",
        "button-name", "aria-hidden-focus",
    ]
}  # fmt: skip
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 360, "height": 640}


@pytest.fixture(scope="module")
def hostile(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crawled]:
    """Crawl the hostile site once for all tests of this module."""
    with crawled(databases, tmp_path_factory.mktemp("hostile")) as made:
        yield made


@pytest.fixture(scope="module")
def app(hostile: Crawled) -> Iterator[Served]:
    """Serve the web app an hour after the last crawl."""
    served = Served(hostile.freshet, hours=HOURS + 1)
    yield served
    served.stop()


@pytest.fixture(scope="module")
def paths(hostile: Crawled, app: Served) -> dict[str, list[str]]:
    """Return the paths of all views, after the wizard has fetched pages."""
    with httpx.Client(base_url=app.url, timeout=60) as client:
        # Before the first page sets a cookie, with which these would need a CSRF token.
        made = client.post("/api/v1/changes/feed").json()["url"]
        search = {"name": ATTACKS["attribute"][:100], "q": "script"}
        saved = client.post("/api/v1/search/saved", json=search)
        assert saved.status_code == 200, saved.text
        kept = saved.json()["searches"][0]["id"]
        feed = client.post("/api/v1/search/saved/feed", json={"id": kept}).json()["url"]
        token = CSRF.search(client.get("/setup").text)
        assert token
        form = {"csrf": token[1], "url": f"{hostile.pages.url}/list.html"}
        answer = client.post("/setup", data=form, headers={"Origin": app.url.rstrip("/")})
        assert answer.status_code == 303, answer.text
        found = views(hostile, made.partition("token=")[2])
        found["/search/feed.atom"] = [feed.removeprefix(app.url.rstrip("/"))]
        # The wizard chooses the pages that it fetches.
        found[FRAME] = [path for path in found[FRAME] if client.get(path).status_code == 200]
        # The page of a budget reloads itself when its curve is there.
        for path in (each for view in BUDGETS for each in found[view]):
            deadline = time.monotonic() + 60
            while POLLS in client.get(path).text:
                assert time.monotonic() < deadline, path
                time.sleep(0.1)
    assert len(found[FRAME]) > 1
    return found


def test_every_view_is_opened(paths: dict[str, list[str]]) -> None:
    shown = {
        route.path
        for route in routes(create_app(Config.load(mongo_uri="mongodb://127.0.0.1:1/unused")))
        if "GET" in route.methods and not route.path.startswith("/api/v1/")
    }
    assert shown == {*paths, USER_ROUTE}


def test_files_have_types_that_browsers_do_not_run(
    app: Served, paths: dict[str, list[str]]
) -> None:
    # The schema of the API takes seconds on a busy machine.
    with httpx.Client(base_url=app.url, timeout=60) as client:
        for route in FILES:
            answer = client.get(paths[route][0])
            assert answer.status_code == 200, route
            kind = answer.headers["content-type"].partition(";")[0]
            assert kind in KINDS
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert len(answer.content) < MAX_BYTES


def open_page(tab: Page, path: str) -> None:
    """Open a page; fail if it is large or contains code of the crawled site that could run."""
    try:
        response = tab.goto(path)
    except Error as error:
        # On a busy machine, the previous page may still be reloading itself.
        if "ERR_ABORTED" not in error.message:
            raise
        response = tab.goto(path)
    assert response is not None
    # Forms that were sent with hostile values are shown again with 422.
    assert response.status in (200, 422), path
    assert len(response.body()) < MAX_BYTES, path
    assert tab.evaluate("window.owned") is None, path
    assert tab.evaluate(DANGEROUS) == [], path


def unexpected_problems(problems: list[str], allowed: tuple[str, ...] = ()) -> list[str]:
    """Return the problems other than the status 422 and a missing icon, and clear them."""
    usual = ("status of 422", "favicon.ico", *allowed)
    found = [each for each in problems if not any(text in each for text in usual)]
    problems.clear()
    return found


def test_views_are_safe_and_accessible(
    page: Page, paths: dict[str, list[str]], problems: list[str]
) -> None:
    faults: dict[str, list[str]] = {}
    for route in paths.keys() - FILES - PARTS - {FRAME, DASHBOARD, DOWNLOAD}:
        if found := accessibility_faults(page, paths[route][0], problems):
            faults[route] = found
    assert faults == {}


def accessibility_faults(page: Page, path: str, problems: list[str]) -> list[str]:
    """Open a view; return findings of axe at two widths and color schemes, and other problems."""
    page.set_viewport_size(DESKTOP)
    page.emulate_media(color_scheme="light")
    open_page(page, path)
    found = unexpected_problems(problems)
    page.evaluate(AXE_FILE_PATH.read_text(encoding="utf-8"))
    page.evaluate(MARK_SAME)
    found += page.evaluate(AXE, WCAG)
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size(PHONE)
    found += [f"dark, phone: {each}" for each in page.evaluate(AXE, LAYOUT)]
    found += page.evaluate(TOO_WIDE)
    if page.evaluate(MARK_HIDDEN):
        page.set_viewport_size(DESKTOP)
        found += [f"dark: {each}" for each in page.evaluate(AXE, CONTRAST_OF_HIDDEN)]
    return found


def test_views_of_all_attacks_are_safe(
    page: Page, paths: dict[str, list[str]], problems: list[str]
) -> None:
    for route, opened_paths in paths.items():
        if route not in FILES and route not in (FRAME, DASHBOARD, DOWNLOAD):
            for path in opened_paths if route in PARTS else opened_paths[1:]:
                open_page(page, path)
                assert unexpected_problems(problems) == [], path


def test_dashboards_load_only_images(
    page: Page, hostile: Crawled, paths: dict[str, list[str]], problems: list[str]
) -> None:
    images = (f"{EVIL}/img", f"{hostile.pages.url}/item/x")
    assert paths[DASHBOARD]
    for path in paths[DASHBOARD]:
        open_page(page, path)
        assert page.locator("[data-cell]").count() > 10
        assert unexpected_problems(problems, images) == [], path


def test_wizard_shows_pages_without_active_content(
    page: Page, paths: dict[str, list[str]], problems: list[str]
) -> None:
    for path in paths[FRAME]:
        response = page.goto(path)
        assert response is not None
        assert response.status == 200, path
        tree = html.fromstring(response.text())
        assert not tree.xpath(
            "//script | //iframe | //object | //form | //base | //meta[@*[.!='utf-8']]"
        )
        assert not tree.xpath("//body//@*[starts-with(name(), 'on') or name() = 'style']")
        assert unexpected_problems(problems) == [], path


def test_user_views_are_accessible(page: Page, hostile: Crawled, problems: list[str]) -> None:
    put_user(hostile.db, "anna")
    try:
        page.goto("/users")
        page.locator("[name=name]").fill("anna")
        page.locator("[name=password]").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/users")
        for path in ("/users", "/users/anna"):
            assert accessibility_faults(page, path, problems) == [], path
    finally:
        hostile.db.users.delete_one({"_id": "anna"})
