"""`posts`: the current content of items, one document each; `versions`: contents over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bson import ObjectId
from pymongo import DESCENDING, UpdateOne
from pymongo.errors import BulkWriteError

from crawler.dedup.posts import Verdict, Verdicts
from crawler.extract.plain_text import as_texts, fields_of_post
from crawler.items import OF_CAPS, Fetched, Outcome, Target, Visit
from crawler.search import search_words
from crawler.storage import leases
from crawler.storage.client import Database, Document
from crawler.storage.dedup.clusters import with_verdict
from crawler.storage.paging import Key, Rows, read_page
from crawler.storage.visits import page_of_target, time_of

# A sitemap may have 50,000 entries; a document has to stay below 16 MB.
MAX_LINKS = 20_000
# Number of newest posts to count fields in.
SAMPLE = 100
# Stored as `text`; all other fields are below `fields`.
MAIN_TEXT = "main_text"


@dataclass(frozen=True, slots=True)
class FieldCoverage:
    """Numbers of posts for which a field was read, and in which it was found."""

    read: int = 0
    found: int = 0

    @property
    def share(self) -> float:
        """Return the share of posts that have the field; 0 without posts."""
        return self.found / self.read if self.read else 0.0


async def store_versions(db: Database, rows: Sequence[Document]) -> None:
    """Insert new versions; safe to repeat.

    A version of an earlier attempt at the same visit is overwritten: the log has only this attempt.
    """
    if not rows:
        return
    try:
        await db.versions.insert_many(rows, ordered=False)
    except BulkWriteError as error:
        problems = error.details["writeErrors"]
        if any(not leases.is_refused(problem) for problem in problems):
            raise
        updates = []
        for row in (rows[problem["index"]] for problem in problems):
            attempts = {"fence": {"$gte": leases.first_fence(row["fence"]), "$lte": row["fence"]}}
            updates.append(UpdateOne({"_id": row["_id"]} | attempts, {"$set": row}))
        await db.versions.bulk_write(updates, ordered=False)


def row_of(visit: Visit) -> Document:
    """Return the version that a visit stores."""
    fetched, target = visit.fetched, visit.fetched.target
    return {
        "_id": _key(target.spider, target.url, fetched.content_hash),
        "spider": target.spider,
        "target": target.url,
        "content_hash": fetched.content_hash,
        "visit": visit.id,
        "fence": target.fence,
        "at": fetched.at,
        "size": fetched.size,
        "content": content_of(fetched),
    }


def content_of(fetched: Fetched) -> Document:
    """Return the content of a version: fields and main text of an item, or links of a list page."""
    if fetched.content is not None:
        return fetched.content
    return {"links": [link.url for link in (fetched.links or ())[:MAX_LINKS]]}


async def contents(db: Database, targets: Iterable[Target]) -> dict[str, Document]:
    """Return the contents of targets at their last visits, by key, without pruned ones."""
    keys = {_key(each.spider, each.url, each.content_hash): each.key for each in targets}
    cursor = db.versions.find({"_id": {"$in": list(keys)}}, {"content": 1})
    return {keys[row["_id"]]: row["content"] async for row in cursor}


async def of_target(db: Database, spider: str, url: str) -> list[Document]:
    """Return all versions of a target, oldest first."""
    return await db.versions.find({"target": url, "spider": spider}).sort("at").to_list(None)


def as_lines(content: Document) -> list[str]:
    """Return a content as lines of text, to compare or print."""
    lines: list[str] = []
    for name, value in content.items():
        lines += _field_lines(name, value)
    return lines


def _field_lines(name: str, value: Any) -> list[str]:
    if isinstance(value, dict):
        return [line for key, v in value.items() for line in _field_lines(f"{name}.{key}", v)]
    if isinstance(value, list):
        return [f"{name}: {entry}" for entry in value]
    parts = str(value).splitlines() or [""]
    return [f"{name}: {parts[0]}", *parts[1:]]


def _key(spider: str, url: str, content_hash: str | None) -> str:
    return f"{spider} {url} {content_hash}"


def words_of(post: Document) -> str | None:
    """Return the `words` of a post's document; None if the index needs none."""
    return search_words(post.get("title"), post.get("text"), fields_of_post(post))


def with_words(update: Document, post: Document) -> Document:
    """Add to an update the `words` of the updated post."""
    words = words_of(post)
    name, value = ("$set", words) if words else ("$unset", "")
    return update | {name: update.get(name, {}) | {"words": value}}


