"""Order a planning job, and run it: `python -m crawler.planning.jobs`.

The web app starts a subprocess for each job, so that compiled loops do not slow it down and their
memory is returned. The first line of standard input is the order as JSON. Each line of standard
output is JSON: `progress` with a text, and at the end `result`, or `error` with `busy`. When
standard input ends, the app has gone, and the process exits.

The web app imports this module for its orders, so NumPy and Numba are imported only to run a job.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import BaseModel

from crawler.config import Config
from crawler.errors import Busy, FreshetError
from crawler.storage import leases
from crawler.storage.store import opened

if TYPE_CHECKING:
    from crawler.planning.options import ReplanRequest
    from crawler.planning.replan_report import ReplanReport
    from crawler.storage.client import Database

REPLAN_BUSY = "another replan is running"
CHANGED = "the plan has changed since the dry run. Make the dry run again."
# The web app and crawls go first.
NICENESS = 5

Say = Callable[[str], None]
Kind = Literal["curve", "preview", "apply", "simulate", "feed_curve", "feed_preview", "feed_apply"]
CURVE: Kind = "curve"
PREVIEW: Kind = "preview"
APPLY: Kind = "apply"
SIMULATE: Kind = "simulate"
FEED_CURVE: Kind = "feed_curve"
FEED_PREVIEW: Kind = "feed_preview"
FEED_APPLY: Kind = "feed_apply"
# The policies for pages, as `options.POLICIES`.
Policy = Literal[
    "optimal", "groups", "groups6", "uniform", "sqrt", "freshness", "harmonic", "age", "adaptive"
]
POLICY_NAMES: tuple[Policy, ...] = get_args(Policy)


class JobOrder(BaseModel):
    """The order of a job.

    config:    settings of the app
    budget:    requests a day; None for curves, and in simulations for the current budget
    objective: of pages; None: the objective in the settings
    policies:  of a simulation; empty: the default
    plans:     to apply: ids of the plans in effect at the dry run
    """

    kind: Kind
    config: dict[str, Any]
    budget: float | None = None
    objective: str | None = None
    policies: tuple[str, ...] = ()
    plans: tuple[str, ...] = ()


def main() -> int:
    """Run the job that standard input orders."""
    order = JobOrder.model_validate_json(sys.stdin.readline())
    config = Config.load(**order.config)
    threading.Thread(target=_exit_with_the_app, daemon=True).start()
    os.nice(NICENESS)
    try:
        if order.kind == SIMULATE:
            result = simulated(config, order, _say)
        else:
            result = asyncio.run(_planned(config, order))
        _send({"result": result})
    except FreshetError as error:
        _send({"error": str(error), "busy": isinstance(error, Busy)})
        return 1
    return 0


async def _planned(config: Config, order: JobOrder) -> Any:
    # Slow to import; errors in the order are reported before.
    from crawler.planning.budget_forecast import curve_of, preview_of, request_of
    from crawler.planning.feed_forecast import feed_curve_of, feed_preview_of, feed_request
    from crawler.planning.options import FEEDS, PAGES

    async with opened(config) as db:
        if order.kind == CURVE:
            return await curve_of(db, config, order.objective, _say)
        if order.kind == FEED_CURVE:
            return await feed_curve_of(db, config, _say)
        assert order.budget is not None
        if order.kind == PREVIEW:
            return await preview_of(db, config, order.budget, order.objective, _say)
        if order.kind == FEED_PREVIEW:
            return await feed_preview_of(db, config, order.budget, _say)
        if order.kind == FEED_APPLY:
            request = feed_request(order.budget, dry_run=False)
            return await _applied(db, config, order, request, FEEDS)
        assert order.kind == APPLY
        request = request_of(order.budget, order.objective, dry_run=False)
        return await _applied(db, config, order, request, PAGES)


async def _applied(
    db: Database, config: Config, order: JobOrder, request: ReplanRequest, kind: str
) -> ReplanReport:
    """Make and store a plan; raises Busy if others are in effect than at the dry run."""
    from crawler.planning.budget_forecast import plans_in_effect
    from crawler.planning.replan import replan_parts

    async with leases.held(db, config, leases.REPLAN, REPLAN_BUSY):
        if await plans_in_effect(db, config, kind) != list(order.plans):
            raise Busy(CHANGED)
        (report,) = await replan_parts(db, config, request, _say)
        return report


def simulated(config: Config, order: JobOrder, say: Say) -> Any:
    """Return the figures of `scrapy simulate pages --history`, with the policies of an order."""
    from crawler.planning.simulate_pages import PageSimulation

    opts = argparse.Namespace(
        policy=list(order.policies) or None, budget=[repr(order.budget)] if order.budget else None,
        history="", daily_cap=None, closed_loop=False, replan_every=None, start=None, split=None,
        stop=None, visits_out=None, plot=None, changes=None, pages=None,
    )  # fmt: skip
    simulation = PageSimulation(config, opts)
    say("reading the history")
    simulation.play(say)
    return simulation.report()


def _say(text: str) -> None:
    _send({"progress": text})


def _send(message: dict[str, Any]) -> None:
    """Write a message; times as in ISO 8601."""
    sys.stdout.write(json.dumps(message, default=lambda at: at.isoformat()) + "\n")
    sys.stdout.flush()


def _exit_with_the_app() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
