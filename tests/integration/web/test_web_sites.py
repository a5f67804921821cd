"""The board and the pages of sites: lists, filters, paging, actions, runs in progress."""

from __future__ import annotations

import asyncio
import json
import math
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from crawler.config import Config
from crawler.reports.site_history import category_tree, freshness_by_day
from crawler.reports.sites import tags_of
from crawler.storage import site_queries
from crawler.storage.paging import later
from crawler.storage.site_queries import TargetFilter, TargetStatus, spans_of_hour
from crawler.storage.sites import Site
from crawler.storage.store import opened
from crawler.utils.time import NEVER
from crawler.web import charts
from crawler.web.options import WebOptions
from crawler.web.routes.board import Streams
from crawler.web.site_views import Figures
from tests.integration.harness import Db, Freshet, Pages
from tests.integration.web.browser import Browser, browsers_of

HOSTILE = "<script>alert(1)</script>\"'&"
NOW = datetime.now(UTC).replace(microsecond=0)
HOUR = timedelta(hours=1)


def put_target(db: Db, site: str, url: str, **more: Any) -> None:
    document = {
        "_id": f"{site} {url}", "spider": site, "url": url, "kind": "item", "categories": [],
        "first_seen": NOW - HOUR, "next_visit": NOW + HOUR,
    }  # fmt: skip
    db.targets.insert_one(document | more)


def put_visit(db: Db, site: str, url: str, at: datetime, outcome: str, **more: Any) -> None:
    row = {
        "spider": site, "target": url, "at": at, "outcome": outcome, "get_size": 0,
        "update_size": 0, "diff_size": 0, "changed": int(outcome == "changed"),
    }  # fmt: skip
    db.visits.insert_one(row | more)


def put_site(db: Db, name: str, **more: Any) -> None:
    document = {
        "_id": name, "timezone": "UTC", "visiting_hours": [], "blackout": [], "weight": 1.0,
        "weights": [], "cost": 1.0, "at": NOW,
    }  # fmt: skip
    db.sites.insert_one(document | more)


@pytest.fixture
def local(stored: tuple[Db, str]) -> Iterator[Browser]:
    """Return a browser of an app that waits until all figures are computed."""
    options = WebOptions(settings=("-s", f"MONGO_URI={stored[1]}"))
    with browsers_of(stored[1], options) as make:
        make.app.state.figures.patience_seconds = 30.0
        yield make(address="127.0.0.1")


def token(browser: Browser) -> str:
    return browser.token("/sign-in")


def post(browser: Browser, path: str, **fields: str) -> Any:
    return browser.post(path, {"csrf": token(browser)} | fields)


def test_cached_figures_show_their_age(local: Browser, database: Db) -> None:
    put_target(database, "shop", "https://shop.example/")
    for path in ("/", "/sites/shop/schedule"):
        assert "the numbers were read" not in local.get(path).text
    entries = local.app.state.figures._entries
    entries["site", "shop"].value["at"] -= timedelta(minutes=7)
    estimates = entries["estimates"]
    estimates.value = replace(estimates.value, at=estimates.value.at - timedelta(minutes=9))
    for entry in entries.values():
        entry.until = math.inf
    for path in ("/", "/sites/shop/schedule"):
        page = local.get(path).text
        assert page.count("the numbers were read") == 2
        assert "7 min ago" in page
        assert "9 min ago" in page
    at = local.get("/api/v1/sites").json()["sites"][0]["estimated_at"]
    assert datetime.fromisoformat(at) < datetime.now(UTC) - timedelta(minutes=8)


def test_targets_of_a_site_have_ids_for_the_api(local: Browser, database: Db) -> None:
    put_site(database, "shop")
    put_target(database, "shop", "http://a/1")
    (row,) = local.get("/api/v1/sites/shop/targets").json()["targets"]
    assert row["url"] == "http://a/1"
    answer = local.get(f"/api/v1/targets/{row['id']}")
    assert answer.status_code == 200
    assert "http://a/1" in answer.text


