"""`scrapy simulate`: what each policy would have cost and gained, before one is chosen."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from scrapy.exceptions import UsageError

from crawler.clock import Clock
from crawler.command import FreshetCommand, print_json
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.storage import histories, targets
from crawler.storage.store import opened
from crawler.working import working

# What plans is slow to import: not before there is something to simulate.
if TYPE_CHECKING:
    from crawler.replanning.population import Gathered
    from crawler.simulation.asked import Asked
    from crawler.simulation.runs import Outcome
    from crawler.simulation.stages import Stage

KINDS = ("pages",)
PAPERS = "groups"


class Command(FreshetCommand):
    """Policies against changes that truly happened."""

    arguments = ("|".join(KINDS),)
    example = (
        "scrapy simulate pages --changes changes.csv.gz --pages pages.csv --from 2024-01-01 "
        "--split 2024-01-22 --to 2024-03-04 --policy optimal --policy groups --budget 265"
    )

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Try policies and budgets on a trace of changes, or on the own past"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """What to simulate, and what to write."""
        super().add_options(parser)
        _add_source(parser)
        _add_manner(parser)
        parser.add_argument(
            "--visits-out", type=Path, metavar="DIR", help="write DIR/POLICY_BUDGET.csv.gz"
        )
        parser.add_argument(
            "--plot", type=Path, metavar="FILE",
            help="draw freshness and age over requests a day, as .png or .svg",
        )  # fmt: skip

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Simulate each pair of policy and budget, then write and print."""
        if args[0] not in KINDS:
            raise UsageError(f"{args[0]!r} is none of {', '.join(KINDS)}", print_help=False)
        _check_usage(opts)
        from crawler.simulation.asked import Asked
        from crawler.simulation.comparison import in_json

        asked = Asked.of(opts)
        with working(self.config, "reading what is known") as say:
            stage = _stage(self.config, opts, asked)
            outcomes, references = _tried(stage, asked, say)
        _write(stage, asked, outcomes, references)
        if opts.json:
            print_json(in_json(stage, asked.manner, outcomes, references))
        else:
            _show(stage, outcomes, references)


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--changes", metavar="FILE", help="CSV with page_id, commit_time_utc; plain or gzip"
    )
    parser.add_argument(
        "--pages", metavar="FILE",
        help="CSV with page_id, source_id, until_utc; pages.csv beside it if left out",
    )  # fmt: skip
    parser.add_argument(
        "--history", nargs="?", const="", metavar="NAME",
        help="instead of files: the past of the database, of one spider or of all. It knows only "
        "what visits saw: a page changed when that was found, or when a site whose dates are "
        "believed says so, and not after its last look",
    )  # fmt: skip
    parser.add_argument(
        "--from", dest="start", metavar="T", help="learning begins (default: with what is known)"
    )
    parser.add_argument(
        "--split", metavar="T", help="from here on it counts (default: after a third of the time)"
    )
    parser.add_argument("--to", dest="stop", metavar="T", help="end (default: of what is known)")


def _add_manner(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policy", action="append", metavar="P",
        help="optimal (default), groups, groups6, uniform, sqrt, freshness, harmonic, age or "
        "adaptive; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--budget", action="append", metavar="N",
        help="requests a day; may be repeated, and each policy is tried with each",
    )  # fmt: skip
    parser.add_argument(
        "--closed-loop", action="store_true",
        help="nothing is known at --from: a week of daily visits, then plans from own visits; "
        "without it, polls every 20 minutes from --from to --split are known",
    )  # fmt: skip
    parser.add_argument(
        "--replan-every", default="7", metavar="DAYS", help="days between replans (default: 7)"
    )
    parser.add_argument(
        "--daily-cap", metavar="N", help="requests at most on a day, UTC (default: no cap)"
    )


def _check_usage(opts: argparse.Namespace) -> None:
    if opts.history is None and not opts.changes:
        raise UsageError("--changes FILE or --history is missing", print_help=False)
    if opts.history is not None and (opts.changes or opts.pages):
        raise UsageError("--history takes no files", print_help=False)
    if not opts.budget:
        raise UsageError("--budget N (requests a day) is missing", print_help=False)


def _stage(config: Config, opts: argparse.Namespace, asked: Asked) -> Stage:
    """The trace of the files, or the database's own past."""
    from crawler.simulation.stages import stage_of_past, stage_of_trace
    from crawler.traces import read_trace

    moments = asked.start, asked.split, asked.stop
    if opts.history is not None:
        return stage_of_past(asyncio.run(_gathered(config, opts.history)), *moments)
    pages = Path(opts.pages) if opts.pages else None
    return stage_of_trace(read_trace(Path(opts.changes), pages), *moments)


async def _gathered(config: Config, spider: str) -> Gathered:
    from crawler.replanning.population import gather
    from crawler.traces import HOUR_SECONDS

    now = Clock(config.clock_offset_hours).now()
    async with opened(config) as db:
        known = await targets.spiders(db)
        if spider and spider not in known:
            names = ", ".join(known) or "none; run scrapy crawl first"
            raise ConfigError(f"no targets of {spider!r}; spiders with targets: {names}")
        watched = await histories.read(db, now, [spider] if spider else None)
        return await gather(db, watched, config, now.timestamp() / HOUR_SECONDS)


def _tried(
    stage: Stage, asked: Asked, say: Callable[[str], None]
) -> tuple[list[Outcome], list[Outcome]]:
    """What comes of each pair, and what there is to compare with."""
    from crawler.simulation.runs import check_budgets, run, run_all, run_daily

    check_budgets(stage, asked.manner, asked.pairs)
    outcomes = run_all(stage, asked.manner, asked.pairs, say)
    references = [run_daily(stage)]
    if asked.plot and PAPERS not in {policy for policy, _ in asked.pairs}:
        references.append(run(stage, asked.manner, PAPERS, inf))
    return outcomes, references


def _write(stage: Stage, asked: Asked, outcomes: list[Outcome], references: list[Outcome]) -> None:
    from crawler.simulation.comparison import in_words
    from crawler.simulation.curves import draw
    from crawler.traces import write_visits

    if asked.visits_out:
        for outcome in outcomes:
            write_visits(asked.visits_out / outcome.file, stage.names, outcome.visits)
    if asked.plot:
        draw(asked.plot, outcomes, references, in_words(stage, outcomes[0]))


def _show(stage: Stage, outcomes: list[Outcome], references: list[Outcome]) -> None:
    from crawler.simulation.comparison import by_page, by_source, in_words, notes

    console, everything = Console(highlight=False), [*outcomes, *references]
    console.print(in_words(stage, outcomes[0]), soft_wrap=True)
    console.print(by_page(everything), by_source(everything))
    for note in notes(outcomes):
        console.print(note, soft_wrap=True)
