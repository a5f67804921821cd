"""`scrapy replan`: from stored histories to a plan for each target."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from crawler.config import Config
from crawler.planning.options import PlanOptions, ReplanRequest
from crawler.planning.replan import Replan, next_visits, replan_parts
from crawler.storage.client import Database
from crawler.utils.text import period
from crawler.utils.time import EPOCH
from schedules.allocation.plan import Plan
from schedules.calendar import times_of
from schedules.schedule import FREQUENCY_CLASSES, nearest_class
from schedules.terms import LIMITS
from tests.integration.harness import Db, Freshet, Pages, Result, Row
from tests.integration.holding import holding
from tests.integration.inside import in_json, run
from tests.integration.known_pages import (
    HOUR,
    NOW,
    clock,
    never_seen,
    of_the_paper,
    on,
    page,
    put,
    spread,
)

SHOP = "https://shop.example"
Stored = tuple[Db, str]
MILLISECOND = timedelta(milliseconds=1)
pytestmark = pytest.mark.usefixtures("warm")


def replan(freshet: Freshet, *args: object, **env: object) -> Result:
    """Run `scrapy replan` at NOW."""
    return run(freshet, "replan", *args, hours=clock(), **env)


def planned(freshet: Freshet, *args: object, **env: object) -> Row:
    """Run a replan, check that it succeeds, and return its JSON."""
    (plan,) = list[Row](in_json(freshet, "replan", *args, hours=clock(), **env))
    return plan


def groups(db: Db) -> dict[str, tuple[str, list[str]]]:
    """Return the frequency class and windows of each page."""
    return {
        row["url"].rpartition("/")[2]: (row["plan"]["frequency_class"], row["plan"]["windows"])
        for row in db.targets.find({"plan": {"$exists": True}})
    }


def some_pages(n: int, **own: Any) -> list[Row]:
    """Build pages of one site, some of which changed."""
    return [page(f"{SHOP}/item/{i}", spread(i % 7, 8 + i % 9), **own) for i in range(n)]


def test_first_plan_keeps_the_request_rate_and_second_is_unchanged(
    stored: Stored, freshet: Freshet
) -> None:
    db, uri = stored
    put(db, uri, some_pages(40))
    first = replan(freshet)
    assert (first.code, first.err) == (0, "")
    assert "of 40 (same as the fixed intervals)" in first.out
    assert "40 of 40 (100.0%)" in first.out

    (plan,) = db.plans.find()
    assert (plan["state"], plan["policy"], plan["targets"]) == ("active", "optimal", 40)
    assert (plan["updated"], plan["daily_cap"], plan["spiders"]) == (40, 60, ["shop"])
    rows = list(db.targets.find())
    per_day = sum(row["plan"]["visits_per_week"] for row in rows) / 7
    assert per_day == pytest.approx(plan["totals"]["requests_per_day"], abs=1e-3)
    assert per_day <= 40
    assert {row["plan"]["id"] for row in rows} == {plan["_id"]}
    assert all(NOW < row["next_visit"] <= NOW + timedelta(days=28) for row in rows)

    again = planned(freshet)
    assert (again["updated"], again["budget_per_day"], again["budget_kept"]) == (0, 40, True)
    assert list(db.targets.find()) == rows
    assert db.plans.count_documents({"state": "active"}) == 2


def test_pages_of_the_paper_get_its_groups_and_times(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    put(db, uri, of_the_paper())
    plan = planned(freshet, "--policy", "groups", "--budget", "1")
    assert (plan["budget_per_day"], plan["daily_cap"]) == (None, 0)
    assert groups(db) == {
        "u1": ("G5", ["Mon-Wed,Fri,Sat 00:00"]),
        "u2": ("G3", ["Mon,Wed,Fri 00:00"]), "u3": ("G3", ["Mon,Wed,Fri 00:00"]),
        "u4": ("G2", ["Mon,Fri 00:00"]), "u5": ("G3", ["Mon,Wed,Fri 00:00"]),
        "u6": ("G1", ["Sat 12:00"]), "u7": ("G1", ["Sat 12:00"]), "u8": ("G1", ["Sat 12:00"]),
        "u9": ("G1", ["Sat 12:00"]), "u10": ("G2", ["Mon,Fri 00:00"]),
        "u11": ("G2", ["Mon,Fri 00:00"]), "u12": ("G1", ["Sat 12:00"]),
        "u13": ("2G1", ["2nd and 4th Sat 00:00"]), "u14": ("4G1", ["3rd Sat 00:00"]),
        "u15": ("G1", ["Sat 12:00"]),
    }  # fmt: skip
    planned(freshet, "--policy", "groups6")
    of_six = groups(db)
    assert of_six["u1"] == ("G7", ["daily 00:00"])
    same_group = {name for name, of in of_six.items() if of == ("G3", ["Mon,Wed,Fri 00:00"])}
    assert same_group == {"u2", "u3", "u4", "u5", "u10", "u11"}
    assert Counter(group for group, _ in of_six.values()) == {
        "G7": 1, "G3": 6, "G1": 6, "2G1": 1, "4G1": 1,
    }  # fmt: skip


def test_dry_run_writes_nothing(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    put(db, uri, some_pages(5))
    before = list(db.targets.find())
    assert planned(freshet, "--dry-run")["updated"] == 5
    assert "no plan was stored" in replan(freshet, "--dry-run").out
    assert list(db.targets.find()) == before
    assert db.plans.count_documents({}) == 0


def test_errors_are_one_line_and_write_nothing(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    put(db, uri, some_pages(916))
    for args, complaint in ERRORS.items():
        done = replan(freshet, *args.split())
        assert (done.code, done.out, done.complaint) == (1, "", f"scrapy replan: {complaint}")
    bad = replan(freshet, FRESHET_BUDGET="lots")
    assert (bad.code, "FRESHET_BUDGET: invalid request rate: 'lots'" in bad.complaint) == (1, True)
    bad = replan(freshet, FRESHET_POLICY="x")
    assert (bad.code, bad.complaint[:30]) == (1, "scrapy replan: policy not foun")
    assert db.plans.count_documents({}) == 0
    assert db.targets.count_documents({"plan": {"$exists": True}}) == 0


ERRORS = {
    "--budget 20": "budget 20/day is too small: 916 targets visited every 28 days need 33/day. "
    "Use --budget 33/day or more",
    "--spider nosuch": "no targets of 'nosuch'. Spiders with targets: shop",
    "--budget 50 --daily-cap 40": "the daily cap 40 is too low for 50 requests a day. "
    "Use --daily-cap 50 or more",
}


def test_options_override_settings(stored: Stored, freshet: Freshet) -> None:
    put(*stored, some_pages(5))
    env = {"FRESHET_BUDGET": "3/day", "FRESHET_POLICY": "sqrt", "FRESHET_DAILY_CAP": "4"}
    plan = planned(freshet, "--dry-run", **env)
    assert (plan["policy"], plan["budget_per_day"], plan["daily_cap"]) == ("sqrt", 3, 4)
    plan = planned(freshet, "--dry-run", "--budget", "2", "--policy", "optimal", **env)
    assert (plan["policy"], plan["budget_per_day"], plan["daily_cap"]) == ("optimal", 2, 4)


def test_no_targets_is_a_one_line_error(stored: Stored, freshet: Freshet) -> None:
    done = replan(freshet)
    assert (done.code, done.complaint) == (
        1, "scrapy replan: no targets to plan. Run scrapy crawl to discover them",
    )  # fmt: skip


def test_plan_without_history_uses_priors_and_warns(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    put(db, uri, [never_seen(f"{SHOP}/item/{i}") for i in range(3)])
    done = replan(freshet)
    assert done.code == 0
    assert "no page has been observed twice yet: rates and hours" in " ".join(done.out.split())
    assert {row["plan"]["limited_by"] for row in db.targets.find()} == {"prior"}
    assert {row["next_visit"] for row in db.targets.find()} == {NOW}, "new targets are due now"


def test_future_visits_are_ignored_and_counted(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    ahead = page(f"{SHOP}/ahead", spread(5, 10))
    ahead["history"]["until"] = NOW + 30 * HOUR
    put(db, uri, [ahead, *some_pages(3)])
    plan = planned(freshet)
    assert plan["ignored"] == {"future": 1}
    assert "ignored visits dated in the future of 1 target" in plan["warnings"]


def test_two_replans_exclude_each_other(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    put(db, uri, some_pages(3))
    planned(freshet)
    with holding(uri, "replan", elsewhere=True):
        second = freshet("replan", hours=clock())
        assert (second.code, second.out) == (0, "")
        message = "scrapy replan: another replan is running on far (process 7) since "
        assert second.complaint.startswith(message)
        assert second.complaint.endswith("; nothing to do")
        with_terms = freshet("replan", "--budget", "9", hours=clock())
        assert (with_terms.code, with_terms.out) == (1, "")
        assert with_terms.complaint.startswith(message)
        assert with_terms.complaint.endswith(" if not renewed. Repeat the command after that")
        assert planned(freshet, "--dry-run")["updated"] == 0, "a dry run takes no lock"
    assert db.plans.count_documents({}) == 1


def test_single_spider_can_be_planned(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    put(db, uri, [*some_pages(4), *some_pages(4, spider="blog")])
    plan = planned(freshet, "--spider", "blog", "--budget", "2")
    assert (plan["spiders"], plan["targets"]) == (["blog"], 4)
    with_plan = {row["spider"] for row in db.targets.find({"plan": {"$exists": True}})}
    assert with_plan == {"blog"}
    everything = planned(freshet)
    assert everything["budget_per_day"] == 6, "two from blog's plan, four from fixed intervals"
    assert everything["unplanned"] == 4


def test_replan_without_options_keeps_the_last_ones(stored: Stored, freshet: Freshet) -> None:
    put(*stored, some_pages(5))
    planned(freshet, "--policy", "sqrt", "--budget", "2", "--daily-cap", "2")
    same = planned(freshet)
    assert (same["policy"], same["budget_per_day"], same["daily_cap"]) == ("sqrt", 2, 2)
    assert same["updated"] == 0
    requested = planned(freshet, "--budget", "3")
    assert (requested["policy"], requested["budget_per_day"], requested["daily_cap"]) == (
        "optimal",
        3,
        5,
    )


def test_unchanged_plans_are_not_written(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    put(db, uri, some_pages(40))
    first = planned(freshet, "--budget", "10")
    second = planned(freshet, "--budget", "12")
    plans = Counter(str(row["plan"]["id"]) for row in db.targets.find())
    assert 0 < second["updated"] < 40
    newest = str(db.plans.find_one(sort=[("_id", -1)])["_id"])
    assert plans[newest] == second["updated"]
    assert first["updated"] == 40


@pytest.mark.parametrize("policy", ["optimal", "adaptive", "groups"])
def test_stored_plans_equal_the_computed_plans(stored: Stored, policy: str) -> None:
    """Compare each stored field with the plan computed by `schedules`."""
    db, uri = stored
    put(db, uri, [*of_the_paper(), *some_pages(40), never_seen(f"{SHOP}/item/new")])
    config, made = Config.load(clock_offset_hours=clock()), list[Replan]()
    order = ReplanRequest(PlanOptions(policy=policy, budget=None if policy == "groups" else 60.0))

    async def replanned(adb: Database) -> None:
        await replan_parts(adb, config, order, lambda _: None, made.append)

    on(uri, replanned)
    ((replan,), rows) = made, {row["_id"]: row for row in db.targets.find()}
    pure, watched = replan.plan, replan.gathered.watched
    assert isinstance(pure, Plan)
    moments = next_visits(
        replan.gathered, pure.schedules, np.arange(len(watched)), replan.now_hours
    )
    assert len(rows) == len(watched) == replan.updated
    for i, key in enumerate(watched.ids):
        schedule, figures = pure.schedules[i], pure.figures(np.array([i]))
        times = [" ".join(time) for time in times_of(schedule)]
        limits = replan.gathered.population
        expected = {
            "policy": policy,
            "frequency_class": FREQUENCY_CLASSES[
                nearest_class(np.array([schedule.visits_per_week]))[0]
            ],
            "windows": times or [f"every {period(schedule.every_hours)}"],
            "visits_per_week": shown(schedule.visits_per_week),
            "weeks": schedule.weeks,
            "slots": list(schedule.slots),
            "every_hours": schedule.every_hours,
            "phase_hours": schedule.phase_hours,
            **{name: shown(column[0]) for name, column in figures.items()},
            "marginal_value": shown(pure.value[i]),
            "last_value": shown(pure.worth[i]),
            "limited_by": LIMITS[pure.bound[i]],
        }
        if policy == "adaptive":
            expected |= {"min_hours": limits.min_hours[i], "max_hours": limits.max_hours[i]}
        stored_plan = rows[key]["plan"]
        assert stored_plan == {"id": stored_plan["id"]} | expected
        assert next(iter(stored_plan)) == "id"
        assert rows[key]["next_visit"] == EPOCH + round(moments[i] * 3_600_000) * MILLISECOND


def shown(value: Any) -> float | None:
    return float(np.round(value, 5)) if np.isfinite(value) else None


def test_plan_follows_the_stored_site_definition(
    stored: Stored, freshet: Freshet, pages: Pages
) -> None:
    db, _ = stored
    pages.list("list.html", ["item-a.html", "item-b.html", "sale-c.html"], "toys")
    for name in ("item-a", "item-b", "sale-c"):
        pages.item(f"{name}.html", name)
    wrapper = freshet.wrapper(
        "pages", start_urls=[f"{pages.url}/list.html"], item_pages=r"/\w+-\w\.html$",
        fields={"title": "h1"}, category={"css": "h2"}, timezone="Asia/Kolkata",
        visiting_hours=["Mon-Fri 09:00-11:00"], blackout="Wed", requests_per_day=50, weight=2.0,
        max_interval_hours=168,
    )  # fmt: skip
    with wrapper.open("a", encoding="utf-8") as file:
        file.write('\n[weights]\n"/sale-" = 7.5\n"category:toys" = 3.0\n')
    freshet.crawl(wrapper, hours=clock() + 4)  # Monday 09:35 in the site's timezone
    (site,) = db.sites.find()
    assert (site["_id"], site["timezone"], site["requests_per_day"]) == (
        "pages", "Asia/Kolkata", 50,
    )  # fmt: skip
    assert site["weights"] == [
        {"of": "/sale-", "weight": 7.5}, {"of": "category:toys", "weight": 3.0},
    ]  # fmt: skip
    done = freshet("replan", "--json", "--budget", "1", hours=clock() + 6)
    assert done.code == 0, done.err
    for row in db.targets.find():
        slots = row["plan"]["slots"]
        assert row["plan"]["weeks"] == 1, "no longer than max_interval_hours"
        assert {(slot // 24 in (0, 1, 3, 4), slot % 24 in (9, 10)) for slot in slots} == {
            (True, True)
        }
        local = row["next_visit"].astimezone(ZoneInfo("Asia/Kolkata"))
        assert (local.minute, local.weekday() * 24 + local.hour in slots) == (0, True)

    assert run(freshet, "forget", "pages", "--yes").code == 0
    assert db.sites.count_documents({}) == 0


def test_adaptive_plan_states_its_interval_limits(stored: Stored, freshet: Freshet) -> None:
    db, uri = stored
    put(db, uri, some_pages(3))
    plan = planned(freshet, "--policy", "adaptive", FRESHET_MAX_INTERVAL_HOURS=100)
    assert plan["limits"] == [{"spider": "shop", "min_hours": 1, "max_hours": 100}]
    for row in db.targets.find():
        part = row["plan"]
        assert (part["every_hours"], part["min_hours"], part["max_hours"]) == (24, 1, 100)
        assert part["windows"] == ["every 24 hours"]
        since: datetime = row["next_visit"]
        assert NOW < since <= NOW + timedelta(days=1)


def test_help_has_an_example(freshet: Freshet) -> None:
    shown = run(freshet, "replan", "--help").out
    assert "Example: scrapy replan --budget 265/day --dry-run" in shown
