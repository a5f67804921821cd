"""Search results as the web app and its API show them: name, site, date, passage and values."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from typing_extensions import TypedDict

from crawler.extract.item_names import name_of
from crawler.extract.item_values import Value, is_priced, values_of
from crawler.extract.plain_text import fields_of_post
from crawler.search import Query, Span, marked, passage
from crawler.storage import feed_reader
from crawler.storage import search_pages as storage
from crawler.storage.client import Database, Document
from crawler.storage.feed_reader import feed_of
from crawler.storage.paging import Key
from crawler.storage.search import texts_of
from crawler.storage.search_pages import Filters, FoundPage, SearchOrder
from crawler.storage.search_versions import find_versions

COLUMNS = 180
MAX_VALUES, MAX_CATEGORIES, MAX_ALSO = 5, 3, 20


class FoundElsewhere(TypedDict):
    """Another source of an item, or a near-duplicate."""

    id: str
    """Id of the post."""
    site: str
    """Name of the spider."""
    source: str
    """Title of the feed, else the name of the spider."""
    name: str
    """Name."""
    url: str | None
    """URL; null for a post without a link."""
    similarity: float | None
    """Estimated Jaccard similarity of a near-duplicate; null for a source of the same item."""


class Found(TypedDict):
    """An item or a post that a search found."""

    id: str
    """Id of the post; of an earlier version, its own."""
    post: str
    """Id of the post."""
    kind: Literal["item", "post"]
    """`item` of a site, or `post` of a feed."""
    name: str
    """Its title, or what its URL says of it."""
    name_marks: list[tuple[int, int]]
    """Start and end of each hit in `name`."""
    site: str
    """Name of the spider."""
    source: str
    """Title of the feed, else the name of the spider."""
    feed: str | None
    """Id of the feed of a post; null for an item."""
    url: str | None
    """URL of the page; null for a post without a link."""
    categories: list[str]
    """Categories, at most three."""
    date: datetime
    """Date of publication, else time of the first visit; of an earlier version, its time."""
    version: str | None
    """Hash of the content of an earlier version; null for the current content."""
    more_versions: int
    """Number of older versions that match, among those read for the page."""
    published: datetime | None
    """Date of publication; null if unknown or implausible."""
    snippet: str
    """Passage of the text with the words, else its beginning; may be empty."""
    marks: list[tuple[int, int]]
    """Start and end of each hit in `snippet`."""
    values: list[Value]
    """Short values of an item, a price first; at most five."""
    score: float
    """Relevance; 0 if the newest come first."""
    target: str | None
    """Key of the page among the targets; null if it has none, as a post of a feed."""
    also: list[FoundElsewhere]
    """Other sources and near-duplicates, at most 20."""
    copies: int
    """Number of other sources and near-duplicates."""


@dataclass(frozen=True, slots=True)
class SearchPage:
    """A page of a search. found: for each item of the page, how it is shown."""

    found: list[Found]
    page: FoundPage


async def search(
    db: Database,
    query: Query,
    filters: Filters,
    limit: int,
    after: Key | None = None,
    order: SearchOrder = "best",
) -> SearchPage:
    """Return a page of a search; raises ConfigError for the key of another list."""
    if filters.kind == "version":
        page = await find_versions(db, query, filters, limit, after)
    else:
        page = await storage.find(db, query, filters, limit, after, order)
    # In a thread: a passage of a long text takes tens of milliseconds.
    found = await asyncio.to_thread(lambda: [_found(item, query) for item in page.items])
    await _add_others(db, page, found)
    return SearchPage(found, page)


def _found(item: Document, query: Query) -> Found:
    title = item.get("title")
    content = {**fields_of_post(item)[0], "title": title}
    name = marked(name_of(content, item.get("url") or ""), query.terms)
    texts = [text for text in texts_of(item) if text != title]
    hit = passage(texts[: 1 if isinstance(item.get("text"), str) else 0], query.terms, COLUMNS)
    if not hit.marks:
        hit = passage(texts, query.terms, COLUMNS)
    shows_text = any(map(str.isalnum, hit.text))
    return {
        "id": item["_id"],
        "post": item["post"] if "post" in item else item["_id"],
        "kind": "post" if "feed" in item else "item",
        "name": name.text or item.get("url") or item.get("feed") or item["_id"],
        "name_marks": _spans(name.marks),
        "site": item["spider"],
        "source": item["spider"],
        "feed": feed_of(item) if "feed" in item else None,
        "url": item.get("url"),
        "categories": list(item.get("categories") or ())[:MAX_CATEGORIES],
        "date": item["date"],
        "version": item.get("version"),
        "more_versions": item.get("more", 0),
        "published": item["published"],
        "snippet": hit.text if shows_text else "",
        "marks": _spans(hit.marks) if shows_text else [],
        "values": _values(content) if "feed" not in item else [],
        "score": item["score"],
        "target": None,
        "also": [],
        "copies": 0,
    }


def _spans(marks: Sequence[Span]) -> list[tuple[int, int]]:
    return [(start, stop) for start, stop in marks]


def _values(content: Mapping[str, Any]) -> list[Value]:
    """Return the short values of an item, a price first."""
    values = [value for value in values_of(content) if value["text"]]
    return sorted(values, key=lambda each: not is_priced(each["name"], each["unit"]))[:MAX_VALUES]


async def _add_others(db: Database, page: FoundPage, found: list[Found]) -> None:
    """Add the sources and near-duplicates of each item, the titles of feeds, and the targets."""
    (copies, counts), stored = await asyncio.gather(
        storage.copies_of(db, page.items),
        storage.stored_targets(db, [each["post"] for each in found if each["kind"] == "item"]),
    )
    others: list[list[Document]] = []
    for item, each in zip(page.items, found, strict=True):
        sources = [source for source in item["sources"] if source["_id"] != item["_id"]]
        near = [row for source in item["sources"] for row in copies.get(source["_id"], ())]
        others.append([*sources, *near][:MAX_ALSO])
        each["copies"] = len(sources) + sum(
            counts.get(source["_id"], 0) for source in item["sources"]
        )
        each["target"] = each["post"] if each["post"] in stored else None
    rows = [*page.items, *(row for of_item in others for row in of_item)]
    titles = await feed_reader.titles(db, {feed_of(row) for row in rows if "feed" in row})
    for item, each, of_item in zip(page.items, found, others, strict=True):
        each["source"] = _source_of(item, titles)
        each["also"] = [_elsewhere(row, each["name"], titles) for row in of_item]


def _source_of(row: Document, titles: dict[str, str]) -> str:
    feed = row.get("feed")
    return str(titles.get(feed_of(row), feed) if feed else row["spider"])


def _elsewhere(row: Document, name: str, titles: dict[str, str]) -> FoundElsewhere:
    is_copy = "duplicate_of" in row
    return {
        "id": row["_id"],
        "site": row["spider"],
        "source": _source_of(row, titles),
        "name": name_of({"title": row.get("title")}, row.get("url") or "") if is_copy else name,
        "url": row.get("url"),
        "similarity": row.get("similarity"),
    }
