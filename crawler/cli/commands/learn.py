"""`scrapy learn`: poll a sample of pages at short, regular intervals for a few weeks."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from crawler.cli.base import (
    FreshetCommand,
    HelpWithLines,
    option,
    print_json,
    spiders_of,
    with_database,
)
from crawler.cli.options import pages, weeks
from crawler.errors import ConfigError
from crawler.utils import time as units
from crawler.utils.terminal import stdout
from crawler.utils.text import DAY, count, span

if TYPE_CHECKING:
    from crawler.planning.sampling_phase import PhaseOptions, PhaseReport, SampledPage
    from crawler.storage.client import Database

EXAMPLE = """\
Example: scrapy learn shop --weeks 3 --every 20m --budget 720/day

This polls ten pages of shop every 20 minutes for three weeks, chosen from all its kinds and
categories. All other pages keep their schedule. The polls are made by the regular crawl runs.
Polling one page every 20 minutes costs 72 requests a day. Most sites do not need a sampling
phase: with the daily visits that precede the first plan, the planner lost at most 0.001 of
freshness on traces of real pages.
"""


class Command(FreshetCommand):
    """Start a sampling phase, show its progress, or end it."""

    arguments = ("NAME",)
    summary = "Poll a sample of pages at short intervals to measure when they change"
    example = "scrapy learn shop --weeks 3 --every 20m --budget 720/day"
    documents: ClassVar = {
        "scrapy learn NAME --json": "crawler.planning.sampling_phase.PhaseReport",
    }

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the length, interval, sample and budget of the phase, and `--stop`."""
        super().add_options(parser)
        parser.epilog = EXAMPLE
        parser.formatter_class = HelpWithLines
        parser.add_argument(
            "--weeks", metavar="W", help="length of the sampling phase in weeks (default: 3)"
        )
        parser.add_argument(
            "--every", metavar="T", help="interval between two polls of a page (default: 20m)"
        )
        parser.add_argument(
            "--sample", metavar="N",
            help="number of pages to sample; if the budget is too small for all of them, they "
            "are polled in rotation (default: as many as the budget allows)",
        )  # fmt: skip
        parser.add_argument(
            "--budget", metavar="R",
            help="maximum polls a day, such as 720/day; required to start a phase",
        )  # fmt: skip
        parser.add_argument("--stop", action="store_true", help="end the sampling phase now")

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Start, show or end the sampling phase."""
        # Slow to import, and --help does not need it.
        from crawler.planning.sampling_phase import PhaseOptions

        options = PhaseOptions(
            weeks=option(weeks, opts.weeks, "--weeks"),
            every_hours=option(units.hours, opts.every, "--every"),
            sample=option(pages, opts.sample, "--sample"),
            requests_per_day=option(units.per_day, opts.budget, "--budget"),
        )
        options.check()
        if opts.stop and options != PhaseOptions():
            raise ConfigError("--stop cannot be combined with other options")
        from crawler.storage import leases

        config, spider = self.config, args[0]
        busy = f"another scrapy learn {spider} is running"

        async def learn(db: Database) -> PhaseReport:
            await spiders_of(db, spider)
            async with leases.held(db, config, f"learn {spider}", busy):
                return await _update_phase(db, spider, options, config.clock.now(), stop=opts.stop)

        done = with_database(config, learn)
        if opts.json:
            print_json(done)
        else:
            self._show(done)

    def _show(self, done: PhaseReport) -> None:
        console = stdout()
        for line in _summary(done):
            console.print(line, soft_wrap=True)
        if done["urls"] is not None:
            from rich.table import Table

            parts: dict[tuple[str, str], list[SampledPage]] = defaultdict(list)
            for row in done["urls"]:
                parts[row["kind"], ", ".join(row["categories"][:1])].append(row)
            polled = () if done["begun"] else ("polls", "changes")
            table = Table("kind", "category", "pages", *polled)
            for column in table.columns[2:]:
                column.justify = "right"
            for part, rows in sorted(parts.items()):
                numbers = [len(rows)]
                if polled:
                    numbers.append(sum(row["polls"] for row in rows))
                    numbers.append(sum(row["changes"] for row in rows))
                table.add_row(*part, *(f"{n:,}" for n in numbers))
            console.print(table)
        for note in done["notes"]:
            console.print(f"note: {note}", soft_wrap=True)
        if done["begun"]:
            console.print(
                f"scrapy crawl must run at least every {done['every']}. "
                f"scrapy learn {done['spider']} shows the progress, --stop ends the phase.",
                soft_wrap=True,
            )


async def _update_phase(
    db: Database, spider: str, options: PhaseOptions, now: datetime, *, stop: bool
) -> PhaseReport:
    """Start, change or end the sampling phase of a spider; return its progress or result."""
    from crawler.planning.sampling_phase import PhaseOptions, choose, outcome, progress
    from crawler.storage import sampling_phases

    phase = await sampling_phases.follow(db, spider, now)
    if phase is None and stop:
        raise ConfigError(f"{spider} is not in a sampling phase")
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
        done = await progress(db, phase, now)
        done["begun"], done["notes"] = True, choice.notes
        return done
    done = await progress(db, phase, now)
    if stop:
        await sampling_phases.end(db, phase, now)
        done["learning"], done["ended"] = False, now
    return done


def _summary(done: PhaseReport) -> Iterator[str]:
    """Yield the state of the phase, its sample and its polls."""
    name = done["spider"]
    if done["begun"]:
        weeks, until = done["weeks"], _time(done["until"])
        yield f"{name}: sampling phase of {count(weeks, 'week')} started, until {until}"
    elif done["learning"] and done["days_left"] is not None:
        left = f"{span(done['days_left'] * DAY)} from now"
        yield f"{name}: sampling phase until {_time(done['until'])}, {left}"
    elif done["ended"] is not None:
        yield (
            f"{name}: sampling phase ended {_time(done['ended'])}; pages are back on their schedule"
        )
    rotations = ""
    if done["rotations"] != 1:
        rotations = f", {-(-done['pages'] // done['rotations']):,} at a time"
        if done["learning"] and done["rotation"] is not None:
            rotations += f" (rotation {done['rotation'] + 1} of {done['rotations']})"
    yield (
        f"{count(done['pages'], 'page')}{rotations}, polled every {done['every']}, "
        f"at most {count(done['budget_per_day'], 'request')} a day"
    )
    if not done["begun"]:
        due = f" of {done['polls_due']:,} due so far" if done["polls_due"] is not None else ""
        yield f"{count(done['polls'], 'poll')}{due}, {count(done['changes'], 'change')} found"


def _time(value: datetime) -> str:
    return f"{value:%Y-%m-%d %H:%M} UTC"
