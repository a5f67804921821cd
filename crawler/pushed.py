"""What hubs have delivered since the last pass, one document after the other for each feed."""

from __future__ import annotations

from collections.abc import AsyncIterator

from crawler.items import Target
from crawler.session import Session
from crawler.storage import pushes, targets
from crawler.storage.pushes import Push

BATCH = 100


async def pushed_documents(session: Session) -> AsyncIterator[tuple[Target, Push]]:
    """Deliveries with their feeds, the oldest first; those without a feed are dropped.

    A delivery is done with when its visit is stored; the next one of the same feed waits for that.
    """
    while session.error is None:
        batch = await session.patience.read(lambda: pushes.take(session.db, session.spider, BATCH))
        if not batch:
            return
        for push in batch:
            target = await _free(session, f"{session.spider} {push.url}")
            if session.error is not None:
                return
            if target is None:
                await pushes.done(session.db, [push.id])
                continue
            session.take(target)
            yield target, push
        await _until_stored(session)


async def _free(session: Session, key: str) -> Target | None:
    """A feed as it is stored, once nothing of it is in flight; None where it is not watched."""
    while key in session.in_flight and session.error is None:
        await session.until_released(session.releases)
    return await session.patience.read(lambda: targets.of_key(session.db, key))


async def _until_stored(session: Session) -> None:
    """Deliveries that are in flight would be taken again."""
    while session.in_flight and session.error is None:
        await session.until_released(session.releases)
