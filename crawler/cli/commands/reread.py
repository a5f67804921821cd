"""`scrapy reread`: extract the archived responses of a site with its current definition."""

from __future__ import annotations

import argparse
import asyncio
from typing import ClassVar

from crawler.cli.base import FreshetCommand, print_json, spider_named
from crawler.cli.options import past_time, time_or_age
from crawler.utils.terminal import print_line, working
from crawler.utils.text import count


class Command(FreshetCommand):
    """Extract the archived responses of a site again, and restate the histories of its items."""

    arguments = ("NAME",)
    summary = "Extract archived responses with the current site definition, without requests"
    example = "scrapy reread shop --since 2026-01-01"
    documents: ClassVar = {
        "scrapy reread NAME --json": "crawler.ops.reread.RereadReport",
    }

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add `--since`."""
        super().add_options(parser)
        parser.add_argument(
            "--since", metavar="T", type=time_or_age,
            help="only visits since T, a day or time (UTC) or an age such as 30d "
            "(default: all)",
        )  # fmt: skip

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Reread the site, and print how many histories changed."""
        from crawler.ops.reread import reread

        assert self.settings is not None
        kind = spider_named(self.settings, args[0])
        since = past_time(opts.since, self.config.clock.now())
        with working(self.config.progress, f"rereading {args[0]}") as progress:
            report = asyncio.run(reread(self.settings, kind, since, progress))
        # Without any readable response, the reread has failed.
        self.exitcode = int(report["unreadable"] > 0 and not report["responses"])
        if opts.json:
            print_json(report)
            return
        pages = count(report["pages"], "page")
        read = f"{count(report['responses'], 'response')} of {pages} read"
        if report["restated"]:
            histories = f"{count(report['restated'], 'history')} rewritten"
            changes = (
                f"{count(report['changes_added'], 'change')} added, "
                f"{report['changes_removed']:,} removed"
            )
            print_line(f"{report['site']}: {read}; {histories}; {changes}")
        elif report["unreadable"] or report["deleted"] or not report["pages"]:
            print_line(f"{report['site']}: {read}; no history rewritten")
        else:
            print_line(
                f"{report['site']}: {read}; nothing changed: the histories already match the "
                "current site definition. Edit its fields first"
            )
        if report["deleted"]:
            deleted = count(report["deleted"], "response")
            print_line(f"{deleted} deleted with the oldest archive files")
        if report["unreadable"]:
            print_line(f"{count(report['unreadable'], 'response')} could not be read, such as:")
            for problem in report["problems"]:
                print_line(f"  {problem}")
