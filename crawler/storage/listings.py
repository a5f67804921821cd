"""`listings`: the category map as edges, which list page shows which item under which category.

An edge that a list page no longer shows is kept with `shown: false` until the pass ends: an item
that only moved to the next page of its list is not taken for removed in between.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from pymongo import ReturnDocument, UpdateMany, UpdateOne

from crawler.extract.links import Traps
from crawler.items import Fetched, Kind, Link, Target
from crawler.storage import targets
from crawler.storage.client import Database, Document
from crawler.storage.retry import in_batches, insert_new, keep_newest

LASTMOD, LIST = "lastmod", "list"
SAMPLE = 100
BENEFIT_OF_DOUBT = 10
LEAST_SHARE = 0.2


async def record_hints(db: Database, spider: str, links: Iterable[Link], due: datetime) -> None:
    """Keep each link's `lastmod`; a target last visited before it is due, if hints are right."""
    dated = [link for link in links if link.lastmod is not None]
    if not dated:
        return
    writes = []
    if await trusted(db, spider, LASTMOD):
        writes = [
            UpdateOne(
                {
                    "_id": f"{spider} {link.url}",
                    "lastmod": {"$ne": link.lastmod},
                    "visited_at": {"$lt": link.lastmod},
                },
                {"$set": {"next_visit": due, "hinted": True, "hint": LASTMOD}},
            )
            for link in dated
        ]
    writes += [
        UpdateOne({"_id": f"{spider} {link.url}"}, {"$set": {"lastmod": link.lastmod}})
        for link in dated
    ]
    await db.targets.bulk_write(writes)


async def of_list(db: Database, spider: str, items: list[str], due: datetime) -> None:
    """These items are due, if such hints are right: a list shows them otherwise than before."""
    if not items or not await trusted(db, spider, LIST):
        return
    # Who is due anyway, or was visited in this pass, needs no hint.
    query: Document = {
        "_id": {"$in": [f"{spider} {item}" for item in items]},
        "next_visit": {"$gt": due},
        "visited_at": {"$lt": due},
        "consecutive_gone": 0,
    }
    await db.targets.update_many(query, {"$set": {"next_visit": due, "hinted": True, "hint": LIST}})


async def trusted(db: Database, spider: str, hint: str) -> bool:
    """Whether enough of the latest visits that such a hint caused found a change."""
    query = {"spider": spider, "hint": hint}
    cursor = db.visits.find(query, {"changed": 1}).sort("at", -1).limit(SAMPLE)
    found = [row["changed"] async for row in cursor]
    return len(found) < BENEFIT_OF_DOUBT or sum(found) / len(found) >= LEAST_SHARE


class Patterns:
    """The patterns of one pass's wrapper."""

    def __init__(self, db: Database, traps: Traps) -> None:
        self._db = db
        self._spider = traps.wrapper.name
        self._counted: set[str] = set()
        self.traps = traps

    async def open(self) -> None:
        """Take over what former passes have counted."""
        found = await self._db.sites.find_one({"_id": self._spider}, {"patterns": 1})
        self.traps.targets |= (found or {}).get("patterns", {})

    async def admitted(self, links: Sequence[Link], depth: int) -> list[Link]:
        """Those of new links that may become targets."""
        for pattern in self.traps.filled(links) - self._counted:
            await self._count(pattern)
        return self.traps.sifted(links, depth)

    async def added(self, links: Sequence[Link]) -> None:
        """Note links that have become targets; what others have added meanwhile is learnt."""
        new = Counter(link.pattern for link in links if link.pattern)
        if not new:
            return
        more: Document = {"$inc": {f"patterns.{name}": n for name, n in new.items()}}
        found = await self._db.sites.find_one_and_update(
            {"_id": self._spider}, more, {"patterns": 1}, return_document=ReturnDocument.AFTER
        )
        self.traps.targets |= (found or {}).get("patterns", {})

    async def _count(self, pattern: str) -> None:
        self._counted.add(pattern)
        query = {"spider": self._spider, "pattern": pattern}
        n = await self._db.targets.count_documents(query)
        await self._db.sites.update_one({"_id": self._spider}, {"$set": {f"patterns.{pattern}": n}})
        self.traps.targets[pattern] = n


BATCH = 1000


