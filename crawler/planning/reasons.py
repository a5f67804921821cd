"""Explain in plain sentences when a target is visited, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crawler.feeds.politeness import is_active, is_proven
from crawler.storage.client import Document
from crawler.storage.sites import Site
from crawler.storage.targets import ADAPTIVE, PERIOD
from crawler.utils.text import amount, count, period
from schedules.allocation import policies
from schedules.calendar import AFTER_CHANGE, AFTER_NONE
from schedules.history import DAY_HOURS
from schedules.schedule import WEEK_HOURS, Schedule, Schedules
from schedules.windows import DAYS, day_names, describe

Words = list[list[str]]

DAY_SETS = 2**7
MORE = "more than"
HINTS = {
    "lastmod": "A sitemap said that it changed",
    "list": "A list page says other things of it than before",
}
FEEDS_BY_POLICY = {
    "uniform": "It has an even interval, the same as all feeds (policy uniform).",
    "min-delay": (
        "It has an even interval: fetches grow with the square root of weight and posts (policy "
        "min-delay)."
    ),
    "min-missing": (
        "It has an even interval: each fetch goes to the feed of which it collects most posts "
        "(policy min-missing)."
    ),
}
_BY_GROUP = (
    "It has the group of the changes that were seen in a mean week (policy {}), and that group's "
    "fixed times: midnight where more changes fall in the day, noon where they fall in the night."
)
_BY_CURVE = (
    "It has an even interval: visits a week {}, at one price for all, and never less than one "
    "every {{most}}."
)
BY_RULE = {
    "groups": _BY_GROUP.format("groups"),
    "groups6": _BY_GROUP.format("groups6"),
    "uniform": _BY_CURVE.format("are the same for all pages"),
    "sqrt": _BY_CURVE.format("grow with the square root of its changes"),
    "freshness": _BY_CURVE.format(
        "are those that are fresh most of the time, which gives up pages that change too fast"
    ),
    "harmonic": _BY_CURVE.format("follow the harmonic rule of LambdaCrawl"),
    "age": _BY_CURVE.format("are those of the least mean age"),
    PERIOD: "It is a cell with a period of its own, which no replan touches (period).",
    ADAPTIVE: (
        f"Each visit sets its interval: times {AFTER_CHANGE:g} after a change, times "
        f"{AFTER_NONE:g} after none, and never over {{most}}."
    ),
}
BY_BOUND = {
    "prior": "It was never seen twice: it has what a page of its kind usually needs (prior).",
    "kept": (
        "It keeps the schedule it had: a new one would save too little to be worth a move (kept)."
    ),
    "exploration": (
        "It is hardly known: in its first ten days it has even intervals, as many visits as its "
        "price allows, to see the whole week (exploration)."
    ),
    "floor": (
        "It has the least there is, a visit every {most} (floor): more would not pay, and no page "
        "is left unseen for longer."
    ),
}
FEEDS_BY_BOUND = {
    "kept": "It keeps the schedule it had: a new one would save too little to move it (kept).",
    "floor": (
        "It has the least there is, a fetch every {most} (floor): more would not pay, and no feed "
        "is left unseen for longer."
    ),
}


@dataclass(frozen=True, slots=True)
class Worth:
    """Hold hours of staleness that visits save by the current estimate; None if unknown.

    last: the last planned visit a week   more: one more visit   price: minimum saving of a visit
    """

    last: float | None
    more: float | None
    price: float | None


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
    sentences = [*_now(facts)]
    if facts.feed is None or not facts.target.get("plan"):
        sentences += _of_plan(facts)
    if facts.feed is not None:
        sentences += [*_of_feed_plan(facts), *_of_feed(facts, facts.feed)]
    hours = facts.site.open_hours
    if not hours.all():
        names = ", ".join(describe(hours))
        sentences.append(
            f"The wrapper lets it be visited in {int(hours.sum())} of {WEEK_HOURS} hours of the "
            f"week only (window): {names}."
        )
    if facts.waiting:
        sentences.append(
            f"The last pass left {count(facts.waiting, 'target')} waiting, as a cap was reached "
            "(cap): visits may come later than planned."
        )
    return sentences


def _now(facts: Facts) -> Iterator[str]:
    """Yield sentences on what takes precedence over the plan."""
    target = facts.target
    if target.get("alias_of"):
        shows = "It has the same posts as" if target.get("kind") == "feed" else "It redirects to"
        yield f"{shows} {target['alias_of']}, which is visited in its place."
    if target.get("gone"):
        yield "It is gone: it is only asked for every 28 days, or when a list shows it again."
    if errors := target.get("consecutive_errors"):
        yield (
            f"The last {count(errors, 'visit')} failed: it is tried again after an interval that "
            "doubles, and follows the plan when it answers."
        )
    if target.get("hinted"):
        yield f"{HINTS[target.get('hint', 'lastmod')]}, so it was made due at once (a hint)."
    if not target.get("visited_at"):
        yield "It was never visited so far; the first visit does not wait for a plan."


def _of_plan(facts: Facts) -> Iterator[str]:
    """Yield sentences on the plan of a page."""
    plan = facts.target.get("plan")
    if plan is None:
        if not (facts.target.get("alias_of") or facts.target.get("gone")):
            yield "No plan knows it so far: fixed intervals hold until the next replan."
        return
    if (until := plan.get("until")) is not None and until > facts.now:
        yield f"It is being learned: it is visited often until {until:%Y-%m-%d %H:%M} UTC."
        return
    if (rule := BY_RULE.get(plan.get("policy", ""))) is not None:
        yield rule.format(most=period(facts.most))
        return
    bound, worth = plan.get("bound"), facts.worth
    if bound in BY_BOUND:
        yield BY_BOUND[bound].format(most=period(facts.most))
    if bound == "ceiling" and worth.more is None:
        yield f"It has the most there is, a visit every {period(facts.least)} (ceiling)."
    yield from _of_price(worth)


def _of_price(worth: Worth) -> Iterator[str]:
    if worth.price is None:
        return
    price = f"the price of a request, {amount(worth.price)} hours of staleness"
    last = f"the last visit that it has saves {amount(worth.last)}" if worth.last else ""
    if worth.more is not None:
        more, against = amount(worth.more), _against(worth.more, worth.price)
        but = "; a full day, or that moves have to pay, stands against it" * (against == MORE)
        yield (
            f"One more visit a week would save {more}, {against} {price}{but}"
            f"{'; ' + last if last else ''} (price)."
        )
    elif last:
        against = _against(worth.last or 0.0, worth.price)
        yield f"{last[0].upper()}{last[1:]}, {against} {price} (price)."


def _against(value: float, price: float) -> str:
    """Compare a value with the price, which it may exceed as estimates change between replans."""
    if value > price * 1.1:
        return MORE
    return "less than" if value < price * 0.9 else "about"


def _of_feed_plan(facts: Facts) -> Iterator[str]:
    """Yield sentences on the plan of a feed."""
    plan, price = facts.target.get("plan") or {}, (facts.whole or {}).get("price")
    if rule := FEEDS_BY_POLICY.get(plan.get("policy", "")):
        yield rule
        return
    if (bound := plan.get("bound")) in FEEDS_BY_BOUND:
        yield FEEDS_BY_BOUND[bound].format(most=period(facts.most))
    worth, value = plan.get("worth"), plan.get("value")
    if worth and price is not None:
        yield (
            f"The last fetch that it has saves {amount(worth)} posts; a fetch costs "
            f"{amount(price)} posts (price)."
        )
    if value and price is not None:
        yield f"One more would save {amount(value)} posts."


def _of_feed(facts: Facts, feed: Document) -> Iterator[str]:
    """Yield sentences on the document of a feed and its crawl hints."""
    if window := feed.get("window"):
        if feed.get("full"):
            yield f"Its document holds {count(window, 'post')}; older ones leave it and are lost."
        else:
            yield (
                f"Its document held {count(window, 'post')} at most, and none was seen to leave: "
                f"{facts.target.get('window')} are counted on."
            )
    if lapses := feed.get("lapses"):
        yield (
            f"At {count(lapses, 'visit')} no post of the visit before was left: about "
            f"{feed.get('missed', 0):,.0f} posts were lost."
        )
    push, bounds = feed.get("push") or {}, feed.get("bounds") or {}
    if is_proven(push, facts.now):
        yield "A hub delivers its posts, so it is asked rarely, in case a delivery gets lost."
    elif is_active(push, facts.now):
        yield "A hub has promised to deliver its posts; until it has done so, the plan holds."
    if every := bounds.get("every_hours"):
        yield f"It asks not to be fetched more often than every {period(every)}."
    if hours := bounds.get("skip_hours"):
        yield f"It asks not to be fetched in the hours {', '.join(map(str, hours))} (UTC)."
    if skipped := bounds.get("skip_days"):
        yield f"It asks not to be fetched on {', '.join(DAYS[day] for day in skipped)}."


def in_words(schedules: Schedules) -> Words:
    """Return the visiting times of each of n schedules, formatted as by `policies.times_of`."""
    # Nearly all schedules have slots in a single week, so format them together.
    owner = np.repeat(np.arange(len(schedules)), np.diff(schedules.first))
    here = schedules.weeks[owner] == 1
    day, hour = np.divmod(schedules.slots[here].astype(np.int64), DAY_HOURS)
    order = np.lexsort((hour, owner[here]))
    owner, day, hour = owner[here][order], day[order], hour[order]
    begins = np.flatnonzero(np.diff(owner * DAY_HOURS + hour, prepend=-1))
    days = np.bitwise_or.reduceat(1 << day, begins) if len(begins) else begins
    words = _daily_words()[hour[begins] * DAY_SETS + days].tolist()
    bounds = np.searchsorted(owner[begins], np.arange(len(schedules) + 1)).tolist()
    result = [words[begin:end] for begin, end in pairwise(bounds)]
    # Many others have one slot in several weeks, with few distinct values. Cache these.
    single = np.diff(schedules.first) == 1
    rare = np.flatnonzero((schedules.weeks > 1) & single)
    weeks, slots = schedules.weeks[rare].tolist(), schedules.slots[schedules.first[rare]].tolist()
    for row, rarely in zip(rare.tolist(), map(_rare_words, weeks, slots), strict=True):
        result[row] = [rarely]
    others = ((schedules.weeks > 1) & ~single) | (schedules.every_hours > 0)
    for row in np.flatnonzero(others).tolist():
        result[row] = _words(schedules[row])
    return result


@cache
def _daily_words() -> NDArray[Any]:
    """Return (3072,) texts for each hour of the day on each set of weekdays."""
    days = [[day for day in range(7) if chosen >> day & 1] for chosen in range(DAY_SETS)]
    names = [day_names(listed) or "daily" for listed in days]
    return np.array([f"{name} {hour:02}:00" for hour in range(DAY_HOURS) for name in names], object)


@lru_cache(maxsize=4096)
def _rare_words(weeks: int, slot: int) -> str:
    return _words(Schedule(weeks, (slot,)))[0]


def _words(schedule: Schedule) -> list[str]:
    if schedule.every_hours:
        return [f"every {period(schedule.every_hours)}"]
    return [" ".join(time) for time in policies.times_of(schedule)]
