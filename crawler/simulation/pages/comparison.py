"""What came of policies, side by side: as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from crawler.simulation.figures import number, table, text
from crawler.simulation.moments import days
from crawler.simulation.pages.runs import Manner, Outcome
from crawler.simulation.pages.stages import Stage
from crawler.traces.files import iso
from schedules.history import DAY_HOURS
from schedules.score import Figures
from schedules.terms import UNBOUNDED

HEADS = ("budget", "a day", "fresh", "age\ndays", "delay\nhours", "of all\nhours", "lost")


def in_json(
    stage: Stage, manner: Manner, outcomes: Sequence[Outcome], references: Sequence[Outcome]
) -> dict[str, Any]:
    """All figures under the names of JSON; null where there is none."""
    totals, span = outcomes[0].totals, stage.span
    return {
        "kind": "pages",
        "from": iso(span.start),
        "split": iso(span.split),
        "to": iso(span.stop),
        "closed_loop": manner.closed_loop,
        "replan_every_days": manner.replan_hours / DAY_HOURS,
        "daily_cap": manner.daily_cap,
        "pages": totals.pages,
        "sources": totals.sources,
        "changes": totals.changes,
        "results": [_row(outcome) for outcome in outcomes],
        "references": [_row(outcome) for outcome in references],
    }


def _row(outcome: Outcome) -> dict[str, Any]:
    totals, load = outcome.totals, outcome.totals.load
    return {
        "policy": outcome.policy,
        "budget": number(outcome.budget),
        "requests_per_day": load.per_day,
        "visits": totals.visits,
        **_means(totals.by_page),
        "never_visited": totals.never_visited,
        "by_source": _means(totals.by_source),
        "hour_peak": number(load.hour_peak),
        "busiest_hour": load.busiest_hour,
        "busiest_day": load.busiest_day,
        "visits_by_week": list(outcome.weeks),
    }


def _means(figures: Figures) -> dict[str, float | None]:
    return {name: number(value) for name, value in asdict(figures).items()}


def by_page(outcomes: Sequence[Outcome]) -> Table:
    """Load and figures, a row for each outcome; every page counts the same."""
    loads = "never\nseen", "peak\nhour", "peak\nday"
    made = table("every page counts the same", "policy", *HEADS, *loads)
    for one in outcomes:
        load = one.totals.load
        made.add_row(
            *_begin(one), *_in_words(one.totals.by_page), f"{one.totals.never_visited:,}",
            text(load.hour_peak, "{:.1f}x"), f"{load.busiest_day:,}",
        )  # fmt: skip
    return made


def by_source(outcomes: Sequence[Outcome]) -> Table:
    """Figures, a row for each outcome; every source counts the same."""
    made = table("every source counts the same", "policy", *HEADS)
    for one in outcomes:
        made.add_row(*_begin(one), *_in_words(one.totals.by_source))
    return made


def _begin(outcome: Outcome) -> tuple[str, str, str]:
    budget = text(outcome.budget, "{:.6g}")
    return outcome.policy, budget, f"{outcome.totals.load.per_day:,.1f}"


def _in_words(figures: Figures) -> tuple[str, ...]:
    return (
        text(figures.freshness, "{:.3f}"),
        text(figures.age_days, "{:.3f}"),
        text(figures.delay_h, "{:.1f}"),
        text(figures.delay_all_h, "{:.1f}"),
        text(figures.lost_share, "{:.0%}"),
    )


def in_words(stage: Stage, outcome: Outcome) -> str:
    """What was played on, in a line."""
    totals = outcome.totals
    return (
        f"{totals.pages:,} pages of {totals.sources:,} sources, {totals.changes:,} changes, "
        f"{days(stage.span)}"
    )


def notes(outcomes: Sequence[Outcome]) -> list[str]:
    """What has to be known to read the tables."""
    heedless = [name for name in UNBOUNDED if any(one.policy == name for one in outcomes)]
    return [f"{', '.join(heedless)}: whatever the budget is"] if heedless else []
