"""The inbox of changes: unread changes, read marks, mutes, and the Atom feed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Annotated, Any, Literal

from bson import ObjectId
from fastapi import APIRouter, Depends, HTTPException, Query, Request
from pydantic import BaseModel, Field, StringConstraints, field_validator
from starlette.responses import Response

from crawler.errors import ConfigError
from crawler.reports import inbox
from crawler.reports.entries import ChangedPage, Entry, PageChange, page_change
from crawler.reports.inbox import (
    FIRST,
    TOLD,
    Filters,
    InboxPage,
    Position,
    Windows,
    count_unread,
    pages_of_entry,
    read_feed,
    read_inbox,
)
from crawler.reports.net_changes import Told
from crawler.storage import readers, targets
from crawler.storage import sites as site_marks
from crawler.storage.paging import Key
from crawler.storage.readers import MAX_MUTES, MAX_PATTERN_CHARACTERS, Reader
from crawler.storage.store import Store
from crawler.utils.time import iso
from crawler.web.atom import (
    FEED_ENTRIES,
    MAX_TITLE,
    MAX_URL,
    AtomEntry,
    FeedAddress,
    SecretQuery,
    allowed,
    atom_response,
)
from crawler.web.auth import User, UserDep, for_viewers, public
from crawler.web.dependencies import NowDep, Pagination, PaginationDep, StoreDep, Time, cursor_of
from crawler.web.pages import Form, not_found, page, path_to, redirect, redirect_to
from crawler.web.subprocesses import Subprocesses

# Placeholder for a missing key in a cursor.
NO_KEY: Key = (None, None)
SinceQuery = Annotated[
    Time | None,
    Query(description="changes after this time, read or not; absent: the unread ones"),
]
WORDS = {"new": "New", "changed": "Changed", "gone": "Gone", "back": "Back"}


def _filters(
    site: Annotated[str, Query(max_length=200, description="name of the site")] = "",
    category: Annotated[str, Query(max_length=500, description="category of the page")] = "",
    field: Annotated[str, Query(max_length=200, description="name of a field that differs")] = "",
    kind: Annotated[
        Literal["", "changed", Told],
        Query(description="how the change is told; `changed`: any change of content"),
    ] = "",
    q: Annotated[
        str, Query(max_length=500, description="part of the name or the URL, in any case")
    ] = "",
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
    pagination: Pagination
    now: datetime
    windows: Windows

    async def read(self, reader: Reader) -> tuple[InboxPage, str | None]:
        """Return a page of the unread changes, and the cursor of the next one."""
        until, position = self._position()
        inbox = await read_inbox(
            self.store.db, reader, self.filters, self.pagination.limit, until, position,
            self.windows,
        )  # fmt: skip
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
        if self.pagination.after is None:
            return self.now, FIRST
        until, *rest = self.pagination.after
        keys = [tuple(rest[:2]), tuple(rest[2:])]
        types = {tuple(map(type, key)) for key in keys}
        is_valid = types <= {(datetime, ObjectId), tuple(map(type, NO_KEY))}
        if not isinstance(until, datetime) or not is_valid:
            raise HTTPException(422, "cursor: not a cursor of this list")
        window, shown = (None if key == NO_KEY else key for key in keys)
        return until, Position(window, shown)


def _list(
    request: Request, store: StoreDep, now: NowDep, pagination: PaginationDep, filters: FiltersDep
) -> ChangeList:
    return ChangeList(store, filters, pagination, now, request.app.state.inbox_windows)


ListDep = Annotated[ChangeList, Depends(_list)]


def _atom_entry(entry_id: str, each: Entry) -> AtomEntry:
    pages = each["page_count"]
    name = " ".join(each["name"][:MAX_TITLE].split())
    more = f" and {pages - 1:,} more" if pages > 1 else ""
    lines = [each["summary"]]
    for edit in each["edits"]:
        before, after = edit["before"] or "", edit["after"] or "(removed)"
        lines.append(f"{edit['name']}: {before} → {after}" if before else f"+ {after}")
    lines += [f"and {each['more_edits']:,} more"] if each["more_edits"] else []
    lines += [page["url"][:MAX_URL] for page in each["pages"]] if pages > 1 else []
    return AtomEntry(
        entry_id, f"{WORDS[each['kind']]}: {name}{more}", each["at"], each["url"],
        (each["site"], each["kind"]), "\n".join(filter(None, lines)) or WORDS[each["kind"]],
    )  # fmt: skip


router = APIRouter(prefix="/changes")
api = APIRouter(prefix="/changes", tags=["changes"])
# Characters of a URL in a suggested pattern; longer URLs are cut.
MAX_SUGGESTED = 300
WEEK = timedelta(days=7)
EventId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{24}$")]


@router.get("", name="changes.index")
async def index(
    request: Request, user: UserDep, store: StoreDep, wanted: ListDep, now: NowDep,
    marked: Annotated[int | None, Query(ge=0, le=10**9)] = None,
) -> Response:  # fmt: skip
    """Show the unread changes."""
    reader = await readers.load(store.db, user.name)
    inbox, after = await wanted.read(reader)
    names = await targets.spiders(store.db)
    return page(
        request, "changes/index.html", fragment="changes", inbox=inbox, next=after,
        titles=await site_marks.titles(store.db, names),
        pagination=wanted.pagination, filters=wanted.filters, reader=reader, marked=marked,
        kinds=TOLD, sites=names,
        here=request.url.path + _list_query(request), query=_list_query(request),
        days=_by_day(inbox.entries), week_ago=iso(now - WEEK),
        fields=_names(inbox, "fields"), categories=_names(inbox, "categories"),
    )  # fmt: skip


def _by_day(entries: Sequence[Entry]) -> list[tuple[str, list[Entry]]]:
    """Return the entries by day in UTC; a script regroups them by the reader's days."""
    by_day = groupby(entries, lambda entry: f"{entry['at'].astimezone(UTC):%Y-%m-%d}")
    return [(day, list(of_day)) for day, of_day in by_day]


