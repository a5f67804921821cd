"""Which due targets a run hands out: in what order, and until when.

Both frontiers ask here, so that the limit, the hours and the caps end a run in the same way.
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
from crawler.storage.retry import in_batches
from schedules.dispatch.dispatch import Capacity, dispatch, equal_ratio
from schedules.history import Floats

if TYPE_CHECKING:
    from crawler.frontier.session import Session

logger = logging.getLogger(__name__)


class Admission:
    """How many targets may be handed out now; logs once why a run hands out no more.

    limit: the user's, for the whole run; handed_out: so far, of all processes
    """

    def __init__(self, session: Session, limit: int | None) -> None:
        self._session = session
        self._limit = limit
        self.handed_out = 0

    async def admit(self, most: int, under_way: int) -> int | None:
        """How many of `most` may go now, counted against the caps; None if the run is to end.

        under_way: targets that wait or are worked on; some of them may be stored already, and so
        counted twice. Caps end the run only once there are none; before that, 0 is returned.
        """
        session, allowance = self._session, self._session.allowance
        refused, allowed = None, 0
        if self._limit is not None:
            most = min(most, self._limit - self.handed_out)
        if self._limit is not None and self.handed_out >= self._limit:
            refused = "over_limit", f"-a limit={self._limit} is reached"
        elif not allowance.is_open():
            refused = "closed", "closed at this hour by the wrapper's windows or blackout"
        else:
            allowed = await allowance.some(most, under_way)
            if most and not allowed and not under_way:
                refused = "over_cap", allowance.reached
        if refused is None:
            return allowed
        name, reason = refused
        count = partial(targets.count_due, session.db, session.spider, session.started)
        session.counts[name] = left = max(0, await session.patience.read(count) - under_way)
        if left:
            logger.info("%s: %s; %d stay due", session.spider, reason, left)
        return None


async def chosen(session: Session, size: int) -> AsyncIterator[list[str]]:
    """Keys of the targets that go, in their order, `size` at a time; nothing if all have room.

    Some may have to wait where a cap is near, or where Scrapy ends the run before all are fetched.
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
    # (h,) requests that each host may still get.
    of_host = None
    if limits.cap:
        spent = np.array([limits.asked[host] for host in candidates.hosts], np.int64)
        of_host = np.maximum(limits.cap - spent, 0)
    served = await session.patience.read(partial(_served, session, candidates))
    capacity = Capacity(requests=room, of_host=of_host)
    best = dispatch(session.config.dispatch, waiting, capacity, served)
    if len(best) < len(waiting):
        logger.info(
            "%s: %d due, %d may be asked for: chosen by %s",
            spider, len(waiting), len(best), session.config.dispatch,
        )  # fmt: skip
    for part in in_batches(best.tolist(), size):
        yield [candidates.ids[i] for i in part]


async def _served(session: Session, candidates: DueTargets) -> float | Floats:
    """The ratio that all would have if all had the same.

    Where requests are short, it is what they had so far. Where time is short, each host is by
    itself; of a database it is known what its cells ask for and what it can do.
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
