"""Replanning without a database: options and histories become a plan and its rows."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from crawler.errors import ConfigError
from crawler.planning.options import Effect, PlanOptions
from crawler.planning.replan import Replan, next_visits, replanned
from crawler.storage.client import Document
from crawler.storage.sites import Site
from schedules.calendar import times_of
from schedules.schedule import Schedule, Schedules
from tests.unit.watching import (
    DAY,
    NOTHING,
    NOW,
    NOW_HOURS,
    Pages,
    gathered,
    page,
    pages,
    plan_document,
)

NEVER = NOW + timedelta(days=9999)


def daily(days_ago: set[int]) -> tuple[tuple[float, float, float], ...]:
    """Return changes found by the daily visits of the given days ago, without dates."""
    return tuple((DAY * (day + 1), DAY * day, np.nan) for day in sorted(days_ago, reverse=True))


# Plans


def made(
    seen: Pages, options: PlanOptions, effect: Effect = NOTHING, *sites: Site, ahead: int = 0
) -> Replan:
    return replanned(gathered(seen, *sites, ahead=ahead), options, effect, NOW)


def rows_of(replan: Replan) -> dict[str, tuple[Document, datetime]]:
    return {
        key.partition("example/")[2]: (plan, next_visit)
        for batch in replan.batches()
        for key, plan, next_visit in batch
    }


@pytest.fixture(scope="module")
def first() -> Replan:
    """Return the first plan of twenty unchanging pages and one page that changed daily."""
    seen = [*pages(20), page("busy", changes=daily(set(range(1, 20))))]
    return made(seen, PlanOptions(budget=3))


def test_first_plan_updates_all_targets_within_budget(first: Replan) -> None:
    document = first.document
    assert (first.updated, document["targets"], document["unplanned"]) == (21, 21, 21)
    assert 2.7 < document["totals"]["requests_per_day"] <= 3
    assert (document["policy"], document["objective"]) == ("optimal", "balanced")
    assert (document["budget_per_day"], document["daily_cap"], document["hourly_cap"]) == (3, 5, 0)
    assert document["spiders"] == ["shop"]
    assert 0 < document["totals"]["freshness"] < 1
    assert document["totals"]["daily"]["requests_per_day"] == 21
    assert document["totals"]["load"] == pytest.approx(first.plan.requests_per_day / 21, abs=1e-4)
    assert sum(document["limited_by"].values()) == 21
    assert document["warnings"] == []


def test_busy_page_gets_more_visits_and_rows_have_reasons(first: Replan) -> None:
    rows = rows_of(first)
    busy, silent = rows["busy"][0], rows["item/3"][0]
    assert busy["visits_per_week"] > 3 * silent["visits_per_week"]
    assert busy["rate_low"] <= busy["rate_per_week"] <= busy["rate_high"]
    times = times_of(Schedule(busy["weeks"], tuple(busy["slots"])))
    assert busy["windows"] == [" ".join(time) for time in times]
    assert silent["frequency_class"] in ("G1", "2G1", "4G1")
    assert (busy["policy"], busy["limited_by"] in ("budget", "max_rate")) == ("optimal", True)
    assert {type(value) for value in busy["slots"]} == {int}
    assert 0 <= silent["freshness"] <= 1
    assert "min_hours" not in busy


def test_next_visits_are_future_slots(first: Replan) -> None:
    for part, when in rows_of(first).values():
        hours = (when - datetime(1970, 1, 5, tzinfo=UTC)) / timedelta(hours=1)
        assert hours % (168 * part["weeks"]) in part["slots"]
        assert NOW < when <= NOW + timedelta(weeks=4)


def test_a_plan_after_the_first_hours_is_not_worse_than_fewer_daily_visits() -> None:
    once = ((1.0, 0.5, np.nan),)
    seen = pages(20, since=1.0, until=0.5, visited=0.5, changes=once, refreshed=2)
    totals = made(seen, PlanOptions(budget=60)).document["totals"]
    assert totals["load"] == pytest.approx(3, abs=0.1)
    assert totals["freshness"] > totals["daily"]["freshness"]
    assert totals["age_days"] < totals["daily"]["age_days"]


def test_second_plan_updates_targets_only_for_new_policy(first: Replan) -> None:
    present = plan_document(budget_per_day=3.0)
    seen = gathered(
        [*pages(20, plan="p"), page("busy", plan="p", changes=daily(set(range(1, 20))))]
    )
    seen = replace(seen, watched=replace(seen.watched, schedules=first.plan.schedules))
    effect = Effect({"shop": present}, {"p": present})
    again = replanned(seen, PlanOptions(), effect, NOW)
    assert again.updated == 0
    assert again.document["budget_kept"]
    other = Effect({"shop": present}, {"p": present | {"policy": "groups"}})
    assert replanned(seen, PlanOptions(), other, NOW).updated == 21
    learning = {"p": {"until": NOW + timedelta(hours=1)}}
    during_sampling = replanned(seen, PlanOptions(), Effect({"shop": present}, learning), NOW)
    assert (during_sampling.updated, during_sampling.document["learning"]) == (0, 21)
    assert "sampling phase" in during_sampling.document["warnings"][0]
    over = {"p": {"until": NOW}}
    assert replanned(seen, PlanOptions(), Effect({"shop": present}, over), NOW).updated == 21


def test_budget_below_minimum_reports_minimum() -> None:
    with pytest.raises(ConfigError) as caught:
        made(pages(916), PlanOptions(budget=20))
    assert str(caught.value) == (
        "budget 20/day is too small: 916 targets visited every 28 days need 33/day. "
        "Use --budget 33/day or more"
    )
    assert made(pages(916), PlanOptions(budget=33)).document["totals"]["min_per_day"] < 33


def test_goal_is_reached_or_rejected() -> None:
    seen = [page(f"item/{i}", changes=daily(set(range(1, 20, 1 + i % 5)))) for i in range(20)]
    document = made(seen, PlanOptions(freshness=0.8)).document
    assert document["totals"]["freshness"] >= 0.8
    assert document["budget_from"] == "goal"
    with pytest.raises(ConfigError, match=r"cannot be reached: hourly visits to all targets give"):
        made(seen, PlanOptions(freshness=0.9999))


@pytest.mark.parametrize("policy", ["groups", "groups6", "sqrt", "adaptive"])
def test_other_policies_have_no_price(policy: str) -> None:
    replan = made(pages(5), PlanOptions(policy=policy, budget=2))
    part, when = next(iter(rows_of(replan).values()))
    assert (part["policy"], part["marginal_value"], part["limited_by"]) == (policy, None, "rule")
    assert (replan.document["shadow_price"] is None, when > NOW) == (True, True)
    if policy == "adaptive":
        assert (part["every_hours"], part["min_hours"], part["max_hours"]) == (24, 1, 672)
        assert part["windows"] == ["every 24 hours"]


def test_changed_adaptive_limits_are_written() -> None:
    present = plan_document(policy="adaptive", limits=[], budget_per_day=None)
    effect = Effect({"shop": present}, {"p": present})
    replan = made(pages(3, plan="p", every=24.0), PlanOptions(policy="adaptive"), effect)
    assert replan.updated == 3
    (limits,) = replan.document["limits"]
    assert limits == {"spider": "shop", "min_hours": 1, "max_hours": 672}
    same = Effect({"shop": present}, {"p": present | {"limits": [limits]}})
    assert made(pages(3, plan="p", every=24.0), PlanOptions(policy="adaptive"), same).updated == 0


def test_warnings_list_missing_observations() -> None:
    seen = pages(3, since=np.nan, until=np.nan, visited=np.nan)
    guessed = made(seen, PlanOptions(budget=1), NOTHING, Site("shop"), ahead=2).document
    assert guessed["warnings"] == [
        "no page has been observed twice yet: rates and hours are those of an average page",
        "ignored visits dated in the future of 2 targets",
        "no crawl has stored the site definition of shop yet: assuming UTC, weight 1 and no closed "
        "hours",
    ]
    assert guessed["ignored"] == {"future": 2}
    assert guessed["limited_by"] == {"prior": 3}


def test_warns_about_site_with_too_low_cap() -> None:
    site = Site("shop", requests_per_day=1, at=NOW)
    document = made(pages(56), PlanOptions(budget=3), NOTHING, site).document
    assert document["warnings"] == [
        "no page has been observed to change yet",
        "shop: requests_per_day 1 is below the 2 that its targets need at their longest intervals; "
        "the crawl will fall behind",
    ]


def test_warns_about_hours_with_more_visits_than_the_caps() -> None:
    # All are visited daily at midnight.
    busy = [page(f"{n}", changes=daily(set(range(1, 20)))) for n in range(8)]
    site = Site("shop", requests_per_hour=2, at=NOW)
    options = PlanOptions(policy="groups", hourly_cap=5)
    document = made(busy, options, NOTHING, site).document
    assert document["warnings"] == [
        f"{name} is below the 8 visits that are planned in one hour; crawls make the others in the "
        "hours after it"
        for name in ("the hourly cap 5", "shop: requests_per_hour 2")
    ]
    enough = made(busy, replace(options, hourly_cap=8), NOTHING, Site("shop", at=NOW)).document
    assert enough["warnings"] == []


def test_low_hourly_cap_is_compared_with_open_hours() -> None:
    site = Site("shop", visiting_hours=("Mon 08:00-10:00",), requests_per_hour=6, at=NOW)
    document = made(pages(56), PlanOptions(budget=3), NOTHING, site).document
    (warning,) = [words for words in document["warnings"] if "fall behind" in words]
    assert warning.startswith("shop: requests_per_hour 6 is below the 7 that its targets need")


def test_warns_about_fixed_times_in_closed_hours() -> None:
    closed = Site("shop", visiting_hours=("Mon-Fri 08:00-18:00",), at=NOW)
    document = made(pages(8), PlanOptions(policy="groups"), NOTHING, closed).document
    assert document["warnings"][-1] == (
        "100% of the visits are planned for closed hours and wait until the site opens"
    )
    document = made(pages(8), PlanOptions(budget=2), NOTHING, closed).document
    assert not any("wait until" in words for words in document["warnings"])


# Next visits


def next_of(seen: Pages, schedule: Schedule, *sites: Site, now: float = NOW_HOURS) -> list[float]:
    """Return the hours until the next visits of targets that all have this schedule."""
    n = len(seen)
    schedules = Schedules(
        np.full(n, schedule.weeks, np.uint8),
        np.arange(n + 1) * len(schedule.slots),
        np.tile(np.array(schedule.slots, np.uint16), n),
        np.full(n, schedule.every_hours),
        np.full(n, schedule.phase_hours),
    )
    when = next_visits(gathered(seen, *sites), schedules, np.arange(n), now)
    return [round(hours, 6) for hours in (when - now).tolist()]


def test_next_visits_use_site_time_zone() -> None:
    seen = [page(next=-5), page(spider="blog", next=-5), page("b", next=-5)]
    kolkata = Site("blog", timezone="Asia/Kolkata", at=NOW)
    assert next_of(seen, Schedule(1, (12,)), kolkata) == [12, 6.5, 12]


def test_due_targets_stay_due_and_waits_are_limited() -> None:
    site = Site("shop", max_interval_hours=100, at=NOW)
    seen = [
        page("due", next=3.0, visited=50.0), page("late", next=-9.0, visited=99.0),
        page("over", next=-9.0, visited=200.0), page("never", next=-9.0, visited=np.nan),
    ]  # fmt: skip
    assert next_of(seen, Schedule(1, (48,)), site) == [-3, 1, 0, 48]