@pytest.mark.parametrize(
    ("zone", "minutes"), [("UTC", 0), ("Asia/Kolkata", 330), ("Asia/Kathmandu", 345)]
)
def test_days_begin_at_midnight_of_the_site(
    local: Browser, database: Db, zone: str, minutes: int
) -> None:
    put_site(database, "shop", timezone=zone)
    put_target(database, "shop", "http://a/1")
    shift = timedelta(minutes=minutes)
    midnight = (datetime.now(UTC) + shift).replace(hour=0, minute=0, second=0, microsecond=0)
    midnight -= shift + timedelta(days=2)
    for seconds, outcome in ((-1, "changed"), (0, "new"), (1, "new")):
        put_visit(database, "shop", "http://a/1", midnight + timedelta(seconds=seconds), outcome)
    (shop,) = local.get("/api/v1/sites").json()["sites"]
    week = shop["figures"]["week"]
    assert [(day["changed"], day["new"]) for day in week[3:5]] == [(1, 0), (0, 2)]


def test_board_shows_the_figures_of_the_day(local: Browser, database: Db) -> None:
    # NOW is the start of all tests, which may be half an hour ago.
    now = datetime.now(UTC)
    put_site(database, "shop", tags=["books"])
    put_target(database, "shop", "http://a/1", next_visit=now - 2 * HOUR)
    put_target(database, "shop", "http://a/2", next_visit=now - HOUR / 2, consecutive_errors=2)
    put_target(database, "shop", "http://a/3", next_visit=now + HOUR)
    put_target(database, "feeds", "http://a/feed", kind="feed")
    for outcome in ("new", "changed", "changed", "error"):
        put_visit(database, "shop", "http://a/1", NOW, outcome)
    put_visit(database, "shop", "http://a/1", NOW, "gone", event=True)
    put_visit(database, "shop", "http://a/1", NOW, "gone")
    put_visit(database, "shop", "http://a/1", NOW, "unchanged", pushed=True)
    put_visit(database, "shop", "http://a/1", NOW - timedelta(days=3), "changed")
    answer = local.get("/api/v1/sites").json()
    assert answer["tags"] == ["books"]
    feeds, shop = answer["sites"]
    assert (feeds["kind"], shop["kind"]) == ("feeds", "site")
    figures = shop["figures"]
    assert {name: figures[name] for name in ("targets", "due", "overdue", "errors")} == {
        "targets": 3, "due": 2, "overdue": 1, "errors": 1,
    }  # fmt: skip
    today = figures["today"]
    assert (today["new"], today["changed"], today["gone"], today["errors"]) == (1, 2, 1, 1)
    assert figures["requests_last_day"] == 6, "a delivery is not a request"
    assert [day["changed"] for day in figures["week"]] == [0, 0, 0, 1, 0, 0, 2]
    page = local.get("/").text
    assert "1 overdue" in page
    assert "1 new, 2 changed, 1 gone" in page
    assert "Changes found each day, oldest first: 0, 0, 0, 1, 0, 0, 2" in page


def test_board_is_searched_and_paginated(local: Browser, database: Db) -> None:
    for number in range(5):
        put_target(database, f"site{number}", "http://a/")
        put_site(database, f"site{number}", tags=["odd"] if number % 2 else [])
    first = local.get("/api/v1/sites?limit=2").json()
    second = local.get(f"/api/v1/sites?limit=2&cursor={first['next']}").json()
    assert [site["name"] for site in first["sites"] + second["sites"]] == [
        "site0", "site1", "site2", "site3",
    ]  # fmt: skip
    odd = local.get("/api/v1/sites?tag=odd").json()["sites"]
    assert [site["name"] for site in odd] == ["site1", "site3"]
    assert len(local.get("/api/v1/sites?q=ODD").json()["sites"]) == 2
    assert "No site matches" in local.get("/?q=nothing").text
    assert local.get("/api/v1/sites?cursor=WzFd").status_code == 422


