"""`scrapy targets`: count or list targets, and change how single targets are visited."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from crawler.cli.base import (
    Action,
    ActionsCommand,
    option,
    print_json,
    with_database,
)
from crawler.cli.options import add_limit, positive_int, url_part
from crawler.config import Config
from crawler.errors import ConfigError, no_targets
from crawler.utils.terminal import print_line, printable, stdout
from crawler.utils.text import count, megabytes, period
from crawler.utils.time import NEVER, hours

if TYPE_CHECKING:
    from crawler.reports.target import IntervalLimits, TargetReport
    from crawler.storage.client import Database, Document
    from crawler.storage.target_queries import TargetCounts, TargetState

# Descriptions of the values of `crawler.storage.site_queries.TargetStatus` that have an option.
STATES_LISTED = {
    "error": "whose last visit failed",
    "due": "that are due",
    "gone": "that are gone",
    "muted": "that are muted",
}
STATES = ("targets", "due", "unlisted", "gone", "dead_links", "aliases", "errors")
SINGULAR = {"targets": "target", "dead_links": "dead link", "aliases": "alias", "errors": "error"}
DEFAULT_LIMIT = 50
# The value of an option that removes a limit.
NONE = "none"
OPTIONS = {"min_hours": "--min", "max_hours": "--max"}
Change = Callable[["Database", "Document"], Awaitable[object]]


class Command(ActionsCommand):
    """Count or list targets; recheck, mute and limit single targets."""

    default_action = "list"
    summary = "Count or list targets; recheck, mute and limit the visits of single targets"
    example = "scrapy targets books --json"
    documents: ClassVar = {
        "scrapy targets --json": "crawler.storage.target_queries.TargetCounts",
        "scrapy targets --urls --json": "list[crawler.storage.target_queries.TargetState]",
        "scrapy targets recheck URL --json": "list[crawler.reports.target.TargetReport]",
        "scrapy targets mute URL --json": "list[crawler.reports.target.TargetReport]",
        "scrapy targets unmute URL --json": "list[crawler.reports.target.TargetReport]",
        "scrapy targets limits URL --json": "list[crawler.reports.target.TargetReport]",
    }

    @property
    def actions(self) -> Mapping[str, Action]:
        """Return the actions."""
        return {
            "list": Action(
                "Count targets by kind, category, outcome and state, or list them",
                "scrapy targets books --json", run_list, list_options,
            ),
            "recheck": Action(
                "Make targets due, so that the next run visits them",
                "scrapy targets recheck https://shop.example/item/1", run_recheck, target_options,
            ),
            "mute": Action(
                "Stop the visits of targets until you unmute them",
                "scrapy targets mute https://shop.example/item/1", run_mute, target_options,
            ),
            "unmute": Action(
                "Make muted targets due",
                "scrapy targets unmute https://shop.example/item/1", run_unmute, target_options,
            ),
            "limits": Action(
                "Show or set the minimum and maximum interval between two visits of targets",
                "scrapy targets limits https://shop.example/item/1 --min 6h --max 2d",
                run_limits, limits_options,
            ),
        }  # fmt: skip

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Run an action; a first argument that is not an action is the spider to list."""
        if args and args[0] not in self.actions:
            args = ["list", *args]
        super().run(args, opts)


def list_options(parser: argparse.ArgumentParser) -> None:
    """Add the name of a spider, and options that list targets instead of counting them."""
    parser.add_argument("spider", metavar="NAME", nargs="?", help="spider (default: all spiders)")
    parser.add_argument("--urls", action="store_true", help="list targets instead of counting them")
    states = parser.add_mutually_exclusive_group()
    for state, description in STATES_LISTED.items():
        flag = "--errors" if state == "error" else f"--{state}"
        states.add_argument(
            flag, dest="state", action="store_const", const=state,
            help=f"list targets {description}",
        )  # fmt: skip
    parser.add_argument(
        "--match", metavar="PART", type=url_part,
        help="list targets whose URL contains PART; * matches any characters",
    )  # fmt: skip
    add_limit(parser, "targets to list", DEFAULT_LIMIT)
    parser.add_argument(
        "--skip", metavar="N", type=positive_int, default=0,
        help="number of targets to skip at the beginning of the list (default: 0)",
    )  # fmt: skip


def run_list(config: Config, opts: argparse.Namespace) -> None:
    """Print the counts, or the list."""
    if opts.urls or opts.state or opts.match:
        _print_list(config, opts)
    else:
        _print_counts(config, opts)


