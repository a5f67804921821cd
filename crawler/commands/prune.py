"""`scrapy prune`: keep the database from growing forever."""

from __future__ import annotations

import argparse
import asyncio
from datetime import timedelta

from crawler.cli.base import FreshetCommand, print_json
from crawler.errors import ConfigError
from crawler.utils.terminal import print_line
from crawler.utils.text import megabytes
from crawler.utils.time import Clock

Counts = dict[str, dict[str, int]]


class Command(FreshetCommand):
    """Remove old versions, and make daily aggregates of old visits."""

    example = "scrapy prune --spider books --keep-versions 10 --keep-days 90 --dry-run"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Remove old versions and roll old visits up into days"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add what to keep."""
        super().add_options(parser)
        parser.add_argument(
            "--spider", action="append", metavar="NAME", help="only this one (may be repeated)"
        )
        parser.add_argument(
            "--keep-versions", type=int, metavar="N",
            help="newest versions kept a target (default: FRESHET_KEEP_VERSIONS)",
        )  # fmt: skip
        parser.add_argument(
            "--keep-days", type=float, metavar="DAYS",
            help="older visits become day sums, passes go (default: FRESHET_KEEP_VISITS_DAYS)",
        )  # fmt: skip
        parser.add_argument("--dry-run", action="store_true", help="only count what would go")

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Prune, and print how much went."""
        config = self.config
        keep = config.keep_versions if opts.keep_versions is None else opts.keep_versions
        days = config.keep_visits_days if opts.keep_days is None else opts.keep_days
        if keep < 0 or days < 0:
            raise ConfigError("--keep-versions and --keep-days cannot be negative")
        if not keep and not days:
            raise ConfigError("nothing to do: give --keep-versions N or --keep-days DAYS")
        counts = asyncio.run(self._prune(opts.spider, int(keep), days, really=not opts.dry_run))
        if opts.json:
            print_json({"dry_run": opts.dry_run, "spiders": counts})
            return
        verb = "would go" if opts.dry_run else "gone"
        for name, n in counts.items():
            gone = f"{n['versions']} versions, {n['visits']} visits and {n['runs']} passes"
            print_line(f"{name}: {gone} {verb}; {megabytes(n['kept_bytes'])} of versions kept")

    async def _prune(
        self, spiders: list[str] | None, keep: int, days: float, *, really: bool
    ) -> Counts:
        from crawler.storage import retention, targets
        from crawler.storage.retention import SizeLimits
        from crawler.storage.store import opened

        config = self.config
        async with opened(config) as db:
            stored = await targets.spiders(db)
            if unknown := sorted(set(spiders or ()) - set(stored)):
                raise ConfigError(f"no targets of {unknown[0]!r}; there are: {', '.join(stored)}")
            before = Clock(config.clock_offset_hours).now() - timedelta(days=days)
            counts: Counts = {}
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