def with_words_and_verdict(update: Document, post: Document, verdict: Verdict | None) -> Document:
    """Add to an update the search words of the updated post, and its verdict."""
    return with_verdict(with_words(update, post), verdict)


def with_field_names(update: Document, fetched: Fetched) -> Document:
    """Add to an update the names of fields to compare, and of fields with HTML, if any."""
    names = {"compare": fetched.compared, "markup": fetched.markup or None}
    for name, fields in names.items():
        update = with_field(update, name, None if fields is None else list(fields))
    return update


def with_field(update: Document, name: str, value: Any) -> Document:
    """Add to an update a field with this value, or remove the field if it is None."""
    operator, value = ("$unset", "") if value is None else ("$set", value)
    return update | {operator: update.get(operator, {}) | {name: value}}


async def store(db: Database, items: list[Visit], verdicts: Verdicts) -> None:
    """Store the fetched contents of items, with their current categories."""
    if not items:
        return
    query = {"_id": {"$in": [item.fetched.target.key for item in items]}}
    found = await db.targets.find(query, {"categories": 1}).to_list()
    categories = {target["_id"]: target["categories"] for target in found}
    # The feeds' texts of posts whose pages were fetched: search words include them.
    of_feeds = [item.fetched.target.post for item in items if item.fetched.target.post]
    stored: dict[str, Document] = {}
    if of_feeds:
        cursor = db.posts.find({"_id": {"$in": of_feeds}}, ("title", "text", "fields"))
        stored = {post["_id"]: post async for post in cursor}
    updates = [
        _page_of_post(item, stored, verdicts)
        if item.fetched.target.post
        else _update_of(item, categories.get(item.fetched.target.key, []), verdicts)
        for item in items
    ]
    await leases.write_unless_passed(db.posts, updates)


def _page_of_post(visit: Visit, stored: dict[str, Document], verdicts: Verdicts) -> UpdateOne:
    """Return the update of a feed's post with the text of its page; feed fields stay."""
    fetched = visit.fetched
    content = fetched.content or {}
    page = {"url": fetched.target.url, "at": fetched.at, "content_hash": fetched.content_hash}
    page |= {"visit": visit.id, "fence": fetched.target.fence}
    fields = {name: value for name, value in content.items() if name != "main_text"}
    current: Document = {"page": page | {"fields": fields, "markup": list(fetched.markup)}}
    if text := as_texts(content, fetched.markup).get("main_text"):
        current["text"] = text
    key = str(fetched.target.post)
    post = stored.get(key, {}) | current
    if item := visit.items.get(key):
        current["item"] = item
    query = {"_id": key} | leases.unless_passed(fetched.target.fence, "page.fence")
    return UpdateOne(query, with_words_and_verdict({"$set": current}, post, verdicts.get(key)))


def _update_of(visit: Visit, categories: list[str], verdicts: Verdicts) -> UpdateOne:
    fetched, target, content = visit.fetched, visit.fetched.target, visit.fetched.content or {}
    texts = as_texts(content, fetched.markup)
    current: Document = {
        "fields": {name: value for name, value in content.items() if name != "main_text"},
        "title": texts.get("title"),
        "text": texts.get("main_text"),
        "categories": categories,
        "content_hash": fetched.content_hash,
        "changed_at": fetched.at,
        "visit": visit.id,
        "fence": target.fence,
    }
    constant = {"spider": target.spider, "url": target.url, "first_seen": fetched.at}
    update = with_field_names({"$set": current, "$setOnInsert": constant}, fetched)
    update = with_words_and_verdict(update, update["$set"], verdicts.get(target.key))
    update = with_field(update, "item", visit.items.get(target.key))
    query = {"_id": target.key} | leases.unless_passed(target.fence)
    return UpdateOne(query, update, upsert=True)


async def field_coverage(
    db: Database, spider: str, scheme: str, names: Sequence[str], *, with_broken: bool = True
) -> dict[str, FieldCoverage]:
    """Count how many of a spider's newest posts have each of some fields.

    scheme:      selector digest of the site definition; posts read with another one are skipped
    with_broken: whether posts of broken pages count
    """
    places = {name: "text" if name == MAIN_TEXT else f"fields.{name}" for name in names}
    newest = db.posts.find({"spider": spider}, dict.fromkeys(places.values(), 1))
    rows = await newest.sort("changed_at", DESCENDING).limit(SAMPLE).to_list(None)
    query: Document = {"_id": {"$in": [row["_id"] for row in rows]}}
    if not with_broken:
        query["broken"] = {"$exists": False}
    read_by = db.targets.find(query, {"selector_digest": 1})
    schemes = {
        row["_id"]: (row.get("selector_digest") or "").partition(OF_CAPS)[0]
        async for row in read_by
    }
    current = [row for row in rows if schemes.get(row["_id"]) == scheme]
    counts = {}
    for name in names:
        held = [row if name == MAIN_TEXT else row.get("fields") or {} for row in current]
        key = "text" if name == MAIN_TEXT else name
        values = [fields[key] for fields in held if key in fields]
        counts[name] = FieldCoverage(
            len(values), sum(value not in (None, [], "") for value in values)
        )
    return counts


