"""Rounds of notifications: apply the rules, confirm messages, deliver what is due.

The command `scrapy notify` and the service run rounds; any number of them may run concurrently.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from typing_extensions import TypedDict

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.extract.notification_rules import read_keys
from crawler.notify import senders
from crawler.notify.channels import Channel, valid_channels
from crawler.notify.messages import EventView, message_of
from crawler.notify.outbox import (
    ATTEMPT_SECONDS,
    Delivered,
    Deliverer,
    Outlet,
    message_in,
)
from crawler.notify.rules import Confirmation, RuleSet, confirm, expand, messages_of
from crawler.storage import change_events, outbox, targets
from crawler.storage.client import Database, MongoRetry
from crawler.storage.outbox import Bundle, ChannelState, Grouping
from crawler.utils.text import count

# Interval of searches for new events while a channel is still being delivered, and time after which
# a process that delivers only once ends.
ROUND_SECONDS, MAX_SECONDS = 5.0, 600.0


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


class Rounds:
    """Rounds of notifications, one after the other.

    Deliveries that take longer than a round continue, and do not delay other channels.
    """

    def __init__(
        self, db: Database, config: Config, patience: MongoRetry, now: Callable[[], datetime]
    ) -> None:
        self._db, self._config, self._patience, self._now = db, config, patience, now
        self._deliverer = Deliverer(db, config, patience, now)

    @property
    def is_delivering(self) -> bool:
        """Return whether a channel is being delivered."""
        return self._deliverer.is_running

    async def run(
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
        self._deliverer.begin(
            [Outlet(name, each, private, web_url) for name, each in rules.channels.items()]
        )
        delivered = await self._deliverer.ended(seconds)
        report: DeliveryReport = {
            "events": counts["events"],
            "messages": counts["messages"],
            "confirmed": confirmed.confirmed,
            "dropped": confirmed.dropped,
            "channels": sorted(map(_report_of, delivered), key=lambda each: each["channel"]),
        }
        return report, problems

    async def stop(self) -> list[ChannelReport]:
        """Start no more attempts; return the results after those in progress have ended."""
        return list(map(_report_of, await self._deliverer.stop()))

    async def cancel(self) -> None:
        """Cancel all attempts; those in progress will be repeated."""
        await self._deliverer.cancel()


async def run_round(
    db: Database, config: Config, patience: MongoRetry, now: Callable[[], datetime]
) -> tuple[DeliveryReport, list[str]]:
    """Deliver until nothing is due; return the sums, and the problems of rules and channels.

    While a channel takes a long time, new events are delivered to the others, for at most
    MAX_SECONDS.

    Raises ConfigError for an invalid `notify.toml`, and StorageError if the database stays
    unavailable.
    """
    rounds, sums = Rounds(db, config, patience, now), no_deliveries()
    loop = asyncio.get_running_loop()
    until = loop.time() + MAX_SECONDS
    try:
        report, problems = await rounds.run(ROUND_SECONDS)
        add_to(sums, report)
        while rounds.is_delivering and loop.time() < until:
            report, problems = await rounds.run(ROUND_SECONDS, confirms=False)
            add_to(sums, report)
        sums["channels"] = merged(sums["channels"], await rounds.stop())
    finally:
        await rounds.cancel()
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
        if (earlier := by_name.get(channel["channel"])) is not None:
            channel["delivered"] += earlier["delivered"]
            channel["failed"] += earlier["failed"]
            channel["dead"] += earlier["dead"]
        by_name[channel["channel"]] = channel
    return list(by_name.values())


def _report_of(delivered: Delivered) -> ChannelReport:
    return {
        "channel": delivered.channel,
        "delivered": delivered.delivered,
        "failed": delivered.failed,
        "dead": delivered.dead,
        "busy": delivered.is_busy,
        "unavailable": delivered.is_paused,
        "closed_until": delivered.closed_until,
    }


async def status(db: Database, file: Path) -> NotifyStatus:
    """Return the state of all channels that are defined or have messages."""
    rules = await RuleSet.read(db, file)
    names = sorted({*rules.channels, *rules.broken, *await outbox.channel_names(db)})
    channels = [await outbox.state_of(db, name) for name in names]
    undefined = [
        f"{count(state['waiting'], 'message')} to {state['channel']!r} cannot be delivered: the "
        f"channel is not in {file}"
        for state in channels
        if state["waiting"] and state["channel"] not in {*rules.channels, *rules.broken}
    ]
    return {
        "rules": len(rules.by_key),
        "oldest_event": await change_events.oldest_mark(db),
        "channels": channels,
        "problems": [*rules.problems(await targets.spiders(db)), *undefined],
    }


async def send_test(config: Config, name: str, now: datetime) -> SendReport:
    """Send a test message to a channel.

    Raises ConfigError if the channel does not exist or is invalid.
    """
    channel = _channel(config.notify_file, name)
    event = EventView(
        "changed", "test", "https://example.com/", "Test message of Freshet", now,
        reason="This channel works.", link=config.web_url,
    )  # fmt: skip
    key, reason = f"test_{secrets.token_hex(16)}", ""
    message = message_of(key, [event], templates=channel.templates, zone=channel.zone)
    try:
        await senders.send(channel, message, ATTEMPT_SECONDS, config.private_hosts)
    except senders.DeliveryFailed as error:
        reason = error.reason
    return {"channel": name, "id": key, "delivered": not reason, "reason": reason}


def _channel(file: Path, name: str) -> Channel:
    channels, problems = valid_channels(read_keys(file), str(file))
    if name in problems:
        raise ConfigError(problems[name])
    if name not in channels:
        available = ", ".join(channels) or f"none. Write [channels.NAME] into {file}"
        raise ConfigError(f"channel not found: {name[:70]!r}. Available: {available}")
    return channels[name]


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
        sent = message_in(bundle, channel, Grouping.NONE, config.web_url)
        shown.append(
            {
                "rule": message["rule"],
                "channel": message["channel"],
                "event": message["event"],
                "spider": message["spider"],
                "target": message["target"],
                "at": message["at"],
                "title": sent.title,
                "text": sent.text,
            }
        )
    return shown
