"""`scrapy prune`: delete old data to limit the size of the database."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from crawler.cli.base import FreshetCommand, print_json, with_database
from crawler.cli.options import MAX_NUMBER, add_spiders
from crawler.errors import ConfigError, no_targets
from crawler.utils.terminal import print_line
from crawler.utils.text import count, listed, megabytes

if TYPE_CHECKING:
    from crawler.config import Config
    from crawler.storage.client import Database
    from crawler.storage.pruning import PruneReport

MAX_DAYS = 36_500
# Nouns of the parts of the report.
PARTS = {
    "versions": "version", "aggregates": "daily aggregate", "visits": "visit", "runs": "run",
}  # fmt: skip
SHARED_PARTS = {
    "plans": "plan", "alarms": "alarm", "messages": "notification", "hosts": "host pause",
}  # fmt: skip


class Command(FreshetCommand):
    """Delete data that is too old or exceeds the limits, and aggregate old visits by day."""

    summary = "Delete old versions, runs and plans, and replace old visits with daily aggregates"
    example = "scrapy prune --spider books --keep-versions 10 --keep-days 90 --dry-run"
    documents: ClassVar = {
        "scrapy prune --keep-versions 10 --json": "crawler.storage.pruning.PruneReport",
    }

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add options for how much data to keep, and of which spiders."""
        super().add_options(parser)
        add_spiders(parser, "prune only this spider")
        parser.add_argument(
            "--keep-versions", type=int, metavar="N",
            help="number of versions to keep per target; 0 keeps all (default: "
            "FRESHET_KEEP_VERSIONS, 20)",
        )  # fmt: skip
        parser.add_argument(
            "--keep-days", type=float, metavar="DAYS",
            help="age from which visits are aggregated by day and runs are deleted; 0: never "
            "(default: FRESHET_KEEP_VISITS_DAYS, 365, and FRESHET_KEEP_RUNS_DAYS, 90). Daily "
            "aggregates are deleted after FRESHET_KEEP_AGGREGATES_DAYS (1095), plans that no "
            "target uses anymore after FRESHET_KEEP_PLANS_DAYS (365)",
        )  # fmt: skip
        parser.add_argument(
            "--dry-run", action="store_true",
            help="print what would be deleted, without deleting it",
        )  # fmt: skip

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Prune the database, and print how much was deleted."""
        keep = {"keep_versions": opts.keep_versions}
        keep |= dict.fromkeys(("keep_visits_days", "keep_runs_days"), opts.keep_days)
        given = {name: value for name, value in keep.items() if value is not None}
        if given.get("keep_versions", 0) < 0:
            raise ConfigError("--keep-versions: cannot be negative. Use 0 to keep all")
        if given.get("keep_versions", 0) > MAX_NUMBER:
            raise ConfigError(f"--keep-versions: use at most {MAX_NUMBER:,}, or 0 to keep all")
        if not 0 <= given.get("keep_visits_days", 0) <= MAX_DAYS:
            raise ConfigError(f"--keep-days: use a number of days from 0 (never) to {MAX_DAYS:,}")
        config = self.config.model_copy(update=given)
        if not opts.dry_run:
            from crawler.ops.schedule import rotate_logs

            rotate_logs(config)
        report = with_database(config, lambda db: _prune(db, config, opts))
        if opts.json:
            print_json(report)
            return
        verb = "would delete" if opts.dry_run else "deleted"
        spiders = report["spiders"]
        for name, n in spiders.items():
            if deleted := _counts(n, PARTS):
                kept = megabytes(n["kept_bytes"])
                print_line(f"{name}: {verb} {deleted}; {kept} of versions kept")
        if idle := [name for name, n in spiders.items() if not _counts(n, PARTS)]:
            kept = megabytes(sum(spiders[name]["kept_bytes"] for name in idle))
            print_line(f"{listed(idle)}: nothing to delete; {kept} of versions kept")
        if deleted := _counts(report["shared"], SHARED_PARTS):
            print_line(f"all sites: {verb} {deleted}")


async def _prune(db: Database, config: Config, opts: argparse.Namespace) -> PruneReport:
    """Prune the chosen spiders, or all, and the data that belongs to no spider."""
    from crawler.storage import pruning, runs, targets

    ages, now, delete = pruning.Ages.of(config), config.clock.now(), not opts.dry_run
    # Runs of a site may not have found any target.
    stored = sorted({*await targets.spiders(db), *await runs.spiders(db)})
    if unknown := sorted(set(opts.spider or ()) - set(stored)):
        raise no_targets(unknown[0], stored)
    return {
        "dry_run": opts.dry_run,
        "spiders": {
            name: await pruning.prune_spider(db, name, ages, config, now, delete=delete)
            for name in opts.spider or stored
        },
        "shared": await pruning.prune_shared(db, ages, now, delete=delete),
    }


def _counts(deleted: Mapping[str, Any], nouns: Mapping[str, str]) -> str:
    """Return the numbers in words, without zeros: `1 version, 3 visits`; empty if all are zero."""
    return ", ".join(count(deleted[name], noun) for name, noun in nouns.items() if deleted[name])
