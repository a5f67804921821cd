"""The plans in effect, what they expect, and how things are, as metrics."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import Metric

from crawler.metrics.estimates import estimated
from crawler.metrics.gauges import by_spider
from crawler.storage.figures import Figures

# Of the fields of Estimates.
ESTIMATES = {
    "planned": ("freshet_plan_targets", "Targets that are visited by a plan or a period."),
    "requests_per_day": (
        "freshet_plan_requests_per_day",
        "Requests a day that plans and periods ask for.",
    ),
    "expected_freshness": (
        "freshet_plan_freshness_ratio",
        "Share of the time that copies are fresh, as the plan expects it.",
    ),
    "expected_age_seconds": (
        "freshet_plan_age_seconds",
        "Mean age of copies, as the plan expects it.",
    ),
    "present_freshness": (
        "freshet_present_freshness_ratio",
        "Share of copies that are fresh now, by rates of changes and the time since each look.",
    ),
    "present_age_seconds": (
        "freshet_present_age_seconds",
        "Mean age of copies now, by rates of changes and the time since each look.",
    ),
    "missed_per_week": (
        "freshet_plan_missed_posts_per_week",
        "Posts of feeds that are lost in a week, as the plan expects it.",
    ),
    "delay_seconds": (
        "freshet_plan_delay_seconds",
        "Mean time until posts of feeds are collected, as the plan expects it.",
    ),
}


def families(figures: Figures) -> Iterator[Metric]:
    """Gauges by spider; of spiders without a plan only what their periods say."""
    plans = {name: of.plan for name, of in figures.spiders.items() if of.plan is not None}
    yield by_spider(
        "freshet_plan_timestamp_seconds",
        "When the plan in effect was made.",
        ((name, plan["at"].timestamp()) for name, plan in plans.items()),
    )
    yield by_spider(
        "freshet_plan_budget_requests_per_day",
        "Budget of the plan in effect; spiders that are planned together share it.",
        ((name, _number(plan.get("budget_per_day"))) for name, plan in plans.items()),
    )
    of_spiders: Counter[str] = Counter()
    for state, n in figures.states.items():
        of_spiders[state.spider] += n
    found = dict(estimated(figures.sample, of_spiders))
    for field, (name, told) in ESTIMATES.items():
        values = ((spider, getattr(of, field)) for spider, of in found.items())
        yield by_spider(name, told, values)


def _number(value: float | None) -> float:
    return math.nan if value is None else value
