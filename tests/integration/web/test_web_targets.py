"""The pages of a target: timeline, versions, values, explanation, and user settings."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest
from bson import ObjectId

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.items import Kind
from crawler.storage.targets import new_document
from crawler.utils.sandbox import ProcessPool
from crawler.utils.time import NEVER
from crawler.utils.urls import target_id, target_key
from crawler.web.subprocesses import MAX_KEPT, Subprocesses
from tests.integration.harness import Db, Row
from tests.integration.web.browser import Browser, Browsers

HOSTILE = "<script>alert(1)</script>\"'&"
URL = "https://shop.example/item/1"
KEY = f"shop {URL}"
NOW = datetime.now(UTC).replace(microsecond=0)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
PAGE = f"/targets/{target_id(KEY)}"
API = f"/api/v1{PAGE}"


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


def call(browser: Browser, method: str, path: str, **options: Any) -> Any:
    """Send a JSON request, as the app's script does."""
    headers = {"Origin": browser.origin, "X-CSRF-Token": browser.token(PAGE)}
    return browser.request(method, path, headers=headers, **options)


def test_a_target_is_found_by_its_url(local: Browser, database: Db) -> None:
    assert "Look up a page" in local.get("/targets").text
    assert "No target has this URL" in local.get("/targets?url=https://nope.example/").text
    put_target(database)
    found = local.get(f"/targets?url={quote(URL)}")
    assert (found.status_code, found.headers["location"]) == (303, PAGE)
    assert local.get(PAGE).status_code == 200
    long = f"{URL}?{'q' * 4000}"
    put_target(database, long)
    found = local.get(f"/targets?url={quote(long)}")
    assert local.get(found.headers["location"]).status_code == 200
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


def test_timeline_is_paginated_and_filtered(local: Browser, database: Db) -> None:
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


def put_two_versions(db: Db) -> None:
    lines = [f"line {n} of the text" for n in range(40)]
    old = {"title": "Chair", "price": "£51.77", "main_text": "\n".join(lines), "gone": "x"}
    lines[20] = "line 20 of the new text"
    new = {"title": "Chair", "price": "£49.00", "main_text": "\n".join(lines), HOSTILE: HOSTILE}
    put_version(db, "one", 30, old)
    put_version(db, "two", 20, new)


def test_versions_are_compared_by_field_and_word(local: Browser, database: Db) -> None:
    put_target(database)
    put_two_versions(database)
    got = local.get(f"{API}/difference?before=one&after=two").json()
    fields = {field["name"]: field for field in got["fields"]}
    assert fields["title"] == {"name": "title", "kind": "same", "parts": []}
    assert (fields["gone"]["kind"], fields[HOSTILE]["kind"]) == ("deleted", "inserted")
    kinds = [(part["kind"], part["lines"]) for part in fields["main_text"]["parts"]]
    assert kinds == [
        ("folded", 18), ("same", 2), ("changed", 1), ("same", 2), ("folded", 17),
    ]  # fmt: skip
    changed = fields["main_text"]["parts"][2]["segments"]
    assert [(each["kind"], each["text"]) for each in changed] == [
        ("same", "line 20 of the "), ("inserted", "new "), ("same", "text"),
    ]  # fmt: skip
    side = local.get(f"{PAGE}/compare").text
    assert HOSTILE not in side
    assert "18 unchanged lines" in side
    assert "<ins>new </ins>" in side
    inline = local.get(f"{PAGE}/compare?before=one&after=two&view=inline").text
    assert "line 20 of the <ins>new </ins>text" in inline
    assert local.get(f"{PAGE}/compare?before=one&after=nope").status_code == 422
    assert local.get(f"{PAGE}/compare?view=nope").status_code == 422
    assert local.get(f"{API}/difference?before=one&after=other%20x").status_code == 422


