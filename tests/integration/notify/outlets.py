"""In-process fake channels and marked visits."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from bson import ObjectId

from crawler.extract.notification_rules import rules_in
from crawler.notify.rounds import Failure
from crawler.notify.rules import RuleSet, expand
from crawler.storage.client import Database, Document
from crawler.storage.outbox import Bundle, Grouping
from tests.unit.channels import channels_in

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
PAGE = "https://shop.example/item-"


@dataclass
class Outlet:
    """A channel that records what it accepts.

    refusals: number of attempts that it refuses
    pauses:   time until the next attempt, by the number of attempts; then the message is dead
    retry_after: delay that it requests with each refusal
    opens_at: end of its quiet hours
    bundles:  accepted ids, each with the number of messages
    """

    name: str
    refusals: int = 0
    pauses: tuple[float, ...] = (0.0,) * 50
    seconds: float = 0.0
    accepted: list[Document] = field(default_factory=list)
    refused_targets: frozenset[str] = frozenset()
    grouping: Grouping = Grouping.NONE
    max_per_hour: int = 3600
    retry_after: timedelta | None = None
    opens_at: datetime = NOW
    attempted: list[str] = field(default_factory=list)
    bundles: list[tuple[str, int]] = field(default_factory=list)

    async def send(self, bundle: Bundle) -> Failure | None:
        await asyncio.sleep(self.seconds)
        self.attempted.append(bundle.id)
        if self.refused_targets & {message["target"] for message in bundle.messages}:
            return Failure("status 400")
        if self.refusals:
            self.refusals -= 1
            return Failure("status 503", self.retry_after)
        self.accepted += bundle.messages
        self.bundles.append((bundle.id, bundle.size))
        return None

    def open_from(self, at: datetime) -> datetime:
        return max(at, self.opens_at)

    def next_attempt(self, attempts: int, first_at: datetime, now: datetime) -> datetime | None:
        if attempts > len(self.pauses):
            return None
        return now + timedelta(seconds=self.pauses[attempts - 1])

    @property
    def ids(self) -> Counter[str]:
        return Counter(message["_id"] for message in self.accepted)

    def order(self, target: str) -> list[datetime]:
        return [message["at"] for message in self.accepted if message["target"] == target]


def rule_set(*channels: str, limits: dict[str, Any] | None = None, **keys: object) -> RuleSet:
    """Return one rule that sends the events to some channels. limits: keys of these channels."""
    rules = rules_in([{"name": "all", "channels": list(channels)} | keys], "a test")
    if limits is None:
        return RuleSet(rules, {})
    tables = {name: {"apprise": "json://127.0.0.1"} | limits for name in channels}
    return RuleSet(rules, {}, channels_in({"channels": tables}, "a test"))


def visit(page: int, minute: int, **fields: object) -> Document:
    """Return a marked change of a page, as a row of the change log."""
    return {
        "_id": ObjectId(), "spider": "shop", "target": f"{PAGE}{page}", "outcome": "changed",
        "at": NOW + timedelta(minutes=minute), "changed": 1, "notify": True,
        "events": ["changed"], "content_hash": None, "status": 200, "get_size": 1,
        "update_size": 0, "diff_size": 0,
    } | fields  # fmt: skip


async def expand_all(db: Database, rules: RuleSet) -> int:
    """Apply the rules to all marked events; return the number of new messages."""
    messages = 0
    while (done := await expand(db, rules, NOW)).events:
        messages += done.messages
    return messages