def test_targets_are_filtered_sorted_and_paginated(local: Browser, database: Db) -> None:
    for number in range(7):
        put_target(
            database, "shop", f"http://a/{number}", next_visit=NOW + (number - 3) * HOUR,
            categories=["even"] if number % 2 == 0 else ["odd"],
            kind="list" if number == 6 else "item",
        )  # fmt: skip
    put_target(database, "shop", "http://a/gone", gone=True, next_visit=NEVER)
    put_target(database, "shop", "http://a/bad", consecutive_errors=3)
    put_target(database, "shopping", "http://a/other")

    def listed(query: str = "") -> list[str]:
        """Return the last parts of the URLs of all list pages."""
        found, cursor = [], ""
        while True:
            answer = local.get(f"/api/v1/sites/shop/targets?limit=2{query}{cursor}").json()
            found += [row["url"].rpartition("/")[2] for row in answer["targets"]]
            if answer["next"] is None:
                return found
            cursor = f"&cursor={answer['next']}"

    assert listed() == ["0", "1", "2", "3", "4", "5", "6", "bad", "gone"]
    assert listed("&state=due") == ["0", "1", "2", "3"]
    assert listed("&state=due&sort=latest") == ["3", "2", "1", "0"]
    assert listed("&state=overdue") == ["0", "1", "2"]
    assert listed("&state=error") == ["bad"]
    assert listed("&state=gone") == ["gone"]
    assert listed("&kind=list") == ["6"]
    assert listed("&category=even") == ["0", "2", "4", "6"]
    assert listed("&category=even&kind=item&sort=latest") == ["4", "2", "0"]
    assert listed("&q=a/b") == ["bad"]
    assert listed("&q=a/.*") == [], "not a regular expression"
    assert listed("&state=&kind=&q=&sort=soonest")[-1] == "6", "empty filters hide gone pages"


def test_muted_targets_and_patterns_are_listed_and_unmuted(local: Browser, database: Db) -> None:
    put_target(database, "shop", "http://a/1")
    put_target(database, "shop", "http://a/2", muted_at=NOW, next_visit=NEVER)
    put_target(database, "shop", "http://a/3", gone=True, next_visit=NEVER)
    put_target(database, "shop2", "http://a/4", muted_at=NOW, next_visit=NEVER)
    muted = "/sites/shop/lists?state=muted"
    found = local.get(f"/api/v1{muted.replace('lists', 'targets')}").json()["targets"]
    assert [row["url"] for row in found] == ["http://a/2"]
    assert "No pattern hides changes of visited pages" in local.get(muted).text
    post(local, "/changes/mute", pattern="/calendar/")
    page = local.get(muted).text
    assert (page.count("Unmute"), "/calendar/" in page) == (1, True)
    assert "/calendar/" not in local.get("/sites/shop/lists").text
    done = post(local, "/changes/unmute", pattern="/calendar/", back=muted)
    assert (done.status_code, done.headers["location"]) == (303, muted)
    action = re.search(r'action="(/targets/[^"]*/unmute)"', page)
    assert action
    done = post(local, action[1], back=muted)
    assert (done.status_code, done.headers["location"]) == (303, muted)
    page = local.get(muted).text
    assert "No targets match" in page
    assert "No pattern hides changes of visited pages" in page
    stranger = post(local, action[1], back="https://evil.example/")
    assert stranger.headers["location"] == "/"
    assert "muted_at" not in database.targets.find_one({"url": "http://a/2"})  # type: ignore[operator]


def test_search_stops_at_its_limit_and_continues(
    local: Browser, database: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_queries, "MAX_SCANNED", 10)
    for number in range(35):
        put_target(database, "shop", f"http://a/{number:02}{'x' if number in (5, 34) else ''}")
    path, found, pages = "/api/v1/sites/shop/targets?q=x", [], 0
    cursor: str | None = ""
    while cursor is not None:
        answer = local.get(f"{path}&cursor={cursor}").json()
        found += [row["url"] for row in answer["targets"]]
        cursor, pages = answer["next"], pages + 1
        assert answer["is_partial"] == (cursor is not None)
    assert found == ["http://a/05x", "http://a/34x"]
    assert pages == 4
    assert "Continue the search" in local.get("/sites/shop/lists?q=x").text


