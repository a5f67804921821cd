"""`scrapy replan`: from the change log to a plan for each target."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console
from rich.table import Table

from crawler import units
from crawler.clock import Clock
from crawler.command import FreshetCommand, print_json
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.locks import Busy, only_one
from crawler.storage import plans, targets
from crawler.storage.client import Database, Document
from crawler.storage.store import opened
from crawler.words import listed
from crawler.working import working

if TYPE_CHECKING:
    from crawler.replanning.replan import Replan
    from crawler.replanning.wishes import Wish

T = TypeVar("T")
Say = Callable[[str], None]
BUSY = "another replan is at work, nothing to do"
LONGEST = timedelta(weeks=4)
SOURCES = {
    "goal": "what the goal needs",
    "intervals": "what the fixed intervals spend",
    "plans": "what the present plans spend",
}


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be done.

    spiders: None: all   as_it_is: no option asks for anything, so policy and caps stay
    """

    wish: Wish
    spiders: list[str] | None
    as_it_is: bool
    dry_run: bool


class Command(FreshetCommand):
    """A new plan for all targets, or for those of some spiders."""

    example = "scrapy replan --budget 265/day --dry-run"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Plan when to visit each target, from what is known of its changes"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """What is asked of the plan; what is not asked stays as it is."""
        super().add_options(parser)
        parser.add_argument(
            "--spider", action="append", metavar="NAME", help="only this one (may be repeated)"
        )
        parser.add_argument("--policy", metavar="P", help="how visits are shared out: optimal, …")
        parser.add_argument(
            "--objective", metavar="O", help="balanced, freshness, age or delay (policy optimal)"
        )
        parser.add_argument("--budget", metavar="N", help="requests a day, such as 265/day")
        parser.add_argument(
            "--freshness", metavar="F", help="or: as many as this expected freshness needs (0.95)"
        )
        parser.add_argument(
            "--max-age", metavar="T", help="or: as many as this mean age needs (6h)"
        )
        parser.add_argument(
            "--daily-cap",
            metavar="N",
            help="requests a day at most (default: 1.5 times the budget)",
        )
        parser.add_argument("--hourly-cap", metavar="N", help="requests an hour at most")
        parser.add_argument("--dry-run", action="store_true", help="plan, and write nothing")

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Plan, carry it out, and say what it is."""
        asked = _wish(opts)
        wish = _within(asked, self.config)
        try:
            lock = None if opts.dry_run else only_one(self.config, "replan", BUSY)
        except Busy as busy:
            print(f"scrapy replan: {busy}", file=sys.stderr)
            return
        order = Order(wish, opts.spider, as_it_is=not asked.asks, dry_run=opts.dry_run)
        try:
            with working(self.config, "opening the database") as say:
                done = asyncio.run(_replan(self.config, order, say))
        finally:
            if lock is not None:
                lock.release()
        if opts.json:
            print_json(done)
        else:
            _show(done)


def _wish(opts: argparse.Namespace) -> Wish:
    """What the options ask for."""
    from crawler.replanning.wishes import Wish

    wish = Wish(
        policy=opts.policy,
        objective=opts.objective,
        budget=_read(units.per_day, opts.budget, "--budget"),
        freshness=_read(units.share, opts.freshness, "--freshness"),
        max_age_hours=_read(units.hours, opts.max_age, "--max-age"),
        daily_cap=_read(units.per_day, opts.daily_cap, "--daily-cap"),
        hourly_cap=_read(units.per_hour, opts.hourly_cap, "--hourly-cap"),
    )
    wish.check()
    return wish


def _within(wish: Wish, config: Config) -> Wish:
    """What is asked for, and what the settings say of the rest."""
    wish = wish.over(type(wish).of_config(config))
    wish.check()
    return wish