def _names(inbox: InboxPage, key: Literal["fields", "categories"]) -> list[str]:
    """Return the fields or categories of the listed entries, as suggestions for filters."""
    return sorted({name for entry in inbox.entries for name in entry[key]})


class ChangePage(BaseModel):
    """A part of the unread changes, newest first."""

    entries: list[Entry]
    muted: int = Field(description="number of changes hidden by patterns among those searched")
    until: datetime = Field(
        description="changes up to this time are listed, on all pages of the list. Send it to "
        "`read-all` to mark everything as read that the list has, but nothing newer"
    )
    next: str | None = Field(
        description="cursor of the next page; null at the end. A page may be empty and have a next "
        "page, because one page searches at most 5,000 changes"
    )


@api.get("", name="changes.api")
async def changes(
    user: UserDep, store: StoreDep, wanted: ListDep, since: SinceQuery = None
) -> ChangePage:  # fmt: skip
    """Return the unread changes, or those since a time, newest first."""
    reader = await reader_of(store, user, since)
    inbox, after = await wanted.read(reader)
    return ChangePage(entries=inbox.entries, muted=inbox.muted, until=inbox.until, next=after)


class Unread(BaseModel):
    """How far a reader has read the changes."""

    since: datetime | None = Field(
        description="time until which all changes are read; null: no such time. Later ones may be "
        "read one by one"
    )
    changes: int = Field(
        description="number of later changes, also read and muted ones, at most 10,000"
    )


@api.get("/unread", name="changes.api_unread")
async def api_unread(
    user: UserDep, store: StoreDep,
    site: Annotated[str, Query(max_length=200, description="name of the site")] = "",
) -> Unread:  # fmt: skip
    """Return the time since which changes are unread, and their number."""
    reader = await readers.load(store.db, user.name)
    return Unread(since=reader.read_until, changes=await count_unread(store.db, reader, site))


class UnreadSince(BaseModel):
    """The time since which changes are unread."""

    since: Time | None = Field(
        description="changes after this time become unread, all others read; null: all unread. "
        "A time in the future counts as now"
    )


@api.put("/unread", name="changes.api_since")
@for_viewers
async def api_begin_at(body: UnreadSince, user: UserDep, store: StoreDep, now: NowDep) -> Unread:
    """Mark all changes since a time as unread, and all others as read."""
    await inbox.begin_at(store.db, user.name, body.since, now)
    return await api_unread(user, store)


