"""`scrapy learn`: poll some pages at a fixed grid for a few weeks, as the paper does."""

from __future__ import annotations

import argparse
import asyncio
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from crawler.cli.base import FreshetCommand, HelpWithLines, no_targets, print_json
from crawler.cli.types import option, pages, weeks
from crawler.errors import ConfigError
from crawler.utils import time as units
from crawler.utils.terminal import stdout
from crawler.utils.text import DAY, span
from crawler.utils.time import Clock

if TYPE_CHECKING:
    from rich.table import Table

    from crawler.planning.learning import PhaseOptions
    from crawler.storage.client import Database, Document

EXAMPLE = """\
Example: scrapy learn shop --weeks 3 --every 20m --budget 720/day

Ten pages of shop, spread over its kinds and categories, are polled every 20 minutes for three
weeks by the passes that cron runs; all others keep their schedule. Polls every 20 minutes cost 72
requests a day and page. Few need this: on traces of real pages the daily visits that a site gets
before its first plan anyway lost the planner almost nothing, .001 of freshness at most.
"""


class Command(FreshetCommand):
    """Begin a sampling phase, see its progress, or end it."""

    arguments = ("NAME",)
    example = "scrapy learn shop --weeks 3 --every 20m --budget 720/day"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Poll a sample of pages at short intervals, for the planner to learn from"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add what to learn from, and for how long."""
        super().add_options(parser)
        parser.epilog = EXAMPLE
        parser.formatter_class = HelpWithLines
        parser.add_argument("--weeks", metavar="W", help="how long (default: 3)")
        parser.add_argument("--every", metavar="T", help="time between two polls (default: 20m)")
        parser.add_argument(
            "--sample", metavar="N",
            help="how many pages; more than the budget allows take turns "
            "(default: as many as it allows)",
        )  # fmt: skip
        parser.add_argument("--budget", metavar="R", help="polls a day at most, such as 720/day")
        parser.add_argument("--stop", action="store_true", help="end it now")

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Begin, show or end the phase."""
        # Slow to import: not for --help.
        from crawler.planning.learning import PhaseOptions

        options = PhaseOptions(
            weeks=option(weeks, opts.weeks, "--weeks"),
            every_hours=option(units.hours, opts.every, "--every"),
            sample=option(pages, opts.sample, "--sample"),
            requests_per_day=option(units.per_day, opts.budget, "--budget"),
        )
        options.check()
        if opts.stop and options != PhaseOptions():
            raise ConfigError("--stop ends the phase; it takes no other options")
        done = asyncio.run(self._learn(args[0], options, stop=opts.stop))
        if opts.json:
            print_json(done)
        else:
            self._show(done)

    async def _learn(self, spider: str, options: PhaseOptions, *, stop: bool) -> Document:
        from crawler.storage import leases, targets
        from crawler.storage.store import opened

        config = self.config
        async with opened(config) as db:
            spiders = await targets.spiders(db)
            if spider not in spiders:
                raise no_targets(spider, spiders)
            now = Clock(config.clock_offset_hours).now()
            busy = f"another scrapy learn {spider} is running"
            async with leases.held(db, config, f"learn {spider}", busy):
                return await self._carry_out(db, spider, options, now, stop=stop)

    def _show(self, done: Document) -> None:
        console = stdout()
        for line in _lines(done):
            console.print(line, soft_wrap=True)
        if "urls" in done:
            console.print(_table(done["urls"], seen=not done["begun"]))
        for note in done["notes"]:
            console.print(f"note: {note}", soft_wrap=True)
        if done["begun"]:
            console.print(
                f"Cron has to run scrapy crawl every {done['every']} at least. "
                f"scrapy learn {done['spider']} shows how far it is, --stop ends it.",
                soft_wrap=True,
            )

    async def _carry_out(
        self, db: Database, spider: str, options: PhaseOptions, now: datetime, *, stop: bool
    ) -> Document:
        """Begin, change or end the phase of a spider; returns its progress or outcome."""
        from crawler.planning.learning import PhaseOptions, choose, outcome, progress
        from crawler.storage import sampling_phases

        phase = await sampling_phases.follow(db, spider, now)
        if phase is None and stop:
            raise ConfigError(f"{spider} is not learning")
        if (
            phase is None
            and options == PhaseOptions()
            and (last := await sampling_phases.latest(db, spider))
        ):
            return outcome(last)
        if phase is None or options.differs_from(phase):
            choice = await choose(db, spider, options.over(phase) if phase else options, now)
            if phase is not None:
                await sampling_phases.end(db, phase, now)
            await sampling_phases.begin(db, choice.phase, choice.places)
            phase = await sampling_phases.follow(db, spider, now) or choice.phase
            return await progress(db, phase, now) | {"begun": True, "notes": choice.notes}
        done = await progress(db, phase, now)
        if stop:
            await sampling_phases.end(db, phase, now)
            done |= {"learning": False, "ended": now}
        return done


def _lines(done: Document) -> Iterator[str]:
    name = done["spider"]
    if done["begun"]:
        yield f"{name} learns for {done['weeks']:g} weeks, until {_time(done['until'])}"
    elif done["learning"]:
        left = f"{span(done['days_left'] * DAY)} from now"
        yield f"{name} is learning until {_time(done['until'])}, {left}"
    else:
        yield f"{name} learned until {_time(done['ended'])}; its pages go their former way"
    turns = ""
    if done["turns"] != 1:
        turns = f", {-(-done['pages'] // done['turns']):,} at a time"
        if done["learning"]:
            turns += f": turn {done['turn'] + 1} of {done['turns']}"
    yield (
        f"{done['pages']:,} pages{turns}, each every {done['every']}, "
        f"at most {done['budget_per_day']:,g} requests a day"
    )
    if not done["begun"]:
        due = f" of {done['polls_due']:,} due so far" if "polls_due" in done else ""
        yield f"{done['polls']:,} polls{due}, {done['changes']:,} changes seen"


def _table(rows: list[Document], *, seen: bool) -> Table:
    """Pages by kind and category. seen: with polls and changes."""
    from rich.table import Table

    parts: dict[tuple[str, str], list[Document]] = defaultdict(list)
    for row in rows:
        parts[row["kind"], ", ".join(row["categories"][:1])].append(row)
    columns = ("pages", "polls", "changes") if seen else ("pages",)
    table = Table("kind", "category", *columns)
    for column in table.columns[2:]:
        column.justify = "right"
    for part, members in sorted(parts.items()):
        sums = (sum(row[name] for row in members) for name in columns[1:])
        table.add_row(*part, *(f"{n:,}" for n in (len(members), *sums)))
    return table


def _time(value: datetime) -> str:
    return f"{value:%Y-%m-%d %H:%M} UTC"