def _print_counts(config: Config, opts: argparse.Namespace) -> None:
    from rich.columns import Columns
    from rich.table import Table

    from crawler.storage import target_queries, targets

    now = config.clock.now

    async def read(db: Database) -> TargetCounts:
        counts = await target_queries.summary(db, opts.spider, now())
        if opts.spider and not counts["targets"]:
            raise no_targets(opts.spider, await targets.spiders(db))
        return counts

    counts = with_database(config, read)
    if opts.json:
        print_json(counts)
        return
    console = stdout()
    numbers: dict[str, Any] = {**counts}
    states = [
        f"{n:,} {SINGULAR.get(name, name) if n == 1 else name.replace('_', ' ')}"
        for name in STATES
        if (n := numbers[name])
    ]
    states += [f"{megabytes(counts['kept_bytes'])} of versions"] if states else []
    console.print(", ".join(states) or "no targets")
    tables = []
    for title in ("kinds", "outcomes", "categories", "spiders"):
        if not numbers[title]:
            continue
        table = Table(title, "targets")
        table.columns[1].justify = "right"
        for name, n in numbers[title].items():
            table.add_row(name, f"{n:,}")
        tables.append(table)
    console.print(Columns(tables))


def _print_list(config: Config, opts: argparse.Namespace) -> None:
    from crawler.storage import site_queries, target_queries, targets

    now = config.clock.now
    status = None if opts.state is None else site_queries.TargetStatus(opts.state)
    wanted = site_queries.TargetFilter(status=status, text=opts.match)

    async def read(db: Database) -> tuple[list[TargetState], int]:
        spiders = await targets.spiders(db)
        if opts.spider is not None and opts.spider not in spiders:
            raise no_targets(opts.spider, spiders)
        indexed, order, rest = site_queries.query_of(opts.spider, wanted, now(), spiders)
        query = {"$and": [indexed, rest]}
        rows = await target_queries.listed(db, query, order, opts.skip, opts.limit)
        return rows, await target_queries.count(db, query)

    rows, total = with_database(config, read)
    if opts.json:
        print_json(rows)
        return
    for row in rows:
        # `URL  item of shop, error 3 times in a row: status 500, next visit 2026-01-31 10:00`
        parts = [f"{row['kind']} of {row['spider']}", _state(row)]
        is_visited = row["dead_lettered_at"] is None and row["muted_at"] is None
        if is_visited and not row["alias_of"]:
            has_next = row["next_visit"] < NEVER
            at = f"{row['next_visit']:%Y-%m-%d %H:%M}"
            parts.append(f"next visit {at}" if has_next else "no next visit")
        print_line(f"{printable(row['url'])}  {printable(', '.join(parts))}")
    if rows:
        summary = f"{len(rows):,} of {count(total, 'target')}, times in UTC"
        if (more := total - opts.skip - len(rows)) > 0:
            summary += f". {more:,} more with --limit N or --skip {opts.skip + len(rows)}"
    else:
        summary = f"no targets {STATES_LISTED[opts.state]}" if opts.state else "no targets"
        if opts.match:
            summary += f" {'and' if opts.state else 'that'} match {opts.match!r}"
        summary += f" after the first {opts.skip:,}" if opts.skip and total else ""
    print_line(summary)


def _state(row: TargetState) -> str:
    """Return the outcome of the target's last visit, or why it is not visited."""
    if row["alias_of"]:
        return f"alias of {row['alias_of']}"
    if row["dead_lettered_at"] is not None:
        return "dead-lettered (scrapy deadletters list)"
    if row["muted_at"] is not None:
        return "muted"
    if row["visited_at"] is None:
        return "never visited"
    outcome = str(row["outcome"])
    if (errors := row["consecutive_errors"]) > 1:
        outcome += f" {errors} times in a row"
    if row["reason"]:
        outcome += f": {row['reason']}"
    return f"{outcome} at {row['visited_at']:%Y-%m-%d %H:%M}"


def target_options(parser: argparse.ArgumentParser) -> None:
    """Add the URLs and `--spider`."""
    parser.add_argument("urls", metavar="URL", nargs="+", help="URL of a target, or cell:NAME")
    parser.add_argument(
        "--spider", metavar="NAME", help="spider of the targets, if several visit a URL"
    )


