"""Actions of `scrapy targets` on single targets: recheck, mute, unmute and limits."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING

from crawler.cli.base import print_json, with_database
from crawler.cli.types import option
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.utils.terminal import print_line, printable
from crawler.utils.text import period
from crawler.utils.time import NEVER, Clock, hours

if TYPE_CHECKING:
    from crawler.reports.target import IntervalLimits, TargetReport
    from crawler.storage.client import Database, Document

# The value of an option that removes a limit.
NONE = "none"
OPTIONS = {"min_hours": "--min", "max_hours": "--max"}
Change = Callable[["Database", "Document"], Awaitable[object]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the URLs and `--spider`."""
    parser.add_argument("urls", metavar="URL", nargs="+", help="URL of a target, or cell:NAME")
    parser.add_argument(
        "--spider", metavar="NAME", help="spider of the targets, if several visit a URL"
    )


def limits_options(parser: argparse.ArgumentParser) -> None:
    """Add the URLs, `--spider` and the limits."""
    add_options(parser)
    for name, word in (("min", "minimum"), ("max", "maximum")):
        parser.add_argument(
            f"--{name}", dest=f"{name}_hours", metavar="TIME",
            help=f"{word} interval, such as 90m, 6h or 2d; {NONE}: that of the site (default: "
            "keep the current limit)",
        )  # fmt: skip


def run_recheck(config: Config, opts: argparse.Namespace) -> None:
    """Make targets due, also dead-lettered ones; none if one of them cannot be visited."""
    from crawler.reports.target import refusal_to_recheck
    from crawler.storage import target_settings

    now = Clock(config.clock_offset_hours).now()

    def refusal(target: Document) -> str | None:
        reason = refusal_to_recheck(target)
        return reason and f"this target cannot be visited: {reason}"

    _run(config, opts, lambda db, row: target_settings.make_due(db, row["_id"], now), refusal)


def run_mute(config: Config, opts: argparse.Namespace) -> None:
    """Stop the visits of targets."""
    from crawler.storage import target_settings

    now = Clock(config.clock_offset_hours).now()
    _run(config, opts, lambda db, row: target_settings.mute(db, row["_id"], now))


def run_unmute(config: Config, opts: argparse.Namespace) -> None:
    """Make muted targets due; targets that are not muted stay as they are."""
    from crawler.storage import target_settings

    now = Clock(config.clock_offset_hours).now()
    _run(config, opts, lambda db, row: target_settings.unmute(db, row["_id"], now))


def run_limits(config: Config, opts: argparse.Namespace) -> None:
    """Set the given limits of targets, and print all of them."""
    from crawler.reports.target import limits_of, problems_of_limits
    from crawler.storage import target_settings

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
        await target_settings.set_limits(db, target["_id"], **wanted(target))

    _run(config, opts, change if given else None, refusal if given else None)


def _run(
    config: Config,
    opts: argparse.Namespace,
    change: Change | None,
    refusal: Callable[[Document], str | None] | None = None,
) -> None:
    """Change targets, if there is a change, and print them.

    refusal: returns why a target cannot be changed; then none of them is
    """
    from crawler.reports.target import report_of
    from crawler.storage import target_settings
    from crawler.storage.target_queries import target_of

    async def work(db: Database) -> list[TargetReport]:
        rows = [await target_of(db, config, url, opts.spider) for url in opts.urls]
        for row in rows:
            if refusal is not None and (problem := refusal(row)) is not None:
                raise ConfigError(f"{row['url']}: {problem}")
        if change is not None:
            await asyncio.gather(*(change(db, row) for row in rows))
        stored = [await target_settings.find(db, row["_id"]) for row in rows]
        return [report_of(row) for row in stored if row is not None]

    reports = with_database(config, work)
    if opts.json:
        print_json(reports)
    else:
        now = Clock(config.clock_offset_hours).now()
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
