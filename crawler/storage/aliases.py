"""Aliases: a URL that redirects to another target is that target by another name.

Decided inside the writer, the one place that adds targets: elsewhere a target could appear between
the question and the answer, and one page would be stored under two names.
"""

from __future__ import annotations

from datetime import timedelta

from pymongo import DeleteOne, UpdateMany
from pymongo.errors import DuplicateKeyError

from crawler.items import SEEN, Kind, Visit
from crawler.storage import fences
from crawler.storage.client import Database, Document
from crawler.storage.dedup.edits import release_posts
from crawler.storage.dedup.registry import Registry
from crawler.storage.retry import keep_newest
from crawler.storage.targets import MAX_ALIASES, MAX_CATEGORIES
from crawler.utils.urls import host_of

# Two feeds with the same posts may part again.
TWINS = timedelta(days=7)


async def settle(
    db: Database, registry: Registry | None, batch: list[Visit], longest: timedelta
) -> None:
    """Turn those visits of a batch into aliases that were redirected to a target, or were one.

    longest: an alias is looked at again after this time, in case it is none any more
    """
    twins = [visit for visit in batch if visit.alias_of is not None]
    redirected = [v for v in batch if v.fetched.final_url is not None and v.outcome in SEEN]
    # The page of a feed's post is fetched once, wherever it is.
    redirected = [v for v in redirected if v.alias_of is None and v.fetched.target.post is None]
    if not redirected and not twins:
        return
    owners = await _owners(db, redirected) if redirected else {}
    aliases = [*twins, *(visit for visit in redirected if _find_owner(visit, owners))]
    for visit in aliases:
        visit.next_visit = visit.fetched.at + longest
    for visit in twins:
        visit.next_visit = visit.fetched.at + min(longest, TWINS)
    if aliases:
        await _hand_over(db, registry, aliases)


def _find_owner(visit: Visit, owners: dict[str, str]) -> bool:
    """Make a visit an alias if its final URL has an owner; else its target becomes the owner."""
    spider, final = visit.fetched.target.spider, str(visit.fetched.final_url)
    owner = owners.setdefault(f"{spider} {final}", visit.fetched.target.url)
    if owner == visit.fetched.target.url:
        return False
    visit.become_alias(owner)
    return True


async def _owners(db: Database, redirected: list[Visit]) -> dict[str, str]:
    """The targets that hold what the final URLs show: `"SPIDER FINAL"` to the target's URL."""
    spiders = {visit.fetched.target.spider for visit in redirected}
    finals = [str(visit.fetched.final_url) for visit in redirected]
    query = {
        "spider": {"$in": list(spiders)},
        "$or": [{"url": {"$in": finals}}, {"aliases": {"$in": finals}}],
        "alias_of": {"$exists": False},
    }
    owners: dict[str, str] = {}
    async for found in db.targets.find(query, {"spider": 1, "url": 1, "aliases": 1}):
        for alias in found.get("aliases", ()):
            owners.setdefault(f"{found['spider']} {alias}", found["url"])
        owners[f"{found['spider']} {found['url']}"] = found["url"]
    return owners


async def _hand_over(db: Database, registry: Registry | None, aliases: list[Visit]) -> None:
    """Categories and listings of an alias go to its owner; its post goes."""
    for visit in aliases:
        visit.candidates = visit.emptied = ()
    targets = [visit.fetched.target for visit in aliases]
    owners = [str(visit.alias_of) for visit in aliases]
    names: list[UpdateMany] = []
    categories: list[UpdateMany] = []
    for target, owner in zip(targets, owners, strict=True):
        held: Document = {"_id": f"{target.spider} {owner}"}
        names += keep_newest(held, "aliases", [target.url], MAX_ALIASES)
        categories += keep_newest(held, "categories", target.categories, MAX_CATEGORIES)
    await db.targets.bulk_write([*names, *categories])
    await db.listings.bulk_write(
        [
            UpdateMany({"spider": target.spider, "item": target.url}, {"$set": {"item": owner}})
            for target, owner in zip(targets, owners, strict=True)
        ]
    )
    own = [{"_id": target.key} | fences.passed(target.fence) for target in targets]
    if registry is not None:
        posts: Document = {"$or": own}
        await release_posts(db, registry, posts, aliases[0].fetched.at)
    gone = [DeleteOne(query) for query in own]
    await db.posts.bulk_write([*categories, *gone])


BATCH = 1000
FORGOTTEN = ("moved_to", "moves", "final_url")


async def rename_moved(db: Database, spider: str, confirmations: int) -> list[tuple[str, str]]:
    """Rename feeds that so many visits in a row found moved; pairs of old and new URL."""
    query: Document = {
        "spider": spider,
        "kind": str(Kind.FEED),
        "moves": {"$gte": confirmations},
        "alias_of": {"$exists": False},
    }
    found = await db.targets.find(query).limit(BATCH).to_list(None)
    return [(target["url"], await _rename(db, target)) for target in found]


async def _rename(db: Database, target: Document) -> str:
    spider, old, new = target["spider"], target["url"], target["moved_to"]
    names = {"_id": f"{spider} {new}", "url": new}
    await db.posts.update_many({"spider": spider, "feed": old}, {"$set": {"feed": new}})
    await db.visits.update_many({"spider": spider, "target": old}, {"$set": {"target": new}})
    await _copy(db, "feeds", target["_id"], names)
    others = [alias for alias in target.get("aliases", ()) if alias not in (old, new)]
    aliases = [*others, old][-MAX_ALIASES:]
    await _copy(db, "targets", target["_id"], names | {"host": host_of(new), "aliases": aliases})
    # Where that was watched before, its visits write posts that the other one's have written.
    higher: Document = {"$max": {"fence": target.get("fence", 0)}}
    await db.targets.update_one({"_id": names["_id"]}, higher)
    await db.targets.delete_one({"_id": target["_id"]})
    await db.feeds.delete_one({"_id": target["_id"]})
    return str(new)


async def _copy(db: Database, collection: str, key: str, names: Document) -> None:
    """A document under another name, unless that is there."""
    found = await db[collection].find_one({"_id": key})
    if found is None:
        return
    kept = {name: value for name, value in found.items() if name not in FORGOTTEN}
    try:
        await db[collection].insert_one(kept | names)
    except DuplicateKeyError:
        return
