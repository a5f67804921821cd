"""When to poll a feed: less often where a hub delivers, and never when the feed asks not to."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from crawler.items import Bounds

Push = Mapping[str, Any]  # `push` of a document in `feeds`
WEEK_HOURS = 168
HOUR = timedelta(hours=1)
# A feed that asks to be left alone for longer has lost count.
MAX_HOURS = 7 * 24.0


def is_active(push: Push | None, now: datetime) -> bool:
    """Whether a hub has confirmed the subscription and its lease has not ended."""
    if not push or push.get("state") != "active":
        return False
    until = push.get("lease_until")
    return until is not None and until > now


def is_proven(push: Push | None, now: datetime) -> bool:
    """Whether the subscription is active and has delivered within the length of its lease."""
    if not push or not is_active(push, now):
        return False
    delivered = push.get("delivered_at")
    began = push.get("leased_at") or push.get("asked_at")
    if delivered is None or began is None:
        return False
    return bool(delivered >= now - (push["lease_until"] - began))


def poll_hours(planned_hours: float, push: Push | None, now: datetime, rare_hours: float) -> float:
    """Hours until the next poll of a feed.

    planned_hours: what the plan says      rare_hours: what will do where the hub has proven itself

    A hub that only promised has proven nothing: until it has delivered, the plan stands.
    """
    return max(planned_hours, rare_hours) if is_proven(push, now) else planned_hours


def not_before(
    when: datetime, seen: datetime, bounds: Bounds, at_least_hours: float | None
) -> datetime:
    """The first moment from `when` on (UTC) that suits a feed seen at `seen`.

    at_least_hours: how long the answer is good (Cache-Control); None: it does not say
    """
    hours = min(MAX_HOURS, max(bounds.every_hours or 0.0, at_least_hours or 0.0))
    when = max(when, seen + timedelta(hours=hours))
    if not bounds.skip_hours and not bounds.skip_days:
        return when
    # The moment itself, or the beginning of the next hour in which the feed wants readers.
    moment = when
    for _ in range(WEEK_HOURS + 1):
        if moment.hour not in bounds.skip_hours and moment.weekday() not in bounds.skip_days:
            return moment
        moment = moment.replace(minute=0, second=0, microsecond=0) + HOUR
    return when
