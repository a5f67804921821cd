"""`scrapy simulate`: what each policy would have cost and gained, before one is chosen."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import UsageError

from crawler.cli.base import FreshetCommand, HelpWithLines, print_json
from crawler.ops.progress import working
from crawler.utils.terminal import stdout

if TYPE_CHECKING:
    from crawler.planning.simulation import Simulation

PAGES, FEEDS, OVERLOAD = KINDS = ("pages", "feeds", "overload")
EXAMPLES = """\
scrapy simulate pages --changes changes.csv.gz --pages pages.csv \\
    --from 2024-01-01 --split 2024-01-22 --to 2024-03-04 \\
    --policy optimal --policy groups --budget 265
Example: scrapy simulate feeds --posts posts.csv.gz --feeds feeds.csv \\
    --from 2024-01-01 --split 2024-01-22 --to 2024-02-12 \\
    --policy optimal --policy min-missing --visits 1000 --visits 3x
Example: scrapy simulate overload cells.toml --load 2 --plot overload.png
"""

# What each kind needs and what only it takes, by the name of the option's value.
FILES = {PAGES: ("changes", "pages"), FEEDS: ("posts", "feeds")}
AMOUNTS = {PAGES: ("budget", "N (requests a day)"), FEEDS: ("visits", "N (fetches in all)")}
TRACES = ("history", "start", "split", "stop", "closed_loop", "replan_every", "visits_out")
OWN = {
    PAGES: (*TRACES, *FILES[PAGES], "budget", "daily_cap"),
    FEEDS: (*TRACES, *FILES[FEEDS], "visits"),
    OVERLOAD: ("load", "equal_costs"),
}
NAMES = {"start": "from", "stop": "to"}


class Command(FreshetCommand):
    """Policies against changes that truly happened, against posts, or with too little time."""

    arguments = ("|".join(KINDS), "[FILE.toml]")
    example = EXAMPLES

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Try policies on a trace of changes or posts, on the own past, or under overload"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """What to simulate, and what to write."""
        super().add_options(parser)
        parser.formatter_class = HelpWithLines
        parser.add_argument(
            "--policy", action="append", metavar="P",
            help="may be repeated (default: optimal, of overload all); pages: optimal, groups, "
            "groups6, uniform, sqrt, freshness, harmonic, age, adaptive; feeds: optimal, uniform, "
            "min-delay, min-missing; overload: value, expected-ratio, starved-first, round-robin, "
            "earliest-deadline",
        )  # fmt: skip
        parser.add_argument(
            "--plot", type=Path, metavar="FILE",
            help="draw what comes of it, as .png or .svg",
        )  # fmt: skip
        group = parser.add_argument_group("Pages and feeds")
        group.add_argument(
            "--history", nargs="?", const="", metavar="NAME",
            help="instead of files: the past of the database, of one spider or of all. It knows "
            "only what visits saw, and nothing after the last of them",
        )  # fmt: skip
        group.add_argument(
            "--from",
            dest="start",
            metavar="T",
            help="learning begins (default: with what is known)",
        )
        group.add_argument(
            "--split",
            metavar="T",
            help="from here on it counts (default: after a third of the time)",
        )
        group.add_argument("--to", dest="stop", metavar="T", help="end (default: of what is known)")
        group.add_argument(
            "--closed-loop", action="store_true",
            help="nothing is known beforehand: a week of daily visits to pages, or one look at "
            "each feed, then plans from own visits as replan makes them; without it, polls every "
            "20 minutes, or all posts, from --from to --split are known",
        )  # fmt: skip
        group.add_argument(
            "--replan-every", metavar="DAYS",
            help="days between replans (default: 7; of feeds 1). Without --closed-loop the paper's "
            "policies for feeds are planned once",
        )  # fmt: skip
        group.add_argument(
            "--visits-out", type=Path, metavar="DIR",
            help="write DIR/POLICY_BUDGET.csv.gz, or DIR/POLICY_VISITS.csv.gz",
        )  # fmt: skip
        group = parser.add_argument_group("Pages")
        group.add_argument(
            "--changes", metavar="FILE", help="CSV with page_id, commit_time_utc; plain or gzip"
        )
        group.add_argument(
            "--pages", metavar="FILE",
            help="CSV with page_id, source_id, until_utc; pages.csv beside it if left out",
        )  # fmt: skip
        group.add_argument(
            "--budget", action="append", metavar="N",
            help="requests a day; may be repeated, each policy is tried with each (default with "
            "--history: the current budget)",
        )  # fmt: skip
        group.add_argument(
            "--daily-cap", metavar="N", help="requests at most on a day, UTC (default: no cap)"
        )
        group = parser.add_argument_group("Feeds")
        group.add_argument(
            "--posts", metavar="FILE", help="CSV with feed_id, posted_at_utc; plain or gzip"
        )
        group.add_argument(
            "--feeds", metavar="FILE",
            help="CSV with feed_id, window_size_S, weight; feeds.csv beside it if left out",
        )  # fmt: skip
        group.add_argument(
            "--visits", action="append", metavar="N",
            help="fetches of all feeds together from --split to --to, such as 20000, or as many "
            "for each feed, such as 3x; may be repeated, each policy is tried with each (default "
            "with --history: as many as the current budget allows)",
        )  # fmt: skip
        group = parser.add_argument_group("Overload")
        group.add_argument(
            "--load", metavar="X",
            help="seconds of work that are asked for in a second: all costs are scaled to it "
            "(default: FILE's, 2 without FILE)",
        )  # fmt: skip
        group.add_argument(
            "--equal-costs", action="store_true", help="each refresh takes the same time"
        )

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Simulate each policy with each budget or number of visits, then write and print."""
        kind, opts.file = args[0], args[1] if len(args) > 1 else None
        check(kind, opts)
        simulation: Simulation[Any, Any]
        with working(self.config, "reading what is known") as say:
            if kind == PAGES:
                from crawler.planning.simulate_pages import PageSimulation

                simulation = PageSimulation(self.config, opts)
            elif kind == FEEDS:
                from crawler.planning.simulate_feeds import FeedSimulation

                simulation = FeedSimulation(self.config, opts)
            else:
                from crawler.planning.simulate_overload import OverloadSimulation

                simulation = OverloadSimulation(self.config, opts)
            simulation.play(say)
        simulation.write()
        if opts.json:
            print_json(simulation.in_json())
        else:
            simulation.show(stdout())


