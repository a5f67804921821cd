"""`scrapy changes`: list changed, new and removed pages, newest first."""

from __future__ import annotations

import argparse
from datetime import timedelta
from typing import TYPE_CHECKING, ClassVar

from crawler.cli.base import FreshetCommand, print_json, spiders_of, with_database
from crawler.cli.options import add_limit, as_time, past_time, time_or_age, url_part
from crawler.errors import ConfigError
from crawler.utils.terminal import printable, stdout
from crawler.utils.text import count, listed

if TYPE_CHECKING:
    from crawler.reports.changes import ChangeList
    from crawler.storage.client import Database

DEFAULT_LIMIT = 50


class Command(FreshetCommand):
    """List the newest entries of the change log."""

    arguments = ("[NAME]",)
    summary = "List changed, new and removed pages, newest first"
    example = "scrapy changes books --since 1d"
    documents: ClassVar = {
        "scrapy changes --json": "list[crawler.reports.changes.Change]",
    }

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options that select changes and limit their number."""
        super().add_options(parser)
        parser.add_argument(
            "--since", metavar="T", type=time_or_age,
            help="only changes since T, a day or time (UTC) or an age such as 1d",
        )  # fmt: skip
        parser.add_argument(
            "--until", metavar="T", type=time_or_age,
            help="only changes before T, a day or time (UTC) or an age such as 1d",
        )  # fmt: skip
        parser.add_argument(
            "--match", metavar="PART", type=url_part,
            help="only URLs that contain PART; * matches any characters",
        )  # fmt: skip
        add_limit(parser, "changes", DEFAULT_LIMIT)

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print the changes, and the number of changes that are not shown."""
        from crawler.reports.changes import newest_changes

        now = self.config.clock.now()
        times = since, until = past_time(opts.since, now), as_time(opts.until, now)
        if since is not None and until is not None and since >= until:
            raise ConfigError("--since is not before --until. Exchange the two times")

        async def read(db: Database) -> tuple[list[str], ChangeList]:
            spiders = await spiders_of(db, args[0] if args else None)
            return spiders, await newest_changes(db, spiders, times, opts.match, opts.limit)

        spiders, newest = with_database(self.config, read)
        rows = newest.changes
        if opts.json:
            print_json(rows)
            return
        from crawler.storage.visits import MAX_EVENTS

        console = stdout(soft_wrap=True)
        for row in rows:
            url = printable(row["url"])
            console.print(f"{row['at']:%Y-%m-%d %H:%M}  {row['outcome']:<7}  {url}")
            if row["summary"]:
                console.print(f"    {row['summary']}", style="dim")
        names = listed(spiders)
        if not rows:
            of_urls = f" with URLs that match {opts.match!r}" if opts.match else ""
            limits = opts.since, opts.until, opts.match
            wider = "Try a longer time or another --match, or run" if any(limits) else "Run"
            console.print(f"no changes found in {names}{of_urls}. {wider} scrapy crawl NAME")
            return
        more = ""
        if left_out := newest.total - len(rows):
            # Other changes may have the time of the last one, which --until does not include.
            until = rows[-1]["at"].replace(tzinfo=None) + timedelta(milliseconds=1)
            text = until.isoformat(timespec="milliseconds")
            more = f". {left_out:,} more with --limit N or --until {text}"
        console.print(f"{count(len(rows), 'change')} in {names}, times in UTC{more}")
        if newest.is_cut:
            console.print(
                f"only the newest {MAX_EVENTS:,} changes were searched. --until T searches older "
                "ones"
            )
