"""Everything that is known of one target, and what a plan makes of it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

import numpy as np

from crawler.items import Kind
from crawler.planning import report as weeks
from crawler.planning.population import Gathered, keys_of_texts
from crawler.planning.reasons import Facts, Worth, reasons
from crawler.planning.request import BALANCED, OBJECTIVES
from crawler.storage import targets as parts
from crawler.storage.client import Document
from crawler.storage.sites import Site
from crawler.utils.text import is_known
from schedules import calendar
from schedules.allocation import optimal
from schedules.allocation.outlook import outlook
from schedules.cost import Objective
from schedules.estimation.estimate import Estimate, estimate
from schedules.history import CHANGE, Ints
from schedules.schedule import Schedule, Schedules

AHEAD_HOURS = 48
# Of a large site so many targets tell what is usual there.
ENOUGH = 50_000
# What a visit has to save to be looked at, far below any price.
LEAST_WORTH = 1e-3
FIRST = slice(0, 1)
MOST_AHEAD = 48
OF_FEED = (
    "title", "site", "format", "window", "full", "posts", "missed", "lapses", "lapsed_at",
    "newest", "bounds", "hubs", "problems", "error",
)  # fmt: skip
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
    """What is known and planned of a target, with reasons.

    gathered: what is under watch of its spider and those it is planned with, None if nothing is
    whole:    the plan that it follows, None if that is not kept
    waiting:  targets that the last pass left over a cap
    feed:     what is known of a feed as such, None for pages
    """
    planned = parts.planned_of(target.get("plan"))
    schedule = planned.schedule if planned else Schedule()
    document = _identity(target, site) | {"history": _history(target)}
    worth, limits = UNKNOWN, (0.0, 0.0)
    if gathered is not None and len(row := _row(gathered, target)):
        one = _estimate_of(gathered, row)
        limits = _limits(one)
        if feed is None:
            worth = worth_of(one, schedule, whole)
            document |= _expected(one, schedule) | {"worth": asdict(worth)}
        else:
            document |= _expected(one, Schedule())
        believed = gathered.believed[gathered.watched.spider[row]]
        document["history"]["dates_believed"] = bool(believed[0]) or feed is not None
    facts = Facts(target, site, whole, worth, waiting, *limits, now, feed)
    of_feed = {} if feed is None else {"feed": {name: feed.get(name) for name in OF_FEED}}
    return (
        document
        | of_feed
        | {
            "plan": target.get("plan"),
            "visits": {"made": target["requested"], "missed": target.get("missed", 0)},
            "policy": (target.get("plan") or {}).get("policy"),
            "planned_at": (whole or {}).get("at"),
            "reasons": reasons(facts),
            "next_visit": target["next_visit"],
            "ahead": _ahead(schedule, site, now) if planned else [],
        }
    )


def _ahead(schedule: Schedule, site: Site, now: datetime) -> list[datetime]:
    return calendar.upcoming(schedule, site.zone, now, AHEAD_HOURS, MOST_AHEAD)


def _identity(target: Document, site: Site) -> Document:
    names = ("url", "spider", "kind", "categories", "first_seen", "visited_at", "outcome")
    return {name: target.get(name) for name in names} | {"timezone": site.timezone}


def _history(target: Document) -> Document:
    """The past of a target in words of its document; without `since` if it was never seen."""
    found = target.get("history")
    if not found:
        return {"looks": target.get("refreshed", 0), "changes": 0}
    changes = np.frombuffer(bytes(found["changes"]), CHANGE)
    last = changes[-1:].copy()
    if target.get("kind") == str(Kind.FEED) and last["said"].any():
        last["after"] = last["by"] = last["said"]
    return {
        "since": found["since"],
        "until": found["until"],
        "looks": target.get("refreshed", 0),
        "changes": len(changes),
        "last_change": {
            name: parts.EPOCH + int(last[name][0]) * parts.MINUTE for name in ("after", "by")
        }
        if len(last)
        else None,
    }


def _row(gathered: Gathered, target: Document) -> Ints:
    """Where a target is; nowhere if it is an alias, gone, or was never there."""
    return np.flatnonzero(gathered.population.key == keys_of_texts([target["_id"]])[0])


def _estimate_of(gathered: Gathered, row: Ints) -> Estimate:
    """What is believed of one target, from all that is known beside it."""
    population, histories = gathered.population, gathered.histories
    if len(population) > ENOUGH:
        some = np.argsort(population.key)[:ENOUGH]
        rows = np.append(some[some != row[0]], row)
        population, histories = population.of(rows), histories.of(rows)
        row = np.array([len(rows) - 1])
    return estimate(population, histories).of(row)


def _limits(one: Estimate) -> tuple[float, float]:
    return float(one.population.min_hours[0]), float(one.population.max_hours[0])


def _expected(one: Estimate, schedule: Schedule) -> Document:
    rates, profile = one.rates(FIRST), one.profiles(FIRST)[0]
    mean = float(rates.mean[0])
    expected: Document = {
        # Quantiles stand on a grid, which may be coarser than the rate is known.
        "rate": {
            "per_week": round(mean, 4),
            "low": round(min(mean, float(rates.low[0])), 4),
            "high": round(max(mean, float(rates.high[0])), 4),
            "known": is_known(float(rates.low[0]), float(rates.high[0])),
        },
        "changes_by_hour": weeks.matrix(profile * mean, digits=5),
    }
    if schedule.visits_per_week:
        found = outlook(one, _schedules(schedule))
        expected["freshness"] = round(1 - float(found.stale[0]), 4)
        expected["age_days"] = round(float(found.age_days[0]), 4)
    return expected


def worth_of(one: Estimate, schedule: Schedule, whole: Document | None) -> Worth:
    """What visits of one target are worth by what is known now, against the plan's price."""
    aim: Objective = OBJECTIVES[(whole or {}).get("objective") or BALANCED]
    # Of all its sites, as a population keeps them.
    closed = np.where(one.population.open_hours, 0.0, np.inf)
    steps = optimal.offers(one, aim, closed, LEAST_WORTH).steps
    visits, value = steps.visits.astype(float), steps.value.astype(float)
    has = visits <= schedule.visits_per_week * (1 + 1e-6)
    last, more = value[has][-1:], value[~has][:1]
    return Worth(
        float(last[0]) if len(last) and np.isfinite(last[0]) else None,
        float(more[0]) if len(more) and np.isfinite(more[0]) else None,
        (whole or {}).get("price"),
    )


def _schedules(schedule: Schedule) -> Schedules:
    """One schedule as arrays."""
    return Schedules(
        np.array([schedule.weeks], np.uint8),
        np.array([0, len(schedule.slots)]),
        np.array(schedule.slots, np.uint16),
        np.array([schedule.every_hours]),
        np.array([schedule.phase_hours]),
    )
