"""Confirm messages by the next visit of their page, for channels with `confirm`.

A page may flicker: a price is wrong for an hour, a server has an outage. A message about it is sent
only if the next visit finds the same state, and dropped otherwise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from crawler.items import SEEN, Event, Outcome
from crawler.notify.channels import Channel, first_due
from crawler.storage import outbox, target_queries, visits
from crawler.storage.client import Database, Document

FAILED = (Outcome.ERROR, Outcome.BLOCKED)
# Visits that found a page or found it gone. An error in between neither confirms nor refutes it.
DECISIVE = (*SEEN, Outcome.GONE)
REFUTED = "the next visit found another state"


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Numbers of messages that the next visit confirmed, and that were dropped after it."""

    confirmed: int
    dropped: int


def expectation(row: Document, event: Event) -> Document | None:
    """Return the state that the next visit of a page must find; None if it does not matter.

    Alarms are the result of several visits, and posts of a feed do not disappear, so neither needs
    a confirmation.

    row: document of a visit or alarm
    """
    if "outcome" not in row or "posts_new" in row:
        return None
    if event is Event.FAILING:
        return {"outcomes": [str(outcome) for outcome in FAILED]}
    if event is Event.GONE:
        return {"outcomes": [str(Outcome.GONE)]}
    return {"outcomes": sorted(map(str, SEEN)), "content_hash": row.get("content_hash")}


def is_confirmed(expected: Document, visit: Document) -> bool:
    """Return whether a visit found the expected state. Pure."""
    if visit["outcome"] not in expected["outcomes"]:
        return False
    return "content_hash" not in expected or visit.get("content_hash") == expected["content_hash"]


async def confirm(db: Database, channels: Mapping[str, Channel], now: datetime) -> Confirmation:
    """Decide on all unconfirmed messages whose page was visited since; safe to repeat.

    A message about a page that will not be visited again is sent: nothing can confirm it.
    """
    counts: Counter[str] = Counter()
    async for batch in outbox.unconfirmed(db):
        keys = [f"{message['spider']} {message['target']}" for message in batch]
        times = await target_queries.visit_times(db, keys)
        confirmed: defaultdict[str, list[str]] = defaultdict(list)
        dropped = []
        for message, key in zip(batch, keys, strict=True):
            last, coming = times.get(key, (None, None))
            visit = None
            if last is not None and last > message["at"]:
                visit = await _decisive_visit(db, message)
            if visit is None and coming is not None:
                continue
            if visit is None or is_confirmed(message["confirm"], visit):
                confirmed[message["channel"]].append(message["_id"])
            else:
                dropped.append(message["_id"])
        for name, ids in confirmed.items():
            channel = channels.get(name)
            due = now if channel is None else first_due(channel, now)
            await outbox.record_confirmed(db, ids, due)
            counts["confirmed"] += len(ids)
        await outbox.record_dropped(db, dropped, REFUTED, now)
        counts["dropped"] += len(dropped)
    return Confirmation(counts["confirmed"], counts["dropped"])


async def _decisive_visit(db: Database, message: Document) -> Document | None:
    # An error after the event decides whether a page still fails, but not what it contains.
    outcomes = Outcome if message["event"] == Event.FAILING else DECISIVE
    names = [str(outcome) for outcome in outcomes]
    return await visits.first_after(db, message["spider"], message["target"], message["at"], names)