def check(kind: str, opts: argparse.Namespace) -> None:
    """UsageError where an option is missing, or of another kind."""
    if kind not in KINDS:
        raise _wrong(f"{kind!r} is none of {', '.join(KINDS)}")
    for name in dict.fromkeys(name for names in OWN.values() for name in names):
        if name not in OWN[kind] and getattr(opts, name) not in (None, False):
            kinds = " and ".join(other for other in KINDS if name in OWN[other])
            raise _wrong(f"{_option(name)} is for simulate {kinds}, not for {kind}")
    if kind == OVERLOAD:
        return
    if opts.file is not None:
        raise _wrong(f"unexpected argument {opts.file!r}")
    trace, beside = FILES[kind]
    if opts.history is None and not getattr(opts, trace):
        raise _wrong(f"{_option(trace)} FILE or --history is missing")
    if opts.history is not None and (getattr(opts, trace) or getattr(opts, beside)):
        raise _wrong("--history takes no files")
    amount, unit = AMOUNTS[kind]
    if not getattr(opts, amount) and opts.history is None:
        raise _wrong(f"{_option(amount)} {unit} is missing")


def _option(name: str) -> str:
    """How an option is written, by the name of its value."""
    return f"--{NAMES.get(name, name).replace('_', '-')}"


def _wrong(cause: str) -> UsageError:
    """An error of one line, without the help."""
    return UsageError(cause, print_help=False)