async def record(db: Database, fetched: Fetched, due: datetime, patterns: Patterns) -> int:
    """Bring edges and targets up to what a page links to; the number of targets discovered."""
    spider, wrapper = fetched.target.spider, patterns.traps.wrapper
    discovered, left_out = 0, patterns.traps.left_out
    items: list[Link] = []
    for part in in_batches(fetched.links or (), BATCH):
        found = await _resolve_aliases(db, spider, part)
        links, new = await _discover(db, fetched, found, due, patterns)
        discovered += new
        await record_hints(db, spider, links, due)
        items += [link for link in links if link.kind is Kind.ITEM]
    await _update_edges(db, fetched.target, items, due)
    has_too_many = patterns.traps.left_out > left_out
    target = fetched.target
    fetched.scheme = wrapper.capped_scheme(target) if has_too_many else wrapper.scheme(target.kind)
    return discovered


async def drop_all(db: Database, target: Target) -> None:
    """A page that is gone shows nothing any more."""
    query = {"spider": target.spider, "list": target.url, "shown": True}
    await db.listings.update_many(query, {"$set": {"shown": False}})


async def settle(db: Database, spider: str, at: datetime) -> int:
    """At the end of a pass: mark items that no list shows any more; how many were marked."""
    marked = 0
    while batch := await _hidden_items(db, spider):
        marked += await _settle_batch(db, spider, batch, at)
    return marked


async def _resolve_aliases(db: Database, spider: str, links: Iterable[Link]) -> list[Link]:
    by_url = {link.url: link for link in links}
    query = {"spider": spider, "aliases": {"$in": list(by_url)}}
    async for owner in db.targets.find(query, {"url": 1, "aliases": 1}):
        for alias in owner["aliases"]:
            if (link := by_url.pop(alias, None)) and alias != owner["url"]:
                by_url.setdefault(owner["url"], replace(link, url=owner["url"]))
    return list(by_url.values())


async def _discover(
    db: Database, fetched: Fetched, links: Iterable[Link], due: datetime, patterns: Patterns
) -> tuple[list[Link], int]:
    """Those of the links that are targets now, and how many of them are new."""
    spider, depth = fetched.target.spider, fetched.target.depth + 1
    by_key = {f"{spider} {link.url}": link for link in links}
    found = db.targets.find({"_id": {"$in": list(by_key)}}, {"depth": 1})
    known = {target["_id"]: target.get("depth", depth) async for target in found}
    if further := [key for key, before in known.items() if before > depth]:
        nearer: Document = {"_id": {"$in": further}, "depth": {"$gt": depth}}
        await db.targets.update_many(nearer, {"$set": {"depth": depth}})
    new = await patterns.admitted([x for key, x in by_key.items() if key not in known], depth)
    inserted = await insert_new(
        db.targets, [_target(spider, link, depth, due, fetched.at) for link in new]
    )
    await patterns.added(new)
    return [link for key, link in by_key.items() if key in known] + new, inserted


def _target(spider: str, link: Link, depth: int, due: datetime, now: datetime) -> Document:
    categories = [link.category] if link.category and link.kind is Kind.ITEM else []
    made = targets.new_document(spider, link.url, link.kind, due, now, categories)
    return made | {"depth": depth, "pattern": link.pattern}


async def _update_edges(db: Database, page: Target, links: list[Link], due: datetime) -> None:
    query = {"spider": page.spider, "list": page.url}
    old = {edge["item"]: edge async for edge in db.listings.find(query)}
    fresh = [link for link in links if not _stands(old.get(link.url), link)]
    wanted = {link.url for link in links}
    hidden = [e["_id"] for item, e in old.items() if item not in wanted and e["shown"]]
    for ids in in_batches(hidden, BATCH):
        await db.listings.update_many({"_id": {"$in": ids}}, {"$set": {"shown": False}})
    for part in in_batches(fresh, BATCH):
        await _show(db, page, part, old, due)


def _stands(edge: Document | None, link: Link) -> bool:
    return edge is not None and edge["shown"] and edge.get("category") == link.category


