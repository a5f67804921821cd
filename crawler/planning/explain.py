"""Explain one target: its state, its estimate and its plan, and in sentences why it is visited."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from crawler.config import Config
from crawler.items import Kind
from crawler.planning.options import BALANCED, OBJECTIVES
from crawler.planning.population import Gathered, gather
from crawler.planning.replan import hours_of
from crawler.planning.report import matrix
from crawler.planning.report_types import (
    Expectation,
    ExplainedFeed,
    Explanation,
    LastChange,
    ObservedHistory,
    PollBounds,
    VisitValue,
)
from crawler.storage import alarms, feeds, histories, paging, plans, sites, targets
from crawler.storage.client import Database, Document
from crawler.storage.columns import keys_of_texts
from crawler.storage.dedup import signatures
from crawler.storage.sites import Site
from crawler.storage.targets import ADAPTIVE, PERIOD
from crawler.storage.websub import is_active, is_proven
from crawler.utils.shapes import copied
from crawler.utils.text import HOUR, amount, count, is_known, period, span
from crawler.utils.time import EPOCH
from schedules.allocation.optimal import candidates_of, outlook
from schedules.calendar import DAYS, describe, upcoming
from schedules.cost import Objective
from schedules.estimation.estimate import Estimate, estimate
from schedules.history import CHANGE
from schedules.intervals import AFTER_CHANGE, AFTER_NONE
from schedules.schedule import WEEK_HOURS, Schedule, Schedules

AHEAD_HOURS = 48
# On a large site, the estimate uses a sample of this many targets.
MAX_SAMPLE = 50_000
# Lower limit of the value of the visits computed, far below any price.
MIN_VALUE = 1e-3
FIRST = slice(0, 1)
MAX_AHEAD = 48
# Up to this number, all targets can be read within a second or two.
MAX_QUICK_TARGETS = 100_000
MORE = "more than"
HINTS = {
    "lastmod": "A sitemap reported a change",
    "list": "A list page shows different details than before",
}
SHOWN_FOLLOWED = (
    "A list page or a sitemap shows about {shown:.0%} of its changes, which make it due; its own "
    "visits are planned for the others."
)
SHOWN_IGNORED = (
    "A list page or a sitemap shows changes of it, but it changes too fast to visit it each time."
)
FEEDS_BY_POLICY = {
    "uniform": "All feeds have the same even interval (policy uniform).",
    "min-delay": (
        "The interval is even: fetches are proportional to the square root of weight times posts "
        "(policy min-delay)."
    ),
    "min-missing": (
        "The interval is even: each fetch goes to the feed where it collects the most posts "
        "(policy min-missing)."
    ),
}
_BY_GROUP = (
    "The mean number of observed changes a week determines the frequency class (policy {}) and its "
    "fixed times: midnight if most changes are by day, noon if most are by night."
)
_BY_CURVE = (
    "The interval is even: visits a week {}. Visits of all pages must save equally much, and the "
    "longest interval is {{longest}}."
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
        f"{AFTER_NONE:g} after none, at most {{longest}}."
    ),
}
BY_BOUND = {
    "prior": "Not observed yet, so visited like an average page of its kind (prior).",
    "kept": "The previous schedule is kept: a new one would save too little (kept).",
    "exploration": (
        "Little history: during the first ten days, visits are evenly spaced to observe all hours "
        "of the week, and as many as the budget allows (exploration)."
    ),
    "min_rate": (
        "Visited at the minimum rate, every {longest} (min_rate): more visits would not reduce "
        "staleness enough, and no page waits longer."
    ),
}
FEEDS_BY_BOUND = {
    "kept": "The previous schedule is kept: a new one would save too little (kept).",
    "min_rate": (
        "Fetched at the minimum rate, every {longest} (min_rate): more fetches would not save "
        "enough posts, and no feed waits longer."
    ),
}


UNKNOWN_VALUE = VisitValue(last=None, more=None, shadow_price=None)


@dataclass(frozen=True, slots=True)
class Facts:
    """Hold everything that the sentences use.

    whole:       plan that the target follows; None if it is no longer stored
    waiting:     number of targets that the last run left waiting because of a cap
    min_hours, max_hours: shortest and longest interval between two visits
    feed:        document of the feed; None for pages
    """

    target: Document
    site: Site
    whole: Document | None
    value: VisitValue
    waiting: int
    min_hours: float
    max_hours: float
    now: datetime
    feed: Document | None = None


async def explain_target(
    db: Database, config: Config, target: Document, now: datetime, say: Callable[[str], None],
    max_read: int | None = None,
) -> Explanation:  # fmt: skip
    """Return state, estimates and plan of a target, and its open alarms as the first reasons.

    say:      shows progress
    max_read: with more than MAX_QUICK_TARGETS targets, read a random sample of this size from the
              site; None: read all targets of the site
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
    report["not_compared"] = await _why_not_compared(db, config, target)
    texts = await alarms.texts_of(db, name, target["url"])
    report["reasons"] = [*(f"Open alarm: {text}." for text in texts), *report["reasons"]]
    return report


