"""`scrapy plan`: what the plan in effect says: groups, timetable, load, freshness; and changes."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from crawler.cli.base import FreshetCommand, print_json
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.ops.progress import working
from crawler.utils.terminal import stdout
from crawler.utils.time import Clock

if TYPE_CHECKING:
    from crawler.storage.client import Database, Document

Say = Callable[[str], None]
MOST_URLS = 20
SHOWN_NAMES = 3
NO_PLAN = "no plan yet (scrapy replan makes one)"


class Command(FreshetCommand):
    """The plan in effect."""

    arguments = ("[NAME]",)
    example = "scrapy plan books --calendar books.png"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Show groups, timetable, load and expected freshness of the plan in effect"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """What else to show."""
        super().add_options(parser)
        parser.add_argument(
            "--changes", action="store_true",
            help="instead: changes found and their sizes by URL, weekday and hour",
        )  # fmt: skip
        parser.add_argument(
            "--weeks", type=float, metavar="N", help="changes of the last N weeks (default: all)"
        )
        parser.add_argument(
            "--urls", type=int, metavar="N", default=MOST_URLS,
            help=f"changes of the N URLs that changed most (default: {MOST_URLS})",
        )  # fmt: skip
        parser.add_argument(
            "--calendar", type=Path, metavar="FILE",
            help="draw requests and changes by hour of the week, as .png or .svg",
        )  # fmt: skip

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print what was asked for."""
        name = args[0] if args else None
        if opts.urls < 1 or (opts.weeks is not None and opts.weeks <= 0):
            raise ConfigError("--urls and --weeks have to be more than 0")
        if opts.calendar is not None:
            from crawler.planning import plots as pictures

            pictures.check(opts.calendar)
        with working(self.config, "opening the database") as say:
            if opts.changes:
                found = asyncio.run(_changes(self.config, name, opts.weeks, opts.urls))
            else:
                found = asyncio.run(_plan(self.config, name, opts.calendar, say))
        if opts.json:
            print_json(found)
        else:
            _show(found)


async def _names(db: Database, name: str | None) -> list[str]:
    from crawler.storage import targets

    known = await targets.spiders(db)
    if not known:
        raise ConfigError("no targets yet (scrapy crawl finds them)")
    if name is not None and name not in known:
        raise ConfigError(f"no targets of {name!r}; spiders with targets: {', '.join(known)}")
    return known if name is None else [name]


async def _plan(config: Config, name: str | None, picture: Path | None, say: Say) -> Document:
    from crawler.planning.report import of_plans
    from crawler.storage import plans
    from crawler.storage.store import opened

    async with opened(config) as db:
        names = await _names(db, name)
        now = Clock(config.clock_offset_hours).now()
        latest = [await plans.latest(db, each, now) for each in names]
        documents = {str(one["_id"]): one for one in latest if one is not None}
        if not documents:
            raise ConfigError(NO_PLAN)
        say("summing up the plan")
        found = await of_plans(db, names, list(documents.values()))
        if picture is not None:
            say("estimating when pages change")
            await _draw(db, config, found, picture)
        return found


async def _draw(db: Database, config: Config, found: Document, picture: Path) -> None:
    import numpy as np

    from crawler.planning import plots as pictures
    from crawler.planning.replan import changes_by_hour, gathered_of
    from schedules.estimation.estimate import estimate
    from schedules.windows import DAYS

    now = Clock(config.clock_offset_hours).now()
    gathered = await gathered_of(db, config, now, found["spiders"])
    expected = changes_by_hour(estimate(gathered.population, gathered.histories))
    requests = np.array([found["timetable"][day] for day in DAYS]).ravel()
    zones = [one.timezone for one in gathered.sites]
    known = bool(found["totals"]["known"])
    pictures.draw(pictures.Calendar(*_titles(found, zones), requests, expected, known), picture)
    found["calendar"] = str(picture)


def _titles(found: Document, zones: list[str]) -> tuple[str, str]:
    """Title and subtitle of a picture."""
    names, distinct = found["spiders"], sorted(set(zones))
    who = ", ".join(names) if len(names) <= SHOWN_NAMES else f"{len(names)} spiders"
    where = distinct[0] if len(distinct) == 1 else f"{len(distinct)} time zones"
    policies = ", ".join(dict.fromkeys(str(one["policy"]) for one in found["plans"]))
    per_day = found["totals"]["requests_per_day"]
    return (
        f"{who}: when pages are visited, and when they change",
        f"as planned: {found['targets']:,} targets, policy {policies}, {per_day:,.4g} requests "
        f"a day; clock of {where}",
    )


async def _changes(config: Config, name: str | None, last: float | None, most: int) -> Document:
    from crawler.planning.report import of_changes
    from crawler.storage import sites
    from crawler.storage.store import opened

    async with opened(config) as db:
        now = Clock(config.clock_offset_hours).now()
        since = None if last is None else now - timedelta(weeks=last)
        known = await sites.of_spiders(db, await _names(db, name))
        return {
            "since": since,
            "changes": [await of_changes(db, one, since, most) for one in known],
        }


def _show(found: Document) -> None:
    from crawler.cli.output import show_changes, show_plan

    console = stdout()
    for one in found.get("changes", ()):
        show_changes(console, one)
    if "plans" in found:
        show_plan(console, found)
    if "calendar" in found:
        console.print(f"drawn: {found['calendar']}")
