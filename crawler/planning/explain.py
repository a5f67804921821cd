"""Collect the state, the estimate and the plan of one target."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import numpy as np

from crawler.config import Config
from crawler.items import Kind
from crawler.planning.explain_reasons import Facts, Worth, reasons
from crawler.planning.explanation import (
    Expectation,
    ExplainedFeed,
    Explanation,
    LastChange,
    ObservedHistory,
    PollBounds,
)
from crawler.planning.options import BALANCED, OBJECTIVES
from crawler.planning.population import Gathered, gather
from crawler.planning.replan import hours_of
from crawler.planning.report import matrix
from crawler.storage import alarms, feeds, histories, paging, plans, sites, targets
from crawler.storage.client import Database, Document
from crawler.storage.columns import keys_of_texts
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
# Up to this number, all targets can be read within a second or two.
MAX_QUICK_TARGETS = 100_000
UNKNOWN = Worth(None, None, None)


async def explain_target(
    db: Database, config: Config, target: Document, now: datetime, say: Callable[[str], None],
    max_read: int | None = None,
) -> Explanation:  # fmt: skip
    """Return state, estimates and plan of a target, and its open alarms as the first reasons.

    say:      shows progress
    max_read: of more than MAX_QUICK_TARGETS targets, read a random sample of this size from the
              site; None: all targets of the site
    """
    name = str(target["spider"])
    say(f"reading the history of {name}")
    plan_id = str((target.get("plan") or {}).get("id"))
    plan = (await plans.plans_of(db, [plan_id])).get(plan_id)
    # The estimates of a page depend on all sites of its plan, so all of them are read to get the
    # replan's numbers, unless that takes too long.
    is_quick = await db.targets.estimated_document_count() < MAX_QUICK_TARGETS
    planned_with = plan["spiders"] if plan and is_quick else []
    if max_read is not None and not is_quick and await paging.is_larger(db, name, max_read):
        watched = await histories.read_sample(db, now, name, max_read, str(target["_id"]))
    else:
        watched = await histories.read(db, now, sorted({name, *planned_with}))
    gathered = await gather(db, watched, config, hours_of(now)) if len(watched) else None
    (site,) = await sites.of_spiders(db, [name])
    say("estimating")
    waiting = await plans.count_over_cap(db, name)
    feed = await feeds.of_key(db, target["_id"]) if target["kind"] == Kind.FEED else None
    report = explained(gathered, target, plan, site, waiting, now, feed)
    texts = await alarms.texts_of(db, name, target["url"])
    report["reasons"] = [*(f"Open alarm: {text}." for text in texts), *report["reasons"]]
    return report


def explained(
    gathered: Gathered | None,
    target: Document,
    whole: Document | None,
    site: Site,
    waiting: int,
    now: datetime,
    feed: Document | None = None,
) -> Explanation:
    """Return the state and the plan of a target, with reasons.

    gathered: targets of its spider and those planned with it; None if there are none
    whole:    plan that the target follows; None if it is no longer stored
    waiting:  number of targets that the last run left waiting because of a cap
    feed:     document of the feed; None for pages
    """
    planned = targets.planned_of(target.get("plan"))
    schedule = planned.schedule if planned else Schedule()
    worth, limits = UNKNOWN, (0.0, 0.0)
    expected: Expectation | None = None
    dates_believed = False
    result = None if gathered is None else _estimated(gathered, target)
    if result is not None:
        estimates, dates_reliable = result
        limits = float(estimates.population.min_hours[0]), float(estimates.population.max_hours[0])
        dates_believed = dates_reliable or feed is not None
        if feed is None:
            worth = worth_of(estimates, schedule, whole)
        expected = _expected(estimates, schedule if feed is None else Schedule())
        if feed is None:
            expected["value"] = {
                "last": worth.last, "more": worth.more, "shadow_price": worth.shadow_price,
            }  # fmt: skip
    ahead = AHEAD_HOURS, MAX_AHEAD
    return {
        "url": target["url"],
        "spider": target["spider"],
        "kind": target["kind"],
        "categories": target.get("categories", []),
        "first_seen": target["first_seen"],
        "visited_at": target.get("visited_at"),
        "outcome": target.get("outcome"),
        "timezone": site.timezone,
        "history": _history(target, dates_believed=dates_believed),
        "expected": expected,
        "feed": None if feed is None else _feed(feed),
        "plan": plans.plan_of(target),
        "planned_at": (whole or {}).get("at"),
        "visits": {"made": target["requested"], "missed": target.get("missed_visits", 0)},
        "reasons": reasons(Facts(target, site, whole, worth, waiting, *limits, now, feed)),
        "next_visit": target["next_visit"],
        "ahead": calendar.upcoming(schedule, site.zone, now, *ahead) if planned else [],
    }


def _feed(feed: Document) -> ExplainedFeed:
    bounds: PollBounds | None = None
    if stated := feed.get("bounds"):
        bounds = {
            "every_hours": stated.get("every_hours"),
            "skip_hours": stated.get("skip_hours") or [],
            "skip_days": stated.get("skip_days") or [],
        }
    return {
        "title": feed.get("title"),
        "site": feed.get("site"),
        "format": feed.get("format"),
        "feed_size": feed.get("feed_size"),
        "full": bool(feed.get("full")),
        "posts": feed.get("posts", 0),
        "missed_posts": feed.get("missed_posts", 0.0),
        "gaps": feed.get("gaps", 0),
        "last_gap_at": feed.get("last_gap_at"),
        "newest": feed.get("newest"),
        "bounds": bounds,
        "hubs": feed.get("hubs") or [],
        "problems": feed.get("problems") or [],
        "error": feed.get("error"),
    }


def _history(target: Document, *, dates_believed: bool) -> ObservedHistory:
    """Return the history of a target; without times if it was never seen."""
    stored = target.get("history")
    changes = np.frombuffer(bytes(stored["changes"]) if stored else b"", CHANGE)
    last: LastChange | None = None
    if len(changes):
        after, by = int(changes["after"][-1]), int(changes["by"][-1])
        if target.get("kind") == str(Kind.FEED) and changes["stated"][-1]:
            after = by = int(changes["stated"][-1])
        last = {
            "after": targets.EPOCH + after * targets.MINUTE,
            "by": targets.EPOCH + by * targets.MINUTE,
        }
    return {
        "since": stored["since"] if stored else None,
        "until": stored["until"] if stored else None,
        "observations": target.get("refreshed", 0),
        "changes": len(changes),
        "last_change": last,
        "dates_believed": dates_believed,
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


def _expected(estimates: Estimate, schedule: Schedule) -> Expectation:
    """Return the estimated rate and profile, and the expected freshness and age."""
    rates, profile = estimates.rates(FIRST), estimates.profiles(FIRST)[0]
    mean = float(rates.mean[0])
    expected: Expectation = {
        # Quantiles are grid points, and the grid may be coarser than the estimate.
        "rate": {
            "per_week": round(mean, 4),
            "low": round(min(mean, float(rates.low[0])), 4),
            "high": round(max(mean, float(rates.high[0])), 4),
            "known": is_known(float(rates.low[0]), float(rates.high[0])),
        },
        "changes_by_hour": matrix(profile * mean, digits=5),
        "freshness": None,
        "age_days": None,
        "value": None,
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
