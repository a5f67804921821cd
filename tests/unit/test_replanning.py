"""A replan without a database: what is asked and what is known become a plan and its rows."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from bson import ObjectId

from crawler.commands.replan import Command
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.replanning import population
from crawler.replanning.budgets import ASKED, INTERVALS, Effect, terms_of
from crawler.replanning.population import keys_of, keys_of_texts
from crawler.replanning.replan import Replan, replanned
from crawler.replanning.rows import next_visits
from crawler.replanning.wishes import Wish
from crawler.storage.client import Document
from crawler.storage.sites import Site
from crawler.words import amount, count, listed, rounded_up
from schedules.groups import times_of
from schedules.schedule import Schedule, Schedules
from tests.unit.watching import DAY, NOW, NOW_HOURS, gathered, page, watched

NOTHING = Effect({"shop": None}, {})
Pages = list[dict[str, Any]]


def pages(n: int, **own: Any) -> Pages:
    return [page(f"item/{i}", **own) for i in range(n)]


def daily(found: set[int]) -> tuple[tuple[float, float, float], ...]:
    """Changes that the daily visits of these days ago found; no dates."""
    return tuple((DAY * (day + 1), DAY * day, np.nan) for day in sorted(found, reverse=True))


def plan_document(**own: Any) -> Document:
    usual = {
        "_id": ObjectId(), "at": NOW - timedelta(days=1), "spiders": ["shop"], "policy": "optimal",
        "budget_per_day": 5.0, "budget_from": "asked", "totals": {"requests_per_day": 4.5},
    }  # fmt: skip
    return usual | own


def in_effect(one: Document) -> Effect:
    return Effect({"shop": one}, {str(one["_id"]): one})


# Keys and groups.


def test_a_target_has_the_same_key_in_every_run_whatever_stands_beside_it() -> None:
    texts = [f"shop https://shop.example/ä/{i}" for i in range(120_000)]
    seen = watched([page()])
    many = replace(seen, ids=_texts(texts)).ids
    keys = keys_of(many)
    assert len(set(keys.tolist())) == len(texts)
    some = [0, 49_999, 50_000, 119_999]
    assert keys[some].tolist() == keys_of_texts([texts[i] for i in some]).tolist()
    assert keys_of_texts(["shop https://shop.example/"]).tolist() == [933909131648509738]


def _texts(texts: list[str]) -> Any:
    from crawler.storage.columns import GrownTexts

    grown = GrownTexts()
    grown.add(texts)
    return grown.taken()


def test_neighbours_are_those_of_spider_category_and_kind() -> None:
    seen = [
        page("a", category="toys"), page("b", category="toys"), page("c", category="books"),
        page("d"), page("e", kind="list"), page("f", spider="blog"), page("g", category="toys"),
    ]  # fmt: skip
    made = gathered(seen).population
    a, b, c, d, e, f, g = made.group.tolist()
    assert a == b == g
    assert len({a, c, d, e, f}) == 5
    assert made.parent[made.group].tolist() == made.site.tolist() == [0, 0, 0, 0, 0, 1, 0]


# Weights.


def weights_of(seen: Pages, *rules: tuple[str, float], **categories: list[str]) -> list[float]:
    """The weights of targets; categories: the paths in each."""

    async def in_category(spider: str, category: str) -> Any:
        urls = [f"{spider} https://shop.example/{path}" for path in categories.get(category, [])]
        return keys_of_texts(urls)

    one, sites = watched(seen), (Site("shop", weight=0.5, weights=rules),)
    keys = keys_of(one.ids)
    return asyncio.run(population._weights(one, sites, keys, in_category)).tolist()


def test_the_first_weight_that_fits_counts() -> None:
    seen = [page("sale/1"), page("item/2"), page("item/3"), page("item/4")]
    rules = (("/sale/", 5), ("category:toys", 2), (r"item/\d$", 3))
    toys = ["sale/1", "item/2"]
    assert weights_of(seen, *rules, toys=toys) == [5, 2, 3, 3]
    assert weights_of(seen, *rules[::-1], toys=toys) == [2, 3, 3, 3]
    assert weights_of(seen) == [0.5] * 4


def test_a_pattern_is_looked_for_in_the_url_alone() -> None:
    assert weights_of([page("item/1")], ("^shop", 9), ("^https://", 7)) == [7]


# Sites.


def test_a_site_says_when_and_how_often_it_may_be_visited() -> None:
    site = Site(
        "shop", timezone="Asia/Kolkata", windows=("Mon 08:00-10:00",), cost=2.0, at=NOW,
        min_interval_hours=3, max_interval_hours=48, requests_per_day=40, requests_per_hour=6,
    )  # fmt: skip
    made = gathered([page(), page("b", spider="blog")], site).population
    assert np.flatnonzero(made.open_hours[0]).tolist() == [8, 9]
    assert made.open_hours[1].all()
    assert (made.min_hours.tolist(), made.max_hours.tolist()) == ([3, 1], [48, 672])
    assert (made.site_day.tolist(), made.site_hour.tolist()) == ([40, np.inf], [6, np.inf])
    assert made.cost.tolist() == [2, 1]
    assert [str(zone) for zone in made.zones] == ["Asia/Kolkata", "UTC"]


def test_no_interval_is_longer_than_the_setting_or_four_weeks() -> None:
    config = Config.load(mongo_uri=None, max_interval_hours=100)
    assert gathered([page()], config=config).population.max_hours.tolist() == [100]
    config = Config.load(mongo_uri=None, max_interval_hours=24 * 365)
    assert gathered([page()], config=config).population.max_hours.tolist() == [672]


@pytest.mark.parametrize(
    ("site", "message"),
    [
        (
            Site("shop", min_interval_hours=48),
            "shop: min_interval_hours 48 is longer than the longest interval, 24 hours "
            "(FRESHET_MAX_INTERVAL_HOURS)",
        ),
        (Site("shop", timezone="Mars/Base"), "shop: no time zone 'Mars/Base' is known here"),
        (
            Site("shop", windows=("Mon",), blackout=("Mon",)),
            "shop: windows and blackout leave no hour of the week open",
        ),
    ],
    ids=["intervals", "zone", "windows"],
)
def test_terms_that_contradict_each_other_are_one_line(site: Site, message: str) -> None:
    config = Config.load(mongo_uri=None, max_interval_hours=24)
    with pytest.raises(ConfigError) as caught:
        gathered([page()], site, config=config)
    assert str(caught.value) == message


# Wishes and budgets.


OPTIONS = (
    "policy", "objective", "budget", "freshness", "max_age", "daily_cap", "hourly_cap", "dry_run",
)  # fmt: skip


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"policy": "best"},
         "no policy 'best'; there are: optimal, groups, groups6, uniform, sqrt, freshness, "
         "harmonic, age, adaptive"),
        ({"objective": "speed"},
         "no objective 'speed'; there are: balanced, freshness, age, delay"),
        ({"budget": "many"},
         "--budget: 'many' is no number of requests a day, such as 265, 265/day or 0.5"),
        ({"budget": "0"}, "--budget has to be more than 0"),
        ({"max_age": "soon"}, "--max-age: 'soon' is no time such as 90m, 6h, 2d or 1w"),
        ({"freshness": "2"}, "--freshness: '2' is no share between 0 and 1, such as 0.95 or 95%"),
        ({"daily_cap": "-1"},
         "--daily-cap: '-1' is no number of requests a day, such as 265, 265/day or 0.5"),
        ({"hourly_cap": "9/day"},
         "--hourly-cap: '9/day' is no number of requests an hour, such as 40 or 40/hour"),
        ({"budget": "40", "max_age": "6h"},
         "--budget and --max-age exclude each other: give one of them"),
    ],
    ids=str,
)  # fmt: skip
def test_mistakes_are_one_line(
    options: dict[str, str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command()
    command.run([], Namespace(**dict.fromkeys(OPTIONS) | options))
    assert (command.exitcode, capsys.readouterr().err) == (1, f"scrapy replan: {complaint}\n")


def test_what_is_said_now_goes_before_the_settings_and_there_is_one_goal() -> None:
    settings = Wish(policy="groups", budget=5, daily_cap=9)
    assert Wish(freshness=0.9, daily_cap=0).over(settings) == Wish(
        policy="groups", freshness=0.9, daily_cap=0
    )
    assert Wish(policy="sqrt").over(settings) == Wish(policy="sqrt", budget=5, daily_cap=9)


def budget_of(seen: Pages, wish: Wish = Wish(), effect: Effect = NOTHING) -> tuple[Any, ...]:  # noqa: B008
    terms, budget = terms_of(gathered(seen), wish, effect, NOW_HOURS)
    return (budget.per_day, budget.source, budget.kept, terms.daily_cap)


def test_without_a_budget_the_fixed_intervals_go_on() -> None:
    seen = [*pages(3), page("list", kind="list")]
    assert budget_of(seen) == (7, INTERVALS, False, 11)


def test_without_a_budget_the_present_plan_goes_on() -> None:
    present, of = plan_document(budget_per_day=5.0), {"plan": "p", "every": 48.0}
    asked = in_effect(present)
    assert budget_of(pages(4, **of), effect=asked) == (5, ASKED, True, 8)
    assert budget_of([*pages(4, **of), page("new")], effect=asked) == (5, ASKED, True, 8)
    grown = in_effect(plan_document(budget_from="intervals"))
    assert budget_of([*pages(4, **of), page("new")], effect=grown) == (6, INTERVALS, True, 9)


def test_what_was_asked_of_the_present_plan_is_known() -> None:
    usual = plan_document(policy="sqrt", objective="age", daily_cap=8, hourly_cap=0)
    assert in_effect(usual).wish == Wish(policy="sqrt", objective="age", hourly_cap=0)
    capped = usual | {"daily_cap": 6, "hourly_cap": 2}
    assert in_effect(capped).wish == Wish(policy="sqrt", objective="age", daily_cap=6, hourly_cap=2)
    assert in_effect(usual | {"daily_cap": 0}).wish.daily_cap == 0
    assert in_effect(usual | {"daily_cap": 0, "budget_per_day": None}).wish.daily_cap is None
    assert in_effect(plan_document(spiders=["shop", "blog"])).wish == Wish(), "of others, too"
    assert NOTHING.wish == Wish()


def test_a_policy_that_takes_no_budget_leaves_what_it_spent() -> None:
    present = in_effect(plan_document(budget_per_day=None, budget_from="policy"))
    of = {"plan": "p", "every": 48.0}
    assert budget_of(pages(4, **of), effect=present)[0] == 4.5
    assert budget_of(pages(4), Wish(policy="groups")) == (np.inf, "policy", False, None)


def test_a_part_of_a_plan_keeps_its_part_of_the_budget() -> None:
    present = in_effect(plan_document(spiders=["shop", "blog"]))
    seen = pages(4, plan="p", every=48.0)
    assert budget_of(seen, effect=present)[0] == 2
    assert budget_of(seen, effect=replace(present, everything=True))[0] == 5


def test_a_budget_that_is_kept_is_never_below_the_least() -> None:
    present = in_effect(plan_document(budget_per_day=0.01))
    assert budget_of(pages(28, plan="p", every=48.0), effect=present)[0] == 1


@pytest.mark.parametrize(
    ("wish", "cap"),
    [
        (Wish(budget=10), 15), (Wish(budget=0.3), 1), (Wish(budget=10, daily_cap=0), None),
        (Wish(budget=10, daily_cap=10), 10), (Wish(budget=10, daily_cap=12.7), 12),
        (Wish(policy="groups", daily_cap=3), 3),
    ],
)  # fmt: skip
def test_the_cap_of_a_day_is_half_as_much_again_unless_given(wish: Wish, cap: float | None) -> None:
    assert budget_of(pages(4), wish)[3] == cap


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (Wish(budget=265, daily_cap=200),
         "the daily cap 200 is too low for 265 requests a day (--daily-cap 265 or more)"),
        (Wish(budget=48, hourly_cap=1),
         "the hourly cap 1 is too low for 48 requests a day (--hourly-cap 2 or more)"),
    ],
    ids=["day", "hour"],
)  # fmt: skip
def test_a_cap_below_the_budget_is_one_line(wish: Wish, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        budget_of(pages(4), wish)
    assert str(caught.value) == message


def test_numbers_are_short_and_the_least_is_rounded_up() -> None:
    amounts = (1234.5, 265, 26.54, 0.125, 3)
    assert [amount(n) for n in amounts] == ["1,234", "265", "26.5", "0.125", "3"]
    assert [rounded_up(n) for n in (32.71, 33.0, 0.142, 10.001)] == ["33", "33", "0.15", "11"]
    assert [count(n, "target") for n in (1, 1200)] == ["1 target", "1,200 targets"]
    assert listed(list("abcde")) == "a, b, c, d, e"
    assert listed(list("abcdefg")) == "a, b, c, d, e and 2 more"


# Plans.


def made(seen: Pages, wish: Wish, effect: Effect = NOTHING, *sites: Site, ahead: int = 0) -> Replan:
    return replanned(gathered(seen, *sites, ahead=ahead), wish, effect, NOW)


def rows_of(replan: Replan) -> dict[str, tuple[Document, datetime]]:
    rows = [row for batch in replan.rows() for row in batch]
    return {key.partition("example/")[2]: (part, when) for key, part, when in rows}


@pytest.fixture(scope="module")
def first() -> Replan:
    """Twenty silent pages and one that changed daily, without a plan so far."""
    seen = [*pages(20), page("busy", changes=daily(set(range(1, 20))))]
    return made(seen, Wish(budget=3))


def test_a_first_plan_is_written_to_all_and_spends_its_budget(first: Replan) -> None:
    document = first.document
    assert (first.moved, document["targets"], document["unplanned"]) == (21, 21, 21)
    assert 2.7 < document["totals"]["requests_per_day"] <= 3
    assert (document["policy"], document["objective"]) == ("optimal", "balanced")
    assert (document["budget_per_day"], document["daily_cap"], document["hourly_cap"]) == (3, 5, 0)
    assert document["spiders"] == ["shop"]
    assert 0 < document["totals"]["freshness"] < 1
    assert document["totals"]["daily"]["requests_per_day"] == 21
    assert document["totals"]["load"] == pytest.approx(first.plan.requests_per_day / 21, abs=1e-4)
    assert sum(document["bounds"].values()) == 21
    assert document["warnings"] == []


def test_a_busy_page_gets_more_and_each_row_says_why(first: Replan) -> None:
    rows = rows_of(first)
    busy, silent = rows["busy"][0], rows["item/3"][0]
    assert busy["visits_per_week"] > 3 * silent["visits_per_week"]
    assert busy["rate_low"] <= busy["rate_per_week"] <= busy["rate_high"]
    times = times_of(Schedule(busy["weeks"], tuple(busy["slots"])))
    assert busy["windows"] == [" ".join(time) for time in times]
    assert silent["group"] in ("G1", "2G1", "4G1")
    assert (busy["policy"], busy["bound"] in ("price", "ceiling")) == ("optimal", True)
    assert {type(value) for value in busy["slots"]} == {int}
    assert 0 <= silent["freshness"] <= 1
    assert "min_hours" not in busy


def test_next_visits_are_slots_to_come(first: Replan) -> None:
    for part, when in rows_of(first).values():
        hours = (when - datetime(1970, 1, 5, tzinfo=UTC)) / timedelta(hours=1)
        assert hours % (168 * part["weeks"]) in part["slots"]
        assert NOW < when <= NOW + timedelta(weeks=4)


def test_a_second_plan_moves_nothing_and_another_policy_all(first: Replan) -> None:
    present = plan_document(budget_per_day=3.0)
    seen = gathered(
        [*pages(20, plan="p"), page("busy", plan="p", changes=daily(set(range(1, 20))))]
    )
    seen = replace(seen, watched=replace(seen.watched, schedules=first.plan.schedules))
    effect = Effect({"shop": present}, {"p": present})
    again = replanned(seen, Wish(), effect, NOW)
    assert again.moved == 0
    assert again.document["budget_kept"]
    other = Effect({"shop": present}, {"p": present | {"policy": "groups"}})
    assert replanned(seen, Wish(), other, NOW).moved == 21
    learning = {"p": {"until": NOW + timedelta(hours=1)}}
    left_alone = replanned(seen, Wish(), Effect({"shop": present}, learning), NOW)
    assert (left_alone.moved, left_alone.document["learning"]) == (0, 21)
    assert "being learned" in left_alone.document["warnings"][0]
    over = {"p": {"until": NOW}}
    assert replanned(seen, Wish(), Effect({"shop": present}, over), NOW).moved == 21


def test_a_budget_below_the_floor_names_the_least() -> None:
    with pytest.raises(ConfigError) as caught:
        made(pages(916), Wish(budget=20))
    assert str(caught.value) == (
        "budget 20/day is below the least possible: 916 targets every 28 days need 33/day "
        "(--budget 33/day or more)"
    )
    assert made(pages(916), Wish(budget=33)).document["totals"]["least_per_day"] < 33


def test_a_goal_is_reached_and_one_that_cannot_be_is_one_line() -> None:
    seen = [page(f"item/{i}", changes=daily(set(range(1, 20, 1 + i % 5)))) for i in range(20)]
    found = made(seen, Wish(freshness=0.8)).document
    assert found["totals"]["freshness"] >= 0.8
    assert found["budget_from"] == "goal"
    with pytest.raises(ConfigError, match=r"cannot be reached: even hourly visits to all would"):
        made(seen, Wish(freshness=0.9999))


@pytest.mark.parametrize("policy", ["groups", "groups6", "sqrt", "adaptive"])
def test_other_policies_have_no_price(policy: str) -> None:
    replan = made(pages(5), Wish(policy=policy, budget=2))
    part, when = next(iter(rows_of(replan).values()))
    assert (part["policy"], part["value"], part["bound"]) == (policy, None, "rule")
    assert (replan.document["price"] is None, when > NOW) == (True, True)
    if policy == "adaptive":
        assert (part["every_hours"], part["min_hours"], part["max_hours"]) == (24, 1, 672)
        assert part["windows"] == ["every 24 hours"]


def test_adaptive_limits_that_changed_are_written() -> None:
    present = plan_document(policy="adaptive", limits=[], budget_per_day=None)
    effect = Effect({"shop": present}, {"p": present})
    replan = made(pages(3, plan="p", every=24.0), Wish(policy="adaptive"), effect)
    assert replan.moved == 3
    (limits,) = replan.document["limits"]
    assert limits == {"spider": "shop", "min_hours": 1, "max_hours": 672}
    same = Effect({"shop": present}, {"p": present | {"limits": [limits]}})
    assert made(pages(3, plan="p", every=24.0), Wish(policy="adaptive"), same).moved == 0


def test_warnings_say_what_is_not_known() -> None:
    seen = pages(3, since=np.nan, until=np.nan, visited=np.nan)
    guessed = made(seen, Wish(budget=1), NOTHING, Site("shop"), ahead=2).document
    assert guessed["warnings"] == [
        "no page was seen twice so far: rates and hours are guesses that hold for any page",
        "2 targets had visits in the future, which were ignored",
        "no crawl has noted the wrapper of shop so far: UTC, weight 1 and all hours are assumed",
    ]
    assert guessed["ignored"] == {"future": 2}
    assert guessed["bounds"] == {"prior": 3}


def test_a_site_whose_cap_is_too_low_is_named() -> None:
    site = Site("shop", requests_per_day=1, at=NOW)
    found = made(pages(56), Wish(budget=3), NOTHING, site).document
    assert found["warnings"] == [
        "no page was seen to change so far",
        "shop: requests_per_day 1 is below the 2 that its targets need at their longest intervals; "
        "it will fall behind",
    ]


def test_fixed_times_in_closed_hours_are_named() -> None:
    closed = Site("shop", windows=("Mon-Fri 08:00-18:00",), at=NOW)
    document = made(pages(8), Wish(policy="groups"), NOTHING, closed).document
    assert document["warnings"][-1] == (
        "100% of the visits are planned for hours that wrappers close; they wait until the site "
        "opens"
    )
    document = made(pages(8), Wish(budget=2), NOTHING, closed).document
    assert not any("wait until" in words for words in document["warnings"])


# Next visits.


def next_of(seen: Pages, schedule: Schedule, *sites: Site, now: float = NOW_HOURS) -> list[float]:
    """Hours from now to the next visits of targets that all get this schedule."""
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


def test_next_visits_are_on_the_clock_of_each_site() -> None:
    seen = [page(next=-5), page(spider="blog", next=-5), page("b", next=-5)]
    kolkata = Site("blog", timezone="Asia/Kolkata", at=NOW)
    assert next_of(seen, Schedule(1, (12,)), kolkata) == [12, 6.5, 12]


def test_what_is_due_stays_due_and_nothing_waits_longer_than_allowed() -> None:
    site = Site("shop", max_interval_hours=100, at=NOW)
    seen = [
        page("due", next=3.0, visited=50.0), page("late", next=-9.0, visited=99.0),
        page("over", next=-9.0, visited=200.0), page("never", next=-9.0, visited=np.nan),
    ]  # fmt: skip
    assert next_of(seen, Schedule(1, (48,)), site) == [-3, 1, 0, 48]
