"""Settings of single targets: plans and crawls honor mutes and interval limits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from crawler.storage import target_queries
from crawler.utils.time import NEVER
from tests.integration.fetch.test_hints import begin, shelf
from tests.integration.harness import Db, Freshet, Pages, Row, asked, target
from tests.integration.inside import in_json, run
from tests.integration.known_pages import BEGIN, HOUR, NOW, clock, on, page, put, spread

SHOP = "https://shop.example"
DAY = timedelta(days=1)
Stored = tuple[Db, str]


def some_pages(n: int) -> list[Row]:
    """Build pages of one site, some of which changed."""
    return [page(f"{SHOP}/item/{i}", spread(i % 7, 8 + i % 9)) for i in range(n)]


def replan(freshet: Freshet, *args: str) -> Row:
    (plan,) = list[Row](in_json(freshet, "replan", *args, hours=clock()))
    return plan


def of(db: Db, number: int) -> Row:
    found = db.targets.find_one({"_id": f"shop {SHOP}/item/{number}"})
    assert found
    return found


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("policy", ["optimal", "uniform", "adaptive"])
def test_plan_honors_target_limits(stored: Stored, freshet: Freshet, policy: str) -> None:
    db, uri = stored
    put(db, uri, some_pages(20))
    replan(freshet, "--policy", policy, "--budget", "20")
    keys = [f"shop {SHOP}/item/{n}" for n in range(2)]
    on(uri, lambda opened: target_queries.set_limits(opened, keys[0], None, 6.0))
    on(uri, lambda opened: target_queries.set_limits(opened, keys[1], 14 * 24.0, None))
    replan(freshet, "--policy", policy)
    often, rarely = (of(db, n)["plan"] for n in range(2))
    if policy == "adaptive":
        assert (often["max_hours"], rarely["min_hours"]) == (6.0, 14 * 24.0)
        return
    assert often["visits_per_week"] >= 28 - 1e-6
    assert rarely["visits_per_week"] <= 0.5 + 1e-6
    others = [of(db, n)["plan"]["visits_per_week"] for n in range(2, 20)]
    assert all(0.5 < visits < 28 for visits in others)
    sentences = in_json(freshet, "explain", f"{SHOP}/item/0", hours=clock())["reasons"]
    assert "Limits of this target: at most 6 h between two visits (limits)." in sentences


@pytest.mark.usefixtures("warm")
def test_muted_target_is_not_planned_and_frees_its_budget(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    put(db, uri, some_pages(10))
    assert replan(freshet, "--budget", "10")["targets"] == 10
    before = of(db, 1)["plan"]
    assert on(uri, lambda opened: target_queries.mute(opened, f"shop {SHOP}/item/1", NOW))
    assert not on(uri, lambda opened: target_queries.mute(opened, f"shop {SHOP}/item/1", NOW))
    plan = replan(freshet, "--budget", "10")
    assert (plan["targets"], plan["budget_per_day"]) == (9, 10)
    muted = of(db, 1)
    assert (muted["plan"], muted["next_visit"]) == (before, NEVER)
    explained = in_json(freshet, "explain", f"{SHOP}/item/1", hours=clock())
    assert explained["reasons"][0].startswith("Muted since 2026-03-02 00:05 UTC")
    assert "muted" in run(freshet, "targets", "--urls", "--match", "item/1").out


def test_limits_move_only_planned_visits(stored: Stored) -> None:
    db, uri = stored
    states: dict[str, Row] = {
        "planned": {}, "failed": {"consecutive_errors": 1}, "missing": {"consecutive_gone": 1},
        "hinted": {"hinted": True}, "new": {"visited_at": None}, "muted": {"next_visit": NEVER},
    }  # fmt: skip
    put(db, uri, [page(f"{SHOP}/{name}", **own) for name, own in states.items()])
    before = {row["url"]: row["next_visit"] for row in db.targets.find()}
    for name in states:
        on(uri, lambda opened, name=name: target_queries.set_limits(
            opened, f"shop {SHOP}/{name}", None, 2.0))  # fmt: skip
    after = {row["url"]: row["next_visit"] for row in db.targets.find()}
    moved = {url for url in before if before[url] != after[url]}
    assert moved == {f"{SHOP}/planned"}
    assert after[f"{SHOP}/planned"] == NOW + HOUR
    assert not on(uri, lambda opened: target_queries.set_limits(opened, "shop x", 1.0, None))


def set_limits(uri: str, pages: Pages, name: str, *hours: float | None) -> Any:
    key = f"pages {pages.url}/{name}"
    return on(uri, lambda opened: target_queries.set_limits(opened, key, *hours))


def test_crawl_honors_target_limits(stored: Stored, freshet: Freshet, pages: Pages) -> None:
    db, uri = stored
    wrapper = begin(freshet, pages)
    # The site's interval for items is 48 hours.
    set_limits(uri, pages, "item-cup.html", None, 5.0)
    set_limits(uri, pages, "item-jug.html", 72.0, None)
    freshet.crawl(wrapper, hours=6)
    assert asked(pages) == {"/list.html": 1, "/item-cup.html": 1}
    for name, hours in (("cup", 5), ("jug", 72)):
        row = target(db, f"{pages.url}/item-{name}.html")
        assert row["next_visit"] - row["visited_at"] == hours * HOUR, name


def test_change_hint_waits_for_the_minimum_interval(
    stored: Stored, freshet: Freshet, pages: Pages
) -> None:
    _, uri = stored
    wrapper = begin(freshet, pages)
    set_limits(uri, pages, "item-jug.html", 12.0, None)
    pages.item("item-jug.html", "jug at £4")
    shelf(pages, {"cup": "£5", "jug": "£4"})
    freshet.crawl(wrapper, hours=2)
    assert asked(pages) == {"/list.html": 1}
    freshet.crawl(wrapper, hours=13)
    assert asked(pages)["/item-jug.html"] == 1


def test_a_crawl_does_not_visit_muted_targets(
    stored: Stored, freshet: Freshet, pages: Pages
) -> None:
    db, uri = stored
    wrapper = begin(freshet, pages)
    key = f"pages {pages.url}/item-jug.html"
    on(uri, lambda opened: target_queries.mute(opened, key, NOW))
    pages.item("item-jug.html", "jug at £4")
    shelf(pages, {"cup": "£5", "jug": "£4"})
    freshet.crawl(wrapper, hours=100)
    assert asked(pages) == {"/list.html": 1, "/item-cup.html": 1}
    muted = target(db, f"{pages.url}/item-jug.html")
    assert muted["next_visit"] == NEVER, "a change hint makes a muted target due"
    assert on(uri, lambda opened: target_queries.unmute(opened, key, BEGIN))
    pages.clear_log()
    freshet.crawl(wrapper, hours=101)
    assert "/item-jug.html" in asked(pages)
