"""`scrapy replan`: from the change log to a plan for each target."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from crawler.cli.base import FreshetCommand, print_json
from crawler.cli.types import option
from crawler.errors import Busy
from crawler.ops.progress import working
from crawler.utils import time as units
from crawler.utils.terminal import print_line

if TYPE_CHECKING:
    from crawler.planning.options import ReplanRequest
    from crawler.storage.client import Document

BUSY = "another replan is running"


class Command(FreshetCommand):
    """A new plan for all targets, or for those of some spiders."""

    example = "scrapy replan --budget 265/day --dry-run"

    def short_desc(self) -> str:
        """One line for `scrapy -h`."""
        return "Plan when to visit each target, from what is known of its changes"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of the plan; those that are not given stay as they are."""
        super().add_options(parser)
        parser.add_argument(
            "--spider", action="append", metavar="NAME", help="only this one (may be repeated)"
        )
        parser.add_argument(
            "--kind", choices=("pages", "feeds"), help="only these; they are planned apart"
        )
        parser.add_argument("--policy", metavar="P", help="how visits are shared out: optimal, …")
        parser.add_argument(
            "--objective", metavar="O", help="balanced, freshness, age or delay (policy optimal)"
        )
        parser.add_argument("--budget", metavar="N", help="requests a day, such as 265/day")
        parser.add_argument(
            "--freshness", metavar="F", help="or: as many as this expected freshness needs (0.95)"
        )
        parser.add_argument(
            "--max-age", metavar="T", help="or: as many as this mean age needs (6h)"
        )
        parser.add_argument(
            "--daily-cap",
            metavar="N",
            help="requests a day at most (default: 1.5 times the budget)",
        )
        parser.add_argument("--hourly-cap", metavar="N", help="requests an hour at most")
        parser.add_argument(
            "--shared-budget", action="store_true",
            help="pages and feeds share the budget (default: FRESHET_SHARED_BUDGET)",
        )  # fmt: skip
        parser.add_argument("--dry-run", action="store_true", help="plan, and write nothing")

    def execute(self, args: list[str], opts: argparse.Namespace) -> None:
        """Plan, carry it out, and print the plans."""
        # Slow to import: not for --help.
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
        try:
            with working(self.config, "opening the database") as say:
                plans = asyncio.run(self._replan(order, say))
        except Busy as busy:
            print_line(f"scrapy replan: {busy}", error=True)
            return
        if opts.json:
            # Where pages and feeds were planned, the feeds' plan is a field of the pages' plan.
            first, *further = plans
            print_json(first | {plan["kind"]: plan for plan in further})
        else:
            show_replan(plans)

    async def _replan(self, order: ReplanRequest, say: Callable[[str], None]) -> list[Document]:
        # Slow to import: not before there is something to plan.
        from crawler.planning.replan import replan_parts
        from crawler.storage import leases
        from crawler.storage.store import opened

        config = self.config
        async with opened(config) as db, AsyncExitStack() as stack:
            if not order.dry_run:
                await stack.enter_async_context(leases.held(db, config, leases.REPLAN, BUSY))
            return await replan_parts(db, config, order, say)