def test_lists_use_indexes(database: Db) -> None:
    for number in range(300):
        put_target(
            database, "shop", f"http://a/{number:03}", next_visit=NOW - HOUR, categories=["c"],
            consecutive_errors=1, gone=number % 2 == 0, muted_at=NOW,
        )  # fmt: skip
    for wanted in (
        TargetFilter(), TargetFilter(category="c"), TargetFilter(kind=site_queries.Kind.ITEM),
        TargetFilter(sorting=site_queries.Sorting.LATEST),
        *(TargetFilter(status=each) for each in TargetStatus),
    ):  # fmt: skip
        indexed, order, _ = site_queries.query_of("shop", wanted, NOW)
        whole = list(database.targets.find(indexed).sort(order))
        for key in (None, tuple(whole[20][name] for name, _ in order)):
            query = indexed
            if key is not None:
                query = {"$and": [indexed, later(order, key)]}
            found = database.targets.find(query).sort(order).limit(10)
            stats = found.explain()
            plan = json.dumps(stats["queryPlanner"]["winningPlan"])
            assert "IXSCAN" in plan, wanted
            assert '"stage": "SORT"' not in plan, (wanted, key, plan)
            assert stats["executionStats"]["totalKeysExamined"] <= 40, wanted


def test_the_page_of_a_site_shows_hostile_texts_as_text(local: Browser, database: Db) -> None:
    url = f"javascript:{HOSTILE}"
    put_target(
        database, HOSTILE, url, categories=[HOSTILE, "x" * 1_000_000], consecutive_errors=1,
        outcome="error", last_visit={"reason": HOSTILE * 1000, "at": NOW, "status": None},
    )  # fmt: skip
    put_visit(database, HOSTILE, url, NOW, "error", reason=HOSTILE)
    put_site(database, HOSTILE, tags=[HOSTILE])
    links = [
        line.split('"')[0].replace("&amp;", "&")
        for line in local.get("/").text.split('href="')
        if line.startswith("/sites/")
    ]
    assert links
    home = links[0].partition("?")[0].removesuffix("/lists")
    for link in {*links, home, *(f"{home}/{tab}" for tab in ("lists", "schedule", "visits")), "/"}:
        answer = local.get(link)
        assert answer.status_code == 200, link
        assert HOSTILE not in answer.text
        assert "<script>alert" not in answer.text
        assert 'href="javascript' not in answer.text
        assert len(answer.text) < 200_000


def test_an_unknown_site_is_not_found(local: Browser) -> None:
    for path in ("/sites/nope", "/sites/nope/visits", "/api/v1/sites/nope"):
        answer = local.get(path)
        assert answer.status_code == 404
        assert "areas above" not in answer.text, "the page of an error has no areas"
    for action in ("run", "pause", "resume", "tags"):
        assert post(local, f"/sites/nope/{action}").status_code == 404


def test_htmx_request_returns_only_the_list(local: Browser, database: Db) -> None:
    put_target(database, "shop", "http://a/")
    headers = {"HX-Request": "true", "HX-Request-Type": "partial"}
    for path, part in (
        ("/sites/shop", "items"), ("/sites/shop/lists?q=b", "targets"), ("/", "sites"),
    ):  # fmt: skip
        answer = local.get(path, headers=headers)
        assert answer.status_code == 200, path
        assert answer.text.strip().startswith(f'<div id="{part}"')


def test_each_row_links_to_its_target(local: Browser, database: Db) -> None:
    put_target(database, "shop", "http://a/1")
    (path,) = re.findall(r'href="(/targets/[^"]+)"', local.get("/sites/shop/lists").text)
    page = local.get(path)
    assert page.status_code == 200
    assert "http://a/1" in page.text


