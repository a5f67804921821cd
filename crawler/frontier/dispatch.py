"""Order the due targets of a run, and end the run at its limit, visiting hours or caps.

Both frontiers use this module, so a run ends in the same way with and without Redis.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from crawler.extract.list_wrappers import FeedsWrapper, connections_by_host
from crawler.storage import due, targets
from crawler.storage.due import DueTargets, VisitShare
from crawler.storage.outages import in_batches
from schedules.dispatch.dispatch import Capacity, dispatch, equal_ratio
from schedules.history import Floats

if TYPE_CHECKING:
    from crawler.frontier.session import Session

logger = logging.getLogger(__name__)


class Admission:
    """Decides how many targets a run may hand out now.

    limit:      maximum number of targets of the run (`-a limit`); None: no limit
    handed_out: number of targets handed out so far by all processes
    """

    def __init__(self, session: Session, limit: int | None) -> None:
        self._session = session
        self._limit = limit
        self.handed_out = 0

    async def admit(self, max_targets: int, under_way: int) -> int | None:
        """Return how many of `max_targets` targets to hand out now; None ends the run and logs why.

        under_way: number of targets that are queued or in progress. Some may already be stored and
                   would count twice, so the caps end the run only when there are none; until then,
                   0 is returned
        """
        session, allowance = self._session, self._session.allowance
        refused, allowed = None, 0
        if self._limit is not None:
            max_targets = min(max_targets, self._limit - self.handed_out)
        if self._limit is not None and self.handed_out >= self._limit:
            refused = "over_limit", f"limit reached (-a limit={self._limit})"
        elif not allowance.is_open():
            refused = "closed", "outside the site's visiting hours (windows, blackout)"
        else:
            allowed = await allowance.some(max_targets, under_way)
            if max_targets and not allowed and not under_way:
                refused = "over_cap", allowance.reached
        if refused is None:
            return allowed
        name, reason = refused
        count = partial(targets.count_due, session.db, session.spider, session.started)
        session.counts[name] = left = max(0, await session.patience.read(count) - under_way)
        if left:
            logger.info("%s: %s; %d targets remain due", session.spider, reason, left)
        return None


async def chosen(session: Session, size: int) -> AsyncIterator[list[str]]:
    """Yield the keys of the targets to fetch in dispatch order, in lists of `size`.

    Yields nothing if the run can fetch all due targets: dispatch only matters if a cap or a
    CLOSESPIDER_* setting may end the run before that.
    """
    limits, db, spider = session.limits, session.db, session.spider
    room = await session.allowance.room(0)
    caps = (room, limits.cap or None)
    is_short = any(cap is not None and session.due_at_start > cap for cap in caps)
    if not is_short and not session.may_end_early:
        return
    candidates = await session.patience.read(partial(due.read, db, spider, session.started))
    longest = session.config.longest_hours(feeds=isinstance(session.wrapper, FeedsWrapper))
    waiting = candidates.waiting.due(longest, by_time=session.is_timed)
    # Array (h,): number of requests that each host may still get.
    of_host = None
    if limits.cap:
        spent = np.array([limits.asked[host] for host in candidates.hosts], np.int64)
        of_host = np.maximum(limits.cap - spent, 0)
    served = await session.patience.read(partial(_served, session, candidates))
    capacity = Capacity(requests=room, of_host=of_host)
    best = dispatch(session.config.dispatch, waiting, capacity, served)
    if len(best) < len(waiting):
        logger.info(
            "%s: %d targets due, %d can be fetched; chosen by %s",
            spider, len(waiting), len(best), session.config.dispatch,
        )  # fmt: skip
    for part in in_batches(best.tolist(), size):
        yield [candidates.ids[i] for i in part]


async def _served(session: Session, candidates: DueTargets) -> float | Floats:
    """Return the ratio of visits to planned visits that all targets would get if it were equal.

    If requests are limited, that is the spider's ratio so far. If time is limited, each host has
    its own ratio; the ratio of a database follows from the load of its cells and its connections.
    """
    if not session.is_timed:
        return await due.served(session.db, session.spider)
    of_host = await due.served_of_hosts(session.db, session.spider)
    at_a_time = connections_by_host(session.wrapper)
    equal = np.ones(len(candidates.hosts))
    for number, host in enumerate(candidates.hosts):
        served = of_host.get(host, VisitShare())
        is_database = host in at_a_time
        equal[number] = equal_ratio(served.load / at_a_time[host]) if is_database else served.share
    ratios: Floats = equal[candidates.waiting.host]
    return ratios
