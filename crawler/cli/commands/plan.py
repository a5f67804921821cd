"""`scrapy plan`: the current plan by frequency class and hour, and the changes found."""

from __future__ import annotations

import argparse
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from crawler.cli.base import FreshetCommand, print_json, spiders_of, with_database
from crawler.cli.options import MAX_NUMBER, MAX_WEEKS
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.utils.terminal import stdout, working
from crawler.utils.text import count

if TYPE_CHECKING:
    from crawler.planning.report import ChangesOverview, PlanOverview
    from crawler.storage.client import Database

DEFAULT_URLS = 20
# The maximum number of spider names that fit into the title of a chart.
SHOWN_NAMES = 3


class Command(FreshetCommand):
    """Show the current plan, or the changes found."""

    arguments = ("[NAME]",)
    summary = "Show frequency classes, timetable, load and expected freshness of the current plan"
    example = "scrapy plan books --calendar books.png"
    documents: ClassVar = {
        "scrapy plan --json": "crawler.planning.report.PlanOverview",
        "scrapy plan --changes --json": "crawler.planning.report.ChangesOverview",
    }

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of `--changes`, and the chart."""
        super().add_options(parser)
        parser.add_argument(
            "--changes", action="store_true",
            help="show changes found and their sizes by URL, weekday and hour, instead of the plan",
        )  # fmt: skip
        parser.add_argument(
            "--weeks", type=float, metavar="N",
            help="with --changes: only the last N weeks (default: all)",
        )  # fmt: skip
        parser.add_argument(
            "--urls", type=int, metavar="N", default=DEFAULT_URLS,
            help="with --changes: number of URLs to show, those that changed most often first "
            f"(default: {DEFAULT_URLS})",
        )  # fmt: skip
        parser.add_argument(
            "--calendar", type=Path, metavar="FILE",
            help="write a heat map of requests and changes by hour of the week, as .png or .svg",
        )  # fmt: skip

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print the plan, or the changes."""
        # "Not a number" is not greater than 0, either.
        if opts.urls < 1 or not (opts.weeks is None or opts.weeks > 0):
            raise ConfigError("--urls and --weeks must be greater than 0")
        if opts.urls > MAX_NUMBER or (opts.weeks or 0) > MAX_WEEKS:
            raise ConfigError(
                f"--urls or --weeks is too large. Use at most {MAX_NUMBER:,} URLs and "
                f"{MAX_WEEKS:,} weeks"
            )
        if opts.calendar is not None:
            from crawler.planning import plots

            plots.check(opts.calendar)
        show = self._show_changes if opts.changes else self._show_plan
        show(args[0] if args else None, opts)

    def _show_plan(self, spider: str | None, opts: argparse.Namespace) -> None:
        from crawler.planning.report import current_plans

        config = self.config

        async def read(db: Database) -> PlanOverview:
            spiders = await spiders_of(db, spider)
            progress("summarizing the plan")
            overview = await current_plans(db, spiders, config.clock.now())
            if opts.calendar is not None:
                progress("estimating when pages change")
                await _draw(db, config, overview, opts.calendar)
            return overview

        with working(config.progress, "opening the database") as progress:
            overview = with_database(config, read)
        if opts.json:
            print_json(overview)
            return
        from crawler.cli.plan_output import show_plan

        console = stdout()
        show_plan(console, overview)
        if overview["calendar"] is not None:
            console.print(f"heat map written to {overview['calendar']}")

    def _show_changes(self, spider: str | None, opts: argparse.Namespace) -> None:
        from crawler.planning.report import changes_found
        from crawler.storage import sites

        config = self.config

        async def read(db: Database) -> ChangesOverview:
            now = config.clock.now()
            since = None if opts.weeks is None else now - timedelta(weeks=opts.weeks)
            rows = await sites.of_spiders(db, await spiders_of(db, spider))
            return await changes_found(db, rows, since, opts.urls)

        with working(config.progress, "opening the database"):
            found = with_database(config, read)
        if opts.json:
            print_json(found)
            return
        from crawler.cli.plan_output import show_changes

        console = stdout()
        for changes in found["changes"]:
            show_changes(console, changes)


async def _draw(db: Database, config: Config, report: PlanOverview, path: Path) -> None:
    """Write a heat map of requests and changes, and set its path in the overview."""
    import numpy as np

    from crawler.planning import plots
    from crawler.planning.replan import changes_by_hour, gathered_of
    from schedules.calendar import DAYS
    from schedules.estimation.estimate import estimate

    spiders, totals = report["spiders"], report["totals"]
    now = config.clock.now()
    gathered = await gathered_of(db, config, now, spiders)
    expected = changes_by_hour(estimate(gathered.population, gathered.histories))
    requests = np.array([report["timetable"][day] for day in DAYS]).ravel()
    names = ", ".join(spiders) if len(spiders) <= SHOWN_NAMES else f"{len(spiders)} spiders"
    zones = sorted({site.timezone for site in gathered.sites})
    clock = zones[0] if len(zones) == 1 else f"{len(zones)} time zones"
    policies = ", ".join(dict.fromkeys(str(plan["policy"]) for plan in report["plans"]))
    title = f"{names}: when pages are visited, and when they change"
    subtitle = (
        f"as planned: {count(report['targets'], 'target')}, policy {policies}, "
        f"{count(totals['requests_per_day'], 'request')} a day; clock of {clock}"
    )
    calendar = plots.Calendar(title, subtitle, requests, expected, bool(totals["known"]))
    plots.draw(calendar, path)
    report["calendar"] = str(path)
