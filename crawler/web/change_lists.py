"""What requests for lists of changes have in common: filters, cursors, and the list itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from bson import ObjectId
from fastapi import Depends, HTTPException, Query, Request
from pydantic import AwareDatetime

from crawler.reports.inbox import FIRST, Filters, InboxPage, Position, pages_of_entry, read_inbox
from crawler.reports.inbox_entries import ChangedPage
from crawler.reports.inbox_windows import Windows
from crawler.storage.accounts import readers
from crawler.storage.accounts.readers import Reader
from crawler.storage.paging import Key
from crawler.storage.store import Store
from crawler.web.auth import User
from crawler.web.dependencies import NowDep, Place, PlaceDep, StoreDep, cursor_of
from crawler.web.pages import not_found

# In a cursor, for a key that is not there.
NO_KEY: Key = (None, None)


def _filters(
    site: Annotated[str, Query(max_length=200, description="name of the site")] = "",
    category: Annotated[str, Query(max_length=500, description="category of the page")] = "",
    field: Annotated[str, Query(max_length=200, description="name of a field that differs")] = "",
    kind: Annotated[
        Literal["", "new", "changed", "gone", "back"], Query(description="kind of the net change")
    ] = "",
    q: Annotated[str, Query(max_length=500, description="part of the URL, in any case")] = "",
    size: Annotated[
        int | Literal[""], Query(description="minimum number of characters that differ")
    ] = "",
) -> Filters:
    return Filters(site, category.strip(), field.strip(), kind, q.strip(), max(0, size or 0))


FiltersDep = Annotated[Filters, Depends(_filters)]
SinceQuery = Annotated[
    AwareDatetime | None,
    Query(description="changes after this time, read or not; absent: the unread ones"),
]


async def reader_of(store: Store, user: User, since: datetime | None) -> Reader:
    """Return the reader; with a time, as if exactly the changes until then were read."""
    reader = await readers.load(store.db, user.name)
    return reader if since is None else reader.begin_at(since)


@dataclass(frozen=True, slots=True)
class ChangeList:
    """The list of changes that a request asks for. windows: of the app."""

    store: Store
    filters: Filters
    place: Place
    now: datetime
    windows: Windows

    async def read(self, reader: Reader) -> tuple[InboxPage, str | None]:
        """Return a page of the unread changes, and the cursor of the next one."""
        until, position = self._position()
        found = await read_inbox(
            self.store.db, reader, self.filters, self.place.limit, until, position, self.windows
        )
        if found.next is None:
            return found, None
        keys = (found.next.window or NO_KEY, found.next.shown or NO_KEY)
        return found, cursor_of((found.until, *keys[0], *keys[1]))

    async def pages_of(self, reader: Reader, event: ObjectId) -> list[ChangedPage]:
        """Return all pages of an entry; raises HTTPException (404) if the list does not have it."""
        until, position = self._position()
        found = await pages_of_entry(
            self.store.db, reader, self.filters, until, position, event, self.windows
        )
        if not found:
            raise not_found("Unread change")
        return found

    def _position(self) -> tuple[datetime, Position]:
        """Return the time until which changes are listed, and where the page begins."""
        if self.place.after is None:
            return self.now, FIRST
        until, *rest = self.place.after
        keys = [tuple(rest[:2]), tuple(rest[2:])]
        if not isinstance(until, datetime) or not all(map(_is_key, keys)):
            raise HTTPException(422, "cursor: not a cursor of this list")
        window, shown = (None if key == NO_KEY else key for key in keys)
        return until, Position(window, shown)


def _is_key(key: Key) -> bool:
    match key:
        case (datetime(), ObjectId()) | (None, None):
            return True
    return False


def _list(
    request: Request, store: StoreDep, now: NowDep, place: PlaceDep, filters: FiltersDep
) -> ChangeList:
    return ChangeList(store, filters, place, now, request.app.state.inbox_windows)


ListDep = Annotated[ChangeList, Depends(_list)]
