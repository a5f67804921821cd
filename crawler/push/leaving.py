"""Gives all subscriptions up, where that is asked for at the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial

from crawler.push.asking import Asking, form_of
from crawler.push.guard import NotAllowed
from crawler.push.outgoing import HubFailed
from crawler.storage import websub
from crawler.storage.websub import Ask, Feed
from crawler.utils.urls import host_of

logger = logging.getLogger(__name__)
LOOK_SECONDS = 0.2


async def leave(asking: Asking, seconds: float) -> int:
    """Ask the hubs to end what they deliver to this callback; how many confirmed it in time.

    seconds: for all of them; the others count as ended too, and hubs that go on are answered 410
    """
    db, patience, callback = asking.db, asking.patience, asking.wanted.callback
    feeds = await patience.read(lambda: websub.leave(db, callback))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            for feed in feeds:
                host = host_of(feed.push["hub"])
                await asking.lanes.put(feed.key, host, partial(_leave, asking, feed))
            await _confirmed(asking)
    now = asking.clock.now()
    return len(feeds) - await patience.read(lambda: websub.stay(db, now))


async def _confirmed(asking: Asking) -> None:
    """Return when no confirmation is missing any more; they come in at the callback."""
    db = asking.db
    while await asking.patience.read(lambda: websub.count_leaving(db)):  # noqa: ASYNC110
        await asyncio.sleep(LOOK_SECONDS)


async def _leave(asking: Asking, feed: Feed) -> None:
    push = feed.push
    ask = Ask(push["hub"], push["topic"], push["callback"], push["token"], push["secret"])
    try:
        await asking.hubs.post(ask.hub, form_of(ask, "unsubscribe"), feed.url)
    except (NotAllowed, HubFailed) as error:
        logger.info("%s: hub %s: %s", feed.url, ask.hub, error)
