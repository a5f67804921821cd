"""`posts`: the collected items as they are now, one document each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pymongo import DESCENDING, UpdateOne

from crawler.dedup.model import Verdicts
from crawler.extract.plain_text import as_texts
from crawler.items import OF_CAPS, Visit
from crawler.storage import fences
from crawler.storage.client import Database, Document
from crawler.storage.shown import fielded, naming, shown

# Posts that tell whether a selector finds something.
SAMPLE = 100
# Where the main text is; all other fields have their name below `fields`.
MAIN_TEXT = "main_text"


@dataclass(frozen=True, slots=True)
class Filled:
    """Posts for which a field was read, and how many of them have it."""

    read: int = 0
    found: int = 0

    @property
    def share(self) -> float:
        """Share of the posts that have the field; 0 where none was read."""
        return self.found / self.read if self.read else 0.0


async def store(db: Database, items: list[Visit], verdicts: Verdicts) -> None:
    """Make the items' documents hold what was fetched, under the categories of this moment."""
    if not items:
        return
    query = {"_id": {"$in": [item.fetched.target.key for item in items]}}
    found = db.targets.find(query, {"categories": 1})
    categories = {target["_id"]: target["categories"] async for target in found}
    stored = await _stored(db, [item.fetched.target.post for item in items])
    updates = [
        _page_of_post(item, stored, verdicts)
        if item.fetched.target.post
        else _update_of(item, categories.get(item.fetched.target.key, []), verdicts)
        for item in items
    ]
    await fences.write(db.posts, updates)


async def _stored(db: Database, keys: Iterable[str | None]) -> dict[str, Document]:
    """What feeds say of the posts whose pages were fetched; it is searched too."""
    known = [key for key in keys if key]
    if not known:
        return {}
    found = db.posts.find({"_id": {"$in": known}}, ("title", "text", "fields"))
    return {post["_id"]: post async for post in found}


def _page_of_post(visit: Visit, stored: dict[str, Document], verdicts: Verdicts) -> UpdateOne:
    """The text of a feed's post is that of its page; what the feed said of it stays."""
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
    query = {"_id": key} | fences.passed(fetched.target.fence, "page.fence")
    return UpdateOne(query, shown({"$set": current}, post, verdicts.get(key)))


def _update_of(visit: Visit, categories: list[str], verdicts: Verdicts) -> UpdateOne:
    fetched, target, content = visit.fetched, visit.fetched.target, visit.fetched.content or {}
    told = as_texts(content, fetched.markup)
    current: Document = {
        "fields": {name: value for name, value in content.items() if name != "main_text"},
        "title": told.get("title"),
        "text": told.get("main_text"),
        "categories": categories,
        "content_hash": fetched.content_hash,
        "changed_at": fetched.at,
        "visit": visit.id,
        "fence": target.fence,
    }
    constant = {"spider": target.spider, "url": target.url, "first_seen": fetched.at}
    update = naming({"$set": current, "$setOnInsert": constant}, fetched)
    update = shown(update, update["$set"], verdicts.get(target.key))
    update = fielded(update, "item", visit.items.get(target.key))
    query = {"_id": target.key} | fences.passed(target.fence)
    return UpdateOne(query, update, upsert=True)


async def filled(db: Database, spider: str, scheme: str, names: Sequence[str]) -> dict[str, Filled]:
    """How many of a spider's newest posts have each of some fields.

    scheme: digest of the site definition; posts that another one has read are left out
    """
    places = {name: "text" if name == MAIN_TEXT else f"fields.{name}" for name in names}
    newest = db.posts.find({"spider": spider}, dict.fromkeys(places.values(), 1))
    rows = await newest.sort("changed_at", DESCENDING).limit(SAMPLE).to_list(None)
    read_by = db.targets.find({"_id": {"$in": [row["_id"] for row in rows]}}, {"scheme": 1})
    schemes = {row["_id"]: (row.get("scheme") or "").partition(OF_CAPS)[0] async for row in read_by}
    current = [row for row in rows if schemes.get(row["_id"]) == scheme]
    counts = {}
    for name in names:
        held = [row if name == MAIN_TEXT else row.get("fields") or {} for row in current]
        key = "text" if name == MAIN_TEXT else name
        values = [one[key] for one in held if key in one]
        counts[name] = Filled(len(values), sum(value not in (None, [], "") for value in values))
    return counts
