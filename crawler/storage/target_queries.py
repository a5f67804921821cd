"""Targets listed by state and by a part of their URLs, and URLs that lie near another one.

All of it goes by indexes: `_id` of a target is its spider's name, a blank and its URL.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from urllib.parse import urlsplit

from pymongo import ASCENDING, DESCENDING

from crawler.config import Config
from crawler.errors import ConfigError
from crawler.storage import targets
from crawler.storage.client import Database, Document
from crawler.storage.targets import ALIVE
from crawler.utils.urls import bare, canonical, host_of, is_http, like, variants

# A count goes no further.
MAX_COUNTED = 1_000_000
# URLs that are looked at in each place of an index.
MAX_NEIGHBORS = 200
FIELDS = (
    "spider", "url", "kind", "categories", "outcome", "visited_at", "next_visit", "changed_at",
    "consecutive_errors", "gone", "alias_of", "dead", "start", "last_visit.reason",
    "last_visit.status",
)  # fmt: skip


class State(StrEnum):
    """What listed targets have in common."""

    ERRORS = "errors"
    DUE = "due"
    GONE = "gone"


def chosen(
    spider: str | None,
    state: State | None,
    match: str | None,
    now: datetime,
    known: Sequence[str] = (),
) -> tuple[Document, list[tuple[str, int]]]:
    """Return the query for listed targets and their order, both as one index has them.

    known: names that have targets, for a query of all of them
    match: part of the URL, as `crawler.utils.urls.like` has it   now: targets are due up to then
    """
    query: Document = {} if spider is None else {"spider": spider}
    if state is None:
        key: Document = {} if spider is None else {"$gte": f"{spider} ", "$lt": f"{spider}!"}
        if match is not None:
            key |= {"$regex": f"^[^ ]+ {like(match)}", "$options": "i"}
        return ({"_id": key} if key else {}), [("_id", ASCENDING)]
    if match is not None:
        query["url"] = {"$regex": f"^{like(match)}", "$options": "i"}
    if state is State.DUE:
        query.setdefault("spider", {"$in": list(known)})
        return query | {"next_visit": {"$lte": now}} | ALIVE, [("next_visit", ASCENDING)]
    if state is State.ERRORS:
        by_errors = [(name, DESCENDING) for name in ("spider", "consecutive_errors", "url")]
        return query | {"consecutive_errors": {"$gt": 0}}, by_errors
    return query | {"gone": True}, [("spider", ASCENDING), ("url", ASCENDING)]


async def listed(
    db: Database, query: Document, order: list[tuple[str, int]], skip: int, limit: int
) -> list[Document]:
    """The targets of a query of `chosen`, without what a list does not show."""
    cursor = db.targets.find(query, FIELDS).sort(order).skip(skip).limit(limit)
    return await cursor.to_list(None)


async def count(db: Database, query: Document) -> int:
    """How many targets a query of `chosen` finds, MAX_COUNTED at most."""
    return await db.targets.count_documents(query, limit=MAX_COUNTED)


async def near(
    db: Database, collections: Iterable[str], urls: Sequence[str], around: Sequence[str]
) -> list[str]:
    """Known URLs: those of `urls`, and the neighbors in the index of each URL of `around`.

    collections: `targets`, `posts`; both have an index of `url`
    """
    found: dict[str, None] = {}
    for name in collections:
        queries: list[tuple[Document, int]] = [({"$in": list(urls)}, ASCENDING)]
        queries += [({"$gte": url}, ASCENDING) for url in around]
        queries += [({"$lt": url}, DESCENDING) for url in around]
        for condition, order in queries:
            rows = db[name].find({"url": condition}, {"_id": 0, "url": 1})
            async for row in rows.sort("url", order).limit(MAX_NEIGHBORS):
                found[row["url"]] = None
    return [url for url in found if url]


TARGETS = ("targets",)
MAX_NEAR = 3
# Two URLs that are less alike are two pages.
LEAST_ALIKE = 0.8


async def target_of(
    db: Database, config: Config, url: str, spider: str | None, among: Sequence[str] = TARGETS
) -> Document:
    """The target with this URL, as its own or as an alias; ConfigError if none or several have it.

    spider: which one is meant where several watch it
    among:  collections whose URLs the error may name instead
    """
    found = await targets.of_url(db, names_of(url, config), spider)
    if not found:
        raise await unknown(db, url, among)
    if len(found) > 1:
        names = ", ".join(target["spider"] for target in found)
        raise ConfigError(f"several spiders watch {url}: {names} (--spider NAME)")
    return found[0]


def names_of(url: str, config: Config) -> list[str]:
    """The canonical forms that a URL may be known by, as wrappers strip different parameters."""
    strip = config.strip_parameters
    try:
        return [canonical(url), canonical(url, ()), *([canonical(url, strip)] if strip else [])]
    except ValueError as error:
        raise ConfigError(f"{url}: {error}") from None


async def unknown(db: Database, url: str, collections: Sequence[str]) -> ConfigError:
    """Return the error that a URL is not known, with the nearest ones that are.

    collections: where it was looked for, `targets` or `posts`
    """
    found = await nearest(db, url, collections)
    if found:
        return ConfigError(f"URL not found: {url}. Did you mean {' or '.join(found)}?")
    return ConfigError(
        f"URL not found: {url}. scrapy targets --urls --match {host_of(url) or 'PART'} lists known "
        "URLs"
    )


async def nearest(db: Database, url: str, collections: Sequence[str]) -> list[str]:
    """Return the known URLs that are most like this one, MAX_NEAR at most; by index lookups."""
    if not is_http(url):
        return []
    asked = urlsplit(canonical(url))
    host = asked.netloc.removeprefix("www.")
    origins = [f"{scheme}://{www}{host}" for scheme in ("https", "http") for www in ("", "www.")]
    # Both what follows this path in the index, and what its folder begins with.
    paths = dict.fromkeys((asked.path, asked.path.rstrip("/").rpartition("/")[0] + "/"))
    around = [origin + path for origin in origins for path in paths]
    urls = variants(canonical(url))
    return closest(url, await near(db, collections, [canonical(url), *urls], around))


def closest(url: str, known: Iterable[str]) -> list[str]:
    """Return those of `known` that are most like a URL, the best first, MAX_NEAR at most."""
    # Slow to import, and needed only where something is wrong.
    from rapidfuzz.distance import Indel

    host, _, path = bare(url).partition("/")
    places = {one: bare(one).partition("/") for one in known}
    alike = {
        one: Indel.normalized_similarity(path, its_path)
        for one, (its_host, _, its_path) in places.items()
        if its_host == host
    }
    good = [one for one, share in alike.items() if share >= LEAST_ALIKE]
    return sorted(good, key=lambda one: (-alike[one], one))[:MAX_NEAR]
