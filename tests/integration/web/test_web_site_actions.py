"""All pages of a site are checked now, and a site is deleted, in the web app alone."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler.web.options import WebOptions
from crawler.web.routes import site_actions
from tests.integration.harness import Db, Freshet, Pages
from tests.integration.holding import holding
from tests.integration.web.browser import NOW, Browser, browsers_of
from tests.integration.web.test_web_sites import post


@pytest.fixture
def local(freshet: Freshet, stored: tuple[Db, str]) -> Iterator[Browser]:
    options = WebOptions(settings=("-s", f"MONGO_URI={stored[1]}"))
    with browsers_of(stored[1], options) as make:
        yield make(address="127.0.0.1")


@pytest.fixture
def shop(freshet: Freshet, pages: Pages) -> Path:
    """Crawl a shop that has nothing due."""
    pages.list("list.html", ["item-a.html", "item-b.html"])
    pages.item("item-a.html", "A")
    pages.item("item-b.html", "B")
    made = freshet.wrapper("shop", start_urls=[f"{pages.url}/list.html"], item_pages="/item-")
    freshet.crawl(made)
    return made


def wait_for_crawl(browser: Browser, site: str) -> None:
    crawl = browser.app.state.crawls.of(site)
    deadline = time.monotonic() + 50
    while crawl.code is None and time.monotonic() < deadline:
        browser.get("/health")
    assert crawl.code == 0, crawl.message


def test_all_pages_are_checked_although_none_is_due(
    local: Browser, database: Db, pages: Pages, shop: Path
) -> None:
    pages.item("item-a.html", "changed")
    assert post(local, "/sites/shop/check-all", back="/").status_code == 303
    wait_for_crawl(local, "shop")
    assert database.visits.count_documents({}) == 6
    assert database.posts.find_one({"url": f"{pages.url}/item-a.html"})["title"] == "changed"


def test_all_pages_are_checked_after_the_crawl_in_progress(
    local: Browser, stored: tuple[Db, str], pages: Pages, shop: Path
) -> None:
    database, uri = stored
    pages.item("item-a.html", "changed")
    headers = {"X-CSRF-Token": local.token("/")}
    with holding(uri, "crawl shop"):
        answer = local.request("POST", "/api/v1/sites/shop/check-all", headers=headers)
        assert (answer.status_code, answer.json()["waits"]) == (202, True)
        # Asking twice checks once.
        assert post(local, "/sites/shop/check-all", back="/").status_code == 303
        assert "all pages are checked when this run has ended" in local.get("/sites/shop").text
        assert database.visits.count_documents({}) == 3
    wait_for_crawl(local, "shop")
    assert database.visits.count_documents({}) == 6
    assert "when this run has ended" not in local.get("/sites/shop").text


def test_site_is_deleted_with_what_is_stored_of_it(
    local: Browser, database: Db, shop: Path
) -> None:
    page = re.sub(r"<[^>]+>", "", local.get("/sites/shop/remove").text)
    assert "3 targets, 3 visits, 3 versions, 2 posts" in page
    answer = post(local, "/sites/shop/remove", confirm="shoppe")
    assert answer.status_code == 422
    assert "Type the name of the site to confirm" in answer.text
    assert database.targets.count_documents({}) == 3
    answer = post(local, "/sites/shop/remove", confirm="shop")
    assert "Deleted 3 targets" in answer.text
    for name in ("targets", "visits", "versions", "posts", "runs", "sites"):
        assert database[name].count_documents({}) == 0, name
    assert local.get("/sites/shop").status_code == 404
    assert "No sites yet" in local.get("/").text


def test_renamed_site_is_deleted_by_either_name_with_its_alerts(
    local: Browser, stored: tuple[Db, str], shop: Path
) -> None:
    database, _ = stored
    database.sites.update_one({"_id": "shop"}, {"$set": {"title": "Lamps & rugs"}})
    for name, sites in (("cheaper", ["shop"]), ("both", ["shop", "other"])):
        keys = {"name": name, "events": ["changed"], "channels": ["team"], "sites": sites}
        rule = {"_id": name, "edits": 0, "keys": keys, "by": "anna", "at": NOW}
        database.notification_rules.insert_one(rule)
    page = local.get("/sites/shop/remove").text
    assert "Delete <bdi>Lamps &amp; rugs</bdi>?" in page
    assert "1 alert about this site only: cheaper" in page
    assert post(local, "/sites/shop/remove", confirm="Lamps & rugs").is_success
    assert database.targets.count_documents({}) == 0
    assert [rule["_id"] for rule in database.notification_rules.find()] == ["both"]


def test_site_that_is_being_crawled_is_not_deleted(
    local: Browser, stored: tuple[Db, str], shop: Path
) -> None:
    with holding(stored[1], "crawl shop"):
        answer = post(local, "/sites/shop/remove", confirm="shop")
    assert answer.status_code == 409
    assert "shop is being crawled" in answer.text
    assert stored[0].targets.count_documents({}) == 3
    headers = {"X-CSRF-Token": local.token("/sites/shop/remove")}
    unsure = local.request("DELETE", "/api/v1/sites/shop?sure=false", headers=headers)
    assert unsure.status_code == 422


def test_long_deletion_continues_after_the_answer(
    local: Browser, database: Db, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_actions, "PATIENCE_SECONDS", 0.0)
    headers = {"X-CSRF-Token": local.token("/sites/shop/remove")}
    answer = local.request("DELETE", "/api/v1/sites/shop?sure=true", headers=headers)
    assert answer.json() == {"documents": None}
    deadline = time.monotonic() + 30
    while database.targets.count_documents({}) and time.monotonic() < deadline:
        local.get("/health")
    assert database.targets.count_documents({}) == 0
