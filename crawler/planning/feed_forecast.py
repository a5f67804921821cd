"""Compute the budget curve of feeds from the database, and describe the moves of a new plan."""

from __future__ import annotations

import math
from datetime import datetime
from typing import NamedTuple, Self

import numpy as np

from crawler.config import Config
from crawler.planning.budget_forecast import (
    MAX_MOVES,
    MAX_URL_CHARACTERS,
    in_effect,
    plans_in_effect,
    rounded,
)
from crawler.planning.feed_curve import (
    FeedBudgetCurve,
    FeedBudgetPreview,
    FeedCurve,
    FeedMove,
    FeedStanding,
)
from crawler.planning.options import FEEDS, PlanOptions, ReplanRequest, budget_of, parts_of
from crawler.planning.population import Gathered
from crawler.planning.replan import (
    Replan,
    Say,
    effect_of,
    gathered_of,
    hours_of,
    replan_parts,
    windows_of,
)
from crawler.storage import targets
from crawler.storage.client import Database
from crawler.utils.time import Clock
from schedules.feeds.plan import FeedsPlan, feed_outlook, plan_feeds
from schedules.feeds.post_rates import Posting
from schedules.history import DAY_HOURS, Floats, Ints
from schedules.population import least_per_day
from schedules.schedule import WEEK_DAYS, Schedules, chosen_of
from schedules.terms import Terms

# Points of the curve. Each of them is a whole plan.
POINTS = 20
# Maximum number of feeds from which the curve is computed, and of feeds with a curve of their own.
MAX_FEEDS, MAX_SHOWN_FEEDS = 2_000, 200
# The next point of the curve has at least this many times the fetches of the one before.
MIN_STEP = 1.005


async def feed_curve_of(db: Database, config: Config, say: Say) -> FeedBudgetCurve:
    """Return the curve of all feeds. Raises ConfigError if there are none."""
    say("reading feeds")
    now = Clock(config.clock_offset_hours).now()
    stored, of_feeds = await targets.spiders(db), await targets.feed_spiders(db)
    (part,) = parts_of(feed_request(None, dry_run=True), stored, of_feeds, config)
    gathered = await gathered_of(db, config, now, part.spiders)
    effect = await effect_of(db, gathered.watched, now, everything=True)
    budget = budget_of(gathered, PlanOptions(), effect, hours_of(now))
    curve = _curve(gathered, now, say)
    return curve | {
        "budget_per_day": budget.per_day if math.isfinite(budget.per_day) else None,
        "plans": await plans_in_effect(db, config, FEEDS),
    }


def feed_request(budget: float | None, *, dry_run: bool) -> ReplanRequest:
    """Return the request of `scrapy replan --kind feeds --policy optimal --budget N`."""
    options = PlanOptions("optimal", budget=budget)
    options.check(feeds=True)
    return ReplanRequest(options, None, FEEDS, dry_run=dry_run)


def _curve(gathered: Gathered, now: datetime, say: Say) -> FeedBudgetCurve:
    """Return the curve; current budget and plans are added later."""
    rows = np.argsort(gathered.population.key)[:MAX_FEEDS]
    scale = len(gathered.population) / len(rows)
    population, histories = gathered.population.of(rows), gathered.histories.of(rows)
    window, none = windows_of(gathered)[rows], Schedules.none(len(rows))
    least = least_per_day(population)
    most = max(float((DAY_HOURS / population.min_hours).sum()), least * MIN_STEP)
    plans: list[FeedsPlan] = []
    for number, budget in enumerate(np.geomspace(least, most, POINTS).tolist(), 1):
        say(f"planning {len(rows):,} feeds: {number} of {POINTS} budgets")
        made = plan_feeds(
            population, histories, window, Terms(budget_per_day=budget), hours_of(now), none
        )
        if not plans or made.requests_per_day > plans[-1].requests_per_day * MIN_STEP:
            plans.append(made)
    posting = plans[0].posting
    sums = [_Sums.of_plan(plan) for plan in plans]
    current = _Sums.of(posting, window, in_effect(gathered, rows))
    everything = np.arange(len(rows))
    whole = _columns(sums, everything, scale)
    order = np.argsort(-posting.per_week, kind="stable")
    curves = [
        _feed_curve(gathered.watched.ids[rows[row]], sums, current, np.array([row]), 1.0)
        for row in order[:MAX_SHOWN_FEEDS].tolist()
    ]
    if len(rest := order[MAX_SHOWN_FEEDS:]):
        others = len(gathered.population) - MAX_SHOWN_FEEDS
        curves.append(_feed_curve("", sums, current, rest, others / len(rest)))
    return {
        "at": now,
        "feeds": len(gathered.population),
        "sampled": len(rows),
        "budget_per_day": None,
        "plans": [],
        "posts_per_day": float(posting.per_week.sum() * scale / WEEK_DAYS),
        "requests_per_day": whole[0],
        "price": rounded(np.array([plan.price for plan in plans])),
        "missed_share": whole[1],
        "delay_hours": whole[2],
        "current": current.standing(everything, scale),
        "curves": curves,
    }


