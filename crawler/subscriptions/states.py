"""What is to be said of a feed, from its target and its monitor."""

from __future__ import annotations

from datetime import timedelta

from crawler.storage.client import Document
from crawler.utils.text import count, is_known

WEEK = timedelta(weeks=1)
# Of fewer, the rate is known only to a factor of more than ten.
ENOUGH_POSTS = 3
OF_PUSH = ("hub", "topic", "state", "lease_until", "asked_at", "delivered_at", "deliveries")


def row_of(target: Document, monitor: Document) -> Document:
    """A row of the list.

    rate_per_week: posts, as the plan has it, else as the past has it; None while not known
    window_full:   posts have been seen to leave the document, so it holds no more than `window`
    trouble:       whether somebody should look at it
    """
    state, trouble = _state(target, monitor)
    push = monitor.get("push") or {}
    return {
        "url": target["url"],
        "title": target.get("title") or monitor.get("title"),
        "site": monitor.get("site"),
        "format": monitor.get("format"),
        "categories": target.get("categories", []),
        "rate_per_week": _rate(target),
        "window": monitor.get("window"),
        "window_full": bool(monitor.get("full")),
        "posts": monitor.get("posts", 0),
        "missed": monitor.get("missed", 0.0),
        "lapses": monitor.get("lapses", 0),
        "last_visit": target.get("visited_at"),
        "next_visit": target.get("next_visit"),
        "outcome": target.get("outcome"),
        "error": _error(target, monitor),
        "problems": monitor.get("problems", []),
        "consecutive_errors": target.get("consecutive_errors", 0),
        "push": {name: push.get(name) for name in OF_PUSH} if push else None,
        "plan": target.get("plan"),
        "gone": bool(target.get("gone")),
        "alias_of": target.get("alias_of"),
        "state": state,
        "trouble": trouble,
    }


def _state(target: Document, monitor: Document) -> tuple[str, bool]:
    """How a feed is doing in a few words, and whether that is trouble."""
    if alias_of := target.get("alias_of"):
        return f"alias of {alias_of}", False
    if target.get("gone"):
        return "gone", True
    if not target.get("visited_at"):
        return "never fetched", False
    if error := _error(target, monitor):
        return error, True
    if problems := monitor.get("problems"):
        return count(len(problems), "problem"), True
    active = (monitor.get("push") or {}).get("state") == "active"
    return ("push active" if active else "ok"), False


def _error(target: Document, monitor: Document) -> str | None:
    """Why the last visit failed; None if it did not."""
    if not (target.get("consecutive_errors") or target.get("consecutive_gone")):
        return None
    last = target.get("last_visit") or {}
    said = monitor.get("error") or last.get("reason") or target.get("outcome")
    return str(said or "error")


def _rate(target: Document) -> float | None:
    plan, past = target.get("plan") or {}, target.get("history") or {}
    if (rate := plan.get("rate_per_week")) is not None:
        return float(rate) if is_known(plan.get("rate_low"), plan.get("rate_high")) else None
    if "since" not in past or target["changes"] < ENOUGH_POSTS:
        return None
    weeks: float = max(past["until"] - past["since"], WEEK) / WEEK
    posts: int = target["changes"]
    return round(posts / weeks, 3)
