"""Deliver the messages of the outbox: each channel on its own, under a lease, in order.

A message is delivered at least once: a process that ends between sending and storing the result
sends it again, with the same id. A channel whose messages fail is paused, without delaying others.
Messages that a channel does not accept yet, because of its quiet hours or its limit, are postponed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from urllib.parse import quote

from crawler.config import Config
from crawler.errors import Busy
from crawler.notify import channels, senders
from crawler.notify.channels import Channel
from crawler.notify.messages import Change, EventView, Message, message_of
from crawler.notify.rules import MAX_FIELDS, MAX_SHOWN_POSTS
from crawler.notify.senders import DeliveryFailed
from crawler.storage import outbox
from crawler.storage.client import Database, Document, MongoRetry, in_batches
from crawler.storage.leases import Lease
from crawler.storage.outbox import Bundle, Grouping
from crawler.utils.process import end_tasks
from crawler.utils.text import count
from crawler.utils.urls import target_id

logger = logging.getLogger(__name__)
# Messages of different targets that a channel receives concurrently. Their results are stored
# together, so that a crash repeats at most these.
CONCURRENT = 8
# Number of consecutive failures after which the channel itself is taken to be unavailable.
MAX_FAILURES = 3
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
ATTEMPT_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed.

    retry_after: delay that the receiver requests; None: none
    accepted:    receivers of the channel that have the message; the next attempt leaves them out
    """

    reason: str
    retry_after: timedelta | None = None
    accepted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Outlet:
    """A channel of `notify.toml`, which sends messages of the outbox.

    private_hosts: HOST:PORT of webhooks that may be in private networks
    web_url:       URL of the web app, for links; None: no links
    """

    name: str
    channel: Channel
    private_hosts: tuple[str, ...] = ()
    web_url: str | None = None
    rng: random.Random = field(default_factory=random.Random)

    @property
    def grouping(self) -> Grouping:
        """Return which messages are sent as one: a digest, those of a page, or none."""
        if self.channel.digest is not None:
            return Grouping.DIGEST
        return Grouping.PAGE if self.channel.debounce_minutes else Grouping.NONE

    @property
    def max_per_hour(self) -> int:
        """Return the maximum number of messages, or of bundles, an hour."""
        return self.channel.max_per_hour

    def open_from(self, at: datetime) -> datetime:
        """Return the first time from `at` on that is not in quiet hours."""
        return channels.open_from(self.channel, at)

    async def send(self, bundle: Bundle) -> Failure | None:
        """Send messages as one, within a time limit; return None if the channel accepted them."""
        try:
            message = message_in(bundle, self.channel, self.grouping, self.web_url)
            await senders.send(
                self.channel, message, ATTEMPT_SECONDS, self.private_hosts, bundle.accepted
            )
        except DeliveryFailed as error:
            seconds = error.retry_after_seconds
            wait = None if seconds is None else timedelta(seconds=seconds)
            return Failure(error.reason, wait, error.accepted)
        return None

    def next_attempt(self, attempts: int, first_at: datetime, now: datetime) -> datetime | None:
        """Return when to try again after `attempts` attempts; None: never."""
        return channels.next_attempt(self.channel, attempts, first_at, now, self.rng)


@dataclass(slots=True)
class Delivered:
    """What a process did with the messages of a channel.

    delivered, failed, dead: numbers of messages; the failed ones include the dead ones
    reason:       cause of the last dead letter
    is_busy:      whether another process delivers the channel
    is_paused:    whether the channel is unavailable, so that it is tried again later
    closed_until: time until which due messages were postponed, because of quiet hours or the hourly
                  limit; None: none were postponed
    """

    channel: str
    delivered: int = 0
    failed: int = 0
    dead: int = 0
    reason: str = ""
    is_busy: bool = False
    is_paused: bool = False
    closed_until: datetime | None = None


