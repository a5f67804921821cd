"""Search: items and posts by their words, or the newest ones; saved searches and their feeds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Literal, get_args

from bson import ObjectId
from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, Field, StringConstraints
from starlette.responses import Response

from crawler.errors import ConfigError
from crawler.reports import search as report
from crawler.reports.search import Found, SearchPage
from crawler.search import Query as Words
from crawler.storage import saved_searches as saved
from crawler.storage import search as storage
from crawler.storage.saved_searches import MAX_NAME_CHARACTERS
from crawler.storage.search_pages import MAX_COUNTED, Filters, Kind, SearchOrder
from crawler.storage.search_pages import is_empty as nothing_stored
from crawler.storage.store import Store
from crawler.web.atom import (
    FEED_ENTRIES,
    MAX_TITLE,
    AtomEntry,
    FeedAddress,
    SecretQuery,
    allowed,
    atom_response,
)
from crawler.web.auth import UserDep, for_viewers, public
from crawler.web.dependencies import (
    CursorQuery,
    LimitQuery,
    NowDep,
    Pagination,
    StoreDep,
    cursor_of,
    pagination_of,
)
from crawler.web.pages import (
    Form,
    not_found,
    page,
    path_to,
    redirect,
    with_parameters,
)

router = APIRouter(prefix="/search")
api = APIRouter(prefix="/search", tags=["search"])
MAX_QUERY, MAX_NAME = 500, 500
# A result takes more room and more work than a row of a table.
USUAL_FOUND = 20
# Days are those of UTC, as everywhere in the API.
DAY = timedelta(days=1)
Day = date | Literal[""]
NO_WORDS = "the query has no letters or digits to search for. Type a word"


@dataclass(frozen=True, slots=True)
class Selected:
    """The filters of a request. begin, end: the first and the last day, as given."""

    filters: Filters
    begin: date | None
    end: date | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request searches for."""

    text: str
    selected: Selected
    pagination: Pagination
    order: SearchOrder = "best"

    @property
    def filters(self) -> Filters:
        """Return the filters."""
        return self.selected.filters

    @property
    def kept(self) -> dict[str, str]:
        """Return the parts that a saved search has, without empty ones."""
        filters = self.filters
        parts = {"q": self.text, "site": filters.site, "category": filters.category}
        return {name: value for name, value in (parts | {"kind": filters.kind}).items() if value}

    @property
    def words(self) -> Words:
        """Return the parsed query; raises ConfigError for one that cannot find anything."""
        begin, end = self.selected.begin, self.selected.end
        if begin and end and end < begin:
            raise ConfigError("the first day must not be after the last day")
        words = Words.parse(self.text)
        if self.text and not words.terms and not words.without:
            raise ConfigError(NO_WORDS)
        return words

    async def read(self, store: Store) -> SearchPage:
        """Return the page; raises ConfigError for a query that cannot find anything."""
        at = self.pagination
        return await report.search(
            store.db, self.words, self.filters, at.limit, at.after, self.order
        )


def _selected(
    site: Annotated[str, Query(max_length=200, description="name of the site")] = "",
    category: Annotated[
        str, Query(max_length=MAX_NAME, description="this category and those below it")
    ] = "",
    kind: Annotated[
        Kind, Query(description="`item` of a site, `post` of a feed, or earlier `version` of both")
    ] = "",
    begin: Annotated[
        Day, Query(alias="from", description="first day (UTC), such as 2026-01-31")
    ] = "",
    end: Annotated[Day, Query(alias="to", description="last day (UTC)")] = "",
) -> Selected:
    since = _start_of(begin) if begin else None
    until = _start_of(end + DAY) if end and end < date.max else None
    return Selected(Filters(site, category.strip(), kind, since, until), begin or None, end or None)


def _wanted(
    selected: Annotated[Selected, Depends(_selected)],
    q: Annotated[
        str,
        Query(
            max_length=MAX_QUERY,
            description='words that must all occur, phrases in quotes, and -words or -"phrases" '
            "that must not; empty: the newest items and posts",
        ),
    ] = "",
    order: Annotated[
        SearchOrder,
        Query(alias="sort", description="`best` match or `newest` first; frequent words: `newest`"),
    ] = "best",
    limit: LimitQuery = USUAL_FOUND,
    cursor: CursorQuery = None,
) -> Wanted:
    return Wanted(q.strip(), selected, pagination_of(limit, cursor), order)


