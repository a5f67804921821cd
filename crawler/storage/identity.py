"""Which URLs and posts are the same page: aliases of targets, and sources of items.

An alias is a target whose URL redirects to another target, or has the same page: its content is the
same, and it states the URL of the other one as canonical. Without the comparison, a site that
states one URL on all of its pages would lose them. The writer, the only code that adds
targets, decides what is an alias. Anywhere else, a target could appear between the check and the
write, and one page would be stored under two names.

Posts of the same page, such as a site's page and a feed's post of it, are sources of one item: they
have the same `item`. It is the key of the page's URL, after known redirects, so it does not depend
on texts or on the order in which sources are stored. `link` is the key of a feed post's URL as
given in the feed.

A link that several posts of one feed share does not identify a page (changelogs, some podcasts), so
these posts have no `item`. The same applies to posts that link to a list page, a feed or a home
page.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from itertools import groupby
from typing import NamedTuple

from bson import ObjectId
from pymongo import DeleteOne, UpdateMany, UpdateOne
from pymongo.errors import DuplicateKeyError

from crawler.dedup.posts import id_of
from crawler.items import SEEN, Kind, Outcome, Visit
from crawler.storage import leases, listings
from crawler.storage.client import Database, Document, in_batches, keep_newest
from crawler.storage.dedup import clusters, signatures
from crawler.storage.dedup.edits import release_posts
from crawler.storage.dedup.signatures import Registry
from crawler.storage.posts import of_feed
from crawler.storage.targets import MAX_ALIASES, MAX_CATEGORIES
from crawler.utils.urls import canonical, host_of, item_key

# Maximum number of targets read that state the same canonical URLs: a faulty site states one URL on
# all of its pages. The server returns the oldest of them.
MAX_STATING = 1000
BATCH = 1000
# Number of stored posts with the same link that prove that the link is shared; further posts do not
# store their link.
MIN_WITNESSES = 2
SCHEMES = ("https://", "http://")
TARGET_FIELDS: Document = {
    "spider": 1,
    "url": 1,
    "kind": 1,
    "final_url": 1,
    "alias_of": 1,
    "post": 1,
}
# Feeds with the same posts may diverge later, so these aliases are checked sooner.
DUPLICATE_FEED_INTERVAL = timedelta(days=7)
MAX_RENAMED = 1000
# Fields of a feed that describe its move, not its content at the new URL.
FIELDS_OF_MOVE = ("moved_to", "moves", "final_url")


async def settle_aliases(
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
    aliases = [*duplicate_feeds, *await _same_pages(db, batch)]
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


async def _same_pages(db: Database, batch: Sequence[Visit]) -> list[Visit]:
    """Turn visits of items with the page of another target into visits of aliases; return them."""
    stated = [
        visit
        for visit in batch
        if visit.fetched.canonical_url is not None
        and visit.fetched.final_url is None
        and visit.outcome in SEEN
        and visit.fetched.target.post is None
    ]
    if not stated:
        return []
    urls = {visit.fetched.canonical_url for visit in stated}
    spiders = {visit.fetched.target.spider for visit in stated}
    owning: Document = {
        "alias_of": {"$exists": False}, "content_hash": {"$exists": True}, "gone": {"$ne": True},
    }  # fmt: skip
    fields = {"spider": 1, "canonical_url": 1, "content_hash": 1}
    # The target with the canonical URL, else the first one that states it, by spider and this URL.
    owners: dict[str, str] = {}
    stating: Document = {"spider": {"$in": list(spiders)}, "canonical_url": {"$in": list(urls)}}
    rows = await db.targets.find(stating | owning, fields).limit(MAX_STATING).to_list(None)
    for row in sorted(rows, key=lambda row: str(row["_id"])):
        owners.setdefault(f"{row['spider']} {row['canonical_url']}", row["_id"])
    keys = [f"{spider} {url}" for spider in spiders for url in urls]
    rows += await db.targets.find({"_id": {"$in": keys}} | owning, fields).to_list(None)
    hashes: dict[str, str | None] = {row["_id"]: row.get("content_hash") for row in rows}
    owners |= {key: key for key in hashes}
    seen = [visit for visit in batch if visit.outcome in SEEN and visit.alias_of is None]
    hashes |= {visit.fetched.target.key: visit.fetched.content_hash for visit in seen}
    # First visits of this batch are not stored yet.
    owners |= {
        visit.fetched.target.key: visit.fetched.target.key
        for visit in seen
        if visit.fetched.canonical_url is None and visit.fetched.final_url is None
    }
    copies = []
    for visit in stated:
        target = visit.fetched.target
        owner = owners.setdefault(f"{target.spider} {visit.fetched.canonical_url}", target.key)
        url = owner.removeprefix(f"{target.spider} ")
        # The page of an alias may have changed since the last visit of its owner.
        is_same = hashes.get(owner) == visit.fetched.content_hash or target.alias_of is not None
        if owner != target.key and is_same:
            visit.become_alias(url, "has the same page as")
            copies.append(visit)
    return copies


async def _hand_over(db: Database, registry: Registry | None, aliases: list[Visit]) -> None:
    """Move categories and listings of aliases to their owners, and delete the aliases' posts."""
    names: list[UpdateMany] = []
    categories: list[UpdateMany] = []
    of_items: list[UpdateMany] = []
    posts: list[Document] = []
    for visit in aliases:
        visit.candidates = visit.emptied = ()
        target, owner = visit.fetched.target, str(visit.alias_of)
        of_owner: Document = {"_id": f"{target.spider} {owner}"}
        names += keep_newest(of_owner, "aliases", [target.url], MAX_ALIASES)
        categories += keep_newest(of_owner, "categories", target.categories, MAX_CATEGORIES)
        edges = {"spider": target.spider, "item": target.url}
        of_items.append(UpdateMany(edges, {"$set": {"item": owner}}))
        if target.kind is Kind.LIST:
            await listings.hand_over(db, target, owner)
        posts.append({"_id": target.key} | leases.unless_passed(target.fence))
    await db.targets.bulk_write([*names, *categories])
    await db.listings.bulk_write(of_items)
    if registry is not None:
        await release_posts(db, registry, {"$or": posts}, aliases[0].fetched.at)
    await db.posts.bulk_write([*categories, *(DeleteOne(query) for query in posts)])


