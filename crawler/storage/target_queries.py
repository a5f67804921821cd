"""Targets for users: look-ups, states, counts, and settings of single targets.

Lists and look-ups use indexes: the `_id` of a target is its spider's name, a space and its URL.

Plans and crawls honor the settings: `targets.ALIVE` excludes muted targets from both, a replan
reads the limits as those of the site, and each visit applies them to the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pymongo import ASCENDING, DESCENDING
from typing_extensions import TypedDict

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.items import Kind
from crawler.storage import alarms, runs, targets
from crawler.storage.client import Database, Document, in_batches
from crawler.storage.paging import Order
from crawler.storage.targets import BATCH, DEAD_LINK, MUTED
from crawler.utils.shapes import copied
from crawler.utils.time import HOUR_MILLISECONDS, NEVER
from crawler.utils.urls import HOST_FIRST, bare, canonical, host_of, is_http, target_id, variants

if TYPE_CHECKING:
    # Slow: imports numpy.
    from crawler.extract.site_definition import Wrapper

TARGETS = ("targets",)
# Limit for counts.
MAX_COUNTED = 1_000_000
# Number of neighbors to read at each place of an index.
MAX_NEIGHBORS = 200
# Number of URLs that an error suggests.
MAX_NEAR = 3
# Less similar URLs are not suggested.
MIN_SIMILARITY = 0.8
FIELDS = (
    "spider", "url", "kind", "categories", "outcome", "first_seen", "visited_at", "next_visit",
    "changed_at", "consecutive_errors", "gone", "alias_of", "dead_lettered_at",
    "muted_at", "start",
    "last_visit.reason", "last_visit.status",
)  # fmt: skip
# Maximum number of targets that a search returns.
MAX_FOUND = 50


class TargetState(TypedDict):
    """A target, and the result of its last visit."""

    id: str
    """Id in URLs of the web app and of its API, such as `/api/v1/targets/ID`."""
    spider: str
    """Name of the spider."""
    url: str
    """Canonical URL; for a cell `cell:NAME`."""
    kind: str
    """Kind of target: `list`, `item`, `feed` or `cell`."""
    start: bool
    """True for a start URL of the site definition."""
    categories: list[str]
    """The newest 100 categories of an item or feed."""
    first_seen: datetime
    """Time of discovery."""
    next_visit: datetime
    """Time from which the target is due."""
    visited_at: datetime | None
    """Time of the last visit; null before the first."""
    changed_at: datetime | None
    """Time of the visit that found the current content."""
    outcome: str | None
    """Outcome of the last visit; null before the first."""
    reason: str | None
    """Cause of an error, a refusal or a redirect."""
    status: int | None
    """HTTP status of the last visit."""
    consecutive_errors: int
    """Number of consecutive visits that failed."""
    gone: bool
    """True if `FRESHET_GONE_CONFIRMATIONS` responses confirmed that the page is gone."""
    alias_of: str | None
    """URL of the target that has the content; null if the target is not an alias."""
    dead_lettered_at: datetime | None
    """Time when the page was dead-lettered; it is not visited until a retry."""
    muted_at: datetime | None
    """Time when the target was muted; it is not visited until it is unmuted."""


class TargetCounts(TypedDict):
    """Numbers of targets by state, kind, outcome, category and spider."""

    targets: int
    """Targets, without aliases and dead links."""
    due: int
    """Targets whose next visit has come."""
    unlisted: int
    """Items that no list shows any more."""
    gone: int
    """Pages that are gone."""
    dead_links: int
    """URLs that never were a page."""
    aliases: int
    """URLs that redirect to another target."""
    errors: int
    """Targets whose last visit failed."""
    kept_bytes: int
    """Uncompressed bytes of the stored versions."""
    kinds: dict[str, int]
    """Targets by kind, without aliases and dead links."""
    categories: dict[str, int]
    """Listed items by category. An item may be in several."""
    outcomes: dict[str, int]
    """Targets by the outcome of their last visit, or `never visited`."""
    spiders: dict[str, int]
    """Targets by spider."""


async def listed(
    db: Database, query: Document, order: Order, skip: int, limit: int
) -> list[TargetState]:
    """Return the states of the targets of a query, which `site_queries.query_of` returns."""
    cursor = db.targets.find(query, FIELDS).sort(list(order)).skip(skip).limit(limit)
    return [state_of(target) async for target in cursor]


def state_of(target: Document) -> TargetState:
    """Return the state of a stored target."""
    last = target.get("last_visit") or {}
    return {
        **copied(TargetState, target),
        "id": target_id(target["_id"]),
        "reason": last.get("reason"),
        "status": last.get("status"),
    }


async def count(db: Database, query: Document) -> int:
    """Return the number of targets of a query, at most MAX_COUNTED."""
    return await db.targets.count_documents(query, limit=MAX_COUNTED)


async def visit_times(
    db: Database, keys: Sequence[str]
) -> dict[str, tuple[datetime | None, datetime | None]]:
    """Return the last and the next visit of targets by their `_id`; unknown ones are left out.

    The last visit is None before the first one, the next visit is None if none will follow.
    """
    fields: Document = {"visited_at": 1, "next_visit": 1, "muted_at": 1}
    times = {}
    async for row in db.targets.find({"_id": {"$in": list(keys)}}, fields):
        ends = "muted_at" in row or row["next_visit"] >= NEVER
        times[row["_id"]] = (row.get("visited_at"), None if ends else row["next_visit"])
    return times


async def neighbors(
    db: Database, collections: Iterable[str], urls: Sequence[str], around: Sequence[str]
) -> list[str]:
    """Return known URLs: those of `urls`, and the index neighbors of each URL of `around`.

    collections: `targets`, `posts`; both have an index of `url`
    """
    near: dict[str, None] = {}
    for name in collections:
        queries: list[tuple[Document, int]] = [({"$in": list(urls)}, ASCENDING)]
        queries += [({"$gte": url}, ASCENDING) for url in around]
        queries += [({"$lt": url}, DESCENDING) for url in around]
        for condition, order in queries:
            rows = db[name].find({"url": condition}, {"_id": 0, "url": 1})
            async for row in rows.sort("url", order).limit(MAX_NEIGHBORS):
                near[row["url"]] = None
    return [url for url in near if url]


async def target_of(
    db: Database, config: Config, url: str, spider: str | None, among: Sequence[str] = TARGETS
) -> Document:
    """Return the target with this URL or alias; raise ConfigError if none or several match.

    spider: the spider, required if several have this URL
    among:  collections with URLs that the error may suggest
    """
    names = names_of(url, config)
    # A URL that redirects is a target of its own and an alias of another one: the former counts.
    order = {name: position for position, name in enumerate(reversed(names))}
    by_spider = {
        row["spider"]: row
        for row in sorted(
            await targets.of_url(db, names, spider), key=lambda row: order.get(row["url"], -1)
        )
    }
    rows = list(by_spider.values())
    if not rows:
        if spider is not None and (others := await targets.of_url(db, names_of(url, config), None)):
            spiders = ", ".join(target["spider"] for target in others)
            raise ConfigError(
                f"{spider!r} does not visit {url}. Use --spider NAME, one of: {spiders}"
            )
        raise await unknown(db, url, among)
    if len(rows) > 1:
        raise ConfigError(
            f"several spiders have this URL: {url}. Use --spider NAME, one of: "
            + ", ".join(sorted(by_spider))
        )
    return rows[0]


def names_of(url: str, config: Config) -> list[str]:
    """Return the canonical forms of a URL: site definitions strip different parameters.

    The first one has all parameters, so it is the closest to the URL.
    """
    strip = config.strip_parameters
    try:
        return [canonical(url, ()), canonical(url), *([canonical(url, strip)] if strip else [])]
    except ValueError as error:
        raise ConfigError(f"{url}: {error}") from None


async def unknown(db: Database, url: str, collections: Sequence[str]) -> ConfigError:
    """Return the error for an unknown URL, with the most similar known URLs.

    collections: collections that were searched, `targets` or `posts`
    """
    if near := await nearest(db, url, collections):
        return ConfigError(f"URL not found: {url}. Did you mean {' or '.join(near)}?")
    return ConfigError(
        f"URL not found: {url}. scrapy targets --urls --match {host_of(url) or 'PART'} lists known "
        "URLs"
    )


async def nearest(db: Database, url: str, collections: Sequence[str]) -> list[str]:
    """Return the known URLs most similar to this one, at most MAX_NEAR; by index lookups."""
    if not is_http(url):
        if not HOST_FIRST.match(url):
            return []
        url = f"https://{url}"
    parts = urlsplit(canonical(url))
    host = parts.netloc.removeprefix("www.")
    origins = [f"{scheme}://{www}{host}" for scheme in ("https", "http") for www in ("", "www.")]
    # Index neighbors of this path, and of its folder.
    paths = dict.fromkeys((parts.path, parts.path.rstrip("/").rpartition("/")[0] + "/"))
    around = [origin + path for origin in origins for path in paths]
    urls = variants(canonical(url))
    return closest(url, await neighbors(db, collections, [canonical(url), *urls], around))


def closest(url: str, candidates: Iterable[str]) -> list[str]:
    """Return the URLs most similar to this one, best first, at most MAX_NEAR."""
    # Slow to import, and needed only for errors.
    from rapidfuzz.distance import Indel

    host, _, path = bare(url).partition("/")
    places = {candidate: bare(candidate).partition("/") for candidate in candidates}
    shares = {
        candidate: Indel.normalized_similarity(path, its_path)
        for candidate, (its_host, _, its_path) in places.items()
        if its_host == host
    }
    good = [candidate for candidate, share in shares.items() if share >= MIN_SIMILARITY]
    return sorted(good, key=lambda candidate: (-shares[candidate], candidate))[:MAX_NEAR]


async def summary(db: Database, spider: str | None, now: datetime) -> TargetCounts:
    """Count targets by kind, category, last outcome and state, on the server."""

    def by(field: str) -> list[Document]:
        return [{"$group": {"_id": field, "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]

    def share(condition: Document) -> Document:
        return {"$sum": {"$cond": [condition, 1, 0]}}

    dead_link = {"$and": [{"$eq": ["$refreshed", 0]}, {"$gt": ["$consecutive_gone", 0]}]}
    counts = {
        "due": share({"$lte": ["$next_visit", now]}),
        "unlisted": share({"$gt": ["$unlisted_at", None]}),
        "gone": share({"$eq": ["$gone", True]}),
        "dead_links": share(dead_link),
        "aliases": share({"$gt": ["$alias_of", None]}),
        "errors": share({"$gt": ["$consecutive_errors", 0]}),
        "kept_bytes": {"$sum": "$kept_bytes"},
    }
    counted: Document = {"$match": {"alias_of": {"$exists": False}, "$nor": [DEAD_LINK]}}
    listed = {"kind": str(Kind.ITEM), "unlisted_at": None}
    facets = {
        "kinds": [counted, *by("$kind")],
        "categories": [{"$match": listed}, {"$unwind": "$categories"}, *by("$categories")],
        "outcomes": [counted, *by("$outcome")],
        "spiders": [counted, *by("$spider")],
        "totals": [{"$group": {"_id": None} | counts}],
    }
    of_spider: Document = {"spider": spider} if spider else {}
    cursor = await db.targets.aggregate([{"$match": of_spider}, {"$facet": facets}])
    rows = (await cursor.to_list(1))[0]
    totals: Document = next(iter(rows.pop("totals")), {})
    n = {name: {row["_id"]: row["n"] for row in rows[name]} for name in rows}
    return {
        **copied(TargetCounts, totals),
        "targets": sum(n["kinds"].values()),
        "kinds": {str(kind): n["kinds"].get(str(kind), 0) for kind in Kind},
        "categories": dict(sorted(n["categories"].items())),
        "outcomes": {name or "never visited": k for name, k in n["outcomes"].items()},
        "spiders": n["spiders"],
    }


async def find(db: Database, key: str) -> Document | None:
    """Return the target with this `_id`; None if there is none."""
    return await db.targets.find_one({"_id": key})


async def keys_of(db: Database, spider: str, urls: Sequence[str]) -> dict[str, str]:
    """Return the keys of a spider's targets that visit these canonical URLs, by URL.

    The target of an alias is the one that it leads to.
    """
    own: dict[str, str] = {}
    aliases: dict[str, str] = {}
    fields = {"url": 1, "aliases": 1, "alias_of": 1}
    async for row in db.targets.find(await targets.with_url(db, urls, spider), fields):
        own[row["url"]] = f"{spider} {row.get('alias_of', row['url'])}"
        aliases |= dict.fromkeys(row.get("aliases", ()), row["_id"])
    keys = aliases | own
    return {url: keys[url] for url in urls if url in keys}


async def make_due(db: Database, keys: Sequence[str], now: datetime) -> set[str]:
    """Make targets due, even dead-lettered ones; return the keys of all but muted and retired ones.

    A visit that is in progress sets the next visit again.
    """
    query: Document = {
        "_id": {"$in": list(keys)}, "muted_at": {"$exists": False}, "retired": {"$exists": False},
    }  # fmt: skip
    await db.targets.update_many(query, {"$min": {"next_visit": now}})
    due = {row["_id"] async for row in db.targets.find(query, {"_id": 1})}
    await runs.retry_dead_letters(db, list(due), now)
    return due


async def retire_unmatched(db: Database, wrapper: Wrapper, at: datetime) -> tuple[int, int]:
    """Retire pages that no pattern selects any more; make pages that one selects again due at `at`.

    Returns the number of each; a page that is now of the other kind counts as selected again.
    Retired pages keep their history and content. Safe to repeat.
    """
    kinds = [str(Kind.LIST), str(Kind.ITEM)]
    pages: Document = {"spider": wrapper.name, "kind": {"$in": kinds}, "post": {"$exists": False}}
    keys: dict[str | None, list[str]] = {name: [] for name in (None, *kinds)}
    async for row in db.targets.find(pages, {"url": 1, "kind": 1, "retired": 1}):
        kind = wrapper.match(row["url"]).kind
        is_same = (
            bool(row.get("retired"))
            if kind is None
            else (row["kind"] == str(kind) and not row.get("retired"))
        )
        if not is_same:
            keys[kind and str(kind)].append(row["_id"])
    retired: Document = {"gone": True, "retired": True, "next_visit": NEVER}
    selected: Document = {"gone": False, "consecutive_gone": 0, "next_visit": at}
    for name, ids in keys.items():
        change: Document = {"$set": retired, "$inc": {"fence": 1}}
        if name is not None:
            change = {"$set": selected | {"kind": name}, "$unset": {"retired": ""}}
        for batch in in_batches(ids, BATCH):
            await db.targets.update_many({"_id": {"$in": batch}}, change)
    n_retired = len(keys.pop(None))
    return n_retired, sum(map(len, keys.values()))


async def mute(db: Database, key: str, now: datetime) -> bool:
    """Stop the visits of a target until `unmute`; return False if it is already muted.

    Its alarms end, and the budget of its visits goes to other targets with the next replan. A visit
    that is in progress is not stored.
    """
    state: Document = {"muted_at": now, "next_visit": NEVER}
    unmuted: Document = {"_id": key, "muted_at": {"$exists": False}}
    done = await db.targets.update_one(unmuted, {"$set": state, "$inc": {"fence": 1}})
    await alarms.end_of_target(db, key, now)
    return done.matched_count == 1


async def unmute(db: Database, key: str, now: datetime) -> bool:
    """Make a muted target due; return False if it is not muted.

    Retired cells and dead letters still wait.
    """
    muted: Document = {"_id": key} | MUTED
    is_visited: Document = {
        "$and": [
            {"$eq": [{"$type": f"${name}"}, "missing"]} for name in ("retired", "dead_lettered_at")
        ]
    }
    when: Document = {"$cond": [is_visited, now, "$next_visit"]}
    update: list[Document] = [{"$set": {"next_visit": when}}, {"$unset": "muted_at"}]
    return (await db.targets.update_one(muted, update)).matched_count == 1


async def set_limits(
    db: Database, key: str, min_hours: float | None, max_hours: float | None
) -> bool:
    """Set the limits of the interval between two visits; return False if there is no such target.

    min_hours, max_hours: None: the limit of the site

    Moves the planned next visit into the limits, except after a failure, for a page that is gone or
    due because of a change hint, and before the first visit.
    """
    given = {"min_hours": min_hours, "max_hours": max_hours}
    limits = {name: float(hours) for name, hours in given.items() if hours is not None}
    update: list[Document] = [{"$set": {"limits": {"$literal": limits}}}]
    if not limits:
        update = [{"$unset": "limits"}]
    when: Any = "$next_visit"
    if min_hours is not None:
        when = {"$max": [when, {"$add": ["$visited_at", min_hours * HOUR_MILLISECONDS]}]}
    if max_hours is not None:
        when = {"$min": [when, {"$add": ["$visited_at", max_hours * HOUR_MILLISECONDS]}]}
    is_planned: Document = {
        "$and": [
            {"$gt": ["$visited_at", None]},
            {"$lt": ["$next_visit", NEVER]},
            {"$lte": ["$consecutive_errors", 0]},
            {"$lte": ["$consecutive_gone", 0]},
            {"$ne": ["$hinted", True]},
            {"$ne": [{"$type": "$alias_of"}, "string"]},
        ]
    }
    update.append({"$set": {"next_visit": {"$cond": [is_planned, when, "$next_visit"]}}})
    return (await db.targets.update_one({"_id": key}, update)).matched_count == 1


async def find_by_prefix(db: Database, texts: list[str], spider: str | None) -> list[Document]:
    """Return targets whose URL begins with one of some texts, at most MAX_FOUND, by URL."""
    ranges: list[Document] = [
        {"url": {"$gte": text, "$lt": f"{text}\U0010ffff"}} for text in texts if text
    ]
    if not ranges:
        return []
    query: Document = {"$or": ranges} | ({} if spider is None else {"spider": spider})
    return await db.targets.find(query).sort("url").limit(MAX_FOUND).to_list(None)