def test_errors_are_grouped_by_cause(local: Browser, database: Db) -> None:
    for number in range(3):
        put_target(
            database, "shop", f"http://a/{number}", consecutive_errors=1,
            last_visit={"reason": "status 500", "at": NOW - number * HOUR, "status": 500},
        )  # fmt: skip
    put_target(
        database, "shop", "http://a/9", consecutive_errors=1,
        last_visit={"reason": "timeout", "at": NOW},
    )  # fmt: skip
    first, second = local.get("/api/v1/sites/shop").json()["failures"]
    assert (first["reason"], first["targets"]) == ("status 500", 3)
    assert first["first"]["url"] == "http://a/2"
    assert first["last"] == {
        "url": "http://a/0", "at": f"{NOW:%Y-%m-%dT%H:%M:%S}Z", "status": 500,
    }  # fmt: skip
    assert (second["reason"], second["first"]["status"]) == ("timeout", None)


def test_page_of_a_site_shows_alarms_and_paused_hosts(local: Browser, database: Db) -> None:
    put_target(database, "shop", "http://a/1", next_visit=NOW - HOUR, host="a")
    alarm = {"spider": "shop", "at": NOW, "since": NOW - HOUR, "chance": 0.0, "ended_at": None}
    texts = {"http://a/1": "nothing found for price", "": "3 pages lost fields"}
    for url, text in texts.items():
        row = {"_id": f"shop {url}", "target": url, "event": "broken", "text": text}
        database.alarms.insert_one(alarm | row)
    database.runs.insert_one(
        {"spider": "shop", "started": NOW, "finished": NOW, "reason": "finished", "counts": {}}
    )
    until = datetime.now(UTC).replace(microsecond=0) + HOUR
    database.hosts.insert_one({"_id": "a", "hold_until": until})
    answer = local.get("/api/v1/sites/shop").json()
    assert {each["target"]: each["text"] for each in answer["alarms"]} == texts
    assert answer["paused_hosts"] == {"a": f"{until:%Y-%m-%dT%H:%M:%S}Z"}
    assert answer["site"]["last_visits"] == 0, "a run that visited nothing"
    assert answer["site"]["next_visit"] == f"{until:%Y-%m-%dT%H:%M:%S}Z"
    put_target(database, "shop", "http://b/1", next_visit=NOW, host="b")
    (row,) = local.get("/api/v1/sites").json()["sites"]
    assert row["next_visit"] == f"{NOW:%Y-%m-%dT%H:%M:%S}Z", "another host is due"
    page = local.get("/sites/shop/lists").text
    assert all(text in page for text in texts.values())
    assert "no visits until" in page
    assert 'href="/sites/shop/lists#alarms"' in local.get("/").text


def test_week_cell_links_to_its_visits(local: Browser, database: Db) -> None:
    zone = ZoneInfo("America/New_York")
    put_site(database, "shop", timezone=str(zone))
    put_target(
        database, "shop", "http://a/1",
        plan={"id": "period", "weeks": 1, "slots": [5], "every_hours": 0, "visits_per_week": 1.0},
    )  # fmt: skip
    local_time = (NOW - timedelta(days=8)).astimezone(zone).replace(minute=30)
    for weeks in range(3):
        at = local_time - timedelta(weeks=weeks)
        put_visit(database, "shop", f"http://a/{weeks}", at, "changed", event=True)
        put_visit(database, "shop", "http://a/later", at + HOUR, "unchanged")
    week = local.get("/api/v1/sites/shop").json()["week"]
    place = local_time.weekday() * 24 + local_time.hour
    assert week["changes"][place] == 3
    assert sum(week["changes"]) == 3
    assert week["visits"][5] == 1
    path = f"/sites/shop/visits?weekday={local_time.weekday()}&hour={local_time.hour}"
    assert path.replace("&", "&amp;") in local.get("/sites/shop/schedule").text
    api = local.get(f"/api/v1{path}&limit=2").json()
    assert [row["url"] for row in api["visits"]] == ["http://a/0", "http://a/1"]
    rest = local.get(f"/api/v1{path}&limit=2&cursor={api['next']}").json()
    assert [row["url"] for row in rest["visits"]] == ["http://a/2"]
    assert len(local.get(f"/api/v1{path}&changes=1").json()["visits"]) == 3
    assert "http://a/later" not in local.get(path).text
    assert local.get("/sites/shop/visits?hour=3").status_code == 422


