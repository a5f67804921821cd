"""`scrapy simulate`: compare policies on recorded changes or posts, or under overload."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from crawler.cli.base import FreshetCommand, HelpWithLines, print_json, usage_error
from crawler.utils.terminal import stdout, working

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

# Options by kind: input files, required amounts, and all options that other kinds reject. Options
# are named by their attribute in the parsed arguments.
FILES = {PAGES: ("changes", "pages"), FEEDS: ("posts", "feeds")}
AMOUNTS = {PAGES: ("budget", "N (requests a day)"), FEEDS: ("visits", "N (fetches in all)")}
TRACES = ("history", "start", "split", "stop", "closed_loop", "replan_every", "visits_out")
LISTS = ("lists", "recall", "false_flags", "lists_fail", "seed")
OWN = {
    PAGES: (*TRACES, *FILES[PAGES], "budget", "daily_cap", *LISTS),
    FEEDS: (*TRACES, *FILES[FEEDS], "visits"),
    OVERLOAD: ("load", "equal_costs"),
}
NAMES = {"start": "from", "stop": "to"}


class Command(FreshetCommand):
    """Simulate policies on recorded changes or posts, or under overload."""

    arguments = ("|".join(KINDS), "[FILE.toml]")
    summary = "Simulate policies on recorded data, on your own history, or under overload"
    example = EXAMPLES
    documents: ClassVar = {
        "scrapy simulate pages --changes FILE --budget 100 --json": (
            "crawler.planning.simulate_pages.PagesReport"
        ),
        "scrapy simulate feeds --posts FILE --visits 3x --json": (
            "crawler.planning.simulate_feeds.FeedsReport"
        ),
        "scrapy simulate overload --json": "crawler.planning.simulate_overload.OverloadReport",
    }

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the policies, input files, budgets and output files."""
        super().add_options(parser)
        parser.formatter_class = HelpWithLines
        parser.add_argument(
            "--policy", action="append", metavar="NAME",
            help="policy to simulate (may be repeated). Pages: optimal, groups, groups6, uniform, "
            "sqrt, freshness, harmonic, age, adaptive; feeds: optimal, uniform, min-delay, "
            "min-missing; overload: value, expected-ratio, starved-first, round-robin, "
            "earliest-deadline (default: optimal; with overload, all)",
        )  # fmt: skip
        parser.add_argument(
            "--plot", type=Path, metavar="FILE",
            help="write a chart of the results, as .png or .svg",
        )  # fmt: skip
        group = parser.add_argument_group("Pages and feeds")
        group.add_argument(
            "--history", nargs="?", const="", metavar="NAME",
            help="use the history in the database instead of files: of this spider, or of all "
            "spiders. It has only the changes that visits found",
        )  # fmt: skip
        group.add_argument(
            "--from", dest="start", metavar="T",
            help="start of the history that policies plan from (default: start of the data)",
        )  # fmt: skip
        group.add_argument(
            "--split", metavar="T",
            help="start of the evaluation (default: after a third of the time)",
        )  # fmt: skip
        group.add_argument(
            "--to", dest="stop", metavar="T",
            help="end of the evaluation (default: end of the data)",
        )  # fmt: skip
        group.add_argument(
            "--closed-loop", action="store_true",
            help="start without history: visit pages daily for a week, or each feed once, then "
            "replan from the simulated visits only (default: from --from to --split, policies know "
            "all posts, and changes to within 20 minutes)",
        )  # fmt: skip
        group.add_argument(
            "--replan-every", metavar="DAYS",
            help="days between replans (default: 7 for pages, 1 for feeds). Without --closed-loop, "
            "uniform, min-delay and min-missing plan feeds only once",
        )  # fmt: skip
        group.add_argument(
            "--visits-out", type=Path, metavar="DIR",
            help="write the simulated visits to this folder, as POLICY_BUDGET.csv.gz (pages) or "
            "POLICY_VISITS.csv.gz (feeds)",
        )  # fmt: skip
        group = parser.add_argument_group("Pages")
        group.add_argument(
            "--changes", metavar="FILE",
            help="CSV file with page_id, commit_time_utc; plain or gzip",
        )  # fmt: skip
        group.add_argument(
            "--pages", metavar="FILE",
            help="CSV file with page_id, source_id, until_utc (default: pages.csv next to "
            "--changes)",
        )  # fmt: skip
        group.add_argument(
            "--budget", action="append", metavar="N",
            help="requests a day; may be repeated to try each policy with each budget (default: "
            "the current budget with --history, else required)",
        )  # fmt: skip
        group.add_argument(
            "--daily-cap", metavar="N",
            help="maximum requests on a UTC day (default: unlimited)",
        )  # fmt: skip
        group.add_argument(
            "--lists", metavar="N",
            help="simulate list pages of N entries, which show changes of the pages of each source "
            "with 10 pages or more; the policy optimal plans them, too",
        )  # fmt: skip
        group.add_argument(
            "--recall", metavar="SHARE",
            help="share of the changes that lists show (default: 1)",
        )  # fmt: skip
        group.add_argument(
            "--false-flags", metavar="SHARE",
            help="share of the entries that differ although the page is unchanged (default: 0)",
        )  # fmt: skip
        group.add_argument(
            "--lists-fail",
            metavar="T",
            help="time from which lists show no change (default: never)",
        )
        group.add_argument(
            "--seed", metavar="N", help="seed of the changes that lists show (default: 0)"
        )
        group = parser.add_argument_group("Feeds")
        group.add_argument(
            "--posts", metavar="FILE",
            help="CSV file with feed_id, posted_at_utc; plain or gzip",
        )  # fmt: skip
        group.add_argument(
            "--feeds", metavar="FILE",
            help="CSV file with feed_id, window_size_S, weight (default: feeds.csv next to "
            "--posts)",
        )  # fmt: skip
        group.add_argument(
            "--visits", action="append", metavar="N",
            help="fetches of all feeds from --split to --to, such as 20000, or fetches per feed, "
            "such as 3x; may be repeated to try each policy with each number (default: those that "
            "the current budget allows with --history, else required)",
        )  # fmt: skip
        group = parser.add_argument_group("Overload")
        group.add_argument(
            "--load", metavar="X",
            help="seconds of work requested per second; the cost of each refresh is scaled to it "
            "(default: load of FILE, or 2 without FILE)",
        )  # fmt: skip
        group.add_argument(
            "--equal-costs", action="store_true", help="give all refreshes the same cost"
        )

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Simulate each policy with each budget or number of visits, then write and print."""
        kind, opts.file = args[0], args[1] if len(args) > 1 else None
        check(kind, opts)
        simulation: Simulation[Any, Any, Any]
        with working(self.config.progress, "reading the data") as progress:
            if kind == PAGES:
                from crawler.planning.simulate_pages import PageSimulation

                simulation = PageSimulation(self.config, opts)
            elif kind == FEEDS:
                from crawler.planning.simulate_feeds import FeedSimulation

                simulation = FeedSimulation(self.config, opts)
            else:
                from crawler.planning.simulate_overload import OverloadSimulation

                simulation = OverloadSimulation(self.config, opts)
            simulation.play(progress)
        simulation.write()
        if opts.json:
            print_json(simulation.report())
        else:
            simulation.show(stdout())


def check(kind: str, opts: argparse.Namespace) -> None:
    """Raise UsageError for a missing option, or for one of another kind."""
    if kind not in KINDS:
        raise usage_error(f"unknown simulation {kind!r}. Available: {', '.join(KINDS)}")
    for name in dict.fromkeys(name for names in OWN.values() for name in names):
        if name not in OWN[kind] and getattr(opts, name) not in (None, False):
            kinds = " and ".join(other for other in KINDS if name in OWN[other])
            raise usage_error(f"{_option(name)} is for simulate {kinds}, not for {kind}")
    if kind == OVERLOAD:
        return
    if opts.file is not None:
        raise usage_error(f"unexpected argument {opts.file!r}")
    trace, details = FILES[kind]
    if opts.history is None and not getattr(opts, trace):
        raise usage_error(f"{_option(trace)} FILE or --history is missing")
    if opts.history is not None and (getattr(opts, trace) or getattr(opts, details)):
        given = trace if getattr(opts, trace) else details
        raise usage_error(f"--history and {_option(given)} cannot be combined")
    amount, unit = AMOUNTS[kind]
    if not getattr(opts, amount) and opts.history is None:
        raise usage_error(f"{_option(amount)} {unit} is missing")


def _option(name: str) -> str:
    """Return the name of an option on the command line, by its attribute."""
    return f"--{NAMES.get(name, name).replace('_', '-')}"
