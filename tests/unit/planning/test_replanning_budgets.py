"""Options of a replan, and the budgets that they allow."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from crawler.cli.commands.replan import Command
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.planning.options import GIVEN, INTERVALS, Effect, PlanOptions, terms_of
from crawler.planning.replan import shares_of
from crawler.utils.text import amount, count, listed, plain, rounded_up
from crawler.utils.time import EPOCH, per_day
from schedules.population import min_per_day
from tests.unit.populations import NOW, OFFICE, changes, mixed, rates
from tests.unit.populations import watched as histories
from tests.unit.watching import (
    NOTHING,
    NOW_HOURS,
    Pages,
    gathered,
    in_effect,
    page,
    pages,
    plan_document,
)

OPTIONS = (
    "policy", "objective", "budget", "freshness", "max_age", "daily_cap", "hourly_cap", "dry_run",
)  # fmt: skip


@pytest.mark.parametrize(
    ("options", "error_text"),
    [
        ({"policy": "best"},
         "policy not found: 'best'. Available: optimal, groups, groups6, uniform, sqrt, freshness, "
         "harmonic, age, adaptive, min-delay, min-missing"),
        ({"objective": "speed"},
         "objective not found: 'speed'. Available: balanced, freshness, age, delay"),
        ({"budget": "many"},
         "--budget: invalid request rate: 'many'. Use requests a day: 265, 265/day or 0.5"),
        ({"budget": "0"}, "--budget must be greater than 0"),
        ({"max_age": "soon"}, "--max-age: invalid duration: 'soon'. Examples: 90m, 6h, 2d, 1w"),
        ({"freshness": "2"},
         "--freshness: invalid share: '2'. Use a number between 0 and 1: 0.95 or 95%"),
        ({"daily_cap": "-1"},
         "--daily-cap: invalid request rate: '-1'. Use requests a day: 265, 265/day or 0.5"),
        ({"hourly_cap": "9/day"},
         "--hourly-cap: invalid request rate: '9/day'. Examples: 40, 40/hour"),
        ({"budget": "40", "max_age": "6h"},
         "--budget and --max-age cannot be combined. Use one of them"),
    ],
    ids=str,
)  # fmt: skip
def test_invalid_options_are_one_line_errors(
    options: dict[str, str], error_text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command()
    command.run([], Namespace(**dict.fromkeys(OPTIONS) | options))
    assert (command.exitcode, capsys.readouterr().err) == (1, f"scrapy replan: {error_text}\n")


def test_options_override_settings_and_other_goals() -> None:
    settings = PlanOptions(policy="groups", budget=5, daily_cap=9)
    assert PlanOptions(freshness=0.9, daily_cap=0).over(settings) == PlanOptions(
        policy="groups", freshness=0.9, daily_cap=0
    )
    assert PlanOptions(policy="sqrt").over(settings) == PlanOptions(
        policy="sqrt", budget=5, daily_cap=9
    )


def budget_of(
    seen: Pages,
    options: PlanOptions = PlanOptions(),  # noqa: B008
    effect: Effect = NOTHING,
) -> tuple[Any, ...]:
    terms, budget = terms_of(gathered(seen), options, effect, NOW_HOURS)
    return (budget.per_day, budget.source, budget.kept, terms.daily_cap)


def test_default_budget_is_that_of_fixed_intervals() -> None:
    seen = [*pages(3), page("list", kind="list")]
    assert budget_of(seen) == (7, INTERVALS, False, 11)


def test_default_budget_is_that_of_current_plan() -> None:
    present, of = plan_document(budget_per_day=5.0), {"plan": "p", "every": 48.0}
    effect = in_effect(present)
    assert budget_of(pages(4, **of), effect=effect) == (5, GIVEN, True, 8)
    assert budget_of([*pages(4, **of), page("new")], effect=effect) == (5, GIVEN, True, 8)
    grown = in_effect(plan_document(budget_from="intervals"))
    assert budget_of([*pages(4, **of), page("new")], effect=grown) == (6, INTERVALS, True, 9)


def test_options_of_current_plan_are_restored() -> None:
    usual = plan_document(policy="sqrt", objective="age", daily_cap=8, hourly_cap=0)
    assert in_effect(usual).options == PlanOptions(policy="sqrt", objective="age", hourly_cap=0)
    capped = usual | {"daily_cap": 6, "hourly_cap": 2}
    assert in_effect(capped).options == PlanOptions(
        policy="sqrt", objective="age", daily_cap=6, hourly_cap=2
    )
    assert in_effect(usual | {"daily_cap": 0}).options.daily_cap == 0
    assert in_effect(usual | {"daily_cap": 0, "budget_per_day": None}).options.daily_cap is None
    assert in_effect(plan_document(spiders=["shop", "blog"])).options == PlanOptions(), (
        "the plan covers other spiders too"
    )
    assert NOTHING.options == PlanOptions()


def test_policy_without_budget_keeps_current_requests() -> None:
    present = in_effect(plan_document(budget_per_day=None, budget_from="policy"))
    of = {"plan": "p", "every": 48.0}
    assert budget_of(pages(4, **of), effect=present)[0] == 4.5
    assert budget_of(pages(4), PlanOptions(policy="groups")) == (np.inf, "policy", False, None)


def test_part_of_plan_keeps_its_share_of_budget() -> None:
    present = in_effect(plan_document(spiders=["shop", "blog"]))
    seen = pages(4, plan="p", every=48.0)
    assert budget_of(seen, effect=present)[0] == 2
    assert budget_of(seen, effect=replace(present, everything=True))[0] == 5


def test_kept_budget_is_at_least_the_minimum() -> None:
    present = in_effect(plan_document(budget_per_day=0.01))
    assert budget_of(pages(28, plan="p", every=48.0), effect=present)[0] == 1


@pytest.mark.parametrize(
    ("options", "cap"),
    [
        (PlanOptions(budget=10), 15), (PlanOptions(budget=0.3), 1),
        (PlanOptions(budget=10, daily_cap=0), None),
        (PlanOptions(budget=10, daily_cap=10), 10), (PlanOptions(budget=10, daily_cap=12.7), 12),
        (PlanOptions(policy="groups", daily_cap=3), 3),
    ],
)  # fmt: skip
def test_daily_cap_defaults_to_1_5_times_budget(options: PlanOptions, cap: float | None) -> None:
    assert budget_of(pages(4), options)[3] == cap


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (PlanOptions(budget=265, daily_cap=200),
         "the daily cap 200 is too low for 265 requests a day. Use --daily-cap 265 or more"),
        (PlanOptions(budget=48, hourly_cap=1),
         "the hourly cap 1 is too low for 48 requests a day. Use --hourly-cap 2 or more"),
    ],
    ids=["day", "hour"],
)  # fmt: skip
def test_rejects_cap_below_budget(options: PlanOptions, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        budget_of(pages(4), options)
    assert str(caught.value) == message


@pytest.mark.parametrize("seed", [2, 4])
def test_a_budget_is_shared_although_closed_days_need_more_visits(seed: int) -> None:
    # Some pages cannot keep their longest interval without more visits than it needs on other days.
    some = mixed(40, seed)
    past = histories(some, changes(some, rates(40, seed), OFFICE, seed=seed))
    of_pages = replace(gathered(pages(40)), population=some, histories=past)
    of_feeds = gathered([page(f"feed/{i}", kind="feed", feed_size=10) for i in range(3)])
    least = min_per_day(some), min_per_day(of_feeds.population)
    options, config = PlanOptions(budget=1.01 * sum(least)), Config.load(mongo_uri=None)
    shares = shares_of(of_pages, of_feeds, options, config, EPOCH + timedelta(hours=NOW))
    assert sum(shares) == pytest.approx(1.01 * sum(least))
    assert all(share >= needed for share, needed in zip(shares, least, strict=True))


def test_numbers_are_short_and_minimums_rounded_up() -> None:
    amounts = (1234.5, 265, 26.54, 0.125, 3)
    assert [amount(n) for n in amounts] == ["1,234", "265", "26.5", "0.125", "3"]
    assert [rounded_up(n) for n in (32.71, 33.0, 0.142, 10.001)] == ["33", "33", "0.15", "11"]
    assert [count(n, "target") for n in (1, 1200)] == ["1 target", "1,200 targets"]
    assert listed(list("abcde")) == "a, b, c, d, e"
    assert listed(list("abcdefg")) == "a, b, c, d, e and 2 more"


def test_budgets_are_formatted_as_they_can_be_typed() -> None:
    texts = [plain(n) for n in (265.0, 12.3456789, 1e6, 1_234_567.8, 2e-5, 1e9)]
    assert texts == ["265", "12.3457", "1000000", "1234570", "0.00002", "1000000000"]
    assert [per_day(text) for text in texts] == [265, 12.3457, 1e6, 1_234_570, 2e-5, 1e9]