def test_visits_with_the_same_time_are_all_listed(local: Browser, database: Db) -> None:
    put_target(database, "shop", "http://a/")
    for number in range(5):
        put_visit(database, "shop", f"http://a/{number}", NOW - HOUR, "new")
    put_visit(database, "shop", "http://a/old", NOW - 2 * HOUR, "new")
    path, found, cursor = "/api/v1/sites/shop/visits?limit=2", [], ""
    while cursor is not None:
        answer = local.get(f"{path}&cursor={cursor}").json()
        found += [row["url"] for row in answer["visits"]]
        cursor = answer["next"]
    assert sorted(found) == [*(f"http://a/{number}" for number in range(5)), "http://a/old"]


def test_hours_of_the_week_follow_daylight_saving_time() -> None:
    zone = ZoneInfo("Europe/Berlin")
    # On 2026-10-25, 02:00 occurs twice; on 2026-03-29, it is skipped.
    since, until = datetime(2026, 10, 18, tzinfo=UTC), datetime(2026, 11, 2, tzinfo=UTC)
    spans = spans_of_hour((since, until), 6 * 24 + 2, zone)
    assert [start for start, _ in spans] == [
        datetime(2026, 11, 1, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC),
        datetime(2026, 10, 25, 0, tzinfo=UTC), datetime(2026, 10, 18, 0, tzinfo=UTC),
    ]  # fmt: skip
    spring = (datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 3, 30, tzinfo=UTC))
    assert spans_of_hour(spring, 6 * 24 + 2, zone) == []
    kolkata = spans_of_hour((until - timedelta(days=7), until), 0, ZoneInfo("Asia/Kolkata"))
    assert [start.minute for start, _ in kolkata] == [30]


def test_categories_form_a_tree() -> None:
    tree = category_tree({"books/poetry": 2, "books/prose": 3, "books": 1, "a > b": 1, "/": 1})
    assert [(node["level"], node["name"], node["targets"], node["category"]) for node in tree] == [
        (0, "/", 1, "/"), (0, "a", 1, None), (1, "b", 1, "a > b"), (0, "books", 6, "books"),
        (1, "poetry", 2, "books/poetry"), (1, "prose", 3, "books/prose"),
    ]  # fmt: skip


@pytest.mark.parametrize("values", [[1, 2], [2, 2], [-1e308, 1e308], [5e-324, 0], [3, 1, 2, 9]])
def test_a_spark_line_stays_in_its_box(values: list[float]) -> None:
    line = charts.spark(values)
    numbers = [float(each) for each in re.findall(r"[MHV ](-?[\d.]+)", line.split('d="')[1])]
    assert all(0 <= each <= charts.SPARK_WIDTH for each in numbers)
    heights = [float(each) for each in re.findall(r"V(-?[\d.]+)", line)]
    assert len(heights) == len(values) - 1
    assert all(0 <= each <= charts.SPARK_HEIGHT for each in heights)
    assert 'aria-hidden="true"' in line


def test_charts_have_a_label_and_no_inline_style() -> None:
    line = charts.shares([0.5, None, 1.0], HOSTILE, ("a", "b"))
    assert "<script" not in line
    assert "style=" not in line
    assert line.count("M") == 2, "the gap is not drawn"
    assert charts.levels([0, 1, 50, 100]) == [0, 1, 3, 6]
    assert charts.levels([0.0] * 3) == [0, 0, 0]
    assert 'height="28' in charts.bars([1, 2], "x")
    assert charts.shares([None], "x", ("a", "b"))


