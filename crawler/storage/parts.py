"""Two parts of a target's document: `history`, what it was like, and `plan`, what is to come."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from crawler.items import Planned
from crawler.storage.client import Document

if TYPE_CHECKING:
    from schedules.history import History

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
ADAPTIVE = "adaptive"
# Of the plan that a cell's period stands for; no replan touches it.
PERIOD = "period"


def in_minutes(moment: datetime) -> int:
    """Whole minutes since 1970 (UTC)."""
    return (moment - EPOCH) // MINUTE


def history_of(found: Document | None) -> History | None:
    """The past that a target's document holds."""
    if not found:
        return None
    from schedules.history import History

    since, until = in_minutes(found["since"]), in_minutes(found["until"])
    return History(since, until, bytes(found["changes"]))


def history_document(history: History, lies: int = 0) -> Document:
    """A past as it is stored."""
    return {
        "since": EPOCH + history.since * MINUTE,
        "until": EPOCH + history.until * MINUTE,
        "changes": history.changes,
        "lies": lies,
    }


def planned_of(found: Document | None) -> Planned | None:
    """The plan that a target's document holds; None where it says no time at all."""
    if not found:
        return None
    from schedules.schedule import Schedule

    schedule = Schedule(
        found.get("weeks") or 1,
        tuple(found.get("slots") or ()),
        found.get("every_hours") or 0.0,
        found.get("phase_hours") or 0.0,
    )
    if not schedule.visits_per_week:
        return None
    return Planned(
        found["plan"],
        schedule,
        found.get("until"),
        found.get("policy") == ADAPTIVE and schedule.every_hours > 0,
        found.get("min_hours") or 0.0,
        found.get("max_hours") or 0.0,
    )
