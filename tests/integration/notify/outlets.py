"""Channels that the tests control, and marked visits, in one process."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from bson import ObjectId

from crawler.extract.notification_rules import rules_in
from crawler.notify.deliverer import Failure
from crawler.notify.expansion import RuleSet, expand
from crawler.storage.client import Database, Document

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
PAGE = "https://shop.example/item-"


@dataclass
class Outlet:
    """A channel that records what it accepts.

    refuses: called with each message; the reason of a failure, or None
    pauses:  time until the next attempt, by the number of attempts; then the message is dead
    """

    name: str
    refusals: int = 0
    pauses: tuple[float, ...] = (0.0,) * 50
    seconds: float = 0.0
    accepted: list[Document] = field(default_factory=list)
    refused_targets: frozenset[str] = frozenset()

    async def send(self, message: Document) -> Failure | None:
        await asyncio.sleep(self.seconds)
        if message["target"] in self.refused_targets:
            return Failure("status 400")
        if self.refusals:
            self.refusals -= 1
            return Failure("status 503")
        self.accepted.append(message)
        return None

    def next_attempt(self, attempts: int, first_at: datetime, now: datetime) -> datetime | None:
        if attempts > len(self.pauses):
            return None
        return now + timedelta(seconds=self.pauses[attempts - 1])

    @property
    def ids(self) -> Counter[str]:
        return Counter(message["_id"] for message in self.accepted)

    def order(self, target: str) -> list[datetime]:
        return [message["at"] for message in self.accepted if message["target"] == target]


def rule_set(*channels: str, **keys: object) -> RuleSet:
    """Return one rule that sends the events to some channels."""
    return RuleSet(rules_in([{"name": "all", "channels": list(channels)} | keys], "a test"), {})


def visit(page: int, minute: int, **fields: object) -> Document:
    """Return a marked row of the change log: a change of a page."""
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
