"""`scrapy forget`: remove a URL or all of a spider from the database."""

from __future__ import annotations

import argparse
import asyncio

from crawler.cli.base import FreshetCommand, confirm, print_json
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.utils.terminal import print_line
from crawler.utils.time import Clock
from crawler.utils.urls import is_http


class Command(FreshetCommand):
    """Remove targets, visits, versions and items; there is no way back."""

    arguments = ("URL|NAME",)
    example = "scrapy forget oldshop --yes"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Remove a URL, or everything of a spider, from the database"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add whether to ask, and whether to remove."""
        super().add_options(parser)
        parser.add_argument("--yes", action="store_true", help="do not ask")
        parser.add_argument("--dry-run", action="store_true", help="only count what would go")

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Count, ask, remove."""
        counts = asyncio.run(_forget(self.config, args[0], really=False))
        if not opts.dry_run:
            confirm(_in_words(counts), opts, of=args[0])
            asyncio.run(_forget(self.config, args[0], really=True))
        if opts.json:
            print_json({"dry_run": opts.dry_run} | counts)
        else:
            verb = "would forget" if opts.dry_run else "forgot"
            print_line(f"{verb} {_in_words(counts)}")


async def _forget(config: Config, what: str, *, really: bool) -> dict[str, int]:
    from crawler.items import CELL
    from crawler.storage import retention, targets
    from crawler.storage.dedup.index import as_stored
    from crawler.storage.store import opened
    from crawler.storage.target_queries import names_of, unknown

    async with opened(config) as db, as_stored(db, config) as registry:
        now = Clock(config.clock_offset_hours).now()
        if what.startswith(CELL):
            counts = await retention.forget_url(db, registry, what, now, really=really)
        elif is_http(what):
            # Sites leave out different parameters.
            for url in dict.fromkeys(names_of(what, config)):
                counts = await retention.forget_url(db, registry, url, now, really=really)
                if any(counts.values()):
                    break
        else:
            counts = await retention.forget_spider(db, registry, what, now, really=really)
        if any(counts.values()):
            return counts
        if is_http(what):
            raise await unknown(db, what, ("targets", "posts"))
        spiders = ", ".join(await targets.spiders(db)) or "none"
        raise ConfigError(f"nothing is stored of {what!r}. Sites with targets: {spiders}")


def _in_words(counts: dict[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in counts.items())