# Maximum number of versions, and of changes, to read for the values of fields over time.
MAX_POINTS = 500
# Longer texts are not drawn.
MAX_VALUE_CHARACTERS = 40
# Types of the numbers to draw; prices and short texts, which may be numbers, are drawn as well.
DRAWN_TYPES = ("int", "long", "double", "decimal")
BY_TIME = [("at", DESCENDING)]
WITHOUT_CONTENT = {"content_hash": 1, "at": 1, "size": 1, "visit": 1}


async def read_versions(
    db: Database, spider: str, url: str, limit: int, after: Key | None = None
) -> Rows:
    """Read a page of the versions of a target without their contents, newest first."""
    query: Document = {"target": url, "spider": spider}
    if (before := time_of(after)) is not None:
        query["at"] = {"$lt": before}
    return await read_page(db.versions, query, BY_TIME, limit, fields=WITHOUT_CONTENT)


async def newest_two_versions(db: Database, spider: str, url: str) -> list[str]:
    """Return the content hashes of the last two versions, the older one first."""
    query: Document = {"target": url, "spider": spider}
    cursor = db.versions.find(query, {"content_hash": 1}).sort(BY_TIME).limit(2)
    return [row["content_hash"] async for row in cursor][::-1]


async def hashes_around(db: Database, spider: str, url: str, visit: str) -> tuple[str, str] | None:
    """Return the content hashes before and after a visit; None if one of them is unknown.

    visit: id of the visit
    """
    query: Document = {"target": url, "spider": spider}
    if not ObjectId.is_valid(visit):
        return None
    row = await db.visits.find_one({"_id": ObjectId(visit)} | query)
    if row is None or not row.get("content_hash"):
        return None
    earlier: Document = {"at": {"$lt": row["at"]}, "content_hash": {"$type": "string"}}
    before = await db.visits.find_one(query | earlier, {"content_hash": 1}, sort=BY_TIME)
    return (before["content_hash"], row["content_hash"]) if before else None


async def read_version(db: Database, spider: str, url: str, content_hash: str) -> Document | None:
    """Return a version with its content; None if it was never stored, or pruned."""
    return await db.versions.find_one({"_id": f"{spider} {url} {content_hash}"})


async def short_values(db: Database, spider: str, url: str) -> list[Document]:
    """Return the numbers and short texts of the newest versions, newest first.

    Rows of `content_hash`, `at`, and `values`: pairs of `k` (field) and `v`. A price is a document
    with `amount` and `currency`.
    """
    kind = {"$type": "$$this.v"}
    length = {"$cond": [{"$eq": [kind, "string"]}, {"$strLenBytes": "$$this.v"}, 0]}
    is_text = {"$and": [{"$eq": [kind, "string"]}, {"$lte": [length, MAX_VALUE_CHARACTERS]}]}
    is_object = {"$eq": [kind, "object"]}
    # $bsonSize fails for values of other types.
    size = {"$bsonSize": {"$cond": [is_object, "$$this.v", {"$literal": {}}]}}
    is_price = {"$and": [is_object, {"$lte": [size, 200]}]}
    is_drawn = {"$or": [{"$in": [kind, list(DRAWN_TYPES)]}, is_text, is_price]}
    values = {
        "$filter": {"input": {"$objectToArray": {"$ifNull": ["$content", {}]}}, "cond": is_drawn}
    }
    stages: list[Document] = [
        {"$match": {"target": url, "spider": spider}},
        {"$sort": {"at": DESCENDING}},
        {"$limit": MAX_POINTS},
        {"$project": {"_id": 0, "content_hash": 1, "at": 1, "values": values}},
    ]
    return await (await db.versions.aggregate(stages)).to_list(None)


async def content_changes(db: Database, spider: str, url: str) -> list[Document]:
    """Return the newest visits that found another content, among the last MAX_SEARCHED."""
    found = [str(Outcome.NEW), str(Outcome.CHANGED)]
    return (await page_of_target(db, spider, url, found, MAX_POINTS, None)).rows
