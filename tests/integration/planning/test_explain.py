"""`scrapy explain`: the history, change rate, plan and visit reasons of a page."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.integration.harness import Db, Freshet, Result, Row
from tests.integration.inside import in_json, run
from tests.integration.known_pages import (
    BEGIN,
    DAY,
    HOUR,
    MINUTE,
    NOW,
    clock,
    never_seen,
    of_the_paper,
    page,
    put,
)
from tests.integration.planning.test_plan_command import site

pytestmark = pytest.mark.usefixtures("warm")
SHOP = "https://shop.example"
Stored = tuple[Db, str]


def scrapy(freshet: Freshet, *args: object, **env: object) -> Result:
    """Run a command at NOW and check that it succeeds."""
    done = run(freshet, *args, hours=clock(), COLUMNS=200, **env)
    assert (done.code, done.err) == (0, ""), done.err
    return done


def explained(freshet: Freshet, page: str, *args: object) -> Row:
    return in_json(freshet, "explain", f"{SHOP}/{page}", *args, hours=clock())


def test_explains_a_page_at_the_shadow_price(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    put(db, uri, of_the_paper())
    db.sites.insert_one(site("Europe/Berlin"))
    scrapy(freshet, "replan", "--budget", "8")
    price = db.plans.find_one()["shadow_price"]

    explanation = explained(freshet, "u1")
    assert explanation["history"]["changes"] == 14
    assert explanation["history"]["observations"] == 1512
    last = BEGIN + 13 * 21 // 14 * DAY + 12 * HOUR
    assert explanation["history"]["last_change"] == {
        "after": (last - 20 * MINUTE).isoformat(), "by": last.isoformat(),
    }  # fmt: skip
    expected = explanation["expected"]
    rate, by_hour = expected["rate"], expected["changes_by_hour"]
    assert rate["low"] <= rate["per_week"] <= rate["high"]
    assert 3 < rate["per_week"] < 6
    total = sum(map(sum, by_hour.values()))
    assert total == pytest.approx(rate["per_week"], abs=0.01)
    at_noon = sum(sum(day[11:14]) for day in by_hour.values())
    assert at_noon > 0.4 * total, "changes at 12:00 UTC are at 13:00 local time"
    assert expected["value"]["shadow_price"] == price
    assert expected["value"]["more"] < 1.5 * price
    assert explanation["plan"]["slots"]
    assert expected["freshness"] > 0.5
    assert all(NOW.isoformat() < at for at in explanation["ahead"])
    assert any(
        "that the budget requires of each visit" in sentence for sentence in explanation["reasons"]
    )

    shown = scrapy(freshet, "explain", f"{SHOP}/u1").out
    for part in (
        "14 changes, the last between", "a week, ", "freshness 0.", "with 90 % probability",
        "policy optimal",
        "Europe/Berlin, ", " UTC", "(dark: frequent, ●: visit)", "\nMon ", "\nSun ",
        "that the budget requires of each visit",
    ):  # fmt: skip
        assert part in shown, part
    assert shown.count("●") == 1 + len(explanation["plan"]["slots"])


def test_unknown_figures_are_not_shown(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    put(db, uri, [never_seen(f"{SHOP}/1")])
    db.sites.insert_one(site("UTC"))
    for command in (("replan", "--budget", "3"), ("plan",), ("explain", f"{SHOP}/1")):
        shown = scrapy(freshet, *command).out
        assert "not known yet" in shown, command
        assert "with 90 % probability" not in shown
        assert "freshness 0." not in shown
    rate = explained(freshet, "1")["expected"]["rate"]
    assert rate["known"] is False
    assert rate["high"] > 10 * rate["low"]
    assert in_json(freshet, "plan", hours=clock())["totals"]["known"] is False

    every = {"plan.every_hours": 1 / 12, "plan.visits_per_week": 2016, "plan.slots": [],
             "plan.windows": ["every 5 minutes"]}  # fmt: skip
    db.targets.update_one({}, {"$set": every})
    shown = scrapy(freshet, "explain", f"{SHOP}/1").out
    assert ": every 5 minutes, policy" in shown
    assert "2016" not in shown


def test_reasons_other_than_the_plan_are_explained(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "floor": (
            {"$set": {"plan.limited_by": "min_rate"}},
            "at the minimum rate, every 28 days (min_rate)",
        ),
        "hint": ({"$set": {"hinted": True}}, "A sitemap reported a change"),
        "alias": ({"$set": {"alias_of": f"{SHOP}/u1"}}, f"leads to the same page as {SHOP}/u1"),
        "planless": ({"$unset": {"plan": ""}}, "Not planned yet"),
    }
    put(db, uri, [page(f"{SHOP}/{name}") for name in cases])
    db.sites.insert_one(site("UTC") | {"visiting_hours": ["Mon-Fri"]})
    scrapy(freshet, "replan", "--budget", "3")
    run = {"spider": "shop", "started": NOW, "finished": NOW}
    db.runs.insert_one(run | {"counts": {"over_cap": 7}})
    for name, (change, _) in cases.items():
        db.targets.update_one({"url": f"{SHOP}/{name}"}, change)
    db.targets.insert_one(never_seen(f"{SHOP}/new"))
    for name, words in {name: words for name, (_, words) in cases.items()}.items():
        sentences = " ".join(explained(freshet, name)["reasons"])
        assert words in sentences, name
        assert "hours of the week (window): Mon-Fri." in sentences
        assert "7 targets waiting because a cap was reached (cap)" in sentences
    fresh = explained(freshet, "new")
    assert "Not visited yet" in fresh["reasons"][0]
    assert fresh["history"] == {
        "since": None, "until": None, "observations": 0, "changes": 0, "last_change": None,
        "dates_trusted": False,
    }  # fmt: skip
    assert scrapy(freshet, "explain", f"{SHOP}/new").out.count("never") == 1


def test_page_of_two_spiders_requires_spider_option(stored: Stored, freshet: Freshet) -> None:
    put(*stored, [page(f"{SHOP}/1"), page(f"{SHOP}/1", spider="blog")])
    done = freshet("explain", f"{SHOP}/1", hours=clock())
    assert (done.code, done.complaint) == (
        1, f"scrapy explain: several spiders have this URL: {SHOP}/1. Use --spider NAME, one of: "
        "blog, shop",
    )  # fmt: skip
    assert explained(freshet, "1", "--spider", "blog")["spider"] == "blog"


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        (
            f"{SHOP}/nosuch",
            f"URL not found: {SHOP}/nosuch. scrapy targets --urls --match shop.example lists "
            "known URLs",
        ),
        ("http://[", "http://[: Invalid IPv6 URL"),
    ],
)
def test_unknown_pages_are_one_line_errors(
    url: str, complaint: str, stored: Stored, freshet: Freshet
) -> None:
    put(*stored, [page(f"{SHOP}/1")])
    done = run(freshet, "explain", url)
    assert (done.code, done.out, done.complaint) == (1, "", f"scrapy explain: {complaint}")


def test_next_visits_are_shown_for_two_days(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    put(db, uri, [page(f"{SHOP}/1")])
    plan = {"id": "p", "policy": "optimal", "weeks": 1, "slots": [1, 30, 160],
            "frequency_class": "G3", "visits_per_week": 3.0, "windows": ["Mon 01:00"],
            "limited_by": "budget"}  # fmt: skip
    first = NOW.replace(minute=0) + HOUR
    db.targets.update_one({}, {"$set": {"plan": plan, "next_visit": first}})
    explanation = explained(freshet, "1")
    assert explanation["ahead"] == [first.isoformat(), (first + 29 * HOUR).isoformat()]
    shown = scrapy(freshet, "explain", f"{SHOP}/1").out
    assert "next visit    Mon 2026-03-02 01:00 UTC" in shown
    assert "later visits  Tue 2026-03-03 06:00 UTC" in shown
    assert timedelta(0) < first - NOW


def test_many_visits_a_day_are_shown_in_few_lines(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    put(db, uri, [page(f"{SHOP}/1")])
    plan = {"id": "p", "policy": "optimal", "weeks": 1, "slots": list(range(168)),
            "frequency_class": "G14", "visits_per_week": 168.0, "limited_by": "budget",
            "windows": [f"daily {hour:02}:00" for hour in range(24)]}  # fmt: skip
    db.targets.update_one({}, {"$set": {"plan": plan, "next_visit": NOW + HOUR}})
    shown = scrapy(freshet, "explain", f"{SHOP}/1").out
    assert "G14: 24 visits a day (every hour), policy optimal" in shown
    assert "and 43 more visits" in shown
    plan["windows"] = ["daily 06:00", "daily 18:00", "Sat 12:00"]
    db.targets.update_one({}, {"$set": {"plan": plan}})
    assert "(daily 06:00, 18:00; Sat 12:00)" in scrapy(freshet, "explain", f"{SHOP}/1").out