class Deliverer:
    """Delivers the due messages of several channels concurrently.

    A channel may be slow: `begin` and `ended` let a caller continue with the other channels.

    patience: retries while MongoDB is unavailable
    """

    def __init__(
        self, db: Database, config: Config, patience: MongoRetry, now: Callable[[], datetime]
    ) -> None:
        self._db, self._config, self._patience, self._now = db, config, patience, now
        self._running: dict[str, asyncio.Task[Delivered]] = {}
        self._is_stopping = False

    def begin(self, outlets: Sequence[Outlet]) -> None:
        """Start delivering the channels that are not being delivered yet."""
        for outlet in outlets:
            if outlet.name not in self._running:
                self._running[outlet.name] = asyncio.create_task(self._deliver(outlet))

    @property
    def is_running(self) -> bool:
        """Return whether a channel is being delivered."""
        return bool(self._running)

    async def ended(self, seconds: float | None) -> list[Delivered]:
        """Return the results of channels that ended; wait for all of them, at most some seconds.

        Without a limit, wait for one of them. Raises StorageError if the database stays
        unavailable; then the other deliveries are stopped.
        """
        if not self._running:
            return []
        when = asyncio.FIRST_COMPLETED if seconds is None else asyncio.ALL_COMPLETED
        done, _ = await asyncio.wait(self._running.values(), timeout=seconds, return_when=when)
        self._running = {name: task for name, task in self._running.items() if task not in done}
        try:
            results = [task.result() for task in done]
        except BaseException:
            await self.cancel()
            raise
        if done:
            await self._patience.read(lambda: outbox.drop_old(self._db, self._now()))
        return results

    async def stop(self) -> list[Delivered]:
        """Start no more attempts; return the results after those in progress have ended."""
        self._is_stopping = True
        results: list[Delivered] = []
        while self.is_running:
            results += await self.ended(None)
        return results

    async def cancel(self) -> None:
        """Cancel all attempts; those in progress will be repeated."""
        running, self._running = self._running, {}
        await end_tasks(*running.values())

    async def _deliver(self, outlet: Outlet) -> Delivered:
        result = Delivered(outlet.name)
        name = f"{outbox.LEASE}{outlet.name}"
        lease = Lease(self._db, name, self._config.lease_seconds, self._patience)
        try:
            await lease.take(f"{outlet.name} is already being delivered")
        except Busy:
            result.is_busy = True
            return result
        lease.keep(partial(logger.warning, "%s: delivery stopped: %s", outlet.name))
        try:
            await self._drain(outlet, lease, result)
        finally:
            await lease.release()
        if result.dead:
            # A single line, however many messages failed.
            message = "%s: dead-lettered messages: %d; last failure: %s"
            logger.warning(message, outlet.name, result.dead, result.reason)
        return result

    async def _drain(self, outlet: Outlet, lease: Lease, result: Delivered) -> None:
        failures = 0
        # Nothing is sent by a process that may have lost its lease while it was paused.
        while not self._is_stopping and await lease.still_holds():
            now = self._now()
            room, opens_at = await self._patience.read(partial(self._room, outlet, now))
            if opens_at > now:
                close = partial(outbox.postpone, self._db, outlet.name, now, opens_at)
                if await self._patience.read(close):
                    result.closed_until = opens_at
                return
            limit = min(outbox.BATCH, room)
            read = partial(outbox.due, self._db, outlet.name, now, outlet.grouping, limit)
            bundles = await self._patience.read(read)
            if not bundles:
                return
            for part in in_batches(bundles, CONCURRENT):
                if self._is_stopping or not await lease.still_holds():
                    return
                ended = await asyncio.gather(*(_attempt(outlet, bundle) for bundle in part))
                failed = await self._record(outlet, part, ended, result)
                failures = failures + failed if failed == len(part) else 0
                requested = [each.retry_after for each in ended if each and each.retry_after]
                if failures >= MAX_FAILURES or requested:
                    result.is_paused = True
                    # The messages that were not tried wait as if they had failed once, and as long
                    # as the receiver requests: its limit is one for all messages.
                    again = outlet.next_attempt(1, now, now) or now
                    again = max([again, *(self._now() + wait for wait in requested)])
                    if again > now:
                        pause = partial(outbox.postpone, self._db, outlet.name, now, again)
                        await self._patience.read(pause)
                    return

    async def _room(self, outlet: Outlet, now: datetime) -> tuple[int, datetime]:
        """Return the number of messages that a channel accepts now, and the time when it opens.

        A channel that is not open now accepts nothing.
        """
        opens_at = outlet.open_from(now)
        if opens_at > now:
            return 0, opens_at
        times = await outbox.sent_times(self._db, outlet.name, now - HOUR)
        room = outlet.max_per_hour - len(times)
        if room > 0:
            return room, now
        # Not earlier than in a minute: each time, all waiting messages are postponed.
        return 0, outlet.open_from(max(times[-outlet.max_per_hour] + HOUR, now + MINUTE))

    async def _record(
        self,
        outlet: Outlet,
        bundles: Sequence[Bundle],
        ended: Sequence[Failure | None],
        result: Delivered,
    ) -> int:
        """Store the results of attempts; return the number of failed ones."""
        now = self._now()
        pairs = list(zip(bundles, ended, strict=True))
        accepted = [bundle for bundle, failure in pairs if failure is None]
        await self._patience.read(lambda: outbox.record_delivered(self._db, accepted, now))
        result.delivered += sum(bundle.size for bundle in accepted)
        for bundle, failure in pairs:
            if failure is None:
                continue
            result.failed += bundle.size
            again = outlet.next_attempt(bundle.attempts + 1, bundle.first_at(now), now)
            if again is None:
                result.dead += bundle.size
                result.reason = failure.reason
            else:
                again = outlet.open_from(max(again, now + (failure.retry_after or timedelta())))
            store = partial(
                outbox.record_failure, self._db, bundle, failure.reason, again, now,
                failure.accepted,
            )  # fmt: skip
            await self._patience.read(store)
        return len(bundles) - len(accepted)


