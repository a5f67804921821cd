"""Collect the state, the estimate and the plan of one target."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

import numpy as np

from crawler.items import Kind
from crawler.planning.explain_reasons import Facts, Worth, reasons
from crawler.planning.options import BALANCED, OBJECTIVES
from crawler.planning.population import Gathered, keys_of_texts
from crawler.planning.report import matrix
from crawler.storage import targets
from crawler.storage.client import Document
from crawler.storage.sites import Site
from crawler.utils.text import is_known
from schedules import calendar
from schedules.allocation import optimal
from schedules.allocation.outlook import outlook
from schedules.cost import Objective
from schedules.estimation.estimate import Estimate, estimate
from schedules.history import CHANGE
from schedules.schedule import Schedule, Schedules

AHEAD_HOURS = 48
# On a large site, the estimate uses a sample of this many targets.
MAX_SAMPLE = 50_000
# Lower limit of the value of the visits computed, far below any price.
MIN_VALUE = 1e-3
FIRST = slice(0, 1)
MAX_AHEAD = 48
OF_FEED = (
    "title", "site", "format", "feed_size", "full", "posts", "missed_posts", "gaps", "last_gap_at",
    "newest", "bounds", "hubs", "problems", "error",
)  # fmt: skip
IDENTITY = ("url", "spider", "kind", "categories", "first_seen", "visited_at", "outcome")
UNKNOWN = Worth(None, None, None)


def explained(
    gathered: Gathered | None,
    target: Document,
    whole: Document | None,
    site: Site,
    waiting: int,
    now: datetime,
    feed: Document | None = None,
) -> Document:
    """Return the state and the plan of a target, with reasons.

    gathered: targets of its spider and those planned with it; None if there are none
    whole:    plan that the target follows; None if it is no longer stored
    waiting:  number of targets that the last run left waiting because of a cap
    feed:     document of the feed; None for pages
    """
    planned = targets.planned_of(target.get("plan"))
    schedule = planned.schedule if planned else Schedule()
    document: Document = {name: target.get(name) for name in IDENTITY}
    document |= {"timezone": site.timezone, "history": _history(target)}
    worth, limits = UNKNOWN, (0.0, 0.0)
    result = None if gathered is None else _estimated(gathered, target)
    if result is not None:
        estimates, dates_reliable = result
        limits = float(estimates.population.min_hours[0]), float(estimates.population.max_hours[0])
        if feed is None:
            worth = worth_of(estimates, schedule, whole)
            document |= _expected(estimates, schedule) | {"value": asdict(worth)}
        else:
            document |= _expected(estimates, Schedule())
        document["history"]["dates_believed"] = dates_reliable or feed is not None
    if feed is not None:
        document["feed"] = {name: feed.get(name) for name in OF_FEED}
    ahead = AHEAD_HOURS, MAX_AHEAD
    return document | {
        "plan": target.get("plan"),
        "visits": {"made": target["requested"], "missed": target.get("missed_visits", 0)},
        "policy": (target.get("plan") or {}).get("policy"),
        "planned_at": (whole or {}).get("at"),
        "reasons": reasons(Facts(target, site, whole, worth, waiting, *limits, now, feed)),
        "next_visit": target["next_visit"],
        "ahead": calendar.upcoming(schedule, site.zone, now, *ahead) if planned else [],
    }


def _history(target: Document) -> Document:
    """Return the history of a target as a document; without `since` if it was never seen."""
    stored, observations = target.get("history"), target.get("refreshed", 0)
    if not stored:
        return {"observations": observations, "changes": 0}
    changes = np.frombuffer(bytes(stored["changes"]), CHANGE)
    last = changes[-1:].copy()
    if target.get("kind") == str(Kind.FEED) and last["stated"].any():
        last["after"] = last["by"] = last["stated"]
    moments = {
        name: targets.EPOCH + int(at) * targets.MINUTE
        for name in ("after", "by")
        for at in last[name]
    }
    return {
        "since": stored["since"],
        "until": stored["until"],
        "observations": observations,
        "changes": len(changes),
        "last_change": moments or None,
    }


def _estimated(gathered: Gathered, target: Document) -> tuple[Estimate, bool] | None:
    """Return the estimate of one target and whether its site's dates are reliable.

    Returns None for aliases and gone targets. The other targets contribute to the estimate.
    """
    population, histories = gathered.population, gathered.histories
    row = np.flatnonzero(population.key == keys_of_texts([target["_id"]])[0])
    if not len(row):
        return None
    dates_reliable = bool(gathered.reliable_dates[gathered.watched.spider[row]][0])
    if len(population) > MAX_SAMPLE:
        sample = np.argsort(population.key)[:MAX_SAMPLE]
        rows = np.append(sample[sample != row[0]], row)
        population, histories = population.of(rows), histories.of(rows)
        row = np.array([len(rows) - 1])
    return estimate(population, histories).of(row), dates_reliable


def _expected(estimates: Estimate, schedule: Schedule) -> Document:
    """Return the estimated rate and profile, and the expected freshness and age."""
    rates, profile = estimates.rates(FIRST), estimates.profiles(FIRST)[0]
    mean = float(rates.mean[0])
    expected: Document = {
        # Quantiles are grid points, and the grid may be coarser than the estimate.
        "rate": {
            "per_week": round(mean, 4),
            "low": round(min(mean, float(rates.low[0])), 4),
            "high": round(max(mean, float(rates.high[0])), 4),
            "known": is_known(float(rates.low[0]), float(rates.high[0])),
        },
        "changes_by_hour": matrix(profile * mean, digits=5),
    }
    if schedule.visits_per_week:
        schedules = Schedules(
            np.array([schedule.weeks], np.uint8),
            np.array([0, len(schedule.slots)]),
            np.array(schedule.slots, np.uint16),
            np.array([schedule.every_hours]),
            np.array([schedule.phase_hours]),
        )
        outcome = outlook(estimates, schedules)
        expected["freshness"] = round(1 - float(outcome.stale[0]), 4)
        expected["age_days"] = round(float(outcome.age_days[0]), 4)
    return expected


def worth_of(estimates: Estimate, schedule: Schedule, whole: Document | None) -> Worth:
    """Return the value of a target's visits by the current estimate, with the plan's price."""
    aim: Objective = OBJECTIVES[(whole or {}).get("objective") or BALANCED]
    # Visiting hours of all sites, as in a population.
    closed = np.where(estimates.population.open_hours, 0.0, np.inf)
    steps = optimal.candidates_of(estimates, aim, closed, MIN_VALUE).steps
    visits, value = steps.visits.astype(float), steps.value.astype(float)
    has = visits <= schedule.visits_per_week * (1 + 1e-6)
    last, more = value[has][-1:], value[~has][:1]
    return Worth(
        float(last[0]) if len(last) and np.isfinite(last[0]) else None,
        float(more[0]) if len(more) and np.isfinite(more[0]) else None,
        (whole or {}).get("shadow_price"),
    )
