"""`scrapy replan`: compute and activate a new plan from the change log."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, ClassVar

from crawler.cli.base import FreshetCommand, option, print_json
from crawler.cli.options import add_spiders
from crawler.errors import Busy, ConfigError
from crawler.utils import time as units
from crawler.utils.terminal import print_line, working

if TYPE_CHECKING:
    from crawler.planning.options import ReplanRequest
    from crawler.planning.report_types import ReplanReport
    from crawler.planning.sharded import Sharding

BUSY = "another replan is running"
# The engine that plans in this process.
LOCAL = "local"


class Command(FreshetCommand):
    """Make a new plan for all targets, or for those of some spiders."""

    summary = "Plan when to visit each target, based on its change history"
    example = "scrapy replan --budget 265/day --dry-run"
    documents: ClassVar = {
        "scrapy replan --json": "list[crawler.planning.report_types.ReplanReport]",
    }

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of the plan.

        If none of them is given or set, the policy, budget and caps of the current plan are kept.
        """
        super().add_options(parser)
        add_spiders(parser, "plan only targets of this spider")
        parser.add_argument(
            "--kind", choices=("pages", "feeds"),
            help="plan only pages or only feeds (default: both, each with its own budget)",
        )  # fmt: skip
        parser.add_argument(
            "--policy", metavar="NAME",
            help="allocation policy. Pages: optimal, groups, groups6, uniform, sqrt, freshness, "
            "harmonic, age, adaptive; feeds: optimal, uniform, min-delay, min-missing (default: "
            "FRESHET_POLICY for pages and FRESHET_FEED_POLICY for feeds, else optimal)",
        )  # fmt: skip
        parser.add_argument(
            "--objective", metavar="NAME",
            help="objective of the policy optimal: balanced, freshness, age, delay (default: "
            "FRESHET_OBJECTIVE, else balanced)",
        )  # fmt: skip
        parser.add_argument(
            "--budget", metavar="N",
            help="requests a day on average, such as 265/day (default: FRESHET_BUDGET for pages "
            "and FRESHET_FEED_BUDGET for feeds, else the current budget)",
        )  # fmt: skip
        parser.add_argument(
            "--freshness", metavar="F",
            help="goal instead of --budget: use the budget that gives this expected freshness, "
            "such as 0.95",
        )  # fmt: skip
        parser.add_argument(
            "--max-age", metavar="T",
            help="goal instead of --budget: use the budget that gives this mean age, such as 6h",
        )  # fmt: skip
        parser.add_argument(
            "--daily-cap", metavar="N",
            help="maximum requests a day; 0 is unlimited (default: FRESHET_DAILY_CAP, else 1.5 "
            "times the budget)",
        )  # fmt: skip
        parser.add_argument(
            "--hourly-cap", metavar="N",
            help="maximum requests an hour; 0 is unlimited (default: FRESHET_HOURLY_CAP, else "
            "unlimited)",
        )  # fmt: skip
        parser.add_argument(
            "--shared-budget", action="store_true",
            help="split one budget between pages and feeds (default: FRESHET_SHARED_BUDGET)",
        )  # fmt: skip
        parser.add_argument(
            "--engine", metavar="NAME", default=LOCAL,
            help="where pages are planned: local (default), processes (of this machine) or "
            "dask://HOST:PORT (scheduler of a Dask cluster). The plan is the same",
        )  # fmt: skip
        parser.add_argument(
            "--shards", metavar="N", type=int,
            help="number of shards into which processes and dask:// divide the pages; a shard has "
            "to fit into the memory of a process (default: one for each 100,000 targets)",
        )  # fmt: skip
        parser.add_argument(
            "--dry-run", action="store_true", help="print the plan without storing it"
        )

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Compute, store and print the plans."""
        # Slow to import, and --help does not need it.
        from crawler.cli.plan_output import show_replan
        from crawler.planning.options import PlanOptions, ReplanRequest

        options = PlanOptions(
            policy=opts.policy,
            objective=opts.objective,
            budget=option(units.per_day, opts.budget, "--budget"),
            freshness=option(units.share, opts.freshness, "--freshness"),
            max_age_hours=option(units.hours, opts.max_age, "--max-age"),
            daily_cap=option(units.per_day, opts.daily_cap, "--daily-cap"),
            hourly_cap=option(units.per_hour, opts.hourly_cap, "--hourly-cap"),
        )
        options.check()
        shared = opts.shared_budget or self.config.shared_budget
        order = ReplanRequest(options, opts.spider, opts.kind, shared, opts.dry_run)
        if opts.shards is not None and (opts.engine == LOCAL or opts.shards < 1):
            raise ConfigError("--shards needs a number from 1, and --engine processes or dask://")
        try:
            with (
                _sharding_of(opts) as sharding,
                working(self.config.progress, "opening the database") as progress,
            ):
                plans = asyncio.run(self._replan(order, sharding, progress))
        except Busy as busy:
            # The nightly replan of cron has nothing to do. The terms of a user must not get lost.
            if options == PlanOptions():
                print_line(f"scrapy replan: {busy}", error=True)
                return
            raise ConfigError(f"{busy.without_ending}. Repeat the command after that") from None
        if opts.json:
            print_json(plans)
        else:
            show_replan(plans)

    async def _replan(
        self, order: ReplanRequest, sharding: Sharding | None, progress: Callable[[str], None]
    ) -> list[ReplanReport]:
        # Slow to import. Invalid options are reported before.
        from crawler.planning.replan import replan_parts
        from crawler.storage import leases
        from crawler.storage.store import opened

        config = self.config
        async with opened(config) as db, AsyncExitStack() as stack:
            if not order.dry_run:
                await stack.enter_async_context(leases.held(db, config, leases.REPLAN, BUSY))
            if sharding is None:
                return await replan_parts(db, config, order, progress)
            from crawler.planning.sharded import replan_in_shards

            return await replan_in_shards(db, config, order, sharding, progress)


@contextmanager
def _sharding_of(opts: argparse.Namespace) -> Iterator[Sharding | None]:
    """Yield the engine and the number of shards; None to plan in this process."""
    if opts.engine == LOCAL:
        yield None
        return
    from crawler.planning.engines import engine_of
    from crawler.planning.sharded import Sharding

    with engine_of(opts.engine) as engine:
        yield Sharding(engine, opts.shards)
