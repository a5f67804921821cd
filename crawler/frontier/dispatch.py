"""Which of the due targets go, and in what order, where a pass has no room for all."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import numpy as np

from crawler.extract.list_wrappers import FeedsWrapper, of_databases
from crawler.frontier.session import Session
from crawler.storage import due as waiting
from crawler.storage.due import DueTargets, Served
from crawler.storage.retry import in_batches
from schedules.dispatch.dispatch import Capacity, dispatch, equal_ratio
from schedules.history import Floats, Ints

logger = logging.getLogger(__name__)


async def chosen(session: Session, size: int) -> AsyncIterator[list[str]]:
    """Keys of the targets that go, in their order, `size` at a time; nothing if all have room."""
    room = await session.allowance.room(0)
    if not _is_short(session, room):
        return
    db, name, started = session.db, session.spider, session.started
    found = await session.patience.read(lambda: waiting.read(db, name, started))
    served = await session.patience.read(lambda: _served(session, found))
    longest = session.config.longest_hours(feeds=isinstance(session.wrapper, FeedsWrapper))
    due = found.waiting.due(longest, by_time=session.is_timed)
    capacity = Capacity(requests=room, of_host=_of_host(session, found))
    best = dispatch(session.config.dispatch, due, capacity, served)
    if len(best) < len(due):
        logger.info(
            "%s: %d due, %d may be asked for: chosen by %s",
            name, len(due), len(best), session.config.dispatch,
        )  # fmt: skip
    for part in in_batches(best.tolist(), size):
        yield [found.ids[i] for i in part]


async def _served(session: Session, found: DueTargets) -> float | Floats:
    """The ratio that all would have if all had the same.

    Where requests are short, it is what they had so far. Where time is short, each host is by
    itself; of a database it is known what its cells ask for and what it can do.
    """
    if not session.is_timed:
        return await waiting.served(session.db, session.spider)
    of_host = await waiting.served_of_hosts(session.db, session.spider)
    at_a_time = of_databases(session.wrapper)
    equal = np.ones(len(found.hosts))
    for number, host in enumerate(found.hosts):
        fared = of_host.get(host, Served())
        known = equal_ratio(fared.load / at_a_time[host]) if host in at_a_time else fared.share
        equal[number] = known
    result: Floats = equal[found.waiting.host]
    return result


def _is_short(session: Session, room: int | None) -> bool:
    """Whether some of what is due may have to wait: for a cap, or as the pass is to end before."""
    caps = (room, session.limits.cap or None)
    short = any(cap is not None and session.due_at_start > cap for cap in caps)
    return short or session.may_end_early


def _of_host(session: Session, found: DueTargets) -> Ints | None:
    """(h,) requests that each host may still get."""
    if not session.limits.cap:
        return None
    asked = [session.limits.asked[host] for host in found.hosts]
    return np.maximum(session.limits.cap - np.array(asked, np.int64), 0)
