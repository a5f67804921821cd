"""Runs jobs of the web app, and defines their requests: `python -m crawler.reports.jobs`.

Planning needs compiled code, minutes and a gigabyte. Comparisons of posts need compiled code, whose
compiler takes 60 MB and a second to load. The web app runs both in subprocesses, so that they
neither slow it down nor keep its memory.

The web app imports this module for the models of requests, so NumPy and Numba are imported only to
run a job.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from contextlib import AsyncExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BaseModel, Field, TypeAdapter

from crawler.config import Config
from crawler.errors import Busy
from crawler.storage import leases
from crawler.storage.client import raising_unreachable
from crawler.storage.store import opened
from crawler.utils.process import Say, serve

if TYPE_CHECKING:
    from crawler.storage.client import Database

MODULE = "crawler.reports.jobs"
REPLAN_BUSY = "another replan is running"
CHANGED = "the plan has changed since the dry run. Make the dry run again"
# Of planning jobs, so that the web app and crawls have priority.
NICENESS = 5

JobKind = Literal[
    "curve", "preview", "apply", "simulate", "feed_curve", "feed_preview", "feed_apply"
]
CURVE: JobKind = "curve"
PREVIEW: JobKind = "preview"
APPLY: JobKind = "apply"
SIMULATE: JobKind = "simulate"
FEED_CURVE: JobKind = "feed_curve"
FEED_PREVIEW: JobKind = "feed_preview"
FEED_APPLY: JobKind = "feed_apply"
# The policies for pages, as `options.POLICIES`.
Policy = Literal[
    "optimal", "groups", "groups6", "uniform", "sqrt", "freshness", "harmonic", "age", "adaptive"
]
POLICY_NAMES: tuple[Policy, ...] = get_args(Policy)


class JobRequest(BaseModel):
    """A request for a planning job.

    config:    settings of the app
    budget:    requests a day; None for curves, and in simulations for the current budget
    objective: objective for pages; None: the objective in the settings
    policies:  policies to simulate; empty: the default
    plans:     to apply a dry run: ids of the plans in effect at the time of the dry run
    """

    kind: JobKind
    config: dict[str, Any]
    budget: float | None = None
    objective: str | None = None
    policies: tuple[str, ...] = ()
    plans: tuple[str, ...] = ()


class PairRequest(BaseModel):
    """A request to compare or to label two posts.

    config: settings of the app
    posts:  ids of the posts; to compare them, URLs as well
    same:   to label them: whether they are the same
    by:     to label them: name of the user
    now:    to label them: time of the label
    """

    kind: Literal["compare", "label"]
    config: dict[str, Any]
    posts: tuple[str, str]
    same: bool = False
    by: str = ""
    now: datetime | None = None


REQUESTS: TypeAdapter[JobRequest | PairRequest] = TypeAdapter(
    Annotated[JobRequest | PairRequest, Field(discriminator="kind")]
)


async def main() -> None:
    """Run the jobs that an app requests on standard input."""
    async with AsyncExitStack() as stack:
        db: Database | None = None

        async def run(line: bytes, say: Say) -> Any:
            nonlocal db
            job = REQUESTS.validate_json(line)
            config = Config.load(**job.config)
            if isinstance(job, JobRequest):
                os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
            with raising_unreachable():
                if isinstance(job, JobRequest) and job.kind == SIMULATE:
                    # The simulation opens the database itself, in its own event loop.
                    return await asyncio.to_thread(simulated, config, job, say)
                if db is None:
                    db = await stack.enter_async_context(opened(config))
                if isinstance(job, JobRequest):
                    return await _planned(db, config, job, say)
                from crawler.reports.duplicates import compare_posts, put_label

                if job.kind == "compare":
                    return await compare_posts(db, config, job.posts, None, by_datasketch=False)
                assert job.now is not None
                return await put_label(db, config, job.posts, job.now, same=job.same, by=job.by)

        await serve(run)


async def _planned(db: Database, config: Config, job: JobRequest, say: Say) -> Any:
    """Return a curve or a dry run, or make and store a plan.

    Raises Busy if the plans in effect have changed since the dry run.
    """
    from crawler.planning.budget_curve import FEEDS, PAGES
    from crawler.planning.budget_forecast import curve_of, plans_in_effect, preview_of, request_of
    from crawler.planning.replan import replan_parts

    measure = FEEDS if job.kind in (FEED_CURVE, FEED_PREVIEW, FEED_APPLY) else PAGES
    if job.kind in (CURVE, FEED_CURVE):
        return await curve_of(db, config, measure, job.objective, say)
    assert job.budget is not None
    if job.kind in (PREVIEW, FEED_PREVIEW):
        return await preview_of(db, config, measure, job.budget, job.objective, say)
    request = request_of(measure, job.budget, job.objective, dry_run=False)
    async with leases.held(db, config, leases.REPLAN, REPLAN_BUSY):
        if await plans_in_effect(db, config, measure) != list(job.plans):
            raise Busy(CHANGED)
        (report,) = await replan_parts(db, config, request, say)
        return report


def simulated(config: Config, job: JobRequest, say: Say) -> Any:
    """Return the report of `scrapy simulate pages --history` for the policies of a request."""
    from crawler.planning.simulate_pages import PageSimulation

    opts = argparse.Namespace(
        policy=list(job.policies) or None, budget=[repr(job.budget)] if job.budget else None,
        history="", daily_cap=None, closed_loop=False, replan_every=None, start=None, split=None,
        stop=None, visits_out=None, plot=None, changes=None, pages=None,
        lists=None, recall=None, false_flags=None, lists_fail=None, seed=None,
    )  # fmt: skip
    simulation = PageSimulation(config, opts)
    say("reading the history")
    simulation.play(say)
    return simulation.report()


if __name__ == "__main__":
    asyncio.run(main())