@pytest.mark.soak
def test_huge_versions_are_compared_in_a_sandbox_and_truncated(
    local: Browser, database: Db
) -> None:
    put_target(database)
    words = " ".join(str(n) for n in range(150_000))
    put_version(database, "one", 3, {"title": "x" * 1_000_000, "main_text": words})
    put_version(database, "two", 2, {"title": "y" * 1_000_000, "main_text": words[::-1]})
    page = local.get(f"{PAGE}/compare")
    assert page.status_code == 200
    assert len(page.content) < 1_000_000
    title = local.get(f"{API}/difference?before=one&after=two").json()["fields"][0]
    (part,) = title["parts"]
    assert [(each["kind"], each["characters"]) for each in part["segments"]] == [
        ("deleted", 1_000_000), ("inserted", 1_000_000),
    ]  # fmt: skip
    assert all(len(each["text"]) < 2001 for each in part["segments"])


def test_visit_links_to_its_comparison(local: Browser, database: Db) -> None:
    put_target(database)
    put_two_versions(database)
    first = put_visit(database, 30, "new", "one")
    put_visit(database, 25, "error")
    second = put_visit(database, 20, "changed", "two")
    assert f"{PAGE}/visits/{second}" in local.get(PAGE).text
    to = local.get(f"{PAGE}/visits/{second}").headers["location"]
    assert to == f"{PAGE}/compare?before=one&after=two"
    for visit in (first, ObjectId(), "x"):
        assert local.get(f"{PAGE}/visits/{visit}").status_code == 404


def test_versions_are_paginated_without_contents(local: Browser, database: Db) -> None:
    put_target(database)
    assert local.get(f"{PAGE}/compare").status_code == 404
    for n in range(5):
        put_version(database, f"v{n}", n + 1, {"title": f"secret {n}"})
    first = local.get(f"{API}/versions?limit=3").json()
    assert [row["content_hash"] for row in first["versions"]] == ["v0", "v1", "v2"]
    rest = local.get(f"{API}/versions?limit=3&cursor={first['next']}").json()
    assert [row["content_hash"] for row in rest["versions"]] == ["v3", "v4"]
    assert "content" not in first["versions"][0]
    assert local.get(f"{PAGE}/versions?limit=2").text.count('name="before"') == 2


def test_numeric_values_are_charted(local: Browser, database: Db) -> None:
    put_target(database)
    assert "Values over time" not in local.get(PAGE).text
    put_two_versions(database)
    typed = {"price": {"amount": 51.77, "currency": "£"}, "stock": 7, "no.dots": True, "a$b": "3"}
    put_version(database, "three", 10, typed)
    put_visit(database, 30, "new", "one")
    put_visit(database, 20, "changed", "two")
    put_visit(database, 10, "changed", "three")
    put_visit(database, 5, "changed", "two")
    (price,) = local.get(f"{API}/values").json()
    assert (price["name"], price["unit"]) == ("price", "£")
    assert [point["value"] for point in price["points"]] == [51.77, 49.0, 51.77, 49.0]
    page = local.get(PAGE).text
    assert page.count("data-value=") == 4
    assert "Table of 4 values" in page


def test_the_explanation_is_shown_as_charts(local: Browser, database: Db, warm: None) -> None:
    from tests.integration.known_pages import page as known

    row = known(URL, [], kind=Kind.ITEM)
    row |= {"next_visit": NOW + HOUR, "limits": {"max_hours": 48.0}}
    database.targets.insert_one(row)
    headers = {"HX-Request": "true", "HX-Request-Type": "partial"}
    local.app.state.subprocesses = Subprocesses(patience_seconds=60.0)
    fragment = local.get(f"{PAGE}/explain", headers=headers)
    assert fragment.status_code == 200
    assert fragment.text.strip().startswith('<div class="explanation">')
    assert "Limits of this target: at most 2 days between two visits (limits)." in fragment.text
    got = local.get(f"{API}/explanation").json()
    assert (got["url"], got["history"]["observations"]) == (URL, 1512)
    assert got["expected"]["rate"]["high"] > 0


