"""Marking changes of the inbox as read.

The time of a visit is that of the response, and it is stored a moment later. So nothing is marked
by time within the last SETTLING: those changes are marked page by page, and a change that is stored
late stays unread.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from bson import ObjectId

from crawler.reports.inbox import matches
from crawler.storage import change_events
from crawler.storage.accounts import readers
from crawler.storage.accounts.readers import Reader, Span
from crawler.storage.client import Database, Document
from crawler.utils.regex import compiled

SETTLING = timedelta(minutes=1)
MILLISECOND = timedelta(milliseconds=1)
# Events that are marked page by page in one request.
MAX_EVENTS = 1000
# Events by which the reader's time moves on in one request, except for ranges that are skipped.
STEPS, STEP = 4, 500
# Unread events in one step whose pages may have been read later.
MAX_LATER = 200


async def mark_events(
    db: Database, name: str, ids: Sequence[ObjectId], now: datetime, span: Span | None = None
) -> int:
    """Mark the pages of events as read up to these events; return the number of pages.

    span: the first and the last time between which all events are among the given ones; they are
          marked as one range

    Raises ConfigError if too many pages would be marked one by one.
    """
    rows = await change_events.by_ids(db, ids[:MAX_EVENTS])
    settled = now - SETTLING

    def mark(reader: Reader) -> Reader:
        if span is not None and span[0] <= min(span[1], settled):
            reader = reader.read_range(span[0], min(span[1], settled))
        return reader.read_pages(_pages(rows))

    await _store(db, name, mark, now)
    return len({(row["spider"], row["target"]) for row in rows})


async def mark_all(
    db: Database, name: str, until: datetime, now: datetime, site: str | None = None
) -> None:
    """Mark all changes up to a time as read, of one site if it is given."""
    settled = min(until, now - SETTLING)
    recent = await change_events.newest(db, Reader(name, settled), until, MAX_EVENTS, spider=site)

    def mark(reader: Reader) -> Reader:
        return reader.read_all(settled, site).read_pages(_pages(recent.rows))

    await _store(db, name, mark, now)


async def begin_at(db: Database, name: str, since: datetime | None) -> None:
    """Mark all changes after a time as unread and all others as read; None: all as unread."""
    await readers.update(db, name, lambda reader: reader.begin_at(since))


def _pages(rows: Sequence[Document]) -> list[tuple[str, str, datetime]]:
    return [(row["spider"], row["target"], row["at"]) for row in rows]


async def _store(db: Database, name: str, mark: readers.Edit, now: datetime) -> None:
    """Store marks, and move the reader's time past the changes before which all are read."""
    reader = await readers.update(db, name, mark)
    if (until := await _all_read_until(db, reader, now - SETTLING)) is not None:
        await readers.update(db, name, lambda reader: reader.read_all(until))


async def _all_read_until(db: Database, reader: Reader, until: datetime) -> datetime | None:
    """Return a time up to which a reader has read all changes, or has muted them.

    None if the reader's own time is not known to be too early.
    """
    mutes = [compiled(pattern) for pattern in reader.mutes]
    reached = reader.read_until
    for _ in range(STEPS):
        page = await change_events.oldest(db, reached, until, STEP)
        if not page.rows:
            break
        unread = [
            row for row in page.rows
            if not reader.has_read(row["spider"], row["target"], row["at"])
            and not matches(mutes, row["target"])
        ]  # fmt: skip
        if (first := await _first_unread(db, reader, unread, until)) is not None:
            # Other changes of the same time may be unread.
            return _if_later(first - MILLISECOND, reader.read_until)
        at = page.rows[-1]["at"]
        reached = at if page.last is None else at - MILLISECOND
        if (span := reader.range_at(at)) is not None:
            reached = min(span[1], until)
    return _if_later(reached, reader.read_until)


async def _first_unread(
    db: Database, reader: Reader, rows: Sequence[Document], until: datetime
) -> datetime | None:
    """Return the time of the first event whose page has no later event that is read.

    The net difference at the later event included the earlier ones.
    """
    later = await change_events.of_pages(
        db, [row["_id"] for row in rows[:MAX_LATER]], reader.read_until, until
    )
    for row in rows:
        events = later.get(row["_id"], ())
        if not any(
            each["at"] > row["at"] and reader.has_read(each["spider"], each["target"], each["at"])
            for each in events
        ):
            at: datetime = row["at"]
            return at
    return None


def _if_later(at: datetime | None, than: datetime | None) -> datetime | None:
    return at if at is not None and (than is None or at > than) else None