async def _show(
    db: Database, page: Target, links: list[Link], old: dict[str, Document], due: datetime
) -> None:
    """Targets first: once an edge stands, a repetition after a crash takes it for done."""
    categories = _add_categories(page.spider, links)
    await db.targets.bulk_write([*_relist(page.spider, links, due), *categories], ordered=False)
    if categories:
        await db.posts.bulk_write(categories, ordered=False)
    await insert_new(db.listings, [_edge(page, x) for x in links if x.url not in old])
    changed = [
        UpdateOne(
            {"_id": old[link.url]["_id"]}, {"$set": {"shown": True, "category": link.category}}
        )
        for link in links
        if link.url in old
    ]
    if changed:
        await db.listings.bulk_write(changed, ordered=False)


def _edge(page: Target, link: Link) -> Document:
    return {
        "_id": f"{page.spider} {link.url} {page.url}",
        "spider": page.spider,
        "list": page.url,
        "item": link.url,
        "category": link.category,
        "card": link.card,
        "shown": True,
    }


def _relist(spider: str, links: list[Link], due: datetime) -> list[UpdateMany]:
    """Items that a list shows again: the mark is taken off, and they are due if they were gone."""
    query: Document = {"_id": {"$in": [f"{spider} {link.url}" for link in links]}}
    marked, gone = {"unlisted_at": {"$type": "date"}}, {"consecutive_gone": {"$gt": 0}}
    return [
        UpdateMany(query | marked, {"$set": {"unlisted_at": None}}),
        UpdateMany(query | gone, {"$set": {"next_visit": due}}),
    ]


def _add_categories(spider: str, links: list[Link]) -> list[UpdateMany]:
    """The same for targets and for stored items, as both have the same `_id`."""
    by_category: dict[str, list[str]] = defaultdict(list)
    for link in links:
        if link.category:
            by_category[link.category].append(f"{spider} {link.url}")
    return [
        update
        for category, keys in by_category.items()
        for update in keep_newest(
            {"_id": {"$in": keys}}, "categories", [category], targets.MAX_CATEGORIES
        )
    ]


async def _hidden_items(db: Database, spider: str) -> list[str]:
    cursor = await db.listings.aggregate(
        [
            {"$match": {"spider": spider, "shown": False}},
            {"$limit": BATCH},
            {"$group": {"_id": "$item"}},
        ]
    )
    return [row["_id"] async for row in cursor]


async def _settle_batch(db: Database, spider: str, items: list[str], at: datetime) -> int:
    query: Document = {"spider": spider, "item": {"$in": items}}
    categories: dict[str, set[str]] = {}
    async for edge in db.listings.find(query | {"shown": True}, {"item": 1, "category": 1}):
        categories.setdefault(edge["item"], set()).update(filter(None, [edge.get("category")]))
    lost = [f"{spider} {item}" for item in items if item not in categories]
    marked = await db.targets.update_many(
        {"_id": {"$in": lost}, "kind": str(Kind.ITEM), "unlisted_at": None},
        {"$set": {"unlisted_at": at}},
    )
    moved = [
        UpdateOne(
            {"_id": f"{spider} {item}"},
            {"$set": {"categories": sorted(names)[: targets.MAX_CATEGORIES]}},
        )
        for item, names in categories.items()
    ]
    if moved:
        await db.targets.bulk_write(moved, ordered=False)
        await db.posts.bulk_write(moved, ordered=False)
    await db.listings.delete_many(query | {"shown": False})
    return marked.modified_count


CARDS_BATCH = 1000


async def record_cards(db: Database, fetched: Fetched, due: datetime) -> None:
    """Items with another card than at the list's last visit are due, if such hints are right."""
    page = fetched.target
    cards = {
        f"{page.spider} {link.url} {page.url}": link.card
        for link in fetched.links or ()
        if link.card is not None
    }
    for keys in in_batches(list(cards), CARDS_BATCH):
        cursor = db.listings.find({"_id": {"$in": keys}}, {"item": 1, "card": 1})
        other = [edge async for edge in cursor if edge.get("card") != cards[edge["_id"]]]
        known = [edge["item"] for edge in other if edge.get("card") is not None]
        # Items first: once a card is kept, a repetition after a crash takes it for done.
        await of_list(db, page.spider, known, due)
        writes = [
            UpdateOne({"_id": edge["_id"]}, {"$set": {"card": cards[edge["_id"]]}})
            for edge in other
        ]
        if writes:
            await db.listings.bulk_write(writes, ordered=False)