def test_slow_explanation_is_polled(
    local: Browser, database: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def explained(config: Config, key: str, sandbox: ProcessPool) -> Row:
        await asyncio.Event().wait()
        return {}

    monkeypatch.setattr("crawler.web.subprocesses.explained", explained)
    put_target(database)
    shown = local.get(f"{PAGE}/explain")
    assert shown.status_code == 200
    assert f'hx-get="{PAGE}/explain" hx-trigger="load delay:1s"' in shown.text
    later = local.get(f"{API}/explanation")
    assert (later.status_code, later.headers["retry-after"]) == (503, "1")


def test_recheck_makes_the_target_due(local: Browser, database: Db) -> None:
    put_target(database, dead_lettered_at=NOW)
    database.dead_letters.insert_one(
        {"_id": KEY, "spider": "shop", "url": URL, "at": NOW, "leases": 3}
    )
    done = send(local, "recheck")
    assert (done.status_code, done.headers["location"]) == (303, f"{PAGE}?done=recheck")
    assert "the next run of its site visits it" in local.get(done.headers["location"]).text
    stored = database.targets.find_one({"_id": KEY})
    assert stored
    assert stored["next_visit"] <= datetime.now(UTC)
    assert "dead_lettered_at" not in stored
    assert database.dead_letters.count_documents({}) == 0
    (entry,) = database.audit.find({"action": {"$regex": "recheck"}})
    assert entry["detail"] == KEY


def test_muted_target_is_not_due_until_unmuted(local: Browser, database: Db) -> None:
    put_target(database)
    assert send(local, "mute").status_code == 303
    stored = database.targets.find_one({"_id": KEY})
    assert stored
    assert (stored["next_visit"], stored["fence"] > 0) == (NEVER, True)
    page = local.get(PAGE).text
    assert "Unmute" in page
    assert "Recheck now" not in page
    assert send(local, "recheck").status_code == 409
    state = call(local, "POST", f"{API}/unmute").json()["state"]
    assert state["muted_at"] is None
    assert datetime.fromisoformat(state["next_visit"]) <= datetime.now(UTC)


def test_limits_are_checked_and_move_the_next_visit(local: Browser, database: Db) -> None:
    put_target(database)
    wrong = {
        ("x", ""): "not a number of hours", ("0.2", ""): "Use 1 hour or more",
        ("", "9999"): "too long: every 416.6 days", ("nan", ""): "not valid",
        ("9", "5"): "shorter than the minimum", ("", "-inf"): "not valid",
    }  # fmt: skip
    for (least, most), problem in wrong.items():
        page = send(local, "limits", {"min_hours": least, "max_hours": most})
        assert page.status_code == 422
        assert problem in page.text
        assert f'value="{least}"' in page.text, "the form lost its values"
    assert "limits" not in database.targets.find_one({"_id": KEY})  # type: ignore[operator]
    assert send(local, "limits", {"min_hours": "", "max_hours": "2"}).status_code == 303
    stored = database.targets.find_one({"_id": KEY})
    assert stored
    assert stored["limits"] == {"max_hours": 2.0}
    assert stored["next_visit"] == stored["visited_at"] + 2 * HOUR
    put = call(local, "PUT", f"{API}/limits", json={"min_hours": 24, "max_hours": None})
    assert put.json()["limits"] == {"min_hours": 24.0, "max_hours": None}
    assert datetime.fromisoformat(put.json()["state"]["next_visit"]) == NOW + 23 * HOUR
    same = {"min_hours": 24.0, "max_hours": 24.0}
    assert call(local, "PUT", f"{API}/limits", json=same).json()["limits"] == same
    bad = call(local, "PUT", f"{API}/limits", json={"min_hours": 0.1})
    assert (bad.status_code, "min_hours" in bad.json()["detail"]) == (422, True)
    call(local, "PUT", f"{API}/limits", json={})
    assert "limits" not in database.targets.find_one({"_id": KEY})  # type: ignore[operator]


def test_forgetting_requires_confirmation(local: Browser, database: Db) -> None:
    put_target(database)
    put_two_versions(database)
    put_visit(database, 3, "new")
    asked = local.get(f"{PAGE}/forget").text
    assert "This deletes all data of the URL" in asked
    refused = send(local, "forget")
    assert (refused.status_code, "Check the box" in refused.text) == (422, True)
    assert database.versions.count_documents({}) == 2
    done = send(local, "forget", {"confirm": "yes"})
    assert "2 versions" in done.text
    assert [database[name].count_documents({}) for name in ("targets", "versions", "visits")] == [
        0, 0, 0,
    ]  # fmt: skip
    assert local.get(PAGE).status_code == 404
    put_target(database)
    dry = call(local, "DELETE", f"{API}?dry_run=true").json()
    assert (dry["dry_run"], dry["deleted"]["targets"]) == (True, 1)
    assert database.targets.count_documents({}) == 1
    assert call(local, "DELETE", API).json()["deleted"]["targets"] == 1


def test_hostile_content_is_text_everywhere(local: Browser, database: Db) -> None:
    url = 'https://shop.example/"><script>alert(1)</script>'
    key = f"{HOSTILE} {url}"
    place = f"/targets/{target_id(key)}"
    put_target(
        database, url, HOSTILE, categories=[HOSTILE, "x" * 1_000_000], outcome="error",
        last_visit={"reason": HOSTILE}, plan={"id": "p", "windows": [HOSTILE]},
        alias_of="javascript:alert(1)",
    )  # fmt: skip
    database.versions.insert_many(
        {"_id": f"{key} {HOSTILE}{n}", "spider": HOSTILE, "target": url, "size": 1,
         "content_hash": f"{HOSTILE}{n}", "at": NOW - n * HOUR,
         "content": {HOSTILE: f"{HOSTILE} {n}", "p.$": f"{n} {HOSTILE[:6]}", "x": ["<b>"] * n}}
        for n in range(1, 4)
    )  # fmt: skip
    for path in ("", "/versions", "/compare", "/compare?view=inline", "/forget"):
        page = local.get(place + path)
        assert page.status_code == 200, path
        assert "<script>alert" not in page.text
        assert 'href="javascript:' not in page.text
        assert "<b>" not in page.text
        assert len(page.content) < 60_000
    assert "<script>alert" not in local.get(f"/targets?url={quote(url)}x{quote(HOSTILE)}").text


def test_viewers_cannot_change_targets(vic: Browser, browsers: Browsers, database: Db) -> None:
    put_target(database)
    page = vic.get(PAGE).text
    assert "Recheck" not in page
    token = vic.token("/")
    for action in ("recheck", "mute", "unmute", "limits", "forget"):
        done = vic.post(f"{PAGE}/{action}", {"csrf": token, "confirm": "yes"})
        assert done.status_code == 403, action
        if action not in ("limits", "forget"):
            assert vic.request("POST", f"{API}/{action}").status_code == 403
    assert vic.request("DELETE", API).status_code == 403
    assert vic.request("PUT", f"{API}/limits", json={}).status_code == 403
    stored = database.targets.find_one({"_id": KEY})
    assert stored
    assert (stored["next_visit"], "muted_at" in stored) == (NOW + 5 * HOUR, False)
    stranger = browsers(address="203.0.113.77")
    assert stranger.get(PAGE).status_code == 303
    assert stranger.get(API).status_code == 401


def test_queries_examine_few_index_keys(local: Browser, database: Db) -> None:
    put_target(database)
    put_two_versions(database)
    put_visit(database, 3, "changed", "two")
    others = [new_document("shop", f"{URL}{n}", Kind.ITEM, NOW, NOW) for n in range(500)]
    database.targets.insert_many(others)
    database.listings.insert_many(
        {"_id": f"{n}", "spider": "shop", "list": f"l{n}", "item": f"i{n}", "shown": True}
        for n in range(500)
    )
    paths = (PAGE, f"{PAGE}?outcome=error", f"{PAGE}/versions", f"{PAGE}/compare", f"{PAGE}/forget")
    database.command("profile", 2)
    try:
        for path in paths:
            assert local.get(path).status_code == 200, path
        local.get(f"/targets?url={URL}12")
        local.get("/targets?url=https://shop.example/it")
        local.get("/targets?url=https://shop.example/nope")
    finally:
        database.command("profile", 0)
    names = ("targets", "visits", "versions", "listings", "posts", "days")
    queries = list(
        database["system.profile"].find(
            {"ns": {"$in": [f"{database.name}.{name}" for name in names]},
             "planSummary": {"$exists": True}}
        )
    )  # fmt: skip
    assert len(queries) > 20
    # The search for the nearest URLs examines up to 200 neighbors in the index.
    greedy = [row["command"] for row in queries if row["keysExamined"] > 210]
    assert greedy == []
    assert [row["command"] for row in queries if "COLLSCAN" in row["planSummary"]] == []


def test_rare_outcome_is_searched_in_parts(
    local: Browser, database: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crawler.storage.visits.MAX_SEARCHED", 5)
    put_target(database)
    for n in range(12):
        put_visit(database, n + 1, "error" if n in (0, 5, 11) else "unchanged", reason=f"r{n}")
    reasons, cursor, pages = [], "", 0
    while cursor is not None:
        part = local.get(f"{API}/visits?outcome=error{cursor}").json()
        reasons += [row["reason"] for row in part["visits"]]
        cursor, pages = part["next"] and f"&cursor={part['next']}", pages + 1
    assert (reasons, pages) == (["r0", "r5", "r11"], 3)
    later = local.get(f"{API}/visits?outcome=gone").json()
    page = local.get(f"{PAGE}?outcome=gone")
    assert later["next"]
    assert "The next page searches older ones" in page.text
    assert "Next page" in page.text


def test_explanations_are_cached_until_the_target_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    async def explained(config: Config, key: str, sandbox: ProcessPool) -> Row:
        asked.append(key)
        return {"number": len(asked)}

    async def ask(*targets: Row) -> list[Any]:
        return [await kept.explained(Config.load(mongo_uri="unused"), row) for row in targets]

    monkeypatch.setattr("crawler.web.subprocesses.explained", explained)
    kept = Subprocesses(patience_seconds=10.0)
    first: Row = {"_id": KEY, "next_visit": NOW}
    got = asyncio.run(ask(first, first, first | {"limits": {"min_hours": 5.0}}))
    assert got == [{"number": 1}, {"number": 1}, {"number": 2}]
    asyncio.run(ask(*({"_id": str(n)} for n in range(MAX_KEPT))))
    assert asyncio.run(ask(first)) == [{"number": MAX_KEPT + 3}], "the oldest entry is still cached"


def test_failed_explanation_is_reported_and_not_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    async def explained(config: Config, key: str, sandbox: ProcessPool) -> Row:
        asked.append(key)
        await asyncio.sleep(0.05)
        if key == KEY:
            raise ConfigError("the site is too large")
        raise ValueError("unexpected")

    async def ask(key: str) -> None:
        patient = Subprocesses(patience_seconds=10.0)
        for _ in range(2):
            assert await hasty.explained(config, {"_id": key}) is None
        with pytest.raises(ConfigError, match=r"too large|failed"):
            await patient.explained(config, {"_id": key})
        await asyncio.gather(*hasty.pending.values())
        with pytest.raises(ConfigError, match=r"too large|failed"):
            await hasty.explained(config, {"_id": key})

    monkeypatch.setattr("crawler.web.subprocesses.explained", explained)
    config = Config.load(mongo_uri="unused")
    hasty = Subprocesses(patience_seconds=0.0)
    asyncio.run(ask(KEY))
    asyncio.run(ask("another"))
    assert len(asked) == 4, "each object computes each key once"
