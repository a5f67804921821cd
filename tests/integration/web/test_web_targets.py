"""The pages of a target: time line, versions, values, explanation, and what users can set."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from bson import ObjectId

from crawler.items import Kind
from crawler.reports.target import target_id, target_key
from crawler.storage.targets import new_document
from crawler.utils.time import NEVER
from tests.integration.harness import Db, Row
from tests.integration.web.browser import Browser, Browsers

HOSTILE = "<script>alert(1)</script>\"'&"
URL = "https://shop.example/item/1"
KEY = f"shop {URL}"
NOW = datetime.now(UTC).replace(microsecond=0)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
PAGE = f"/targets/{target_id(KEY)}"
API = f"/api/v1{PAGE}"
pytestmark = pytest.mark.mongo


def put_target(db: Db, url: str = URL, spider: str = "shop", **own: Any) -> Row:
    row = new_document(spider, url, Kind.ITEM, NOW + 5 * HOUR, NOW - 10 * DAY)
    seen = {"visited_at": NOW - HOUR, "requested": 3, "refreshed": 3, "outcome": "unchanged"}
    db.targets.insert_one(row | seen | own)
    return row


def put_visit(db: Db, hours_ago: float, outcome: str, content: str = "", **own: Any) -> ObjectId:
    row = {
        "_id": ObjectId(), "spider": "shop", "target": URL, "at": NOW - hours_ago * HOUR,
        "outcome": outcome, "changed": int(outcome == "changed"), "status": 200,
        "get_size": 10, "update_size": 1, "diff_size": 5, "elapsed_ms": 12.0,
        "content_hash": content or None, "fence": 1,
    }  # fmt: skip
    db.visits.insert_one(row | own)
    return row["_id"]


def put_version(db: Db, name: str, hours_ago: float, content: Row) -> None:
    db.versions.insert_one(
        {"_id": f"{KEY} {name}", "spider": "shop", "target": URL, "content_hash": name,
         "at": NOW - hours_ago * HOUR, "size": 1000, "content": content}
    )  # fmt: skip


def send(browser: Browser, path: str, data: dict[str, str] | None = None) -> Any:
    token = browser.token(PAGE)
    return browser.post(f"{PAGE}/{path}", {"csrf": token} | (data or {}))


def test_a_target_is_found_by_its_url(local: Browser, database: Db) -> None:
    assert "Look up a page" in local.get("/targets").text
    assert "No target has this URL" in local.get("/targets?url=https://nope.example/").text
    put_target(database)
    found = local.get(f"/targets?url={quote(URL)}")
    assert (found.status_code, found.headers["location"]) == (303, PAGE)
    assert local.get(PAGE).status_code == 200
    near = local.get("/targets?url=https://shop.example/it").text
    assert PAGE in near
    put_target(database, spider="other")
    both = local.get(f"/api/v1/targets?url={quote(URL)}").json()
    assert [row["spider"] for row in both["exact"]] == ["other", "shop"]
    assert "Several sites" in local.get(f"/targets?url={quote(URL)}").text
    assert local.get(f"/api/v1/targets?url={quote(URL)}&spider=shop").json()["exact"][0]["id"]


@pytest.mark.parametrize("key", [KEY, "a b", "Straße https://ä.example/?q=%C3%A9#", "s cell:x y/z"])
def test_the_id_in_urls_is_the_key(key: str) -> None:
    assert re.fullmatch(r"[\w-]+", target_id(key))
    assert target_key(target_id(key)) == key


@pytest.mark.parametrize("path", ["x", "%00", "____", "Zm9v", "%E2%82%AC", "YQ==", "a" * 3000])
def test_an_unknown_id_is_not_found(local: Browser, path: str) -> None:
    for prefix in ("/targets/", "/api/v1/targets/"):
        assert local.get(prefix + path).status_code == 404
        assert local.get(f"{prefix}{path}/versions").status_code == 404


def test_the_time_line_is_paged_and_filtered(local: Browser, database: Db) -> None:
    put_target(database)
    for n in range(7):
        put_visit(database, n + 1, "error" if n % 3 == 0 else "unchanged", reason=f"reason {n}")
    first = local.get(f"{API}/visits?limit=5").json()
    assert [row["reason"] for row in first["visits"]] == [f"reason {n}" for n in range(5)]
    second = local.get(f"{API}/visits?limit=5&cursor={first['next']}").json()
    assert [row["reason"] for row in second["visits"]] == ["reason 5", "reason 6"]
    assert second["next"] is None
    errors = local.get(f"{API}/visits?outcome=error&limit=2").json()
    assert [row["reason"] for row in errors["visits"]] == ["reason 0", "reason 3"]
    rest = local.get(f"{API}/visits?outcome=error&limit=2&cursor={errors['next']}").json()
    assert [row["reason"] for row in rest["visits"]] == ["reason 6"]
    assert local.get(f"{API}/visits?outcome=nope").status_code == 422
    forged = "WzFd"  # [1]
    assert local.get(f"{API}/visits?cursor={forged}").status_code == 422
    page = local.get(f"{PAGE}?outcome=error").text
    assert "reason 3" in page
    assert "reason 4" not in page
    assert page.count('<circle class="of-error"') == 3
    assert "No visits with these outcomes" in local.get(f"{PAGE}?outcome=gone").text
