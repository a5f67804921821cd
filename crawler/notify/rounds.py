"""Rounds of notifications: apply the rules, confirm messages, deliver what is due.

The command `scrapy notify` and the service run rounds; any number of them may run concurrently.
Each channel is delivered on its own, under a lease, in order.

A message is delivered at least once: a process that ends between sending and storing the result
sends it again, with the same id. A channel whose messages fail is paused, without delaying others.
Messages that a channel does not accept yet, because of its quiet hours or its limit, are postponed.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from typing_extensions import TypedDict

from crawler.config import Config
from crawler.errors import Busy, ConfigError
from crawler.notify import channels, senders
from crawler.notify.channels import Channel
from crawler.notify.event_views import EventView
from crawler.notify.messages import message_in, message_of
from crawler.notify.rules import Confirmation, RuleSet, confirm, expand, messages_of
from crawler.notify.senders import DeliveryFailed
from crawler.notify.stored_channels import all_channels
from crawler.storage import change_events, outbox, targets
from crawler.storage.client import Database, MongoRetry, in_batches
from crawler.storage.leases import Lease
from crawler.storage.outbox import Bundle, ChannelState, Grouping
from crawler.utils.process import end_tasks
from crawler.utils.shapes import copied
from crawler.utils.text import count

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
    is_final:    another attempt would fail, too
    """

    reason: str
    retry_after: timedelta | None = None
    accepted: tuple[str, ...] = ()
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class Outlet:
    """A channel, which sends messages of the outbox.

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
        """Return which messages are sent as one: a digest, those of a rule, of a page, or none."""
        if self.channel.digest is not None:
            return Grouping.DIGEST
        if self.channel.together:
            return Grouping.RULE
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
            message = message_in(
                bundle, self.grouping, templates=self.channel.templates, zone=self.channel.zone,
                web_url=self.web_url,
            )  # fmt: skip
            await senders.send(
                self.channel, message, ATTEMPT_SECONDS, self.private_hosts, bundle.accepted
            )
        except DeliveryFailed as error:
            seconds = error.retry_after_seconds
            wait = None if seconds is None else timedelta(seconds=seconds)
            return Failure(error.reason, wait, error.accepted, error.is_final)
        return None

    def next_attempt(self, attempts: int, first_at: datetime, now: datetime) -> datetime | None:
        """Return when to try again after `attempts` attempts; None: never."""
        return channels.next_attempt(self.channel, attempts, first_at, now, self.rng)


class ChannelReport(TypedDict):
    """What was delivered to a channel."""

    channel: str
    """Name of the channel."""
    delivered: int
    """Number of messages that the channel accepted."""
    failed: int
    """Number of messages whose attempt failed."""
    dead: int
    """Number of these that are not tried again."""
    busy: bool
    """Whether another process was delivering to the channel."""
    unavailable: bool
    """Whether the last attempts failed, so the others were postponed."""
    closed_until: datetime | None
    """Time until which quiet hours or the hourly limit postponed messages; null: none postponed."""


class Deliverer:
    """Runs rounds, which deliver the due messages of several channels concurrently.

    Deliveries that take longer than a round continue, and do not delay other channels.

    patience: retries while MongoDB is unavailable
    """

    def __init__(
        self, db: Database, config: Config, patience: MongoRetry, now: Callable[[], datetime]
    ) -> None:
        self._db, self._config, self._patience, self._now = db, config, patience, now
        self._running: dict[str, asyncio.Task[ChannelReport]] = {}
        # Cause of the last dead letter of each channel.
        self._causes: dict[str, str] = {}
        self._is_stopping = False

    async def run_round(
        self, seconds: float | None, *, confirms: bool = True
    ) -> tuple[DeliveryReport, list[str]]:
        """Run a round; return its report, and the problems of rules and channels.

        The report has the channels that ended during the round.

        seconds:  maximum time to wait for channels; None: until one of them has ended
        confirms: also decide on messages that wait for the next visit of their page, which reads
                  all of them

        Raises ConfigError for an invalid `notify.toml`; nothing is changed then. Raises
        StorageError if the database stays unavailable.
        """
        db, patience = self._db, self._patience
        rules = await patience.read(lambda: RuleSet.read(db, self._config.notify_file))
        problems = rules.problems(await patience.read(lambda: targets.spiders(db)))
        counts: Counter[str] = Counter()
        while (done := await patience.read(lambda: expand(db, rules, self._now()))).events:
            counts["events"] += done.events
            counts["messages"] += done.messages
        confirmed = Confirmation(0, 0)
        if confirms:
            confirmed = await patience.read(lambda: confirm(db, rules.channels, self._now()))
        private, web_url = self._config.private_hosts, self._config.web_url
        self.begin([Outlet(name, each, private, web_url) for name, each in rules.channels.items()])
        delivered = await self.ended(seconds)
        report: DeliveryReport = {
            "events": counts["events"],
            "messages": counts["messages"],
            "confirmed": confirmed.confirmed,
            "dropped": confirmed.dropped,
            "channels": sorted(delivered, key=lambda each: each["channel"]),
        }
        return report, problems

    def begin(self, outlets: Sequence[Outlet]) -> None:
        """Start delivering the channels that are not being delivered yet."""
        for outlet in outlets:
            if outlet.name not in self._running:
                self._running[outlet.name] = asyncio.create_task(self._deliver(outlet))

    @property
    def is_running(self) -> bool:
        """Return whether a channel is being delivered."""
        return bool(self._running)

    async def ended(self, seconds: float | None) -> list[ChannelReport]:
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

    async def stop(self) -> list[ChannelReport]:
        """Start no more attempts; return the results after those in progress have ended."""
        self._is_stopping = True
        results: list[ChannelReport] = []
        while self.is_running:
            results += await self.ended(None)
        return results

    async def cancel(self) -> None:
        """Cancel all attempts; those in progress will be repeated."""
        running, self._running = self._running, {}
        await end_tasks(*running.values())

    async def _deliver(self, outlet: Outlet) -> ChannelReport:
        result: ChannelReport = {
            "channel": outlet.name, "delivered": 0, "failed": 0, "dead": 0,
            "busy": False, "unavailable": False, "closed_until": None,
        }  # fmt: skip
        name = f"{outbox.LEASE}{outlet.name}"
        lease = Lease(self._db, name, self._config.lease_seconds, self._patience)
        try:
            await lease.take(f"{outlet.name} is already being delivered")
        except Busy:
            result["busy"] = True
            return result
        lease.keep(partial(logger.warning, "%s: delivery stopped: %s", outlet.name))
        try:
            await self._drain(outlet, lease, result)
        finally:
            await lease.release()
        if result["dead"]:
            # A single line, however many messages failed.
            message = "%s: dead-lettered messages: %d; last failure: %s"
            logger.warning(message, outlet.name, result["dead"], self._causes[outlet.name])
        return result

    async def _drain(self, outlet: Outlet, lease: Lease, result: ChannelReport) -> None:
        failures = 0
        # Nothing is sent by a process that may have lost its lease while it was paused.
        while not self._is_stopping and await lease.still_holds():
            now = self._now()
            room, opens_at = await self._patience.read(partial(self._room, outlet, now))
            if opens_at > now:
                close = partial(outbox.postpone, self._db, outlet.name, now, opens_at)
                if await self._patience.read(close):
                    result["closed_until"] = opens_at
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
                    result["unavailable"] = True
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
        result: ChannelReport,
    ) -> int:
        """Store the results of attempts; return the number of those that may succeed later."""
        now = self._now()
        pairs = list(zip(bundles, ended, strict=True))
        accepted = [bundle for bundle, failure in pairs if failure is None]
        await self._patience.read(lambda: outbox.record_delivered(self._db, accepted, now))
        result["delivered"] += sum(bundle.size for bundle in accepted)
        for bundle, failure in pairs:
            if failure is None:
                continue
            result["failed"] += bundle.size
            again = outlet.next_attempt(bundle.attempts + 1, bundle.first_at(now), now)
            if failure.is_final:
                again = None
            if again is None:
                result["dead"] += bundle.size
                self._causes[outlet.name] = failure.reason
            else:
                again = outlet.open_from(max(again, now + (failure.retry_after or timedelta())))
            store = partial(
                outbox.record_failure, self._db, bundle, failure.reason, again, now,
                failure.accepted,
            )  # fmt: skip
            await self._patience.read(store)
        return sum(failure is not None and not failure.is_final for failure in ended)


async def _attempt(outlet: Outlet, bundle: Bundle) -> Failure | None:
    try:
        return await outlet.send(bundle)
    except Exception as error:
        logger.debug("%s: unexpected error", outlet.name, exc_info=True)
        return Failure(f"{type(error).__name__}: {error}")


# Interval of searches for new events while a channel is still being delivered, and time after which
# a process that delivers only once ends.
ROUND_SECONDS, MAX_SECONDS = 5.0, 600.0


class DeliveryReport(TypedDict):
    """Result of a delivery."""

    events: int
    """Number of events to which the rules were applied."""
    messages: int
    """Number of new messages."""
    confirmed: int
    """Number of messages that the next visit of their page confirmed."""
    dropped: int
    """Number of messages that the next visit of their page did not confirm."""
    channels: list[ChannelReport]
    """Results by channel."""


class NotifyStatus(TypedDict):
    """State of notifications."""

    rules: int
    """Number of rules."""
    oldest_event: datetime | None
    """Time of the oldest event to which the rules have not been applied; null: there is none."""
    channels: list[ChannelState]
    """Messages by channel."""
    problems: list[str]
    """Channels and sites that rules name and that do not exist."""


class SendReport(TypedDict):
    """Result of a test message."""

    channel: str
    """Name of the channel."""
    id: str
    """Id of the message."""
    delivered: bool
    """Whether the channel accepted the message."""
    reason: str
    """Why it did not; else empty."""


class PreviewedMessage(TypedDict):
    """A message that a past event would cause."""

    rule: str
    """Name of the rule; `SITE/NAME` for a rule of a site definition."""
    channel: str
    """Name of the channel."""
    event: str
    """Name of the event, such as `changed`."""
    spider: str
    """Name of the spider."""
    target: str
    """URL of the page; empty for a whole site."""
    at: datetime
    """Time of the event."""
    title: str
    """Title of the message."""
    text: str
    """Text of the message."""


async def deliver_due(
    db: Database, config: Config, patience: MongoRetry, now: Callable[[], datetime]
) -> tuple[DeliveryReport, list[str]]:
    """Deliver until nothing is due; return the sums, and the problems of rules and channels.

    While a channel takes a long time, new events are delivered to the others, for at most
    MAX_SECONDS.

    Raises ConfigError for an invalid `notify.toml`, and StorageError if the database stays
    unavailable.
    """
    deliverer, sums = Deliverer(db, config, patience, now), no_deliveries()
    loop = asyncio.get_running_loop()
    until = loop.time() + MAX_SECONDS
    try:
        report, problems = await deliverer.run_round(ROUND_SECONDS)
        add_to(sums, report)
        while deliverer.is_running and loop.time() < until:
            report, problems = await deliverer.run_round(ROUND_SECONDS, confirms=False)
            add_to(sums, report)
        sums["channels"] = merged(sums["channels"], await deliverer.stop())
    finally:
        await deliverer.cancel()
    return sums, problems


def no_deliveries() -> DeliveryReport:
    """Return the report before the first round."""
    return {"events": 0, "messages": 0, "confirmed": 0, "dropped": 0, "channels": []}


def add_to(sums: DeliveryReport, report: DeliveryReport) -> None:
    """Add the report of a round to sums."""
    sums["events"] += report["events"]
    sums["messages"] += report["messages"]
    sums["confirmed"] += report["confirmed"]
    sums["dropped"] += report["dropped"]
    sums["channels"] = merged(sums["channels"], report["channels"])


def merged(before: Sequence[ChannelReport], after: Sequence[ChannelReport]) -> list[ChannelReport]:
    """Return the merged reports by channel: added numbers, and the later states."""
    by_name = {channel["channel"]: channel for channel in before}
    for channel in after:
        total = channel.copy()
        if (earlier := by_name.get(channel["channel"])) is not None:
            total["delivered"] += earlier["delivered"]
            total["failed"] += earlier["failed"]
            total["dead"] += earlier["dead"]
        by_name[channel["channel"]] = total
    return list(by_name.values())


async def status(db: Database, file: Path) -> NotifyStatus:
    """Return the state of all channels that are defined or have messages."""
    rules = await RuleSet.read(db, file)
    names = sorted({*rules.channels, *rules.broken, *await outbox.channel_names(db)})
    states = [await outbox.state_of(db, name) for name in names]
    undefined = [
        f"{count(state['waiting'], 'message')} to {state['channel']!r} cannot be delivered: the "
        f"channel is not in {file}"
        for state in states
        if state["waiting"] and state["channel"] not in {*rules.channels, *rules.broken}
    ]
    return {
        "rules": len(rules.by_key),
        "oldest_event": await change_events.oldest_mark(db),
        "channels": states,
        "problems": [*rules.problems(await targets.spiders(db)), *undefined],
    }


async def send_test(db: Database, config: Config, name: str, now: datetime) -> SendReport:
    """Send a test message to a channel.

    Raises ConfigError if the channel does not exist or is invalid.
    """
    channel = await _channel(db, config.notify_file, name)
    event = EventView(
        "changed", "test", "https://example.com/", "Test message of Freshet", now,
        reason="This channel works.", link=config.web_url,
    )  # fmt: skip
    key, reason = f"test_{secrets.token_hex(16)}", ""
    message = message_of(
        key, [event], templates=channel.templates, zone=channel.zone, web_url=config.web_url
    )
    try:
        await senders.send(channel, message, ATTEMPT_SECONDS, config.private_hosts)
    except senders.DeliveryFailed as error:
        reason = error.reason
    return {"channel": name, "id": key, "delivered": not reason, "reason": reason}


async def _channel(db: Database, file: Path, name: str) -> Channel:
    valid, problems = await all_channels(db, file)
    if name in problems:
        raise ConfigError(problems[name])
    if name not in valid:
        available = (
            ", ".join(valid) or f"none. Add one in the web app, or [channels.NAME] to {file}"
        )
        raise ConfigError(f"channel not found: {name[:70]!r}. Available: {available}")
    return valid[name]


async def preview(
    db: Database, config: Config, rules: RuleSet, last: int, rule: str | None, now: datetime
) -> list[PreviewedMessage]:
    """Return the messages that the last events would cause, newest first; stores nothing.

    last: number of events; rule: only messages of this rule
    """
    shown: list[PreviewedMessage] = []
    events = await change_events.newest_of_all(db, last)
    async for message in messages_of(db, events, rules, now):
        if rule not in (None, message["rule"]):
            continue
        channel = rules.channels.get(message["channel"])
        bundle = Bundle(message["_id"], [message])
        if channel is None:
            # It is not valid: the message is shown as others would get it.
            sent = message_in(bundle, Grouping.NONE, web_url=config.web_url)
        else:
            sent = message_in(
                bundle, Grouping.NONE, templates=channel.templates, zone=channel.zone,
                web_url=config.web_url,
            )  # fmt: skip
        shown.append(
            {
                **copied(PreviewedMessage, message),
                "title": sent.title,
                "text": sent.text,
            }
        )
    return shown
