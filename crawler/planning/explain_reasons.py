"""Explain in plain sentences when a target is visited, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache

import numpy as np

from crawler.storage.client import Document
from crawler.storage.columns import Arrays, Choices
from crawler.storage.sites import Site
from crawler.storage.targets import ADAPTIVE, PERIOD
from crawler.storage.websub import is_active, is_proven
from crawler.utils.text import HOUR, amount, count, period, span
from schedules.allocation import policies
from schedules.calendar import DAYS, day_names, describe
from schedules.history import DAY_HOURS, offsets
from schedules.intervals import AFTER_CHANGE, AFTER_NONE
from schedules.schedule import WEEK_HOURS, Schedule, Schedules

DAY_SETS = 2**7
DAILY_TEXTS = DAY_SETS * DAY_HOURS
MORE = "more than"
HINTS = {
    "lastmod": "A sitemap reported a change",
    "list": "A list page shows different details than before",
}
FEEDS_BY_POLICY = {
    "uniform": "All feeds have the same even interval (policy uniform).",
    "min-delay": (
        "The interval is even: fetches are proportional to the square root of weight times posts "
        "(policy min-delay)."
    ),
    "min-missing": (
        "The interval is even: each fetch goes to the feed where it collects most posts (policy "
        "min-missing)."
    ),
}
_BY_GROUP = (
    "The mean number of observed changes a week determines the frequency class (policy {}) and its "
    "fixed times: midnight if most changes are by day, noon if most are by night."
)
_BY_CURVE = (
    "The interval is even: visits a week {}. All pages share one price, and the longest interval "
    "is {{most}}."
)
BY_RULE = {
    "groups": _BY_GROUP.format("groups"),
    "groups6": _BY_GROUP.format("groups6"),
    "uniform": _BY_CURVE.format("are the same for all pages"),
    "sqrt": _BY_CURVE.format("are proportional to the square root of the change rate"),
    "freshness": _BY_CURVE.format(
        "maximize the time that copies are fresh, which gives up pages that change too fast"
    ),
    "harmonic": _BY_CURVE.format("follow the harmonic rule of LambdaCrawl"),
    "age": _BY_CURVE.format("minimize the mean age of copies"),
    PERIOD: "This cell has a fixed period, which replans do not change (period).",
    ADAPTIVE: (
        f"Each visit sets the next interval: times {AFTER_CHANGE:g} after a change, times "
        f"{AFTER_NONE:g} after none, at most {{most}}."
    ),
}
BY_BOUND = {
    "prior": "Not observed yet, so visited like an average page of its kind (prior).",
    "kept": "The previous schedule is kept: a new one would save too little (kept).",
    "exploration": (
        "Little history: during the first ten days, visits are evenly spaced to observe all hours "
        "of the week, and as many as the price allows (exploration)."
    ),
    "min_rate": (
        "Visited at the minimum rate, every {most} (min_rate): more visits would not reduce "
        "staleness enough, and no page waits longer."
    ),
}
FEEDS_BY_BOUND = {
    "kept": "The previous schedule is kept: a new one would save too little (kept).",
    "min_rate": (
        "Fetched at the minimum rate, every {most} (min_rate): more fetches would not save enough "
        "posts, and no feed waits longer."
    ),
}


@dataclass(frozen=True, slots=True)
class Worth:
    """Hold hours of staleness that visits save by the current estimate; None if unknown.

    last:  the last planned visit a week
    more:  one more visit
    shadow_price: minimum saving of a visit
    """

    last: float | None
    more: float | None
    shadow_price: float | None


@dataclass(frozen=True, slots=True)
class Facts:
    """Hold everything that the sentences use.

    whole:       plan that the target follows; None if it is no longer stored
    waiting:     number of targets that the last run left waiting because of a cap
    least, most: shortest and longest hours between two visits
    feed:        document of the feed; None for pages
    """

    target: Document
    site: Site
    whole: Document | None
    worth: Worth
    waiting: int
    least: float
    most: float
    now: datetime
    feed: Document | None = None


def reasons(facts: Facts) -> list[str]:
    """Return the sentences, most important first."""
    sentences = [*_overriding_reasons(facts)]
    if facts.feed is None or not facts.target.get("plan"):
        sentences += _plan_reasons(facts)
    if facts.feed is not None:
        sentences += [*_feed_plan_reasons(facts), *_feed_reasons(facts, facts.feed)]
    limits = facts.target.get("limits") or {}
    if own := [
        f"{words} {span(limits[name] * HOUR)}"
        for name, words in (("min_hours", "at least"), ("max_hours", "at most"))
        if limits.get(name)
    ]:
        sentences.append(f"Limits of this target: {' and '.join(own)} between two visits (limits).")
    hours = facts.site.open_hours
    if not hours.all():
        names = ", ".join(describe(hours))
        sentences.append(
            f"The site definition limits visits to {int(hours.sum())} of {WEEK_HOURS} hours of "
            f"the week (window): {names}."
        )
    if facts.waiting:
        sentences.append(
            f"The last run left {count(facts.waiting, 'target')} waiting because a cap was reached "
            "(cap): visits may be later than planned."
        )
    return sentences


def _overriding_reasons(facts: Facts) -> Iterator[str]:
    """Yield sentences on what takes precedence over the plan."""
    target = facts.target
    if (muted_at := target.get("muted_at")) is not None:
        yield f"Muted since {muted_at:%Y-%m-%d %H:%M} UTC: it is not visited until it is unmuted."
    if target.get("alias_of"):
        is_feed = target.get("kind") == "feed"
        relation = "This feed has the same posts as" if is_feed else "This page redirects to"
        yield f"{relation} {target['alias_of']}, which is visited instead."
    if target.get("gone"):
        yield "The page is gone: it is only checked every 28 days, or when a list shows it again."
    if errors := target.get("consecutive_errors"):
        yield (
            f"The last {count(errors, 'visit')} failed: retry intervals double until a visit "
            "succeeds, then the plan applies again."
        )
    if target.get("hinted"):
        yield f"{HINTS[target.get('hint', 'lastmod')]}, so it became due immediately (change hint)."
    if not target.get("visited_at"):
        yield "Not visited yet: the first visit does not wait for a plan."


def _plan_reasons(facts: Facts) -> Iterator[str]:
    """Yield sentences on the plan of a page."""
    plan = facts.target.get("plan")
    if plan is None:
        if not (facts.target.get("alias_of") or facts.target.get("gone")):
            yield "Not planned yet: fixed intervals apply until the next replan."
        return
    if (until := plan.get("until")) is not None and until > facts.now:
        yield f"In a sampling phase: polled frequently until {until:%Y-%m-%d %H:%M} UTC."
        return
    if (rule := BY_RULE.get(plan.get("policy", ""))) is not None:
        yield rule.format(most=period(facts.most))
        return
    bound, worth = plan.get("limited_by"), facts.worth
    if bound in BY_BOUND:
        yield BY_BOUND[bound].format(most=period(facts.most))
    if bound == "max_rate" and worth.more is None:
        yield f"Visited at the maximum rate, every {period(facts.least)} (max_rate)."
    # Compare the value of visits with the price.
    if worth.shadow_price is None:
        return
    price = f"hours of staleness, {{}} the price of a request, {amount(worth.shadow_price)}"
    last = f"the last planned visit saves {amount(worth.last)}" if worth.last else ""
    if worth.more is not None:
        more, against = amount(worth.more), _against(worth.more, worth.shadow_price)
        but = ", but a daily cap or the minimum gain of a move prevents it" * (against == MORE)
        yield (
            f"One more visit a week would save {more} {price.format(against)}{but}"
            f"{'; ' + last if last else ''} (budget)."
        )
    elif last:
        against = _against(worth.last or 0.0, worth.shadow_price)
        yield f"{last[0].upper()}{last[1:]} {price.format(against)} (budget)."


def _against(value: float, price: float) -> str:
    """Compare a value with the price, which it may exceed as estimates change between replans."""
    if value > price * 1.1:
        return MORE
    return "less than" if value < price * 0.9 else "about"


def _feed_plan_reasons(facts: Facts) -> Iterator[str]:
    """Yield sentences on the plan of a feed."""
    plan, price = facts.target.get("plan") or {}, (facts.whole or {}).get("shadow_price")
    if rule := FEEDS_BY_POLICY.get(plan.get("policy", "")):
        yield rule
        return
    if (bound := plan.get("limited_by")) in FEEDS_BY_BOUND:
        yield FEEDS_BY_BOUND[bound].format(most=period(facts.most))
    worth, value = plan.get("last_value"), plan.get("marginal_value")
    if worth and price is not None:
        yield (
            f"The last planned fetch saves {amount(worth)} posts; the price of a fetch is "
            f"{amount(price)} posts (budget)."
        )
    if value and price is not None:
        yield f"One more fetch would save {amount(value)} posts."


def _feed_reasons(facts: Facts, feed: Document) -> Iterator[str]:
    """Yield sentences on the document of a feed and its crawl hints."""
    if window := feed.get("feed_size"):
        if feed.get("full"):
            yield f"The feed holds {count(window, 'post')}; older posts drop out and are missed."
        else:
            yield (
                f"The feed held at most {count(window, 'post')}, and none dropped out so far: the "
                f"plan assumes that it holds {facts.target.get('feed_size')}."
            )
    if gaps := feed.get("gaps"):
        yield (
            f"At {count(gaps, 'visit')}, all posts of the previous visit were gone: about "
            f"{feed.get('missed_posts', 0):,.0f} posts were missed."
        )
    push, bounds = feed.get("push") or {}, feed.get("bounds") or {}
    if is_proven(push, facts.now):
        yield "A WebSub hub delivers new posts, so the feed is polled rarely, in case one is lost."
    elif is_active(push, facts.now):
        yield "A WebSub hub accepted a subscription; until its first delivery, the plan applies."
    if every := bounds.get("every_hours"):
        yield f"The feed asks to be fetched at most once every {period(every)}."
    if hours := bounds.get("skip_hours"):
        yield f"The feed asks not to be fetched in the hours {', '.join(map(str, hours))} (UTC)."
    if skipped := bounds.get("skip_days"):
        yield f"The feed asks not to be fetched on {', '.join(DAYS[day] for day in skipped)}."


def in_words(schedules: Schedules) -> Arrays:
    """Return the visiting times of each of n schedules, formatted as by `policies.times_of`."""
    n = len(schedules)
    # Nearly all schedules have slots in a single week, so format them together.
    owner = np.repeat(np.arange(n), np.diff(schedules.first))
    here = schedules.weeks[owner] == 1
    day, hour = np.divmod(schedules.slots[here].astype(np.int64), DAY_HOURS)
    order = np.lexsort((hour, owner[here]))
    owner, day, hour = owner[here][order], day[order], hour[order]
    begins = np.flatnonzero(np.diff(owner * DAY_HOURS + hour, prepend=-1))
    days = np.bitwise_or.reduceat(1 << day, begins) if len(begins) else begins
    # The others have few distinct values, or are few.
    row = np.flatnonzero((schedules.weeks > 1) | (schedules.every_hours > 0)).tolist()
    others = [_words(schedules[i]) for i in row]
    table = [*_daily_texts(), *dict.fromkeys(text for texts in others for text in texts)]
    places = {text: place for place, text in enumerate(table[DAILY_TEXTS:], DAILY_TEXTS)}
    own = [(i, places[text]) for i, texts in zip(row, others, strict=True) for text in texts]
    rows, texts = np.concatenate(
        [
            np.array([owner[begins], hour[begins] * DAY_SETS + days]).T,
            np.array(own, np.int64).reshape(-1, 2),
        ]
    ).T
    order = np.argsort(rows, kind="stable")
    return Arrays(offsets(np.bincount(rows, minlength=n)), Choices(table, texts[order]))


@cache
def _daily_texts() -> list[str]:
    """Return (3072,) texts for each hour of the day on each set of weekdays."""
    days = [[day for day in range(7) if chosen >> day & 1] for chosen in range(DAY_SETS)]
    names = [day_names(listed) or "daily" for listed in days]
    return [f"{name} {hour:02}:00" for hour in range(DAY_HOURS) for name in names]


@lru_cache(maxsize=4096)
def _words(schedule: Schedule) -> list[str]:
    if schedule.every_hours:
        return [f"every {period(schedule.every_hours)}"]
    return [" ".join(time) for time in policies.times_of(schedule)]
