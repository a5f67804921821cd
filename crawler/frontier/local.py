"""The stream of due targets: read from MongoDB as the crawl makes room, never held in memory."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

from crawler.frontier.dispatch import chosen
from crawler.frontier.session import Session
from crawler.items import Target
from crawler.storage import targets

logger = logging.getLogger(__name__)


async def due_targets(session: Session, limit: int | None = None) -> AsyncIterator[Target]:
    """Targets that are due at the start of the pass or discovered during it, each once.

    limit: how many to hand out at most
    """
    handed_out = 0
    async for target in _candidates(session):
        await _room(session)
        if target.key in session.along:
            continue
        if session.error is not None:
            return
        if limit is not None and handed_out >= limit:
            await refuse(session, *over_limit(limit), len(session.in_flight))
            return
        if refusal := await _refusal(session):
            await refuse(session, *refusal, len(session.in_flight))
            return
        handed_out += 1
        session.take(target)
        yield target


async def _candidates(session: Session) -> AsyncIterator[Target]:
    """What is due; as the dispatcher says where not all of it has room."""
    async for target in _chosen(session):
        yield target
    async for target in _overdue(session):
        yield target


async def _overdue(session: Session) -> AsyncIterator[Target]:
    """What is due, the most overdue first.

    A visited target's next visit lies after the start of the pass, so asking for what is due
    again and again gives each target once; only those in flight have to be left out.
    """
    while session.error is None:
        idle, releases = not session.in_flight, session.releases
        batch = await session.patience.read(lambda: _next_batch(session))
        if not batch and idle:
            return
        if not batch:
            await session.until_released(releases)
        for target in batch:
            yield target


async def _chosen(session: Session) -> AsyncIterator[Target]:
    """Those that the dispatcher lets go, where there is no room for all."""
    if not session.allowance.is_open():
        return
    async for keys in chosen(session, session.config.in_flight):
        for target in await _of_keys(session, keys):
            yield target


async def _of_keys(session: Session, keys: list[str]) -> list[Target]:
    """Those of a few targets that are still due and may be asked for, in the same order."""
    db, started, closed = session.db, session.started, session.closed_hosts()
    found = await session.patience.read(lambda: targets.due_of(db, keys, started, closed))
    return [found[key] for key in keys if key in found]


CLOSED = ("closed", "closed at this hour by the wrapper's windows or blackout")


def over_cap(session: Session) -> tuple[str, str]:
    """That the caps are reached, as a count's name and in words."""
    return "over_cap", session.allowance.reached


def over_limit(limit: int) -> tuple[str, str]:
    """That the user's own limit is reached, as a count's name and in words."""
    return "over_limit", f"-a limit={limit} is reached"


async def _refusal(session: Session) -> tuple[str, str] | None:
    """Why nothing more may be handed out, as a count's name and in words; None if it may."""
    allowance = session.allowance
    if not allowance.is_open():
        return CLOSED
    while True:
        in_flight, releases = len(session.in_flight), session.releases
        if await allowance.take(in_flight):
            return None
        # One in flight may be stored already, and so counted twice.
        if not in_flight or session.error is not None:
            return over_cap(session)
        await session.until_released(releases)


async def refuse(session: Session, name: str, why: str, under_way: int) -> None:
    """Say once why the pass ends here; what is left stays due."""
    count = await session.patience.read(
        lambda: targets.count_due(session.db, session.spider, session.started)
    )
    left = max(0, count - under_way)
    session.counts[name] = left
    if left:
        logger.info("%s: %s; %d stay due", session.spider, why, left)


async def _next_batch(session: Session) -> list[Target]:
    """Due targets that were not in flight when the question was asked, nor are now.

    The answer is older than this moment: a target that was visited and released while it was on
    its way would look due and free.
    """
    size = session.config.in_flight
    in_flight = frozenset(session.in_flight)
    found = await targets.due(
        session.db,
        session.spider,
        session.started,
        size + len(in_flight),
        session.closed_hosts(),
    )
    return [target for target in found if target.key not in in_flight]


async def _room(session: Session) -> None:
    while len(session.in_flight) >= session.config.in_flight and session.error is None:
        await session.until_released(session.releases)