async def rename_moved(db: Database, spider: str, confirmations: int) -> list[tuple[str, str]]:
    """Rename feeds that `confirmations` visits in a row found moved; return old and new URLs."""
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
        await db.posts.update_many(of_feed(spider, old), {"$set": {"feed": new}})
        await db.visits.update_many({"spider": spider, "target": old}, {"$set": {"target": new}})
        await _copy(db, "feeds", key, names)
        aliases = [alias for alias in target.get("aliases", ()) if alias not in (old, new)]
        aliases = [*aliases, old][-MAX_ALIASES:]
        await _copy(db, "targets", key, names | {"host": host_of(new), "aliases": aliases})
        # If the new URL already was a target, its visits now update posts that visits of the old
        # URL wrote, so its fence must not be lower.
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
    with suppress(DuplicateKeyError):
        await db[collection].insert_one(kept | names)


class CollectedPost(NamedTuple):
    """A post that a visit of a feed collected. link: key of its link."""

    visit: Visit
    key: str
    link: str

    @property
    def feed(self) -> tuple[str, str]:
        """Return spider and URL of its feed."""
        target = self.visit.fetched.target
        return target.spider, target.url


class StoredLink(NamedTuple):
    """A stored post of a feed, with its link and item."""

    key: str
    link: str | None
    item: str | None


async def set_items(db: Database, batch: Sequence[Visit]) -> None:
    """Set the item of each post of these visits, before the posts are claimed."""
    rows = _collected_posts(batch)
    resolved = await _resolved(db, rows)
    stored = await _stored_links(db, rows, resolved)
    for _, of_visit in groupby(rows, key=lambda row: id(row.visit)):
        _identify_posts(list(of_visit), resolved, stored)
    for visit in batch:
        if _is_page(visit) and visit.stores_content:
            _set_item(visit, visit.fetched.target.key, _item_of_page(visit))
    await _identify_followed(db, batch)
    for visit in batch:
        if visit.items and visit.candidates:
            visit.candidates = tuple(
                replace(post, item=id_of(visit.items[post.key]))
                if post.key in visit.items
                else post
                for post in visit.candidates
            )


async def remove_shared_items(
    db: Database, registry: Registry | None, batch: Sequence[Visit]
) -> None:
    """Remove the item of stored posts whose link another post of their feed now has."""
    rows = [row for row in _collected_posts(batch) if row.key not in row.visit.items]
    gone: dict[str, str | None] = {}
    for part in in_batches(rows, BATCH):
        feeds = [{"spider": spider, "feed": feed} for spider, feed in {row.feed for row in part}]
        links = {"link": {"$in": list({row.link for row in part})}, "item": {"$exists": True}}
        shared = {(row.feed, row.link) for row in part}
        posts = db.posts.find(links | {"$or": feeds}, {"spider": 1, "feed": 1, "link": 1})
        async for post in posts:
            if ((post["spider"], post["feed"]), post["link"]) in shared:
                gone[post["_id"]] = None
    await _store_items(db, registry, gone)