def _start_of(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


WantedDep = Annotated[Wanted, Depends(_wanted)]


class FoundPosts(BaseModel):
    """A page of a search."""

    found: list[Found]
    order: Literal["best", "newest"] = Field(
        description="`best`: the best match first; `newest`: the newest first, because there are "
        "no words, or because each of them is in thousands of posts"
    )
    count: int | None = Field(
        description=f"number of all matches; null: more than {MAX_COUNTED}, not known, or not on "
        "the first page"
    )
    next: str | None = Field(
        description="cursor of the next page; null at the end. A page may have few matches, or "
        "none, and have a next page, because one page reads a limited number of posts"
    )


@router.get("", name="search.index")
async def index(request: Request, user: UserDep, store: StoreDep, wanted: WantedDep) -> Response:
    """Show what a search finds, or the newest items and posts."""
    found, problem = None, ""
    try:
        found = await wanted.read(store)
    except ConfigError as error:
        problem = str(error)
    is_empty = found is not None and not found.found and await nothing_stored(store.db)
    return page(
        request, "search/index.html", status=422 if problem else 200, wanted=wanted,
        filters=wanted.filters, found=found, next=cursor_of(found.page.next) if found else None,
        problem=problem, is_empty=is_empty, sites=await storage.spiders(store.db),
        max_counted=MAX_COUNTED, parts=parts_of, saved=await saved.of_user(store.db, user.name),
    )  # fmt: skip


def parts_of(text: str, marks: Sequence[tuple[int, int]]) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a text, and whether each is a hit; templates escape them."""
    end = 0
    for start, stop in marks:
        yield text[end:start], False
        yield text[start:stop], True
        end = stop
    yield text[end:], False


@api.get("", name="search.api")
async def search(store: StoreDep, wanted: WantedDep) -> FoundPosts:
    """Return items and posts with some words, without near-duplicates."""
    result = await wanted.read(store)
    at = result.page
    return FoundPosts(found=result.found, order=at.order, count=at.count, next=cursor_of(at.next))


SearchId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{24}$")]


class NewSearch(BaseModel):
    """A search to save."""

    name: Annotated[
        str,
        StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_NAME_CHARACTERS),
    ] = Field(description="name; a search of the same name is replaced")
    q: str = Field("", max_length=MAX_QUERY, description="words, as for the search")
    site: str = Field("", max_length=200, description="name of the site; empty: all")
    category: str = Field("", max_length=MAX_NAME, description="category; empty: all")
    kind: Kind = Field("", description="`item`, `post` or `version`; empty: items and posts")

    def parts(self) -> dict[str, str]:
        """Return the words and filters; raises ConfigError if there are none."""
        parts = {name: value.strip() for name, value in self.model_dump().items() if name != "name"}
        words = Words.parse(parts["q"])
        if parts["q"] and not words.terms and not words.without:
            raise ConfigError(NO_WORDS)
        if not any(parts.values()):
            raise ConfigError("there is nothing to save. Type a word or choose a filter first")
        return parts


class OneSearch(BaseModel):
    """A saved search."""

    id: SearchId = Field(description="id of the saved search")


class SavedSearchRow(BaseModel):
    """A saved search of a user."""

    id: str
    name: str
    query: dict[str, str] = Field(description="`q`, `site`, `category` and `kind`, if set")
    feed_since: datetime | None = Field(description="time when its feed was created; null: none")


class SavedSearches(BaseModel):
    """The saved searches of a user, by name."""

    searches: list[SavedSearchRow]


@router.get("/saved", name="search.saved")
async def saved_page(request: Request, user: UserDep, store: StoreDep) -> Response:
    """Show the saved searches and their feeds."""
    return await _saved_page(request, user, store, Form())


async def _saved_page(
    request: Request, user: UserDep, store: StoreDep, form: Form, status: int = 200,
    address: str = "",
) -> Response:  # fmt: skip
    searches = await saved.of_user(store.db, user.name)
    return page(
        request, "search/saved.html", status=status, saved=searches, form=form, address=address
    )


@router.post("/saved", name="search.save")
@for_viewers
async def save(request: Request, user: UserDep, store: StoreDep, now: NowDep) -> Response:
    """Save a search by name."""
    form = await Form.read(request)
    new = form.parse(NewSearch)
    if new is not None:
        with form.rejecting(""):
            await api_save(request, new, user, store, now)
            shown = {name: value for name, value in new.parts().items() if value}
            return redirect(request, "search.index", shown)
    return await _saved_page(request, user, store, form, 422)


@router.post("/saved/remove", name="search.remove")
@for_viewers
async def remove(request: Request, user: UserDep, store: StoreDep) -> Response:
    """Remove a saved search and its feed."""
    await api_remove(await _one(request), user, store)
    return redirect(request, "search.saved")


@router.post("/saved/feed", name="search.make_feed")
@for_viewers
async def make_feed(request: Request, user: UserDep, store: StoreDep, now: NowDep) -> Response:
    """Create the secret address of a search's feed; an older address stops working."""
    made = await api_make_feed(request, await _one(request), user, store, now)
    return await _saved_page(request, user, store, Form(), address=made.url)


@router.post("/saved/feed/end", name="search.end_feed")
@for_viewers
async def end_feed(request: Request, user: UserDep, store: StoreDep) -> Response:
    """End the feed of a search: its address stops working."""
    await api_end_feed(await _one(request), user, store)
    return redirect(request, "search.saved")


async def _one(request: Request) -> OneSearch:
    form = await Form.read(request)
    if (search := form.parse(OneSearch)) is None:
        raise not_found("Saved search")
    return search


@router.get("/feed.atom", name="search.feed")
@public
async def feed(
    request: Request, store: StoreDep, now: NowDep, secret: SecretQuery = ""
) -> Response:
    """Return the newest matches of a saved search as Atom to anyone who has the secret address."""
    owned = await saved.of_feed(store.db, secret)
    search = await allowed(request, store, owned, lambda search: search.user)
    query = search.query
    kinds: dict[str, Kind] = {name: name for name in get_args(Kind)}
    kind = kinds.get(query.get("kind", ""), "")
    filters = Filters(query.get("site", ""), query.get("category", ""), kind)
    found = await report.search(
        store.db, Words.parse(query.get("q", "")), filters, FEED_ENTRIES, order="newest"
    )
    shown = with_parameters(path_to(request, "search.index"), **query, sort="newest")
    return atom_response(
        request, [_atom_entry(each) for each in found.found], title=f"{search.name} in Freshet",
        name=f"search:{search.id}", address=FeedAddress.of(request, "search.feed", secret),
        page=shown, updated=search.feed_since or now,
    )  # fmt: skip


def _atom_entry(each: Found) -> AtomEntry:
    entry_id = hashlib.blake2b(each["id"].encode(), digest_size=16).hexdigest()
    values = ", ".join(f"{value['name']} {value['text']}" for value in each["values"])
    also = ", ".join(dict.fromkeys(other["source"] for other in each["also"]))
    lines = (values, each["snippet"], f"also on {also}" if also else "")
    return AtomEntry(
        entry_id, each["name"][:MAX_TITLE], each["date"], each["url"],
        (each["source"], *each["categories"]), "\n".join(filter(None, lines)),
    )  # fmt: skip


@api.get("/saved", name="search.api_saved")
async def api_saved(user: UserDep, store: StoreDep) -> SavedSearches:
    """Return the saved searches of the user."""
    searches = await saved.of_user(store.db, user.name)
    rows = [
        SavedSearchRow(id=each.id, name=each.name, query=each.query, feed_since=each.feed_since)
        for each in searches
    ]
    return SavedSearches(searches=rows)


@api.post("/saved", name="search.api_save")
@for_viewers
async def api_save(
    request: Request, body: NewSearch, user: UserDep, store: StoreDep, now: NowDep
) -> SavedSearches:
    """Save a search, in place of one with the same name."""
    await saved.save(store.db, user.name, body.name, body.parts(), now)
    request.state.audit = f"saved the search {body.name}"
    return await api_saved(user, store)


@api.post("/saved/remove", name="search.api_remove", status_code=204)
@for_viewers
async def api_remove(body: OneSearch, user: UserDep, store: StoreDep) -> None:
    """Remove a saved search and its feed."""
    if not await saved.remove(store.db, user.name, ObjectId(body.id)):
        raise not_found("Saved search")


@api.post("/saved/feed", name="search.api_make_feed")
@for_viewers
async def api_make_feed(
    request: Request, body: OneSearch, user: UserDep, store: StoreDep, now: NowDep
) -> FeedAddress:
    """Create the secret address of a search's feed; an older address stops working."""
    secret = await saved.make_feed(store.db, user.name, ObjectId(body.id), now)
    if secret is None:
        raise not_found("Saved search")
    return FeedAddress.of(request, "search.feed", secret)


@api.post("/saved/feed/end", name="search.api_end_feed", status_code=204)
@for_viewers
async def api_end_feed(body: OneSearch, user: UserDep, store: StoreDep) -> None:
    """End the feed of a search: its address stops working."""
    if not await saved.end_feed(store.db, user.name, ObjectId(body.id)):
        raise not_found("Saved search")
