"""Explanations of a page's visit times, in sentences."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from crawler.planning.explain import Facts, reasons
from crawler.planning.report_types import VisitValue
from crawler.storage.sites import Site
from tests.unit.watching import NOW


def value(last: float | None, more: float | None, price: float | None = 14.5) -> VisitValue:
    return {"last": last, "more": more, "shadow_price": price}


def facts(plan: dict[str, Any] | None = None, **own: Any) -> Facts:
    target = {"visited_at": NOW, "plan": plan or {"policy": "optimal", "limited_by": "budget"}}
    usual = Facts(target, Site("shop", at=NOW), {}, value(21.2, 9.53), 0, 6.0, 672.0, NOW)
    return replace(usual, **own)


def target(**own: Any) -> Facts:
    """Return the facts of a target without a plan."""
    return replace(facts(), target={"visited_at": NOW, **own})


def test_budget_reason_compares_gain_with_price() -> None:
    assert reasons(facts()) == [
        "One more visit a week would save 9.53 hours of staleness, less than the 14.5 that the "
        "budget requires of each visit; the last planned visit saves 21.2 (budget)."
    ]


@pytest.mark.parametrize(
    ("savings", "sentence"),
    [
        (value(None, 14.0), "One more visit a week would save 14 hours of staleness, "
         "about the 14.5 that the budget requires of each visit (budget)."),
        (value(30, 20.0), "One more visit a week would save 20 hours of staleness, more "
         "than the 14.5 that the budget requires of each visit, but a daily cap or the "
         "minimum gain of a move prevents it; the last planned visit saves 30 (budget)."),
        (value(30, None), "The last planned visit saves 30 hours of staleness, more "
         "than the 14.5 that the budget requires of each visit (budget)."),
    ],
    ids=["about", "more", "at maximum"],
)  # fmt: skip
def test_value_of_another_visit_is_compared_with_price(savings: VisitValue, sentence: str) -> None:
    assert reasons(facts(value=savings)) == [sentence]


def test_no_reason_without_a_price() -> None:
    assert reasons(facts(value=value(1, 1, None))) == []


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        ("prior", "Not observed yet, so visited like an average page of its kind (prior)."),
        ("kept", "The previous schedule is kept: a new one would save too little (kept)."),
        ("min_rate", "Visited at the minimum rate, every 28 days (min_rate): more visits would not "
         "reduce staleness enough, and no page waits longer."),
    ],
)  # fmt: skip
def test_limiting_reason_comes_first(bound: str, words: str) -> None:
    first, second = reasons(facts({"policy": "optimal", "limited_by": bound}))
    assert first == words
    assert second.endswith("(budget).")


def test_maximum_rate_is_reported_only_if_reached() -> None:
    plan = {"policy": "optimal", "limited_by": "max_rate"}
    words = "Visited at the maximum rate, every 6 hours (max_rate)."
    assert reasons(facts(plan, value=value(30, None)))[0] == words
    assert words not in reasons(facts(plan))
    hourly = reasons(facts(plan, value=value(30, None), min_hours=1.0))[0]
    assert hourly == "Visited at the maximum rate, every hour (max_rate)."


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("groups", "the frequency class (policy groups)"),
        ("groups6", "(policy groups6)"),
        ("uniform", "visits a week are the same for all pages. Visits of all pages must save "
         "equally much, and the longest interval is 20 hours."),
        ("sqrt", "the square root"), ("freshness", "copies are fresh"),
        ("harmonic", "LambdaCrawl"), ("age", "minimize the mean age"),
        ("adaptive", "times 0.5 after a change, times 1.2 after none, at most 20 hours"),
    ],
)  # fmt: skip
def test_other_policies_explain_their_rule(policy: str, words: str) -> None:
    (sentence,) = reasons(facts({"policy": policy, "limited_by": "rule"}, max_hours=20.0))
    assert words in sentence
    assert "{" not in sentence


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"alias_of": "https://x.test/"}, "This URL leads to the same page as https://x.test/"),
        ({"gone": True}, "The page is gone: it is only checked every 28 days"),
        ({"consecutive_errors": 1}, "The last 1 visit failed"),
        ({"consecutive_errors": 3}, "The last 3 visits failed"),
        ({"hinted": True}, "A sitemap reported a change, so it became due immediately (cha"),
        ({"visited_at": None}, "Not visited yet"),
        ({}, "Not planned yet: fixed intervals apply until the next replan."),
    ],
    ids=str,
)  # fmt: skip
def test_state_of_target_precedes_the_plan(own: dict[str, Any], words: str) -> None:
    assert reasons(target(**own))[0].startswith(words)


def test_sampling_phase_is_reported_until_its_end() -> None:
    plan = {"policy": "learn", "until": NOW + timedelta(hours=25)}
    (sentence,) = reasons(facts(plan))
    assert sentence == "In a sampling phase: polled frequently until 2026-03-03 01:00 UTC."
    assert "sampling" not in reasons(facts(plan | {"until": NOW}))[0]


def test_visiting_hours_and_caps_are_reported() -> None:
    site = Site("shop", visiting_hours=("Mon-Fri 08:00-18:00",), blackout=("Wed",), at=NOW)
    *_, window, cap = reasons(facts(site=site, waiting=7))
    assert window == (
        "The site definition limits visits to 40 of 168 hours of the week (window): "
        "Mon,Tue,Thu,Fri 08:00-18:00."
    )
    assert cap == (
        "The last run left 7 targets waiting because a cap was reached (cap): visits may be later "
        "than planned."
    )
