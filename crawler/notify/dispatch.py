"""One round of notifications: apply the rules, confirm messages, deliver what is due.

The command `scrapy notify` and the service run rounds; any number of them may run concurrently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from typing_extensions import TypedDict

from crawler.config import Config
from crawler.notify.confirmation import Confirmation, confirm
from crawler.notify.deliverer import Delivered, Deliverer
from crawler.notify.expansion import RuleSet, expand, messages_of
from crawler.notify.outlets import ChannelOutlet, message_in
from crawler.storage import change_events, outbox, targets
from crawler.storage.client import Database
from crawler.storage.outages import MongoRetry
from crawler.storage.outbox import Bundle, ChannelState, Grouping


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
    """Time until which quiet hours or the limit an hour postponed messages; null: they did not."""


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


async def run_round(
    db: Database,
    config: Config,
    patience: MongoRetry,
    now: Callable[[], datetime],
    *,
    confirms: bool = True,
) -> tuple[DeliveryReport, list[str]]:
    """Run a round; return its report, and the problems of the rules.

    confirms: also decide on messages that wait for the next visit of their page, which reads all of
              them

    Raises ConfigError for an invalid `notify.toml`; nothing is changed then.
    """
    rules = await patience.read(lambda: RuleSet.read(db, config.notify_file))
    problems = rules.problems(await patience.read(lambda: targets.spiders(db)))
    counts: Counter[str] = Counter()
    while (done := await patience.read(lambda: expand(db, rules, now()))).events:
        counts["events"] += done.events
        counts["messages"] += done.messages
    confirmed = Confirmation(0, 0)
    if confirms:
        confirmed = await patience.read(lambda: confirm(db, rules.channels, now()))
    outlets = [ChannelOutlet(name, channel) for name, channel in rules.channels.items()]
    delivered = await Deliverer(db, config, patience, now).deliver(outlets)
    report: DeliveryReport = {
        "events": counts["events"],
        "messages": counts["messages"],
        "confirmed": confirmed.confirmed,
        "dropped": confirmed.dropped,
        "channels": list(map(_report_of, delivered)),
    }
    return report, problems


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
    states = {state["channel"]: state for state in await outbox.channel_states(db)}
    names = sorted({*rules.channels, *states})
    return {
        "rules": len(rules.by_key),
        "oldest_event": await outbox.oldest_mark(db),
        "channels": [states.get(name) or outbox.empty_state(name) for name in names],
        "problems": rules.problems(await targets.spiders(db)),
    }


async def preview(
    db: Database, rules: RuleSet, last: int, rule: str | None, now: datetime
) -> list[PreviewedMessage]:
    """Return the messages that the last events would cause, newest first; stores nothing.

    last: number of events; rule: only messages of this rule
    """
    shown: list[PreviewedMessage] = []
    events = await outbox.recent(db, last)
    keys = [f"{event.row['spider']} {event.row['target']}" for event in events]
    categories = await change_events.categories(db, keys)
    for event, key in zip(events, keys, strict=True):
        for message in await messages_of(db, event, rules, categories.get(key, []), now):
            channel = rules.channels.get(message["channel"])
            if channel is None or rule not in (None, message["rule"]):
                continue
            sent = message_in(Bundle(message["_id"], [message]), channel, Grouping.NONE)
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
