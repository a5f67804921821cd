"""Report of `scrapy changes`: the newest events of the change log, with a summary of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from textwrap import shorten
from typing import Any, Literal

from typing_extensions import TypedDict

from crawler.items import Outcome
from crawler.storage import change_events, visits
from crawler.storage.client import Database, Document
from crawler.utils.terminal import printable
from crawler.utils.text import count, differs, is_price, price

# Characters.
MAX_SUMMARY = 160
# Characters. For longer values, a summary has only the name of the field.
MAX_VALUE = 40
MAX_FIELDS = 5
Event = Literal["new", "changed", "gone", "back"]


class Change(TypedDict):
    """An event of the change log."""

    at: datetime
    """Time of the visit that found the change."""
    outcome: Event
    """`new`, `changed`, `gone`: first 404 of a page that existed, or `back`."""
    spider: str
    """Name of the spider."""
    url: str
    """URL of the page, or `cell:NAME`."""
    summary: str
    """What changed, in one line; empty if it is not known."""
    diff_size: int
    """Characters inserted and deleted."""


@dataclass(frozen=True, slots=True)
class ChangeList:
    """The newest changes.

    total:  number of all matching changes
    is_cut: whether older changes were neither searched nor counted
    """

    changes: list[Change]
    total: int
    is_cut: bool


async def newest_changes(
    db: Database,
    spiders: Sequence[str],
    times: tuple[datetime | None, datetime | None],
    match: str | None,
    limit: int,
) -> ChangeList:
    """Return the newest changes of some spiders; see `visits.latest` for the parameters."""
    rows, total, is_cut = await visits.latest(db, spiders, times, match, limit)
    changes: list[Change] = []
    compared = [
        row
        for row in rows
        if row["outcome"] in (Outcome.NEW, Outcome.CHANGED) and "posts_new" not in row
    ]
    summaries = {
        row["_id"]: summary_of(
            before, after, row["diff_size"], is_new=row["outcome"] == Outcome.NEW
        )
        async for row, before, after in change_events.with_contents(db, compared)
    }
    for row in rows:
        outcome = row["outcome"]
        if outcome == Outcome.GONE:
            summary = row.get("reason") or f"status {row['status']}"
        elif outcome not in (Outcome.NEW, Outcome.CHANGED):
            outcome, summary = "back", visits.WAS_GONE
        elif "posts_new" in row:
            titles = await visits.titles(db, row)
            summary = posts_summary(row["posts_new"], row.get("posts_edited") or 0, titles)
        else:
            summary = summaries[row["_id"]]
            if row.get("reason") == visits.WAS_GONE:
                summary = "; ".join(filter(None, (visits.WAS_GONE, summary)))
        changes.append(
            {
                "at": row["at"],
                "outcome": outcome,
                "spider": row["spider"],
                "url": row["target"],
                "summary": summary,
                "diff_size": row["diff_size"],
            }
        )
    return ChangeList(changes, total, is_cut)


def posts_summary(new: int, edited: int, titles: Sequence[str]) -> str:
    """Summarize the changes of a feed in one line. titles: of some of the posts."""
    counts = ((new, "new post"), (edited, "edited post"))
    parts = ", ".join(count(number, noun) for number, noun in counts if number)
    return _short(": ".join(filter(None, (parts, "; ".join(titles)))))


def summary_of(
    before: Document | None, after: Document | None, diff_size: int, *, is_new: bool
) -> str:
    """Summarize the changes between two contents, or the content of a new page, in one line.

    before, after: None: not stored
    diff_size:     characters that differ, shown instead of long values and of contents not stored
    """
    if after is not None and is_new:
        if after.keys() == {"links"} and isinstance(links := after["links"], list):
            # A list page, or an item with only this field.
            return count(len(links), "link")
        return _short(next(filter(None, map(_text, after.values())), ""))
    if before is None or after is None:
        return f"{count(diff_size, 'character')} differ" if diff_size else ""
    names = [name for name in {**before, **after} if differs(before.get(name), after.get(name))]
    parts = [
        _field_change("text" if name == "main_text" else name, before.get(name), after.get(name))
        for name in names[:MAX_FIELDS]
    ]
    summary = "; ".join(parts)
    if (more := len(names) - MAX_FIELDS) > 0:
        summary += f"; and {count(more, 'more field')}"
    if diff_size and any(part.endswith(" edited") for part in parts):
        summary += f" ({count(diff_size, 'character')} differ)"
    return _short(summary)


def _field_change(name: str, before: Any, after: Any) -> str:
    """Summarize the change of one field."""
    if isinstance(before, list) and isinstance(after, list):
        were, are = set(map(str, before)), set(map(str, after))
        added, removed = len(are - were), len(were - are)
        counts = [f"+{added:,}"] * bool(added) + [f"-{removed:,}"] * bool(removed)
        return f"{name}: {' '.join(counts) or 'reordered'}"
    old, new = _text(before), _text(after)
    if not new:
        return f"{name}: removed"
    if len(new) > MAX_VALUE or len(old) > MAX_VALUE:
        return f"{name} edited" if old else f"{name}: new"
    return f"{name}: {old} -> {new}" if old else f"{name}: {new}"


def _text(value: Any) -> str:
    """Return a value in one line; for a list, its number of values."""
    if value is None:
        return ""
    if isinstance(value, list):
        return count(len(value), "value") if value else ""
    if is_price(value):
        return price(value)
    if isinstance(value, dict):
        return " ".join(filter(None, map(_text, value.values())))
    return " ".join(str(value).split())


def _short(text: str) -> str:
    return shorten(printable(text), MAX_SUMMARY, placeholder=" …")
