"""Decide when to poll a feed: rarely if a hub delivers it, and not at times the feed excludes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from crawler.items import Bounds

Push = Mapping[str, Any]  # `push` of a document in `feeds`
WEEK_HOURS = 168
HOUR = timedelta(hours=1)
# Longer intervals requested by a feed are errors of the publisher.
MAX_HOURS = 7 * 24.0


def is_active(push: Push | None, now: datetime) -> bool:
    """Return True if a hub has confirmed the subscription and its lease has not expired."""
    if not push or push.get("state") != "active":
        return False
    until = push.get("lease_until")
    return until is not None and until > now


def is_proven(push: Push | None, now: datetime) -> bool:
    """Return True if the subscription is active and has delivered within one lease period."""
    if not push or not is_active(push, now):
        return False
    delivered = push.get("delivered_at")
    began = push.get("leased_at") or push.get("asked_at")
    if delivered is None or began is None:
        return False
    return bool(delivered >= now - (push["lease_until"] - began))


def poll_hours(planned_hours: float, push: Push | None, now: datetime, rare_hours: float) -> float:
    """Return the hours until the next poll of a feed.

    planned_hours: interval in the plan
    rare_hours:    minimum interval if the hub delivers

    A confirmed subscription is not enough: the planned interval applies until the hub delivers.
    """
    return max(planned_hours, rare_hours) if is_proven(push, now) else planned_hours


def not_before(
    when: datetime, seen: datetime, bounds: Bounds, at_least_hours: float | None
) -> datetime:
    """Return the first time from `when` on at which a feed allows a poll.

    when:           planned time, in UTC
    seen:           time of the last fetch
    bounds:         intervals, hours and days that the document requests
    at_least_hours: lifetime of the last response by Cache-Control; None: not specified
    """
    hours = min(MAX_HOURS, max(bounds.every_hours or 0.0, at_least_hours or 0.0))
    when = max(when, seen + timedelta(hours=hours))
    if not bounds.skip_hours and not bounds.skip_days:
        return when
    # Try `when` itself, then the start of each following hour of the week.
    moment = when
    for _ in range(WEEK_HOURS + 1):
        if moment.hour not in bounds.skip_hours and moment.weekday() not in bounds.skip_days:
            return moment
        moment = moment.replace(minute=0, second=0, microsecond=0) + HOUR
    return when
