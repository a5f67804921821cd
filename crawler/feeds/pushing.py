"""What a feed's push subscription means for its polls: fewer of them, never none."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

Push = Mapping[str, Any]  # `push` of a document in `feeds`


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