@router.get("/of/{event}/pages", name="changes.pages")
async def pages_with_edit(
    request: Request, event: EventId, user: UserDep, store: StoreDep, wanted: ListDep
) -> Response:  # fmt: skip
    """Show all pages of an entry."""
    reader = await readers.load(store.db, user.name)
    pages = await wanted.pages_of(reader, ObjectId(event))
    return page(
        request, "changes/pages.html", pages=pages,
        here=path_to(request, "changes.index") + _list_query(request),
    )  # fmt: skip


def _list_query(request: Request) -> str:
    """Return the filters and the cursor of this request, as the end of a path."""
    query = request.url.remove_query_params("marked").query
    return f"?{query}" if query else ""


@api.get("/{event}/pages", name="changes.api_pages")
async def api_pages(
    event: EventId, user: UserDep, store: StoreDep, wanted: ListDep, since: SinceQuery = None
) -> list[ChangedPage]:  # fmt: skip
    """Return all pages of an entry, given the parameters of the list that has it."""
    reader = await reader_of(store, user, since)
    return await wanted.pages_of(reader, ObjectId(event))


@router.get("/of/{event}", name="changes.page")
async def detail(request: Request, event: EventId, user: UserDep, store: StoreDep) -> Response:
    """Show the net change of a page, word by word."""
    change = await api_detail(request, event, user, store)
    entry = change["entry"]
    titles = await site_marks.titles(store.db, [entry["site"]])
    return page(request, "changes/detail.html", change=change, entry=entry, titles=titles)


class ReadForm(BaseModel):
    """The entries to mark as read; each is a list of event ids, separated by commas."""

    entry: list[str] = Field(default_factory=list, max_length=200)
    one: str = ""
    to: str = ""
    start: Time | None = None
    end: Time | None = None

    @field_validator("start", "end", mode="before")
    @classmethod
    def _absent(cls, value: object) -> object:
        return value or None

    def events(self) -> list[ObjectId]:
        """Return the ids of the events to mark; raises ConfigError."""
        entries = [entry.split(",") for entry in self.entry]
        if self.one:
            entries = [ids for ids in entries if ids[0] == self.one]
        elif self.to:
            place = next((n for n, ids in enumerate(entries) if ids[0] == self.to), -1)
            entries = entries[: place + 1]
        ids = [each for ids in entries for each in ids]
        if not all(map(ObjectId.is_valid, ids)) or len(ids) > inbox.MAX_MARKED:
            raise ConfigError("the list of changes is not valid. Reload the page")
        return [ObjectId(each) for each in ids]

    def span(self) -> tuple[datetime, datetime] | None:
        """Return the times between which all events are listed, if all entries are marked."""
        if self.one or self.to or self.start is None or self.end is None:
            return None
        return self.end + inbox.MILLISECOND, self.start


@router.post("/read", name="changes.read")
@for_viewers
async def mark_read(request: Request, user: UserDep, store: StoreDep, now: NowDep) -> Response:
    """Mark one entry, all entries down to one, or all shown entries as read."""
    form = await Form.read(request)
    wanted = form.parse(ReadForm)
    if wanted is None:
        raise HTTPException(422, "the list of changes is not valid. Reload the page")
    marked = await inbox.mark_events(store.db, user.name, wanted.events(), now, wanted.span())
    request.state.audit = f"marked {marked} as read"
    return _back(request, form["here"], marked)


@router.post("/read-all", name="changes.read_all")
@for_viewers
async def mark_all(request: Request, user: UserDep, store: StoreDep, now: NowDep) -> Response:
    """Mark everything as read, or everything of a site."""
    form = await Form.read(request)
    wanted = form.parse(ReadAll)
    if wanted is None:
        raise HTTPException(422, "until: not a time. Reload the page")
    await inbox.mark_all(
        store.db, user.name, min(wanted.until or now, now), now, wanted.site or None
    )
    request.state.audit = f"marked everything of {wanted.site or 'all sites'} as read"
    return _back(request, form["here"], 0)


@router.post("/undo", name="changes.undo")
@for_viewers
async def undo(request: Request, user: UserDep, store: StoreDep) -> Response:
    """Undo the last mark."""
    form = await Form.read(request)
    await readers.undo(store.db, user.name)
    return _back(request, form["here"], None)


def _back(request: Request, here: str, marked: int | None) -> Response:
    """Return to the list, which shows how many pages were marked: 0 for all; None: none."""
    back = here if here.startswith(path_to(request, "changes.index")) else ""
    path = back or path_to(request, "changes.index")
    if marked is not None:
        path += f"{'&' if '?' in path else '?'}marked={marked}"
    return redirect_to(request, path)