class _Sums(NamedTuple):
    """Hold the expected results of n feeds with some schedules.

    per_day: (n,) fetches a day
    posts, missed, wait: (n,) posts a week, missed ones, and total hours that the others wait
    """

    per_day: Floats
    posts: Floats
    missed: Floats
    wait: Floats

    @classmethod
    def of(cls, posting: Posting, window: Ints, schedules: Schedules) -> Self:
        """Return the results of any schedules. window: (n,) posts that the documents hold."""
        expected = feed_outlook(posting, window, schedules)
        return cls._of(posting, schedules, expected.missed, expected.delay_hours)

    @classmethod
    def of_plan(cls, plan: FeedsPlan) -> Self:
        """Return the results of a plan."""
        return cls._of(plan.posting, plan.schedules, plan.missed, plan.delay_hours)

    @classmethod
    def _of(cls, posting: Posting, schedules: Schedules, missed: Floats, delay: Floats) -> Self:
        posts = posting.per_week
        # Without collected posts, the mean delay is infinite.
        wait = np.where(np.isfinite(delay), delay, 0.0) * (posts - missed)
        return cls(schedules.visits_per_week / WEEK_DAYS, posts, missed, wait)

    def standing(self, group: Ints, scale: float = 1.0) -> FeedStanding:
        """Return the results of a group of feeds, each of which represents `scale` feeds."""
        posts, missed = float(self.posts[group].sum()), float(self.missed[group].sum())
        collected = posts - missed
        return {
            "requests_per_day": float(self.per_day[group].sum() * scale),
            "missed_share": missed / posts if posts > 0 else 0.0,
            "delay_hours": float(self.wait[group].sum()) / collected if collected > 0 else 0.0,
        }


def _columns(
    sums: list[_Sums], group: Ints, scale: float
) -> tuple[list[float], list[float], list[float]]:
    """Return requests, missed share and delay of a group of feeds at each point of the curve."""
    standings = [each.standing(group, scale) for each in sums]
    return (
        rounded(np.array([each["requests_per_day"] for each in standings])),
        rounded(np.array([each["missed_share"] for each in standings])),
        rounded(np.array([each["delay_hours"] for each in standings])),
    )


def _feed_curve(
    key: str, sums: list[_Sums], current: _Sums, group: Ints, scale: float
) -> FeedCurve:
    """Return the curve of a feed or, with an empty key, of several feeds."""
    spider, _, url = key.partition(" ")
    per_day, missed, delay = _columns(sums, group, scale)
    return {
        "spider": spider,
        "url": url[:MAX_URL_CHARACTERS],
        "posts_per_day": float(current.posts[group].sum() * scale / WEEK_DAYS),
        "requests_per_day": per_day,
        "missed_share": missed,
        "delay_hours": delay,
        "current": current.standing(group, scale),
    }


async def feed_preview_of(
    db: Database, config: Config, budget: float, say: Say
) -> FeedBudgetPreview:
    """Return the moves of a replan of feeds with this budget, without storing the plan."""
    made: list[Replan] = []
    in_force = await plans_in_effect(db, config, FEEDS)
    request = feed_request(budget, dry_run=True)
    (report,) = await replan_parts(db, config, request, say, made.append)
    say("comparing the plans")
    gathered, plan, written = made[0].gathered, made[0].plan, made[0].written
    assert isinstance(plan, FeedsPlan), "plans of pages have neither misses nor delays"
    everything = np.arange(len(gathered.population))
    old, window = in_effect(gathered, everything), windows_of(gathered)
    new = chosen_of(written, plan.schedules, old)
    current, planned = (_Sums.of(plan.posting, window, schedules) for schedules in (old, new))
    before, after = old.visits_per_week, new.visits_per_week
    changed = written & (np.abs(after - before) > 1e-9)
    # The key breaks ties, so that the list does not depend on the order in the database.
    biggest = np.lexsort((gathered.population.key, -np.abs(after - before)))[:MAX_MOVES]
    moves: list[FeedMove] = []
    for row in biggest[changed[biggest]].tolist():
        spider, _, url = gathered.watched.ids[row].partition(" ")
        moves.append(
            {
                "spider": spider,
                "url": url[:MAX_URL_CHARACTERS],
                "posts_per_week": float(planned.posts[row]),
                "visits_per_week_before": float(current.per_day[row] * WEEK_DAYS),
                "visits_per_week": float(planned.per_day[row] * WEEK_DAYS),
                "missed_share_before": current.standing(np.array([row]))["missed_share"],
                "missed_share": planned.standing(np.array([row]))["missed_share"],
            }
        )
    return {
        "report": report,
        "plans": in_force,
        "current": current.standing(everything),
        "planned": planned.standing(everything),
        "more": int(np.count_nonzero(changed & (after > before))),
        "fewer": int(np.count_nonzero(changed & (after < before))),
        "moves": moves,
    }
