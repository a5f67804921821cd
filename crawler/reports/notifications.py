"""Reports on notifications: channels with their state, rules with their source, and problems."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from typing_extensions import TypedDict

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.extract.notification_rules import Rule, read_keys
from crawler.notify.channels import Channel
from crawler.notify.rounds import PreviewedMessage, preview
from crawler.notify.rules import NO_RULES, RuleSet
from crawler.notify.stored_channels import all_channels
from crawler.storage import (
    change_events,
    notification_channels,
    notification_rules,
    outbox,
    targets,
)
from crawler.storage.client import Database
from crawler.storage.outbox import ChannelState
from crawler.utils.text import amount

RuleSource = Literal["notify.toml", "web app", "site definition"]
MAX_PROBLEMS = 50


class ChannelReport(TypedDict):
    """A channel, and the messages that wait for it."""

    name: str
    """Name of the channel."""
    kind: str
    """`webhook`, `smtp` or `apprise`; empty if the channel is invalid or not defined."""
    receiver: str
    """Host of the receiver, or the services of Apprise; without secrets."""
    limits: list[str]
    """Limits of the channel, each in words."""
    problem: str
    """Why nothing can be delivered; empty without a problem."""
    is_stored: bool
    """Whether it was made in the web app; else it is written in `notify.toml`."""
    messages: ChannelState
    """Numbers and times of its messages."""


class RuleReport(TypedDict):
    """A rule of notifications."""

    key: str
    """Name of the rule; `SITE/NAME` for a rule of a site definition."""
    source: RuleSource
    """Where the rule is written."""
    rule: dict[str, Any]
    """Keys of the rule."""


class NotificationsReport(TypedDict):
    """Channels and rules of notifications."""

    channels: list[ChannelReport]
    """Channels that are defined or have messages, by name."""
    rules: list[RuleReport]
    """Rules, in the order in which they are applied."""
    oldest_event: datetime | None
    """Time of the oldest event to which the rules have not been applied; null: there is none."""
    problems: list[str]
    """Why no rule is applied, and what rules name that does not exist; at most 50."""


class ChannelAlert(TypedDict):
    """A channel that needs attention."""

    channel: str
    """Name of the channel."""
    dead: int
    """Number of dead letters, at most 1,000; there may be more."""
    broken: bool
    """Whether nothing can be delivered now."""
    reason: str
    """Why nothing can be delivered; empty if the channel works."""


@dataclass(frozen=True, slots=True)
class Defined:
    """The channels of `notify.toml` and of the web app.

    broken:  the problem of each invalid one, by name
    problem: why the file cannot be read; empty if it can
    stored:  names of those of the web app
    """

    channels: dict[str, Channel]
    broken: dict[str, str]
    problem: str = ""
    stored: frozenset[str] = frozenset()

    @classmethod
    async def read(cls, db: Database, file: Path) -> Defined:
        """Read all channels. Problems contain only the name of the file, not its path."""
        names = await notification_channels.names(db)
        try:
            channels, broken = await all_channels(db, file)
            in_file = read_keys(file).get("channels") or {}
        except ConfigError as error:
            return cls({}, {}, str(error).replace(str(file), file.name))
        shown = {name: text.replace(str(file), file.name) for name, text in broken.items()}
        stored = frozenset(name for name in names if name not in in_file)
        return cls(channels, shown, stored=stored)

    def problem_of(self, name: str) -> str:
        """Return why nothing can be delivered to a channel; empty if it is valid."""
        if name in self.channels:
            return ""
        return self.broken.get(name) or self.problem or "there is no channel with this name"


async def notifications(db: Database, file: Path) -> NotificationsReport:
    """Return all channels and rules, even if `notify.toml` is invalid."""
    defined, problems = await Defined.read(db, file), []
    try:
        rules = await RuleSet.read(db, file)
        lines = rules.problems(await targets.spiders(db))
        # The page says in its own words that there are no rules.
        known = {*rules.broken.values(), NO_RULES}
        problems += [line for line in lines if line not in known]
    except ConfigError as error:
        cause = str(error).replace(str(file), file.name)
        problems.append(f"Nothing is delivered until this is corrected: {cause}")
        stored_rules = await notification_rules.read(db)
        rules = RuleSet(stored_rules, {}, stored=frozenset(rule.name for rule in stored_rules))
    names = {*defined.channels, *defined.broken, *await outbox.channel_names(db)}
    reports: list[RuleReport] = []
    for key, rule in rules.by_key.items():
        source: RuleSource = "web app" if rule.name in rules.stored else "notify.toml"
        source = "site definition" if "/" in key else source
        reports.append({"key": key, "source": source, "rule": rule.model_dump(mode="json")})
    return {
        "channels": [await channel_report(db, defined, name) for name in sorted(names)],
        "rules": reports,
        "oldest_event": await change_events.oldest_mark(db),
        "problems": problems[:MAX_PROBLEMS],
    }


async def channel_report(db: Database, defined: Defined, name: str) -> ChannelReport:
    """Return a channel with its state, even if it is not defined."""
    channel = defined.channels.get(name)
    return {
        "name": name,
        "kind": "" if channel is None else channel.kind,
        "receiver": "" if channel is None else _receiver(channel),
        "limits": [] if channel is None else _limits(channel),
        "problem": defined.problem_of(name),
        "is_stored": name in defined.stored,
        "messages": await outbox.state_of(db, name, outbox.FEW_COUNTED),
    }


async def alerts(db: Database, file: Path) -> list[ChannelAlert]:
    """Return the channels with dead letters, and those to which nothing can be delivered."""
    defined = await Defined.read(db, file)
    failing: list[ChannelAlert] = []
    for name in sorted({*defined.channels, *defined.broken, *await outbox.channel_names(db)}):
        dead, (is_broken, reason) = (
            await outbox.count_dead(db, name), await outbox.failure_of(db, name),
        )  # fmt: skip
        if (problem := defined.problem_of(name)) and not is_broken:
            # Messages to a channel that was removed from the file need attention only if they wait.
            is_broken = name in defined.broken or await outbox.is_any_waiting(db, name)
        if dead or is_broken:
            cause = (problem or reason) if is_broken else ""
            failing.append({"channel": name, "dead": dead, "broken": is_broken, "reason": cause})
    return failing


async def preview_rule(
    db: Database, config: Config, rule: Rule | str, last: int, now: datetime
) -> list[PreviewedMessage]:
    """Return the messages that past events would cause, newest first.

    rule: key of a rule, or a rule that is not stored. Raises ConfigError for an unknown key.
    """
    if isinstance(rule, Rule):
        defined = await Defined.read(db, config.notify_file)
        rules = RuleSet((rule,), {}, defined.channels)
        return await preview(db, config, rules, last, rule.name, now)
    rules = await RuleSet.read(db, config.notify_file)
    if rule not in rules.by_key:
        raise ConfigError(f"rule not found: {rule[:100]!r}")
    return await preview(db, config, rules, last, rule, now)


def _receiver(channel: Channel) -> str:
    if channel.webhook is not None:
        return urlsplit(channel.webhook).hostname or ""
    if channel.smtp is not None:
        return channel.smtp.host
    # Only the services: the rest of a URL for Apprise may be secret.
    return ", ".join(dict.fromkeys(url.partition("://")[0] for url in channel.apprise))


def _limits(channel: Channel) -> list[str]:
    words = [f"at most {amount(channel.max_per_hour)} an hour"]
    if channel.digest is not None:
        words.append(f"digest every {channel.digest}")
    if channel.together and channel.digest is None:
        words.append("one message for all events of a rule")
    if channel.quiet_hours is not None:
        words.append(f"quiet {channel.quiet_hours} ({channel.timezone})")
    if channel.debounce_minutes:
        words.append(f"waits {channel.debounce_minutes:g} min for further events of a page")
    if channel.confirm:
        words.append("sends only what the next visit confirms")
    return words