async def follow_redirects(db: Database, registry: Registry | None, batch: Sequence[Visit]) -> None:
    """Apply redirects that these or concurrent visits found to stored posts.

    Called when targets are written: if two workers store a page and its feed post concurrently, at
    least one of them sees the other.
    """
    pages = [visit for visit in batch if _is_page(visit, aliases=True)]
    # Targets of redirects, now or at the last visit, by the keys of the redirecting URLs.
    moved: dict[str, str | None] = {}
    for visit in pages:
        fetched = visit.fetched
        if not (visit.alias_of or fetched.final_url or fetched.target.final_url):
            continue
        if (link := item_key(fetched.target.url)) is None:
            continue
        if visit.alias_of is not None:
            moved[link] = item_key(fetched.final_url or visit.alias_of)
        else:
            moved[link] = _item_of_page(visit)
    renamed = {
        visit.fetched.target.key: _item_of_page(visit)
        for visit in pages
        if visit.alias_of is None
        and not visit.stores_content
        and visit.fetched.final_url != visit.fetched.target.final_url
    }
    rows = [row for row in _collected_posts(batch) if row.key in row.visit.items]
    resolved = await _resolved(db, rows)
    for row in rows:
        item = resolved.get(row.link, row.link)
        if item not in (row.visit.items[row.key], row.link):
            moved[row.link] = item
    if moved:
        # Feed posts with a redirected link follow it.
        query: Document = {"link": {"$in": list(moved)}, "item": {"$exists": True}}
        wanted: dict[str, str | None] = {}
        feeds: dict[str, tuple[str, str]] = {}
        async for post in db.posts.find(query, {"spider": 1, "feed": 1, "link": 1, "item": 1}):
            if post["item"] != (item := moved[post["link"]]):
                wanted[post["_id"]] = item
                feeds[post["_id"]] = (post["spider"], post["feed"])
        renamed |= await _once_per_feed(db, wanted, feeds)
    await _store_items(db, registry, renamed)


async def _once_per_feed(
    db: Database, items: Mapping[str, str | None], feeds: Mapping[str, tuple[str, str]]
) -> dict[str, str | None]:
    """Return the new items, except where the feed of the post already has a source of that item.

    items: new items by post; feeds: spider and feed of each post
    """
    if not items:
        return {}
    query: Document = {"item": {"$in": [item for item in items.values() if item]}}
    query["feed"] = {"$exists": True}
    used = {
        (post["spider"], post["feed"], post["item"])
        async for post in db.posts.find(query, {"spider": 1, "feed": 1, "item": 1})
    }
    free: dict[str, str | None] = {}
    for key, item in items.items():
        place = (*feeds[key], item)
        if item is None or place not in used:
            free[key] = item
            used.add(place)
    return free


async def _store_items(
    db: Database, registry: Registry | None, items: Mapping[str, str | None]
) -> None:
    """Set or remove the items of stored posts, and update their clusters."""
    if not items:
        return
    updates = [
        UpdateOne({"_id": key}, {"$set": {"item": item}} if item else {"$unset": {"item": ""}})
        for key, item in items.items()
    ]
    await db.posts.bulk_write(updates, ordered=False)
    if registry is not None:
        numbers = {id_of(key): id_of(item) if item else None for key, item in items.items()}
        touched: set[ObjectId] = await signatures.set_items(registry, numbers)
        await clusters.settle(db, registry, touched)


def _collected_posts(batch: Iterable[Visit]) -> list[CollectedPost]:
    return [
        CollectedPost(visit, key, link)
        for visit in batch
        if visit.collected is not None
        for key, post in visit.collected.posts
        if (link := item_key(post.url)) is not None
    ]


def _is_page(visit: Visit, *, aliases: bool = False) -> bool:
    """Return whether a visit saw the page of an item, except pages of feed posts."""
    target = visit.fetched.target
    seen = visit.outcome in SEEN and visit.outcome is not Outcome.NOT_MODIFIED
    is_item = target.kind is Kind.ITEM and target.post is None
    return is_item and seen and (aliases or visit.alias_of is None)


def _item_of_page(visit: Visit) -> str | None:
    # Parsing the URL again would take a tenth of the time of a claim.
    return item_key(visit.fetched.final_url or visit.fetched.target.url, is_canonical=True)


def _set_item(visit: Visit, key: str, item: str | None) -> None:
    if item is not None:
        visit.items[key] = item
    else:
        visit.items.pop(key, None)


