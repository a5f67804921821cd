"""Restate the history of one item: give its visits the contents of their archived responses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from crawler.items import SEEN, Outcome
from crawler.storage import posts
from crawler.storage.client import Document
from crawler.utils.diff import diff_size, estimated_diff_size, is_quick

FOUND = "found by scrapy reread"


@dataclass(frozen=True, slots=True)
class Content:
    """What the current definition extracts from a response."""

    content: dict[str, Any]
    content_hash: str
    markup: tuple[str, ...]


# Returns the content of the archived response of a visit; None if it cannot be read.
Read = Callable[[Document], Awaitable[Content | None]]


@dataclass(slots=True)
class Restatement:
    """The visits of an item with contents of the current definition.

    rows:      by visit, the new values of its row
    contents:  contents by hash, each with the row of the first visit that found it
    added:     visits that show a change now, each with the visit before
    removed:   visits that no longer show a change
    kept:      content hashes of visits that stay as they are, each with the first such visit
    last:      content at the last visit; None if it is not known
    changed:   the visit that found that content
    """

    rows: dict[Any, Document] = field(default_factory=dict)
    contents: dict[str, tuple[Content, Document]] = field(default_factory=dict)
    added: list[tuple[Document, Document]] = field(default_factory=list)
    removed: list[Document] = field(default_factory=list)
    kept: dict[str, Document] = field(default_factory=dict)
    last: Content | None = None
    changed: Document | None = None
    _before_row: Document | None = None
    _was_gone: bool = False

    def add_failed(self, row: Document) -> None:
        """Add a visit that saw no page: it has the content of the visit before."""
        self._was_gone = row["outcome"] == Outcome.GONE
        if self.last is not None and row.get("content_hash"):
            self.rows[row["_id"]] = {"content_hash": self.last.content_hash}
        else:
            self._keep(row)

    def add_unknown(self, row: Document) -> None:
        """Add a visit without a readable response: it is compared with no other visit."""
        self._keep(row)
        self.last, self._before_row, self._was_gone = None, row, False

    def add(self, row: Document, now: Content) -> None:
        """Add a visit with the content of its response."""
        before, values = self.last, dict[str, Any](content_hash=now.content_hash)
        if before is not None and self._before_row is not None and row["outcome"] != Outcome.NEW:
            changed = before.content_hash != now.content_hash
            if changed and not row["changed"]:
                size = _size_of_difference(before.content, now.content)
                values |= {"outcome": str(Outcome.CHANGED), "changed": 1, "event": True}
                values |= {"diff_size": size, "reread": True, "reason": FOUND}
                self.added.append((self._before_row, row))
            elif row["changed"] and not changed:
                values |= {"outcome": str(Outcome.UNCHANGED), "changed": 0, "diff_size": 0}
                values |= {"event": self._was_gone, "reread": True, "reason": FOUND}
                self.removed.append(row)
        self.rows[row["_id"]] = values
        self.contents.setdefault(now.content_hash, (now, row))
        if before is None or before.content_hash != now.content_hash:
            self.changed = row
        self.last, self._before_row, self._was_gone = now, row, False

    def _keep(self, row: Document) -> None:
        if row.get("content_hash"):
            self.kept.setdefault(row["content_hash"], row)


async def restate(rows: list[Document], since: datetime | None, read: Read) -> Restatement:
    """Return the visits of an item with the contents of their responses.

    rows:  visits, oldest first
    since: only visits since this time; None: all

    A revisit record has the body of the last full record before it, which is read only once, and
    only if a visit since `since` needs it.
    """
    result = Restatement()
    record: Document | None = None
    body: Content | None = None
    is_read = True
    for row in rows:
        if row["outcome"] not in SEEN:
            result.add_failed(row)
            continue
        archived = row.get("archived")
        if archived is None or not archived.get("revisit"):
            record, body, is_read = (None if archived is None else row), None, archived is None
        is_included = since is None or row["at"] >= since
        if is_included and record is not None and not is_read:
            body, is_read = await read(record), True
        if is_included and body is not None:
            result.add(row, body)
        else:
            result.add_unknown(row)
    return result


def _size_of_difference(before: Document, after: Document) -> int:
    old, new = ("\n".join(posts.as_lines(content)) for content in (before, after))
    return diff_size(old, new) if is_quick(old, new) else estimated_diff_size(old, new)
