"""A replan from the database to the database: read, plan, write; pages first, then feeds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.planning.budget import Effect
from crawler.planning.population import Gathered, gather, longest_interval
from crawler.planning.replan import effect_of, hours_of, replanned, replanned_feeds, windows_of
from crawler.planning.request import BALANCED, FEEDS, OBJECTIVES, Order, Part, Wish, parts_of
from crawler.storage import histories, plans, targets
from crawler.storage.client import Database, Document
from crawler.utils.text import amount, rounded_up
from crawler.utils.time import Clock
from schedules.allocation import optimal as market
from schedules.compiled import parts
from schedules.estimation.estimate import Estimate, estimate
from schedules.feeds.plan import plan_feeds
from schedules.history import Floats
from schedules.schedule import WEEK_HOURS, Schedules
from schedules.terms import Terms, least_per_day

HALVINGS = 10
# So many feeds tell the price for all.
ENOUGH = 4_000
Price = Callable[[float], float]


def shares_of(
    pages: Gathered, feeds: Gathered, wish: Wish, config: Config, now: datetime
) -> tuple[float, float]:
    """Requests a day for pages and for feeds; ConfigError where there is no budget to share.

    A lost post counts as `post_hours` hours in which a page is stale.
    """
    if wish.budget is None:
        raise ConfigError("a shared budget has to be given (--budget N or FRESHET_BUDGET)")
    least = least_per_day(pages.population), least_per_day(feeds.population)
    if wish.budget < sum(least):
        raise ConfigError(
            f"budget {amount(wish.budget)}/day is below the least possible: pages and feeds need "
            f"{rounded_up(sum(least))}/day together"
        )
    hours = hours_of(now)
    return parted(
        wish.budget, least, _page_price(pages, wish, hours),
        _feed_price(feeds, hours, config.post_hours),
    )  # fmt: skip


def parted(
    budget: float, least: tuple[float, float], of_pages: Price, of_feeds: Price
) -> tuple[float, float]:
    """Shares of a budget at which both prices are equal, or as near as the least needs allow.

    Prices fall with what is spent: hours of staleness that the last request a day saves.
    """
    low, high = least[0], budget - least[1]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if of_pages(middle) > of_feeds(budget - middle):
            low = middle
        else:
            high = middle
    share = (low + high) / 2
    return share, budget - share


def _page_price(pages: Gathered, wish: Wish, now_hours: float) -> Price:
    some, share = market.sampled(estimate(pages.population, pages.histories))
    terms = Terms(aim=OBJECTIVES[wish.objective or BALANCED])
    none = Schedules.none(len(some.population))
    least = least_per_day(some.population)

    def price(per_day: float) -> float:
        asked = replace(terms, budget_per_day=max(per_day * share, least))
        return market.draft(some, asked, now_hours, none).price

    return price


def _feed_price(feeds: Gathered, now_hours: float, post_hours: float) -> Price:
    rows = np.argsort(feeds.population.key)[:ENOUGH]
    population, histories = feeds.population.of(rows), feeds.histories.of(rows)
    window, share = windows_of(feeds)[rows], len(rows) / len(feeds.population)
    none, least = Schedules.none(len(rows)), least_per_day(population)

    def price(per_day: float) -> float:
        terms = Terms(budget_per_day=max(per_day * share, least))
        made = plan_feeds(population, histories, window, terms, now_hours, none)
        return made.price * post_hours

    return price


# So many targets tell when all of them change.
EXPECTATIONS_ENOUGH = 50_000


async def gathered_of(
    db: Database, config: Config, now: datetime, spiders: Sequence[str] | None
) -> Gathered:
    """All that is known of the targets of some spiders; ConfigError where there are none."""
    watched = await histories.read(db, now, spiders)
    if not len(watched):
        raise ConfigError("no targets to plan for (scrapy crawl finds them)")
    return await gather(db, watched, config, hours_of(now))


def changes_by_hour(believed: Estimate) -> Floats:
    """(168,) changes a week expected in each hour of the local week, of all targets together."""
    n = len(believed.population)
    if n > EXPECTATIONS_ENOUGH:
        believed = believed.of(np.argsort(believed.population.key)[:EXPECTATIONS_ENOUGH])
    week = np.zeros(WEEK_HOURS)
    for part in parts(len(believed.population)):
        week += believed.rates(part).mean @ believed.profiles(part)
    return week * (n / max(1, len(believed.population)))


Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Task:
    """A part with what is known of its targets. began: when reading began, in seconds."""

    part: Part
    gathered: Gathered
    effect: Effect
    wish: Wish
    began: float


async def replan_parts(db: Database, config: Config, order: Order, say: Say) -> list[Document]:
    """The plans that were made, of pages first."""
    known, feeds = await targets.spiders(db), await targets.feed_spiders(db)
    parts = parts_of(order, known, feeds, config)
    if not parts:
        raise ConfigError("no targets to plan for (scrapy crawl finds them)")
    if not order.dry_run:
        await plans.recover(db, Clock(config.clock_offset_hours).now(), order.spiders)
    whole = len(parts) == 1 and order.kind is None
    tasks = [await _task(db, config, part, say, whole=whole) for part in parts]
    if order.shared and len(tasks) > 1:
        tasks = _sharing(tasks, config, say)
    return [await _carried_out(db, config, task, say, dry_run=order.dry_run) for task in tasks]


async def _task(db: Database, config: Config, part: Part, say: Say, *, whole: bool) -> Task:
    """whole: there are no others."""
    began, now = time.perf_counter(), Clock(config.clock_offset_hours).now()
    say(f"reading what is known of {part.kind}")
    spiders = None if part.everything and whole else part.spiders
    gathered = await gathered_of(db, config, now, spiders)
    effect = await effect_of(db, gathered.watched, now, everything=part.everything)
    wish = part.wish.over(effect.wish) if part.as_it_is else part.wish
    return Task(part, gathered, effect, wish, began)


def _sharing(tasks: list[Task], config: Config, say: Say) -> list[Task]:
    """The tasks with the budget parted so that the last request is worth the same everywhere."""
    say("sharing the budget")
    pages, feeds = tasks
    now = Clock(config.clock_offset_hours).now()
    shares = shares_of(pages.gathered, feeds.gathered, pages.wish, config, now)
    return [
        replace(task, wish=replace(task.wish, budget=share))
        for task, share in zip(tasks, shares, strict=True)
    ]


async def _carried_out(
    db: Database, config: Config, task: Task, say: Say, *, dry_run: bool
) -> Document:
    """Plan, write, and say what it is."""
    now = Clock(config.clock_offset_hours).now()
    say(f"planning {len(task.gathered.watched):,} {task.part.kind}")
    began = time.perf_counter()
    make = replanned_feeds if task.part.kind == FEEDS else replanned
    replan = make(task.gathered, task.wish, task.effect, now)
    planning_seconds, moved = time.perf_counter() - began, replan.moved
    if not dry_run:
        say(f"writing {moved:,} of {replan.document['targets']:,} plans")
        longest = timedelta(hours=longest_interval(config, feeds=task.part.kind == FEEDS))
        await plans.adopt(db, replan.document, replan.rows(), longest)
    return replan.document | {
        "moved": moved,
        "dry_run": dry_run,
        "seconds": round(time.perf_counter() - task.began, 3),
        "planning_seconds": round(planning_seconds, 3),
    }
