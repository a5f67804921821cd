"""Asks hubs for subscriptions: new feeds, renewals, and what failed, each in its time."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from scrapy.http import Response

from crawler.errors import FreshetError
from crawler.middlewares.manners import retry_after
from crawler.push import times
from crawler.push.guard import NotAllowed
from crawler.push.holds import Holds
from crawler.push.lanes import Lanes
from crawler.push.options import Wanted
from crawler.push.outgoing import HubFailed, Hubs, Reply
from crawler.push.tokens import Tokens, new_secret
from crawler.storage import hosts, websub
from crawler.storage.client import Database
from crawler.storage.patience import Patience
from crawler.storage.websub import Ask, Feed
from crawler.utils.terminal import printable
from crawler.utils.time import Clock
from crawler.utils.urls import host_of

logger = logging.getLogger(__name__)
# Answers of a hub that say nothing about this subscription.
PASSING = frozenset({408, 425, 429})
MOST_REASON = 200


@dataclass(slots=True)
class Asking:
    """Keeps the feeds' subscriptions: looks for what is due and asks, until it is cancelled."""

    db: Database
    patience: Patience
    clock: Clock
    hubs: Hubs
    tokens: Tokens
    wanted: Wanted
    counts: Counter[str]
    lanes: Lanes = field(default_factory=Lanes)
    chance: random.Random = field(default_factory=random.Random)
    holds: Holds = field(init=False)

    def __post_init__(self) -> None:
        self.holds = Holds(self.chance)

    async def work(self) -> None:
        """Look for what is due, again and again; an absent database is waited for."""
        while True:
            try:
                await self.look()
            except FreshetError as error:
                logger.warning("%s", error)
            await asyncio.sleep(self.wanted.look_seconds)

    async def look(self) -> None:
        """Begin to ask the hubs that are to be asked now, as far as there is room."""
        now = self.clock.now()
        await self.patience.read(lambda: websub.lapse(self.db, now))
        known = await self.patience.read(lambda: hosts.holds(self.db, now))
        self.holds.refresh(known, now)
        await self.patience.read(lambda: self._offer_due(now))

    async def _offer_due(self, now: datetime) -> None:
        async for feed in websub.due(self.db, self.wanted.callback, now):
            hub = self._hub_of(feed, now)
            if hub is None:
                end = self.holds.first_end(map(host_of, feed.hubs))
                later = end + timedelta(minutes=self.chance.random())
                await websub.postponed(self.db, feed.key, later)
            elif self.lanes.are_full:
                return
            else:
                self.lanes.offer(feed.key, host_of(hub), partial(self._ask, feed))

    def _hub_of(self, feed: Feed, now: datetime) -> str | None:
        """The hub to ask: the confirmed one, else the next in turn; None if all are on hold."""
        turn = feed.push.get("attempts", 0) % len(feed.hubs)
        order = [*feed.hubs[turn:], *feed.hubs[:turn]]
        if feed.push.get("state") == "active" and feed.push["hub"] in order:
            order.insert(0, feed.push["hub"])
        return next((hub for hub in order if not self.holds.are_on(host_of(hub), now)), None)

    async def _ask(self, feed: Feed) -> None:
        """Ask a feed's hub and note what it says."""
        now = self.clock.now()
        hub = self._hub_of(feed, now)
        if hub is None:
            return  # Its hub failed while it waited for its turn; the next look puts it off.
        ask = self._ask_of(feed, hub)
        attempts = feed.push.get("attempts", 0) + 1
        again = now + times.pause(attempts, self.chance.random())
        # Before the request: a hub may come to verify it before it answers.
        if await self.patience.read(lambda: websub.asked(self.db, feed, ask, now, again)):
            self.counts["asked"] += 1
            await self._send(feed, ask)

    def _ask_of(self, feed: Feed, hub: str) -> Ask:
        """A renewal keeps token and secret; another hub or topic gets others."""
        push = feed.push
        if push.get("hub") == hub and push.get("topic") == feed.topic:
            token, secret = push["token"], push["secret"]
        else:
            token, secret = self.tokens.new(), new_secret()
        return Ask(hub, feed.topic, self.wanted.callback, token, secret)

    async def _send(self, feed: Feed, ask: Ask) -> None:
        lease_seconds = int(self.wanted.lease.total_seconds())
        form = form_of(ask, "subscribe") | {
            "hub.secret": ask.secret, "hub.lease_seconds": str(lease_seconds),
        }  # fmt: skip
        try:
            reply = await self.hubs.post(ask.hub, form, feed.url)
        except NotAllowed as error:
            await self._refused(feed, ask, str(error))
        except HubFailed as error:
            self.holds.failed(host_of(ask.hub), self.clock.now())
            await self._failed(feed, ask, str(error))
        else:
            await self._heard(feed, ask, reply)

    async def _heard(self, feed: Feed, ask: Ask, reply: Reply) -> None:
        reason, host = in_one_line(f"{reply.status} {reply.text}"), host_of(ask.hub)
        if reply.status < 300:
            self.holds.answered(host)
        elif 400 <= reply.status < 500 and reply.status not in PASSING:
            self.holds.answered(host)
            await self._refused(feed, ask, reason)
        else:
            self.holds.failed(host, self.clock.now())
            await self._obey(host, reply)
            await self._failed(feed, ask, reason)

    async def _failed(self, feed: Feed, ask: Ask, reason: str) -> None:
        self.counts["failed"] += 1
        logger.info("%s: hub %s: %s", feed.url, ask.hub, reason)
        write = partial(websub.failed, self.db, feed.key, ask.token, reason)
        await self.patience.read(write)

    async def _refused(self, feed: Feed, ask: Ask, reason: str) -> None:
        self.counts["refused"] += 1
        logger.info("%s: hub %s refuses: %s", feed.url, ask.hub, reason)
        others = feed.push.get("attempts", 0) + 1 < len(feed.hubs)
        later = self.clock.now() + (times.FIRST_PAUSE if others else times.AFTER_REFUSAL)
        write = partial(websub.refused, self.db, feed.key, ask.token, reason, later)
        await self.patience.read(write)

    async def _obey(self, host: str, reply: Reply) -> None:
        """A hub that names a time to come again is left alone until then, by crawls as well."""
        if reply.retry_after is None:
            return
        response = Response("http://hub", headers={"Retry-After": reply.retry_after})
        until = retry_after(response, self.clock.now())
        if until is not None:
            self.holds.wish(host, until)
            await self.patience.read(lambda: hosts.hold(self.db, host, until))


def form_of(ask: Ask, mode: str) -> dict[str, str]:
    """What every request to a hub says. mode: subscribe or unsubscribe."""
    return {
        "hub.mode": mode,
        "hub.topic": ask.topic,
        "hub.callback": f"{ask.callback}/{ask.token}",
    }


def in_one_line(text: str) -> str:
    """What a stranger says, fit for the database and the log."""
    return printable(text[: 4 * MOST_REASON])[:MOST_REASON]
