"""Lists of changes in requests: filters, cursors, and the list itself, also as Atom (RFC 4287)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal
from xml.etree import ElementTree

from bson import ObjectId
from fastapi import Depends, HTTPException, Query, Request

from crawler.reports.inbox import (
    FIRST,
    FeedEntry,
    Filters,
    InboxPage,
    Position,
    pages_of_entry,
    read_inbox,
)
from crawler.reports.inbox_entries import ChangedPage
from crawler.reports.net_changes import Windows
from crawler.storage.accounts import readers
from crawler.storage.accounts.readers import Reader
from crawler.storage.client import Store
from crawler.storage.paging import Key
from crawler.web.auth import User
from crawler.web.dependencies import NowDep, Place, PlaceDep, StoreDep, Time, cursor_of
from crawler.web.pages import is_linked, not_found

# Placeholder for a missing key in a cursor.
NO_KEY: Key = (None, None)
SinceQuery = Annotated[
    Time | None,
    Query(description="changes after this time, read or not; absent: the unread ones"),
]
ATOM = "http://www.w3.org/2005/Atom"
MEDIA_TYPE = "application/atom+xml; charset=utf-8"
# Characters that XML 1.0 does not allow.
INVALID = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
MAX_TITLE, MAX_TEXT, MAX_URL = 300, 4000, 2000
WORDS = {"new": "New", "changed": "Changed", "gone": "Gone", "back": "Back"}


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


async def reader_of(store: Store, user: User, since: datetime | None) -> Reader:
    """Return the reader; with a time, as if exactly the changes until then were read."""
    reader = await readers.load(store.db, user.name)
    return reader if since is None else reader.begin_at(since)


@dataclass(frozen=True, slots=True)
class ChangeList:
    """The list of changes that a request asks for. windows: cache of the app."""

    store: Store
    filters: Filters
    place: Place
    now: datetime
    windows: Windows

    async def read(self, reader: Reader) -> tuple[InboxPage, str | None]:
        """Return a page of the unread changes, and the cursor of the next one."""
        until, position = self._position()
        inbox = await read_inbox(
            self.store.db, reader, self.filters, self.place.limit, until, position, self.windows
        )
        if inbox.next is None:
            return inbox, None
        keys = (inbox.next.window or NO_KEY, inbox.next.shown or NO_KEY)
        return inbox, cursor_of((inbox.until, *keys[0], *keys[1]))

    async def pages_of(self, reader: Reader, event: ObjectId) -> list[ChangedPage]:
        """Return all pages of an entry; raises HTTPException (404) if the list does not have it."""
        until, position = self._position()
        pages = await pages_of_entry(
            self.store.db, reader, self.filters, until, position, event, self.windows
        )
        if not pages:
            raise not_found("Unread change")
        return pages

    def _position(self) -> tuple[datetime, Position]:
        """Return the time until which changes are listed, and where the page begins."""
        if self.place.after is None:
            return self.now, FIRST
        until, *rest = self.place.after
        keys = [tuple(rest[:2]), tuple(rest[2:])]
        types = {tuple(map(type, key)) for key in keys}
        is_valid = types <= {(datetime, ObjectId), tuple(map(type, NO_KEY))}
        if not isinstance(until, datetime) or not is_valid:
            raise HTTPException(422, "cursor: not a cursor of this list")
        window, shown = (None if key == NO_KEY else key for key in keys)
        return until, Position(window, shown)


def _list(
    request: Request, store: StoreDep, now: NowDep, place: PlaceDep, filters: FiltersDep
) -> ChangeList:
    return ChangeList(store, filters, place, now, request.app.state.inbox_windows)


ListDep = Annotated[ChangeList, Depends(_list)]


def atom_feed(
    entries: Sequence[FeedEntry], *, feed_id: str, address: str, site: str, updated: datetime
) -> bytes:
    """Return a feed with all texts as plain text.

    feed_id:  permanent id in the form of a URI, to which the ids of entries add a part
    address:  URL of the feed
    site:     URL of the page with the changes
    updated:  time to state if there are no entries
    """
    feed = ElementTree.Element("feed", {"xmlns": ATOM})
    _add(feed, "id", feed_id)
    _add(feed, "title", "Changes in Freshet")
    _add(feed, "updated", _time(max((each["at"] for _, each in entries), default=updated)))
    _add(ElementTree.SubElement(feed, "author"), "name", "Freshet")
    ElementTree.SubElement(
        feed, "link", {"rel": "self", "type": "application/atom+xml", "href": address}
    )
    ElementTree.SubElement(feed, "link", {"rel": "alternate", "type": "text/html", "href": site})
    for entry_id, each in entries:
        item = ElementTree.SubElement(feed, "entry")
        _add(item, "id", f"{feed_id}:{entry_id}")
        pages = each["page_count"]
        name = " ".join((each["title"] or each["url"])[:MAX_TITLE].split())
        more = f" and {pages - 1:,} more" if pages > 1 else ""
        _add(item, "title", f"{WORDS[each['kind']]}: {name}{more}")
        _add(item, "updated", _time(each["at"]))
        url = each["url"]
        href = url if is_linked(url) and len(url) <= MAX_URL else site
        ElementTree.SubElement(item, "link", {"rel": "alternate", "href": _clean(href)})
        ElementTree.SubElement(item, "category", {"term": _clean(each["site"])})
        ElementTree.SubElement(item, "category", {"term": each["kind"]})
        lines = [each["summary"], f"Removed: {each['removed']}" if each["removed"] else ""]
        lines += [f"Added: {each['added']}" if each["added"] else ""]
        lines += [page["url"][:MAX_URL] for page in each["pages"]] if pages > 1 else []
        text = "\n".join(filter(None, lines)) or WORDS[each["kind"]]
        ElementTree.SubElement(item, "content", {"type": "text"}).text = _clean(text[:MAX_TEXT])
    document: bytes = ElementTree.tostring(feed, encoding="utf-8", xml_declaration=True)
    return document


def _add(parent: ElementTree.Element, name: str, text: str) -> None:
    ElementTree.SubElement(parent, name).text = _clean(text)


def _clean(text: str) -> str:
    return INVALID.sub("\ufffd", text)


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}Z"