def limits_options(parser: argparse.ArgumentParser) -> None:
    """Add the URLs, `--spider` and the limits."""
    target_options(parser)
    for name, word in (("min", "minimum"), ("max", "maximum")):
        parser.add_argument(
            f"--{name}", dest=f"{name}_hours", metavar="TIME",
            help=f"{word} interval, such as 90m, 6h or 2d; {NONE}: that of the site (default: "
            "keep the current limit)",
        )  # fmt: skip


def run_recheck(config: Config, opts: argparse.Namespace) -> None:
    """Make targets due, including dead-lettered ones; none if one of them cannot be visited."""
    from crawler.reports.target import refusal_to_recheck
    from crawler.storage import target_queries

    now = config.clock.now()

    def refusal(target: Document) -> str | None:
        reason = refusal_to_recheck(target)
        return reason and f"this target cannot be visited: {reason}"

    _run(config, opts, lambda db, row: target_queries.make_due(db, [row["_id"]], now), refusal)


def run_mute(config: Config, opts: argparse.Namespace) -> None:
    """Stop the visits of targets."""
    from crawler.storage import target_queries

    now = config.clock.now()
    _run(config, opts, lambda db, row: target_queries.mute(db, row["_id"], now))


def run_unmute(config: Config, opts: argparse.Namespace) -> None:
    """Make muted targets due; targets that are not muted stay as they are."""
    from crawler.storage import target_queries

    now = config.clock.now()
    _run(config, opts, lambda db, row: target_queries.unmute(db, row["_id"], now))


def run_limits(config: Config, opts: argparse.Namespace) -> None:
    """Set the given limits of targets, and print all of them."""
    from crawler.reports.target import limits_of, problems_of_limits
    from crawler.storage import target_queries

    given = {
        name: None if text == NONE else option(hours, text, flag)
        for name, flag in OPTIONS.items()
        if (text := getattr(opts, name)) is not None
    }

    def wanted(target: Document) -> IntervalLimits:
        limits = limits_of(target)
        return {
            "min_hours": given.get("min_hours", limits["min_hours"]),
            "max_hours": given.get("max_hours", limits["max_hours"]),
        }

    def refusal(target: Document) -> str | None:
        for name, problem in problems_of_limits(target, wanted(target), config).items():
            return f"{OPTIONS[name]}: {problem}" if name else problem
        return None

    async def change(db: Database, target: Document) -> None:
        await target_queries.set_limits(db, target["_id"], **wanted(target))

    _run(config, opts, change if given else None, refusal if given else None)


def _run(
    config: Config,
    opts: argparse.Namespace,
    change: Change | None,
    refusal: Callable[[Document], str | None] | None = None,
) -> None:
    """Change targets, if there is a change, and print them.

    refusal: returns the reason why a target cannot be changed; in that case, none is changed
    """
    from crawler.reports.target import report_of
    from crawler.storage import target_queries
    from crawler.storage.target_queries import target_of

    async def work(db: Database) -> list[TargetReport]:
        rows = [await target_of(db, config, url, opts.spider) for url in opts.urls]
        for row in rows:
            if refusal is not None and (problem := refusal(row)) is not None:
                raise ConfigError(f"{row['url']}: {problem}")
        if change is not None:
            await asyncio.gather(*(change(db, row) for row in rows))
        stored = [await target_queries.find(db, row["_id"]) for row in rows]
        return [report_of(row) for row in stored if row is not None]

    reports = with_database(config, work)
    if opts.json:
        print_json(reports)
    else:
        now = config.clock.now()
        for report in reports:
            _show(report, now)


def _show(report: TargetReport, now: datetime) -> None:
    """Print a target: `URL  item of shop, visited at most every 6 hours, due: …`."""
    state = report["state"]
    limits = report["limits"]
    words = (("at most", limits["min_hours"]), ("at least", limits["max_hours"]))
    parts = [f"{state['kind']} of {state['spider']}"]
    parts += [f"visited {word} every {period(value)}" for word, value in words if value is not None]
    if state["muted_at"] is not None:
        parts.append("muted: not visited until scrapy targets unmute")
    elif state["dead_lettered_at"] is not None:
        parts.append("dead-lettered: scrapy targets recheck makes it due")
    elif state["next_visit"] <= now:
        parts.append("due: the next run visits it")
    elif state["next_visit"] < NEVER:
        parts.append(f"next visit {state['next_visit']:%Y-%m-%d %H:%M} UTC")
    print_line(f"{printable(state['url'])}  {printable(', '.join(parts))}")