class ReadAll(BaseModel):
    """Changes to mark as read."""

    until: Time | None = Field(None, description="up to this time; null: now")
    site: str = Field("", max_length=200, description="of this site only; empty: of all sites")


class ReadEvents(BaseModel):
    """Entries to mark as read."""

    events: list[EventId] = Field(
        max_length=inbox.MAX_MARKED, description="`events` of the entries: ids of visits"
    )


class Marked(BaseModel):
    """The number of pages that were marked as read."""

    pages: int


@api.post("/read", name="changes.api_read")
@for_viewers
async def api_read(body: ReadEvents, user: UserDep, store: StoreDep, now: NowDep) -> Marked:
    """Mark pages as read, up to the given visits."""
    ids = [ObjectId(event) for event in body.events]
    return Marked(pages=await inbox.mark_events(store.db, user.name, ids, now))


@api.post("/read-all", name="changes.api_read_all", status_code=204)
@for_viewers
async def api_read_all(body: ReadAll, user: UserDep, store: StoreDep, now: NowDep) -> None:
    """Mark everything as read, or everything of a site."""
    until = min(body.until or now, now)
    await inbox.mark_all(store.db, user.name, until, now, body.site or None)


@router.get("/settings", name="changes.settings")
async def settings(
    request: Request, user: UserDep, store: StoreDep,
    url: Annotated[str, Query(max_length=MAX_SUGGESTED)] = "",
    pages: Annotated[int, Query(ge=1, le=10**9)] = 1,
) -> Response:  # fmt: skip
    """Show mutes, the feed, and the time since which changes are unread.

    url:   URL for which a pattern to mute is suggested
    pages: number of pages of the entry; with more than one, their URLs begin with `url`
    """
    is_whole = pages == 1 and len(url) < MAX_SUGGESTED
    pattern = "^" + re.escape(url).replace(r"\-", "-") + ("$" if is_whole else "")
    form = Form.of({"pattern": pattern if url else ""})
    return await _settings_page(request, user, store, form, pages=pages)


async def _settings_page(
    request: Request, user: User, store: Store, form: Form, status: int = 200, **shown: Any
) -> Response:
    values: dict[str, Any] = {"address": "", "pages": 1, **shown}
    return page(
        request, "changes/settings.html", status=status, form=form, **values,
        reader=await readers.load(store.db, user.name), max_mutes=MAX_MUTES,
    )  # fmt: skip


@router.post("/mute", name="changes.mute")
@for_viewers
async def mute(request: Request, user: UserDep, store: StoreDep) -> Response:
    """Hide pages by a pattern of their URLs."""
    form = await Form.read(request)
    with form.rejecting("pattern", ValueError):
        await readers.update(store.db, user.name, lambda reader: reader.mute(form["pattern"]))
        request.state.audit = f"muted {form['pattern']}"
        return redirect(request, "changes.settings")
    return await _settings_page(request, user, store, form, 422)


@router.post("/unmute", name="changes.unmute")
@for_viewers
async def unmute(request: Request, user: UserDep, store: StoreDep) -> Response:
    """Show the pages of a pattern again."""
    form = await Form.read(request)
    await readers.update(store.db, user.name, lambda reader: reader.unmute(form["pattern"]))
    request.state.audit = f"unmuted {form['pattern']}"
    return redirect_to(request, form["back"] or path_to(request, "changes.settings"))


class Since(BaseModel):
    """The form with the time since which changes are unread."""

    since: Time | None = None

    @field_validator("since", mode="before")
    @classmethod
    def _parsed(cls, value: object) -> object:
        # The browser's field has no zone: its label says UTC.
        return f"{value}Z" if value and not str(value).endswith("Z") else value or None


@router.post("/since", name="changes.since")
@for_viewers
async def begin_at(request: Request, user: UserDep, store: StoreDep, now: NowDep) -> Response:
    """Mark all changes since a time as unread, and all others as read."""
    form = await Form.read(request)
    wanted = form.parse(Since)
    if wanted is None:
        return await _settings_page(request, user, store, form, 422)
    await inbox.begin_at(store.db, user.name, wanted.since, now)
    request.state.audit = f"unread since {wanted.since or 'the first change'}"
    return redirect_to(request, path_to(request, "changes.index"))