async def _why_not_compared(db: Database, config: Config, target: Document) -> str | None:
    if target["kind"] != Kind.ITEM:
        return None
    if config.duplicates == "off":
        return "FRESHET_DUPLICATES is off"
    return await signatures.why_not_compared(db, target.get("post") or target["_id"])


def explained(
    gathered: Gathered | None,
    target: Document,
    whole: Document | None,
    site: Site,
    waiting: int,
    now: datetime,
    feed: Document | None = None,
) -> Explanation:
    """Return the state and the plan of a target, with reasons; `not_compared` is not known here.

    gathered: targets of its spider and those planned with it; None if there are none
    whole:    plan that the target follows; None if it is no longer stored
    waiting:  number of targets that the last run left waiting because of a cap
    feed:     document of the feed; None for pages
    """
    planned = targets.planned_of(target.get("plan"))
    schedule = planned.schedule if planned else Schedule()
    value, limits = UNKNOWN_VALUE, (0.0, 0.0)
    expected: Expectation | None = None
    dates_trusted = False
    result = None if gathered is None else _estimated(gathered, target)
    if result is not None:
        estimates, dates_reliable = result
        limits = float(estimates.population.min_hours[0]), float(estimates.population.max_hours[0])
        dates_trusted = dates_reliable or feed is not None
        if feed is not None:
            expected = _expected(estimates, Schedule(), target.get("plan") or {})
        else:
            value = value_of(estimates, schedule, whole)
            expected = _expected(estimates, schedule, {})
            expected["value"] = value
    ahead = AHEAD_HOURS, MAX_AHEAD
    return {
        **copied(Explanation, target),
        "timezone": site.timezone,
        "history": _history(target, dates_trusted=dates_trusted),
        "expected": expected,
        "feed": None if feed is None else _feed(feed),
        "plan": plans.plan_of(target),
        "planned_at": (whole or {}).get("at"),
        "visits": {"made": target["requested"], "missed": target.get("missed_visits", 0)},
        "reasons": reasons(Facts(target, site, whole, value, waiting, *limits, now, feed)),
        "not_compared": None,
        "ahead": upcoming(schedule, site.zone, now, *ahead) if planned else [],
    }


def _feed(feed: Document) -> ExplainedFeed:
    stated = feed.get("bounds")
    return {**copied(ExplainedFeed, feed), "bounds": copied(PollBounds, stated) if stated else None}


