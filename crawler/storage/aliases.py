"""Aliases: targets whose URL redirects to another target.

The writer, the only code that adds targets, decides what is an alias. Anywhere else, a target could
appear between the check and the write, and one page would be stored under two names.
"""

from __future__ import annotations

from datetime import timedelta

from pymongo import DeleteOne, UpdateMany
from pymongo.errors import DuplicateKeyError

from crawler.items import SEEN, Kind, Visit
from crawler.storage import leases
from crawler.storage.client import Database, Document, keep_newest
from crawler.storage.dedup.edits import release_posts
from crawler.storage.dedup.registry import Registry
from crawler.storage.targets import MAX_ALIASES, MAX_CATEGORIES
from crawler.utils.urls import host_of

# Feeds with the same posts may diverge later, so these aliases are checked sooner.
DUPLICATE_FEED_INTERVAL = timedelta(days=7)
MAX_RENAMED = 1000
# Fields of a feed that describe its move, not its content at the new URL.
FIELDS_OF_MOVE = ("moved_to", "moves", "final_url")


async def settle(
    db: Database, registry: Registry | None, batch: list[Visit], longest: timedelta
) -> None:
    """Turn redirected visits of a batch into visits of aliases, if their final URL has a target.

    longest: time until an alias is visited again, in case it no longer redirects
    """
    duplicate_feeds = [visit for visit in batch if visit.alias_of is not None]
    # The page of a feed's post is fetched only once, so it needs no alias.
    redirected = [
        visit
        for visit in batch
        if visit.fetched.final_url is not None
        and visit.outcome in SEEN
        and visit.alias_of is None
        and visit.fetched.target.post is None
    ]
    # URLs of the targets that own the final URLs, by `"SPIDER FINAL"`.
    owners: dict[str, str] = {}
    if redirected:
        spiders = {visit.fetched.target.spider for visit in redirected}
        finals = [str(visit.fetched.final_url) for visit in redirected]
        query = {
            "spider": {"$in": list(spiders)},
            "$or": [{"url": {"$in": finals}}, {"aliases": {"$in": finals}}],
            "alias_of": {"$exists": False},
        }
        async for row in db.targets.find(query, {"spider": 1, "url": 1, "aliases": 1}):
            for alias in row.get("aliases", ()):
                owners.setdefault(f"{row['spider']} {alias}", row["url"])
            owners[f"{row['spider']} {row['url']}"] = row["url"]
    aliases = list(duplicate_feeds)
    for visit in redirected:
        target = visit.fetched.target
        # Without an owner, the target itself becomes the owner for the later visits of the batch.
        owner = owners.setdefault(f"{target.spider} {visit.fetched.final_url}", target.url)
        if owner != target.url:
            visit.become_alias(owner)
            aliases.append(visit)
    if not aliases:
        return
    for visit in aliases:
        visit.next_visit = visit.fetched.at + longest
    for visit in duplicate_feeds:
        visit.next_visit = visit.fetched.at + min(longest, DUPLICATE_FEED_INTERVAL)
    await _hand_over(db, registry, aliases)


async def _hand_over(db: Database, registry: Registry | None, aliases: list[Visit]) -> None:
    """Move categories and listings of aliases to their owners, and delete the aliases' posts."""
    names: list[UpdateMany] = []
    categories: list[UpdateMany] = []
    listings: list[UpdateMany] = []
    posts: list[Document] = []
    for visit in aliases:
        visit.candidates = visit.emptied = ()
        target, owner = visit.fetched.target, str(visit.alias_of)
        of_owner: Document = {"_id": f"{target.spider} {owner}"}
        names += keep_newest(of_owner, "aliases", [target.url], MAX_ALIASES)
        categories += keep_newest(of_owner, "categories", target.categories, MAX_CATEGORIES)
        edges = {"spider": target.spider, "item": target.url}
        listings.append(UpdateMany(edges, {"$set": {"item": owner}}))
        posts.append({"_id": target.key} | leases.unless_passed(target.fence))
    await db.targets.bulk_write([*names, *categories])
    await db.listings.bulk_write(listings)
    if registry is not None:
        await release_posts(db, registry, {"$or": posts}, aliases[0].fetched.at)
    await db.posts.bulk_write([*categories, *(DeleteOne(query) for query in posts)])


async def rename_moved(db: Database, spider: str, confirmations: int) -> list[tuple[str, str]]:
    """Rename feeds that N visits in a row found moved; return pairs of old and new URL."""
    query: Document = {
        "spider": spider,
        "kind": str(Kind.FEED),
        "moves": {"$gte": confirmations},
        "alias_of": {"$exists": False},
    }
    renamed = []
    for target in await db.targets.find(query).limit(MAX_RENAMED).to_list(None):
        old, new, key = target["url"], target["moved_to"], target["_id"]
        names = {"_id": f"{spider} {new}", "url": new}
        await db.posts.update_many({"spider": spider, "feed": old}, {"$set": {"feed": new}})
        await db.visits.update_many({"spider": spider, "target": old}, {"$set": {"target": new}})
        await _copy(db, "feeds", key, names)
        aliases = [alias for alias in target.get("aliases", ()) if alias not in (old, new)]
        aliases = [*aliases, old][-MAX_ALIASES:]
        await _copy(db, "targets", key, names | {"host": host_of(new), "aliases": aliases})
        # If the new URL was a target before, its visits write posts of the old URL's visits.
        higher: Document = {"$max": {"fence": target.get("fence", 0)}}
        await db.targets.update_one({"_id": names["_id"]}, higher)
        await db.targets.delete_one({"_id": key})
        await db.feeds.delete_one({"_id": key})
        renamed.append((old, str(new)))
    return renamed


async def _copy(db: Database, collection: str, key: str, names: Document) -> None:
    """Insert a copy of a document under another name, unless that name exists."""
    document = await db[collection].find_one({"_id": key})
    if document is None:
        return
    kept = {name: value for name, value in document.items() if name not in FIELDS_OF_MOVE}
    try:
        await db[collection].insert_one(kept | names)
    except DuplicateKeyError:
        return