@router.post("/feed", name="changes.make_feed")
@for_viewers
async def make_feed(request: Request, user: UserDep, store: StoreDep, now: NowDep) -> Response:
    """Create the secret address of the feed; an older address stops working."""
    await Form.read(request)
    made = await api_make_feed(request, user, store, now)
    return await _settings_page(request, user, store, Form(), address=made.url)


@router.post("/feed/end", name="changes.end_feed")
@for_viewers
async def end_feed(request: Request, user: UserDep, store: StoreDep) -> Response:
    """End the feed: its address stops working."""
    await readers.end_feed(store.db, user.name)
    return redirect(request, "changes.settings")


@router.get("/feed.atom", name="changes.feed")
@public
async def feed(
    request: Request, store: StoreDep, now: NowDep, secret: SecretQuery = ""
) -> Response:
    """Return the newest changes as Atom to anyone who has the secret address."""
    found = await readers.of_feed(store.db, secret)
    reader = await allowed(request, store, found, lambda reader: reader.name)
    entries = await read_feed(store.db, reader, FEED_ENTRIES, now)
    made = readers.item_number(reader.name, str(reader.feed_since)) % 2**64
    return atom_response(
        request, [_atom_entry(*entry) for entry in entries], title="Changes in Freshet",
        name=f"{made:x}", address=FeedAddress.of(request, "changes.feed", secret),
        page=path_to(request, "changes.index"), updated=reader.feed_since or now,
    )  # fmt: skip


class Mutes(BaseModel):
    """Patterns of hidden pages."""

    patterns: list[str] = Field(description="regular expressions (RE2) that are searched in URLs")


class Pattern(BaseModel):
    """A pattern of hidden pages."""

    pattern: str = Field(max_length=MAX_PATTERN_CHARACTERS, description="regular expression (RE2)")


@api.post("/undo", name="changes.api_undo")
@for_viewers
async def api_undo(user: UserDep, store: StoreDep) -> Unread:
    """Undo the last mark; 409 if there is none, or if something else was changed since."""
    if not await readers.undo(store.db, user.name):
        raise HTTPException(409, "There is no mark to undo")
    return await api_unread(user, store)


@api.get("/mutes", name="changes.api_mutes")
async def api_mutes(user: UserDep, store: StoreDep) -> Mutes:
    """Return the patterns of hidden pages."""
    return Mutes(patterns=list((await readers.load(store.db, user.name)).mutes))


@api.post("/mutes", name="changes.api_mute")
@for_viewers
async def api_mute(body: Pattern, user: UserDep, store: StoreDep) -> Mutes:
    """Hide pages by a pattern of their URLs."""
    try:
        reader = await readers.update(store.db, user.name, lambda before: before.mute(body.pattern))
    except ValueError as error:
        raise HTTPException(422, f"pattern: {error}") from None
    return Mutes(patterns=list(reader.mutes))


@api.delete("/mutes", name="changes.api_unmute")
@for_viewers
async def api_unmute(pattern: str, user: UserDep, store: StoreDep) -> Mutes:
    """Show the pages of a pattern again."""
    reader = await readers.update(store.db, user.name, lambda before: before.unmute(pattern))
    return Mutes(patterns=list(reader.mutes))


@api.post("/feed", name="changes.api_make_feed")
@for_viewers
async def api_make_feed(
    request: Request, user: UserDep, store: StoreDep, now: NowDep
) -> FeedAddress:
    """Create the secret address of the feed; an older address stops working."""
    secret = await readers.make_feed(store.db, user.name, now)
    return FeedAddress.of(request, "changes.feed", secret)


@api.delete("/feed", name="changes.api_end_feed", status_code=204)
@for_viewers
async def api_end_feed(user: UserDep, store: StoreDep) -> None:
    """End the feed: its address stops working."""
    await readers.end_feed(store.db, user.name)


@api.get("/{event}", name="changes.api_page")
async def api_detail(
    request: Request, event: EventId, user: UserDep, store: StoreDep
) -> PageChange:
    """Return the net change of a page, word by word."""
    reader = await readers.load(store.db, user.name)
    sandbox = Subprocesses.of(request.app).comparing
    change = await page_change(store.db, reader, ObjectId(event), sandbox)
    if change is None:
        raise not_found("Change")
    return change
