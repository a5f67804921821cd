"""`scrapy forget`: delete the data of a URL or of a spider from the database."""

from __future__ import annotations

import argparse
import asyncio

from typing_extensions import TypedDict

from crawler.cli.base import FreshetCommand, JsonTypes, confirm, print_json
from crawler.config import Config
from crawler.errors import ConfigError
from crawler.utils.terminal import print_line
from crawler.utils.time import Clock
from crawler.utils.urls import is_http


class ForgetReport(TypedDict):
    """Deleted data."""

    dry_run: bool
    """Whether nothing was deleted."""
    deleted: dict[str, int]
    """Number of deleted documents by collection."""


class Command(FreshetCommand):
    """Delete targets, visits, versions and items. This cannot be undone."""

    arguments = ("URL|NAME",)
    example = "scrapy forget oldshop --yes"

    def short_desc(self) -> str:
        """Return the description for `scrapy -h`."""
        return "Delete all data of a URL, or of a spider, from the database"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add `--yes` and `--dry-run`."""
        super().add_options(parser)
        parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
        parser.add_argument(
            "--dry-run", action="store_true",
            help="print what would be deleted, without deleting it",
        )  # fmt: skip

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Count the data, ask for confirmation, and delete them."""
        counts = asyncio.run(_forget(self.config, args[0], really=False))
        if not opts.dry_run:
            confirm(_in_words(counts), opts, of=args[0])
            asyncio.run(_forget(self.config, args[0], really=True))
        if opts.json:
            report: ForgetReport = {"dry_run": opts.dry_run, "deleted": counts}
            print_json(report)
        else:
            verb = "would delete" if opts.dry_run else "deleted"
            print_line(f"{verb} {_in_words(counts)}")

    def json_types(self) -> JsonTypes:
        """Return the type of the counts."""
        return {"scrapy forget URL --yes --json": ForgetReport}


async def _forget(config: Config, url_or_name: str, *, really: bool) -> dict[str, int]:
    """Return the number of documents to delete by kind, and delete them if `really`.

    Raises ConfigError if there are none.
    """
    from crawler.items import CELL
    from crawler.storage import retention, targets
    from crawler.storage.dedup.index import as_stored
    from crawler.storage.store import opened
    from crawler.storage.target_queries import names_of, unknown

    async with opened(config) as db, as_stored(db, config) as registry:
        now = Clock(config.clock_offset_hours).now()
        if url_or_name.startswith(CELL):
            counts = await retention.forget_url(db, registry, url_or_name, now, really=really)
        elif is_http(url_or_name):
            # A URL may be stored without some of its parameters. These differ between sites.
            for url in dict.fromkeys(names_of(url_or_name, config)):
                counts = await retention.forget_url(db, registry, url, now, really=really)
                if any(counts.values()):
                    break
        else:
            counts = await retention.forget_spider(db, registry, url_or_name, now, really=really)
        if any(counts.values()):
            return counts
        if is_http(url_or_name):
            raise await unknown(db, url_or_name, ("targets", "posts"))
        spiders = ", ".join(await targets.spiders(db)) or "none"
        raise ConfigError(f"no data stored for {url_or_name!r}. Sites with targets: {spiders}")


def _in_words(counts: dict[str, int]) -> str:
    return ", ".join(f"{n} {name}" for name, n in counts.items())