def _read(unit: Callable[[str], T], text: str | None, option: str) -> T | None:
    try:
        return None if text is None else unit(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None


async def _replan(config: Config, order: Order, say: Say) -> dict[str, Any]:
    async with opened(config) as db:
        await _check(db, order.spiders)
        now = Clock(config.clock_offset_hours).now()
        if not order.dry_run:
            await plans.recover(db, now, order.spiders)
        began = time.perf_counter()
        replan, planning_seconds = await _make(db, config, order, say)
        moved = replan.moved
        if not order.dry_run:
            say(f"writing {moved:,} of {replan.document['targets']:,} plans")
            longest = min(LONGEST, timedelta(hours=config.max_interval_hours))
            await plans.adopt(db, replan.document, replan.rows(), longest)
        seconds = {
            "seconds": round(time.perf_counter() - began, 3),
            "planning_seconds": round(planning_seconds, 3),
        }
        return replan.document | {"moved": moved, "dry_run": order.dry_run} | seconds


async def _make(db: Database, config: Config, order: Order, say: Say) -> tuple[Replan, float]:
    """The new plan, and how many seconds the planning alone took."""
    # Slow to import: not before there is something to plan.
    from crawler.replanning.expectations import gathered_of
    from crawler.replanning.replan import effect_of, replanned

    now = Clock(config.clock_offset_hours).now()
    say("reading what is known")
    gathered = await gathered_of(db, config, now, order.spiders)
    effect = await effect_of(db, gathered.watched, now, everything=order.spiders is None)
    say(f"planning {len(gathered.watched):,} targets")
    wish = order.wish.over(effect.wish) if order.as_it_is else order.wish
    began = time.perf_counter()
    return replanned(gathered, wish, effect, now), time.perf_counter() - began


async def _check(db: Database, spiders: list[str] | None) -> None:
    known = await targets.spiders(db)
    if unknown := sorted(set(spiders or ()) - set(known)):
        names = ", ".join(known) or "none; run scrapy crawl first"
        raise ConfigError(f"no targets of {unknown[0]!r}; spiders with targets: {names}")


def _show(done: Document) -> None:
    console = Console(highlight=False, markup=False)
    table = Table.grid(padding=(0, 2))
    for name, text in _lines(done).items():
        table.add_row(name, text)
    console.print(table)
    for warning in done["warnings"]:
        console.print(f"note: {warning}")
    if done["dry_run"]:
        console.print("dry run: nothing was written")


def _lines(done: Document) -> dict[str, str]:
    totals, daily = done["totals"], done["totals"]["daily"]
    new = f", {done['unplanned']:,} without a plan so far" if done["unplanned"] else ""
    lines = {
        "targets": f"{done['targets']:,} of {listed(done['spiders'])}{new}",
        "policy": _policy(done),
        "requests": f"{totals['requests_per_day']:,.1f} a day{_budget(done)}",
        "freshness": f"{_number(totals['freshness'])} expected, age {_days(totals['age_days'])}",
        "daily crawl": f"{daily['requests_per_day']:,} a day would give "
        f"{_number(daily['freshness'])}, age {_days(daily['age_days'])}; "
        f"this is {totals['load']:.1%} of its requests",
    }
    if done["price"] is not None:
        lines["price"] = (
            f"a visit is made where it saves {done['price']:.3g} hours of staleness or more"
        )
    if done["dated"]:
        lines["dates"] = f"believed: {listed(done['dated'])}"
    share = done["moved"] / done["targets"]
    return lines | {"moved": f"{done['moved']:,} of {done['targets']:,} ({share:.1%})"}


def _policy(done: Document) -> str:
    if done["policy"] == "optimal":
        return f"optimal, objective {done['objective']}"
    return f"{done['policy']}"


def _budget(done: Document) -> str:
    caps = [
        f"at most {done[name]:,} {time}"
        for name, time in (("daily_cap", "on one day"), ("hourly_cap", "in an hour"))
        if done[name]
    ]
    if done["budget_per_day"] is None:
        parts = ["what the policy spends; it takes no budget"]
    else:
        why = "as so far" if done["budget_kept"] else SOURCES.get(done["budget_from"])
        if done["budget_kept"] and done["budget_added"]:
            why = f"as so far, and {done['budget_added']:,.4g} for new targets"
        of = f"of {done['budget_per_day']:,.6g}"
        parts = [f"{of} ({why})" if why else of]
    return ", ".join(["", *parts, *caps])


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _days(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g} days"
