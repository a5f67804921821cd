"""Decide how many targets a run may hand out now, and order them if it cannot visit all of them.

Both frontiers use this module, so a run ends in the same way with and without Redis.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from functools import partial

import numpy as np

from crawler.extract.list_wrappers import FeedsWrapper, connections_by_host
from crawler.frontier.run import Run
from crawler.storage import due, targets
from crawler.storage.client import in_batches
from crawler.storage.due import DueTargets, VisitShare
from schedules.dispatch import Capacity, dispatch, equal_ratio
from schedules.history import Floats

logger = logging.getLogger(__name__)


class Admission:
    """Decides how many targets a run may hand out now.

    limit:      maximum number of targets of the run (`-a limit`); None: no limit
    handed_out: number of targets handed out so far by all processes
    """

    def __init__(self, run: Run, limit: int | None) -> None:
        self._run = run
        self._limit = limit
        self.handed_out = 0

    @property
    def is_spent(self) -> bool:
        """Return whether the run has handed out as many targets as its limit allows."""
        return self._limit is not None and self.handed_out >= self._limit

    async def admit(self, max_targets: int, under_way: int) -> int | None:
        """Return how many of `max_targets` targets to hand out now; None ends the run and logs why.

        under_way: number of targets that are queued or in progress. Some may already be stored and
                   would count twice, so the caps end the run only when there are none; until then,
                   0 is returned
        """
        run, allowance = self._run, self._run.allowance
        refused, allowed = None, 0
        if self._limit is not None:
            max_targets = min(max_targets, self._limit - self.handed_out)
        if self.is_spent:
            refused = "over_limit", f"limit reached (-a limit={self._limit})"
        elif not allowance.is_open():
            refused = "closed", "outside the site's visiting hours (visiting_hours, blackout)"
        else:
            allowed = await allowance.some(max_targets, under_way)
            if max_targets and not allowed and not under_way:
                refused = "over_cap", allowance.reached
        if refused is None:
            return allowed
        name, reason = refused
        count = partial(targets.count_due, run.db, run.spider, run.started)
        run.state.counts[name] = left = max(0, await run.patience.read(count) - under_way)
        if left:
            logger.info("%s: %s; %d targets remain due", run.spider, reason, left)
        return None


async def chosen(run: Run, size: int) -> AsyncIterator[list[str]]:
    """Yield the keys of the targets to fetch in dispatch order, in lists of `size`.

    Yields nothing if the run can fetch all due targets: dispatch only matters if a cap or a
    CLOSESPIDER_* setting may end the run before that.
    """
    limits, db, spider = run.limits, run.db, run.spider
    room = await run.allowance.room(0)
    caps = (room, limits.cap or None)
    is_short = any(cap is not None and run.state.due_at_start > cap for cap in caps)
    if not is_short and not run.may_end_early:
        return
    # Pages of paused hosts would take the places of others.
    closed = run.closed_hosts()
    candidates = await run.patience.read(partial(due.read, db, spider, run.started, closed))
    longest = run.config.longest_hours(feeds=isinstance(run.wrapper, FeedsWrapper))
    waiting = candidates.waiting.due(longest, by_time=run.is_timed)
    # Array (h,): number of requests that each host may still get.
    of_host = None
    if limits.cap:
        spent = np.array([limits.requests[host] for host in candidates.hosts], np.int64)
        of_host = np.maximum(limits.cap - spent, 0)
    served = await run.patience.read(partial(_served, run, candidates))
    capacity = Capacity(requests=room, of_host=of_host)
    best = dispatch(run.config.dispatch, waiting, capacity, served)
    if len(best) < len(waiting):
        logger.info(
            "%s: %d targets due, %d can be fetched; chosen by %s",
            spider, len(waiting), len(best), run.config.dispatch,
        )  # fmt: skip
    for part in in_batches(best.tolist(), size):
        yield [candidates.ids[i] for i in part]


async def _served(run: Run, candidates: DueTargets) -> float | Floats:
    """Return the ratio of visits to planned visits that all targets would get if it were equal.

    If requests are limited, that is the spider's ratio so far. If time is limited, each host has
    its own ratio; the ratio of a database follows from the load of its cells and its connections.
    """
    if not run.is_timed:
        return await due.served(run.db, run.spider)
    of_host = await due.served_of_hosts(run.db, run.spider)
    at_a_time = connections_by_host(run.wrapper)
    equal = np.ones(len(candidates.hosts))
    for number, host in enumerate(candidates.hosts):
        served = of_host.get(host, VisitShare())
        is_database = host in at_a_time
        equal[number] = equal_ratio(served.load / at_a_time[host]) if is_database else served.share
    ratios: Floats = equal[candidates.waiting.host]
    return ratios
