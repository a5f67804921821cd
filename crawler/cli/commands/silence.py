"""`scrapy silence`: targets that have been silent for too long, and pages that broke."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, ClassVar

from crawler.cli.base import FreshetCommand, print_json, spiders_of, with_database
from crawler.cli.options import add_limit
from crawler.utils.terminal import print_line, working
from crawler.utils.text import count, listed

if TYPE_CHECKING:
    from crawler.storage.alarms import AlarmReport
    from crawler.storage.client import Database

DEFAULT_LIMIT = 50


class Command(FreshetCommand):
    """List the open alarms of silent targets and broken pages, or check for silence now."""

    arguments = ("[NAME]",)
    summary = "List targets that have not changed for longer than they usually do, and broken pages"
    example = "scrapy silence books --check"
    documents: ClassVar = {
        "scrapy silence --json": "list[crawler.storage.alarms.AlarmReport]",
    }

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add `--check` and `--limit`."""
        super().add_options(parser)
        parser.add_argument(
            "--check", action="store_true",
            help="check all targets for silence now (default: list what the last replan, check and "
            "crawl found)",
        )  # fmt: skip
        add_limit(parser, "alarms to show", DEFAULT_LIMIT)

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Print the open alarms: broken pages, then the least probable silences."""
        from crawler.storage import alarms

        config = self.config

        async def read(db: Database) -> tuple[dict[str, int], list[AlarmReport]]:
            spiders = await spiders_of(db, args[0] if args else None)
            if opts.check:
                # Slow to import. Unknown sites are reported before.
                from crawler.planning.silence import check_silences

                progress(f"checking {listed(spiders)}")
                await check_silences(db, config, config.clock.now(), spiders)
            counts = await alarms.count_open(db, spiders)
            rows = await alarms.open_alarms(db, spiders, opts.limit)
            return {spider: counts.get(spider, 0) for spider in spiders}, rows

        with working(config.progress, "opening the database") as progress:
            counts, rows = with_database(config, read)
        if opts.json:
            print_json(rows)
            return
        if not rows:
            hint = "" if opts.check else ". Run scrapy silence --check or scrapy replan to check"
            print_line(f"no open alarms in {listed(list(counts))}{hint}")
            return
        for row in rows:
            name = row["target"] or row["spider"]
            if row["field"] and row["target"]:
                name = f"{row['field']} of {name}"
            print_line(f"{row['since']:%Y-%m-%d %H:%M}  {row['event']}  {name}")
            print_line(f"    {row['text']}")
        total = sum(counts.values())
        sites = [spider for spider, open_alarms in counts.items() if open_alarms]
        more = f"; {total - len(rows):,} more with --limit N" if total > len(rows) else ""
        print_line(f"{count(len(rows), 'open alarm')} in {listed(sites)}, times in UTC{more}")
