"""A replan from the database to the database: read, plan, write; pages first, then feeds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.replanning.budgets import Effect
from crawler.replanning.expectations import gathered_of
from crawler.replanning.feeds import replanned_feeds
from crawler.replanning.orders import FEEDS, Order, Part, parts_of
from crawler.replanning.population import Gathered, longest_interval
from crawler.replanning.replan import effect_of, replanned
from crawler.replanning.sharing import shares_of
from crawler.replanning.wishes import Wish
from crawler.storage import plans, targets
from crawler.storage.client import Database, Document
from crawler.utils.time import Clock

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
