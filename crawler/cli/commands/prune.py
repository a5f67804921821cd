"""`scrapy prune`: delete old data to limit the size of the database."""

from __future__ import annotations

import argparse
import asyncio
from datetime import timedelta

from typing_extensions import TypedDict

from crawler.cli.base import FreshetCommand, JsonTypes, no_targets, print_json
from crawler.errors import ConfigError
from crawler.utils.terminal import print_line
from crawler.utils.text import megabytes
from crawler.utils.time import Clock


class PrunedSpider(TypedDict):
    """Deleted data of a spider."""

    versions: int
    """Number of deleted versions."""
    visits: int
    """Number of visits that daily aggregates replaced."""
    runs: int
    """Number of deleted runs."""
    kept_bytes: int
    """Uncompressed bytes of the versions that are left."""


class PruneReport(TypedDict):
    """Deleted data."""

    dry_run: bool
    """Whether nothing was deleted."""
    spiders: dict[str, PrunedSpider]
    """Deleted data by spider."""


class Command(FreshetCommand):
    """Delete old versions and runs, and replace old visits by daily aggregates."""

    example = "scrapy prune --spider books --keep-versions 10 --keep-days 90 --dry-run"

    def short_desc(self) -> str:
        """Return the description for `scrapy -h`."""
        return "Delete old versions and runs, and replace old visits by daily aggregates"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add how much data to keep, and of which spiders."""
        super().add_options(parser)
        parser.add_argument(
            "--spider", action="append", metavar="NAME",
            help="prune only this spider (may be repeated; default: all spiders)",
        )  # fmt: skip
        parser.add_argument(
            "--keep-versions", type=int, metavar="N",
            help="number of versions to keep per target; 0 keeps all (default: "
            "FRESHET_KEEP_VERSIONS)",
        )  # fmt: skip
        parser.add_argument(
            "--keep-days", type=float, metavar="DAYS",
            help="age from which visits are aggregated by day and runs are deleted; 0: never "
            "(default: FRESHET_KEEP_VISITS_DAYS)",
        )  # fmt: skip
        parser.add_argument(
            "--dry-run", action="store_true",
            help="print what would be deleted, without deleting it",
        )  # fmt: skip

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Prune the database, and print how much was deleted."""
        config = self.config
        keep = config.keep_versions if opts.keep_versions is None else opts.keep_versions
        days = config.keep_visits_days if opts.keep_days is None else opts.keep_days
        if keep < 0 or days < 0:
            raise ConfigError("--keep-versions and --keep-days cannot be negative")
        if not keep and not days:
            raise ConfigError("nothing to prune. Give --keep-versions N or --keep-days DAYS")
        counts = asyncio.run(self._prune(opts.spider, int(keep), days, really=not opts.dry_run))
        if opts.json:
            report: PruneReport = {"dry_run": opts.dry_run, "spiders": counts}
            print_json(report)
            return
        verb = "would delete" if opts.dry_run else "deleted"
        for name, n in counts.items():
            deleted = f"{n['versions']} versions, {n['visits']} visits and {n['runs']} runs"
            print_line(f"{name}: {verb} {deleted}; {megabytes(n['kept_bytes'])} of versions kept")

    def json_types(self) -> JsonTypes:
        """Return the type of the counts."""
        return {"scrapy prune --keep-versions 10 --json": PruneReport}

    async def _prune(
        self, spiders: list[str] | None, keep: int, days: float, *, really: bool
    ) -> dict[str, PrunedSpider]:
        from crawler.storage import retention, targets
        from crawler.storage.retention import SizeLimits
        from crawler.storage.store import opened

        config = self.config
        async with opened(config) as db:
            stored = await targets.spiders(db)
            if unknown := sorted(set(spiders or ()) - set(stored)):
                raise no_targets(unknown[0], stored)
            before = Clock(config.clock_offset_hours).now() - timedelta(days=days)
            counts: dict[str, PrunedSpider] = {}
            for name in spiders or stored:
                by_number = (
                    await retention.prune_versions(db, name, keep, really=really) if keep else 0
                )
                limits = SizeLimits(db, name, config)
                by_size = await limits.bound_targets(really=really)
                kept = await limits.bound_site(really=really)
                counts[name] = {
                    "versions": by_number + by_size + kept.removed,
                    "visits": await retention.roll_up_visits(db, name, before, really=really)
                    if days
                    else 0,
                    "runs": await retention.drop_runs(db, name, before, really=really)
                    if days
                    else 0,
                    "kept_bytes": kept.bytes,
                }
            return counts