def test_daily_freshness_from_history(database: Db, stored: tuple[Db, str]) -> None:
    noon = NOW.replace(hour=12, minute=0, second=0)
    days = {name: noon - timedelta(days=count) for name, count in (("a", 6), ("b", 4), ("c", 1))}
    minutes = [int(days[name].timestamp() // 60) for name in ("a", "b")]
    packed = b"".join(value.to_bytes(4, "little") for value in (*minutes, 0))
    history = {"since": days["a"], "until": days["c"], "changes": packed, "false_dates": 0}
    put_target(database, "shop", "http://a/", history=history)

    async def read() -> dict[Any, Any]:
        async with opened(Config.load(mongo_uri=stored[1])) as db:
            rows = await freshness_by_day(db, Site("shop"), NOW)
            return {(noon.date() - row["day"]).days: row["freshness"] for row in rows}

    by_age = asyncio.run(read())
    assert [by_age[age] for age in (7, 6, 5, 4, 3, 1)] == [None, 1.0, 0.5, 1.0, 1.0, 1.0]


def test_a_site_is_paused_and_resumed(local: Browser, database: Db) -> None:
    put_target(database, "shop", "http://a/", next_visit=NOW - HOUR)
    assert post(local, "/sites/shop/pause").status_code == 422, "no stored settings yet"
    put_site(database, "shop")
    assert post(local, "/sites/shop/pause", back="/sites/shop").headers["location"] == "/sites/shop"
    assert "Paused since" in local.get("/sites/shop").text
    assert local.get("/api/v1/sites").json()["sites"][0]["paused_at"]
    assert post(local, "/sites/shop/resume", back="//evil.example").headers["location"] == "/"
    assert "Paused since" not in local.get("/sites/shop").text
    assert [row["action"] for row in database.audit.find().sort("at")] == [
        "POST /sites/shop/pause", "POST /sites/shop/resume",
    ]  # fmt: skip


def test_service_does_not_run_paused_sites(database: Db, freshet: Freshet) -> None:
    with Pages() as site:
        for name in ("one", "two"):
            site.list(f"/{name}.html", ["/a.html"])
            site.item("/a.html", "A")
            start = [f"{site.url}/{name}.html"]
            freshet.crawl(freshet.wrapper(name, start_urls=start, item_pages="/a"))
        database.targets.update_many({}, {"$set": {"next_visit": NOW - HOUR}})
        database.sites.update_one({"_id": "one"}, {"$set": {"paused_at": NOW}})
        process = freshet.start("refresh", "run", "one", "two", "--replan", "0")
        deadline = time.monotonic() + 50
        while database.runs.count_documents({"spider": "two"}) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        process.terminate()
        process.communicate(timeout=30)
    assert database.runs.count_documents({"spider": "two"}) >= 2
    assert database.runs.count_documents({"spider": "one"}) == 1


def test_invalid_tags_stay_in_the_form(local: Browser, database: Db) -> None:
    put_target(database, "shop", "http://a/")
    put_site(database, "shop")
    typed = ", ".join(f"tag{number}" for number in range(21))
    answer = post(local, "/sites/shop/tags", tags=typed)
    assert answer.status_code == 422
    assert typed in answer.text
    assert "21 tags are too many" in answer.text
    assert post(local, "/sites/shop/tags", tags=" a b ,,c,c").status_code == 303
    assert database.sites.find_one()["tags"] == ["a b", "c"]
    headers = {"X-CSRF-Token": token(local)}
    answer = local.request("PUT", "/api/v1/sites/shop/tags", json={"tags": ["x"]}, headers=headers)
    assert answer.json()["tags"] == ["x"]
    assert tags_of("") == []


def test_site_is_shown_under_the_name_that_a_user_gave_it(local: Browser, database: Db) -> None:
    put_target(database, "shop", "http://a/")
    put_site(database, "shop")
    answer = post(local, "/sites/shop/tags", title="  Lamps &  rugs ", tags="")
    assert answer.status_code == 303
    for path in ("/", "/sites/shop", "/sites/shop/schedule"):
        assert "Lamps &amp; rugs</bdi>" in local.get(path).text
    (found,) = local.get("/api/v1/sites?text=RUGS").json()["sites"]
    assert (found["name"], found["title"]) == ("shop", "Lamps & rugs")
    assert '<option value="shop">Lamps &amp; rugs</option>' in local.get("/changes").text
    assert post(local, "/sites/shop/tags", title="x" * 101).status_code == 422
    headers = {"X-CSRF-Token": token(local)}
    answer = local.request("PUT", "/api/v1/sites/shop/title", json={"title": ""}, headers=headers)
    assert answer.json()["title"] == "shop"
    assert "title" not in database.sites.find_one()


def test_viewers_cannot_change_sites(vic: Browser, database: Db) -> None:
    put_target(database, "shop", "http://a/")
    put_site(database, "shop")
    page = vic.get("/").text
    assert "Check now" not in page
    assert "Save name and tags" not in vic.get("/sites/shop/schedule").text
    for action in ("run", "pause", "resume", "tags"):
        answer = vic.post(f"/sites/shop/{action}", {"csrf": vic.token("/account"), "tags": "x"})
        assert answer.status_code == 403, action
    assert "tags" not in database.sites.find_one()


def test_crawl_is_started_and_reported(local: Browser, database: Db, freshet: Freshet) -> None:
    with Pages() as site:
        site.list("/index.html", ["/a.html"])
        site.item("/a.html", "A")
        wrapper = freshet.wrapper(
            "shop", start_urls=[f"{site.url}/index.html"], item_pages="/a",
        )  # fmt: skip
        freshet.crawl(wrapper)
        site.item("/a.html", "B")
        database.targets.update_many({}, {"$set": {"next_visit": NOW - HOUR}})
        assert post(local, "/sites/shop/run").status_code == 303
        again = post(local, "/sites/shop/run")
        assert again.status_code == 409
        assert "already being crawled" in again.text
        crawl = local.app.state.crawls.of("shop")
        deadline = time.monotonic() + 50
        seen = set()
        while crawl.code is None and time.monotonic() < deadline:
            seen |= {run["name"] for run in local.get("/api/v1/runs").json()["runs"]}
        assert crawl.code == 0, crawl.message
        assert seen == {"shop"}
    row = local.get("/api/v1/sites").json()["sites"][0]
    assert (row["last_reason"], row["is_running"]) == ("finished", False)
    assert row["last_visits"] == 2
    assert row["figures"]["today"]["changed"] == 1


def test_failed_crawl_start_is_reported(local: Browser, database: Db) -> None:
    put_target(database, "nobody", "http://a/")
    put_target(database, "-x", "http://a/")
    assert post(local, "/sites/-x/run").status_code == 422
    assert post(local, "/sites/nobody/run").status_code == 303
    # Stopped, or it may have failed before a busy machine has made the page.
    process = local.app.state.crawls._processes["nobody"]
    process.send_signal(signal.SIGSTOP)
    assert "starting" in local.get("/").text
    process.send_signal(signal.SIGCONT)
    crawl = local.app.state.crawls.of("nobody")
    deadline = time.monotonic() + 50
    while crawl.code is None and time.monotonic() < deadline:
        local.get("/health")
    assert crawl.code == 1
    assert "spider not found" in local.get("/").text


def test_streams_send_changes_until_shutdown() -> None:
    async def watch() -> list[str]:
        streams, values = Streams(), iter([1, 1, 2])

        async def read() -> int:
            value = next(values, None)
            if value is None:
                streams.end()
            return value or 2

        parts = streams.response("n", read, 0.001).body_iterator
        return [str(part) async for part in parts]

    assert asyncio.run(watch()) == [
        "retry: 2000\n\n",
        "event: n\ndata: 1\n\n",
        "event: n\ndata: 2\n\n",
    ]


def test_figures_are_recomputed_after_a_run() -> None:
    async def read() -> list[int | None]:
        # Slow enough to be reused: a figure is used for 20 times its computation time.
        figures, values = Figures(), iter(range(9))

        async def compute() -> int:
            await asyncio.sleep(0.05)
            return next(values)

        return [await figures.get("n", compute, version=each) for each in (None, None, 1, 1, 2)]

    assert asyncio.run(read()) == [0, 0, 1, 1, 2]
