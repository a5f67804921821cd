"""Why a feed is fetched when it is, in plain sentences."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from crawler.feeds.politeness import is_active, is_proven
from crawler.storage.client import Document
from crawler.utils.text import amount, count, period
from schedules.windows import DAYS

BY_POLICY = {
    "uniform": "It has an even interval, the same as all feeds (policy uniform).",
    "min-delay": (
        "It has an even interval: fetches grow with the square root of weight and posts (policy "
        "min-delay)."
    ),
    "min-missing": (
        "It has an even interval: each fetch goes to the feed of which it collects most posts "
        "(policy min-missing)."
    ),
}


def reasons_of_feed(
    target: Document, known: Document, price: float | None, most_hours: float, now: datetime
) -> list[str]:
    """Sentences, what decided first.

    known: the feed's document in `feeds`    price: of a fetch in posts, None where none is known
    """
    plan = target.get("plan")
    return [
        *(_of_plan(plan, price, most_hours) if plan else ()),
        *_of_window(target, known),
        *_of_losses(known),
        *_of_push(known.get("push") or {}, now),
        *_of_bounds(known.get("bounds") or {}),
    ]


def _of_plan(plan: Document, price: float | None, most_hours: float) -> Iterator[str]:
    if rule := BY_POLICY.get(plan.get("policy", "")):
        yield rule
        return
    if plan.get("bound") == "floor":
        yield (
            f"It has the least there is, a fetch every {period(most_hours)} (floor): more would "
            "not pay, and no feed is left unseen for longer."
        )
    if plan.get("bound") == "kept":
        yield "It keeps the schedule it had: a new one would save too little to move it (kept)."
    if price is None:
        return
    worth, value = plan.get("worth"), plan.get("value")
    if worth:
        yield f"The last fetch that it has saves {amount(worth)} posts; a fetch costs {_of(price)}."
    if value:
        yield f"One more would save {amount(value)} posts."


def _of(price: float) -> str:
    return f"{amount(price)} posts (price)"


def _of_window(target: Document, known: Document) -> Iterator[str]:
    window = known.get("window")
    if not window:
        return
    if known.get("full"):
        yield f"Its document holds {count(window, 'post')}; older ones leave it and are lost."
    else:
        yield (
            f"Its document held {count(window, 'post')} at most, and none was seen to leave: "
            f"{target.get('window')} are counted on."
        )


def _of_losses(known: Document) -> Iterator[str]:
    if lapses := known.get("lapses"):
        yield (
            f"At {count(lapses, 'visit')} no post of the visit before was left: about "
            f"{known.get('missed', 0):,.0f} posts were lost."
        )


def _of_push(push: Document, now: datetime) -> Iterator[str]:
    if is_proven(push, now):
        yield "A hub delivers its posts, so it is asked rarely, in case a delivery gets lost."
    elif is_active(push, now):
        yield "A hub has promised to deliver its posts; until it has done so, the plan holds."


def _of_bounds(bounds: Document) -> Iterator[str]:
    if every := bounds.get("every_hours"):
        yield f"It asks not to be fetched more often than every {period(every)}."
    if hours := bounds.get("skip_hours"):
        yield f"It asks not to be fetched in the hours {', '.join(map(str, hours))} (UTC)."
    if skipped := bounds.get("skip_days"):
        yield f"It asks not to be fetched on {', '.join(DAYS[day] for day in skipped)}."
