"""The stream of due targets: read from MongoDB as the crawl makes room, never held in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator

from crawler.items import Target
from crawler.session import Session
from crawler.storage import targets


async def due_targets(session: Session, limit: int | None = None) -> AsyncIterator[Target]:
    """Targets that are due at the start of the pass or discovered during it, each once.

    A visited target's next visit lies after the start of the pass, so asking for what is due
    again and again gives each target once; only those in flight have to be left out.
    limit: how many to hand out at most
    """
    handed_out = 0
    while session.error is None:
        idle, releases = not session.in_flight, session.releases
        batch = await session.patience.read(lambda: _next_batch(session))
        if not batch and idle:
            return
        if not batch:
            await session.until_released(releases)
        for target in batch:
            await _room(session)
            if session.error is not None or (limit is not None and handed_out >= limit):
                return
            handed_out += 1
            session.take(target)
            yield target


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