def _identify_posts(
    rows: Sequence[CollectedPost],
    resolved: Mapping[str, str | None],
    stored: Mapping[tuple[str, str], Sequence[StoredLink]],
) -> None:
    """Set the items of the posts of a feed's visit; none for shared links."""
    visit = rows[0].visit
    document = visit.fetched.document
    site, topic = (document.site, document.topic) if document else (None, None)
    # Links to the feed or its site do not identify posts.
    own = {item_key(url) for url in (visit.fetched.target.url, site, topic)}
    links = (item_key(post.url) for post in visit.fetched.posts)
    shown = Counter(link for link in links if link is not None)
    used = Counter(resolved.get(link) or link for link in shown)
    stored_links = stored.get(rows[0].feed, ())
    for row in rows:
        rivals = [link for link in stored_links if link.key != row.key]
        witnesses = sum(rival.link == row.link for rival in rivals)
        if witnesses < MIN_WITNESSES:
            visit.links[row.key] = row.link
        item = resolved.get(row.link, row.link)
        if witnesses or shown[row.link] > 1 or item is None or row.link in own:
            _set_item(visit, row.key, None)
            continue
        # Posts whose links redirect to one page, such as a consent page, keep their own links.
        is_used = used[item] > 1 or any(rival.item == item for rival in rivals)
        _set_item(visit, row.key, row.link if is_used else item)


async def _identify_followed(db: Database, batch: Iterable[Visit]) -> None:
    """Set the items of feed posts whose pages were fetched, by the final URLs of the pages."""
    pages = {
        str(visit.fetched.target.post): visit
        for visit in batch
        if visit.fetched.target.post is not None and visit.stores_content
    }
    if not pages:
        return
    fields = {"spider": 1, "feed": 1, "item": 1}
    wanted: dict[str, str | None] = {}
    feeds: dict[str, tuple[str, str]] = {}
    async for post in db.posts.find({"_id": {"$in": list(pages)}}, fields):
        if item := post.get("item"):
            final = item_key(pages[post["_id"]].fetched.final_url)
            _set_item(pages[post["_id"]], post["_id"], item)
            feeds[post["_id"]] = (post["spider"], post["feed"])
            if final is not None and final != item:
                wanted[post["_id"]] = final
    for key, final in (await _once_per_feed(db, wanted, feeds)).items():
        _set_item(pages[key], key, final)


async def _resolved(db: Database, rows: Sequence[CollectedPost]) -> dict[str, str | None]:
    """Return the items of links that are targets, by key; None: the link is not an item."""
    links = list({row.link for row in rows})
    watched: dict[str, list[Document]] = defaultdict(list)
    keys: list[str] = []
    for part in in_batches(links, BATCH):
        urls = [canonical(scheme + link) for link in part for scheme in SCHEMES]
        async for target in db.targets.find({"url": {"$in": urls}}, TARGET_FIELDS).sort("_id"):
            if "post" not in target and (link := item_key(target["url"])) is not None:
                watched[link].append(target)
                if target.get("alias_of"):
                    keys.append(f"{target['spider']} {target['alias_of']}")
    # The owners of the aliases among these targets.
    owners: dict[str, Document] = {}
    if keys:
        cursor = db.targets.find({"_id": {"$in": keys}}, TARGET_FIELDS)
        owners = {target["_id"]: target async for target in cursor}
    items: dict[str, str | None] = {}
    for link, targets in watched.items():
        pages = [target for target in targets if target["kind"] == str(Kind.ITEM)]
        if not pages:
            items[link] = None
            continue
        last = [owners.get(f"{page['spider']} {page.get('alias_of')}", page) for page in pages]
        ends = [item_key(page.get("final_url") or page["url"]) for page in last]
        items[link] = next((end for end in ends if end != link), link)
    return items


async def _stored_links(
    db: Database, rows: Sequence[CollectedPost], resolved: Mapping[str, str | None]
) -> dict[tuple[str, str], list[StoredLink]]:
    """Return the stored feed posts with these links or items, by feed."""
    stored: dict[tuple[str, str], list[StoredLink]] = defaultdict(list)
    for part in in_batches(rows, BATCH):
        links = {row.link for row in part}
        ends = {end for link in links if (end := resolved.get(link)) and end != link}
        wanted: list[Document] = [{"link": {"$in": list(links)}}]
        wanted += [{"item": {"$in": list(ends)}}] if ends else []
        feeds = {row.feed for row in part}
        fields = {"spider": 1, "feed": 1, "link": 1, "item": 1}
        async for post in db.posts.find({"$or": wanted}, fields):
            if (feed := (post["spider"], post.get("feed"))) in feeds:
                stored[feed].append(StoredLink(post["_id"], post.get("link"), post.get("item")))
    return stored
