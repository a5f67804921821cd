"""A replan of feeds: what is asked and what is known become a plan, not yet in effect."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from datetime import datetime

import numpy as np

from crawler.replanning.budgets import Budget, Effect, terms_of, too_small
from crawler.replanning.population import Gathered
from crawler.replanning.replan import Replan, followed_otherwise, hours_of
from crawler.replanning.summary import spending_of
from crawler.replanning.wishes import Wish
from crawler.storage.client import Document
from crawler.utils.text import amount, is_known
from schedules.feedplan import FeedsPlan, plan_feeds
from schedules.firstlook import USUAL_WINDOW
from schedules.history import Ints
from schedules.plan import BOUNDS, BudgetTooSmall, Terms
from schedules.terms import WEEK_DAYS, least_per_day

DIGITS = 5


def replanned_feeds(gathered: Gathered, wish: Wish, effect: Effect, now: datetime) -> Replan:
    """The plan that is asked for; ConfigError if it cannot be made."""
    hours = hours_of(now)
    terms, budget = terms_of(gathered, wish, effect, hours)
    made = _made(gathered, terms, hours)
    written = made.moved | followed_otherwise(gathered, terms.policy, effect)
    document = _document_of(gathered, terms, budget, made) | {"at": now}
    return Replan(gathered, made, terms, document, written, hours)


def _made(gathered: Gathered, terms: Terms, now_hours: float) -> FeedsPlan:
    watched = gathered.watched
    try:
        return plan_feeds(
            gathered.population, gathered.histories, windows_of(gathered), terms, now_hours,
            watched.schedules,
        )  # fmt: skip
    except BudgetTooSmall as error:
        raise too_small(terms.budget_per_day, error, gathered) from None


def windows_of(gathered: Gathered) -> Ints:
    """(n,) posts that the documents hold; the usual where that was never seen."""
    window = gathered.watched.window
    return np.where(window > 0, window, USUAL_WINDOW)


def _document_of(gathered: Gathered, terms: Terms, budget: Budget, made: FeedsPlan) -> Document:
    """The document of a plan, as it will stand in `plans`."""
    watched = gathered.watched
    return {
        "kind": "feeds",
        "spiders": sorted(watched.spiders),
        "policy": terms.policy,
        **spending_of(terms, budget),
        "price": _number(made.price),
        "targets": len(watched),
        "unplanned": int(np.count_nonzero(watched.plan < 0)),
        "totals": _totals(gathered, made),
        "bounds": {BOUNDS[code]: n for code, n in sorted(Counter(made.bound.tolist()).items())},
        "ignored": {"future": watched.ahead},
        "warnings": list(_warnings(gathered, terms, made)),
    }


def _totals(gathered: Gathered, made: FeedsPlan) -> Document:
    posts, missed = made.believed.per_week, made.missed
    figures = made.figures(np.arange(len(posts)))
    got = posts - missed
    collected = np.isfinite(made.delay_hours) & (got > 0)
    waited = float((made.delay_hours[collected] * got[collected]).sum())
    all_got = float(got[collected].sum())
    return {
        "requests_per_day": round(made.requests_per_day, DIGITS),
        "least_per_day": round(least_per_day(gathered.population), DIGITS),
        "known": is_known(figures["rate_low"].sum(), figures["rate_high"].sum()),
        "posts_per_day": _number(float(posts.sum()) / WEEK_DAYS),
        "missed_share": _number(float(missed.sum()) / float(posts.sum())),
        "delay_hours": _number(waited / all_got if all_got else math.nan),
    }


def _number(value: float) -> float | None:
    return round(float(value), DIGITS) if math.isfinite(value) else None


def _warnings(gathered: Gathered, terms: Terms, made: FeedsPlan) -> Iterator[str]:
    """What the user should know about this plan, a sentence each."""
    watched = gathered.watched
    if unseen := int(np.isnan(gathered.histories.until).sum()):
        yield f"{unseen:,} of the feeds were never read: they are planned like the others"
    if watched.ahead:
        yield f"{watched.ahead:,} feeds had visits in the future, which were ignored"
    spends = made.requests_per_day
    if terms.daily_cap and spends > terms.daily_cap:
        yield (
            f"the plan wants {amount(spends)} requests a day, over the daily cap "
            f"{terms.daily_cap:,.0f}: the crawl will fall behind"
        )