def _history(target: Document, *, dates_trusted: bool) -> ObservedHistory:
    """Return the history of a target; without times if it was never seen."""
    stored = target.get("history")
    changes = np.frombuffer(bytes(stored["changes"]) if stored else b"", CHANGE)
    last: LastChange | None = None
    if len(changes):
        after, by = int(changes["after"][-1]), int(changes["by"][-1])
        if target.get("kind") == str(Kind.FEED) and changes["stated"][-1]:
            after = by = int(changes["stated"][-1])
        last = {
            "after": EPOCH + after * targets.MINUTE,
            "by": EPOCH + by * targets.MINUTE,
        }
    return {
        "since": stored["since"] if stored else None,
        "until": stored["until"] if stored else None,
        "observations": target.get("refreshed", 0),
        "changes": len(changes),
        "last_change": last,
        "dates_trusted": dates_trusted,
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


def _expected(estimates: Estimate, schedule: Schedule, plan: Document) -> Expectation:
    """Return the estimated rate and profile, and the expected freshness and age.

    plan: stored plan of a feed, whose rate counts posts; empty for other targets
    """
    rates, profile = estimates.rates(FIRST), estimates.profiles(FIRST)[0]
    mean, low, high = float(rates.mean[0]), float(rates.low[0]), float(rates.high[0])
    if plan.get("rate_per_week") is not None and plan.get("rate_low") is not None:
        mean, low, high = plan["rate_per_week"], plan["rate_low"], plan["rate_high"]
    expected: Expectation = {
        # The mean may lie outside of the quantiles of a plan.
        "rate": {
            "per_week": round(mean, 4),
            "low": round(min(mean, low), 4),
            "high": round(max(mean, high), 4),
            "known": is_known(low, high),
        },
        "changes_by_hour": matrix(profile * mean, digits=5),
        "freshness": None,
        "age_days": None,
        "value": None,
    }
    if schedule.visits_per_week:
        outcome = outlook(estimates, Schedules.of_each([schedule]))
        expected["freshness"] = round(1 - float(outcome.stale[0]), 4)
        expected["age_days"] = round(float(outcome.age_days[0]), 4)
    return expected


def value_of(estimates: Estimate, schedule: Schedule, whole: Document | None) -> VisitValue:
    """Return the value of a target's visits by the current estimate, with the plan's price."""
    aim: Objective = OBJECTIVES[(whole or {}).get("objective") or BALANCED]
    population = estimates.population
    lowest = MIN_VALUE * float(population.weight[0] / population.cost[0])
    steps = candidates_of(estimates, aim, population.closed, lowest).steps
    visits, savings = steps.visits.astype(float), steps.value.astype(float)
    has = visits <= schedule.visits_per_week * (1 + 1e-6)
    last, more = savings[has][-1:], savings[~has][:1]
    return {
        "last": float(last[0]) if len(last) and np.isfinite(last[0]) else None,
        "more": float(more[0]) if len(more) and np.isfinite(more[0]) else None,
        "shadow_price": (whole or {}).get("shadow_price"),
    }


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
    """Yield sentences about conditions that take precedence over the plan."""
    target = facts.target
    if (muted_at := target.get("muted_at")) is not None:
        yield f"Muted since {muted_at:%Y-%m-%d %H:%M} UTC: it is not visited until it is unmuted."
    if target.get("alias_of"):
        is_feed = target.get("kind") == "feed"
        relation = "This feed has the same posts" if is_feed else "This URL leads to the same page"
        yield f"{relation} as {target['alias_of']}, which is visited instead."
    if target.get("retired"):
        what = (
            "cell is no longer defined"
            if target.get("kind") == "cell"
            else (
                "URL is matched by no pattern of the site definition, or by both list_pages and "
                "item_pages"
            )
        )
        yield f"Retired: this {what}, so it is not visited until an edit selects it again."
    elif target.get("gone"):
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
        yield rule.format(longest=period(facts.max_hours))
        return
    yield from _shown_reasons(plan)
    bound = plan.get("limited_by")
    last, more, price = (facts.value[name] for name in ("last", "more", "shadow_price"))
    if bound in BY_BOUND:
        yield BY_BOUND[bound].format(longest=period(facts.max_hours))
    if bound == "max_rate" and more is None:
        yield f"Visited at the maximum rate, every {period(facts.min_hours)} (max_rate)."
    # Compare the value of visits with the price.
    if price is None:
        return
    # The shadow price of the budget: what the last request in the plan saves on any page.
    required = f"the {amount(price)} that the budget requires of each visit"
    if more is not None:
        against = _against(more, price)
        but = ", but a daily cap or the minimum gain of a move prevents it" * (against == MORE)
        tail = f"; the last planned visit saves {amount(last)}" if last else ""
        yield (
            f"One more visit a week would save {amount(more)} hours of staleness, {against} "
            f"{required}{but}{tail} (budget)."
        )
    elif last:
        yield (
            f"The last planned visit saves {amount(last)} hours of staleness, "
            f"{_against(last, price)} {required} (budget)."
        )


def _shown_reasons(plan: Document) -> Iterator[str]:
    """Yield sentences on what list pages show of a page, or a list page of others."""
    if (shown := plan.get("shown")) is not None:
        yield SHOWN_FOLLOWED.format(shown=shown) if plan.get("follows") else SHOWN_IGNORED
    if shows := plan.get("shows"):
        yield f"It shows changes of {count(shows, 'item')}, and is visited for their sake, too."


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
        yield FEEDS_BY_BOUND[bound].format(longest=period(facts.max_hours))
    last, more = plan.get("last_value"), plan.get("marginal_value")
    if last and price is not None:
        yield (
            f"The last planned fetch saves {count(last, 'post')}; the budget requires "
            f"{amount(price)} of each fetch (budget)."
        )
    if more and price is not None:
        yield f"One more fetch would save {count(more, 'post')}."


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
            f"At {count(gaps, 'visit')}, all posts of the previous visit were gone. Freshet "
            f"missed about {count(round(feed.get('missed_posts', 0)), 'post')}."
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