async def _attempt(outlet: Outlet, bundle: Bundle) -> Failure | None:
    try:
        return await outlet.send(bundle)
    except Exception as error:
        logger.debug("%s: unexpected error", outlet.name, exc_info=True)
        return Failure(f"{type(error).__name__}: {error}")


def message_in(
    bundle: Bundle, channel: Channel | None, grouping: Grouping, web_url: str | None = None
) -> Message:
    """Return the message that a channel sends for a bundle.

    channel:  None: the default templates, and times in UTC
    grouping: with PAGE, several events of a page are shown as one, from the first to the last
    web_url:  URL of the web app, for links; None: no links
    """
    is_joined = grouping is Grouping.PAGE and not bundle.more
    events = [joined(bundle.messages)] if is_joined else list(map(view_of, bundle.messages))
    if web_url is not None:
        events = [replace(event, link=link_to(web_url, event.site, event.url)) for event in events]
    if channel is None:
        return message_of(bundle.id, events, more=bundle.more)
    return message_of(
        bundle.id, events, templates=channel.templates, more=bundle.more, zone=channel.zone
    )


def link_to(web_url: str, site: str, url: str) -> str:
    """Return the URL of a page in the web app; of its site if `url` is empty."""
    if not url:
        return f"{web_url}/sites/{quote(site, safe='')}"
    return f"{web_url}/targets/{target_id(f'{site} {url}')}"


def view_of(document: Document) -> EventView:
    """Return the event of a document of the outbox as templates see it."""
    data = document["data"]
    posts = data.get("posts", ())
    matching = data.get("posts_matching", 0)
    reasons = [data.get("text"), data.get("reason")]
    if failures := data.get("failures"):
        reasons.append(f"{count(failures, 'failed visit')} in a row")
    if matching:
        reasons.append(count(matching, "post"))
    view = EventView(
        event=document["event"],
        site=document["spider"],
        url=document["target"],
        title=data.get("title") or ("" if document["target"] else document["spider"]),
        at=document["at"],
        categories=tuple(data.get("categories", ())),
        reason="; ".join(filter(None, reasons)),
    ).with_contents(data.get("before"), data.get("after"))
    if not posts:
        return view
    shown = (" ".join(filter(None, (post["title"], post["url"]))) for post in posts)
    return replace(view, changes=tuple(Change("post", None, text) for text in shown))


def joined(documents: Sequence[Document]) -> EventView:
    """Return one event for several of a page: the last one, with all changes since the first.

    It has the posts of all events of a feed, and the texts of all alarms.

    documents: in order; they lack some fields of pages with more than MAX_FIELDS
    """
    if len(documents) == 1:
        return view_of(documents[0])
    events = [document["data"] for document in documents]
    data = dict(events[-1])
    if texts := dict.fromkeys(event["text"] for event in events if event.get("text")):
        data["text"] = "; ".join(texts)
    if found := [event for event in events if "posts" in event]:
        listed = [post for event in found for post in event["posts"]]
        # An edited post is listed once, with its last title.
        posts = list({post["url"] or post["title"]: post for post in listed}.values())
        repeated = len(listed) - len(posts)
        data["posts_matching"] = sum(event["posts_matching"] for event in found) - repeated
        data["posts"] = posts[:MAX_SHOWN_POSTS]
        return view_of(documents[-1] | {"data": data})
    first, last = events[0], events[-1]
    before, after = first.get("before"), last.get("after")
    stored = [
        {**(event.get("before") or {}), **(event.get("after") or {})} for event in (first, last)
    ]
    if max(map(len, stored)) == MAX_FIELDS:
        # Each document may lack fields that the other one has: compare those in both.
        shared = stored[0].keys() & stored[1].keys()
        before = before and {name: value for name, value in before.items() if name in shared}
        after = after and {name: value for name, value in after.items() if name in shared}
    return view_of(documents[-1] | {"data": data | {"before": before, "after": after}})
