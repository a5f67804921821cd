"""`targets`: one document per spider and canonical URL, with its state and next visit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pymongo import ASCENDING, UpdateMany, UpdateOne

from crawler.archive.records import Archived
from crawler.items import (
    CAPS_SEPARATOR,
    CELL,
    FAILED,
    SEEN,
    Breakage,
    Broken,
    Kind,
    Noise,
    Outcome,
    Place,
    Target,
    TargetPlan,
    Validators,
    Visit,
    planned_feed_size,
)
from crawler.storage import leases
from crawler.storage.client import (
    Database,
    Document,
    in_async_batches,
    in_batches,
    keep_newest,
    write_all,
)
from crawler.storage.visits import row_of
from crawler.utils.time import EPOCH, HOUR_MILLISECONDS, NEVER
from crawler.utils.urls import host_of

if TYPE_CHECKING:
    # Commands that count targets start faster without it.
    from crawler.extract.site_definition import Match, Wrapper
    from schedules.history import FieldHistory, History

MINUTE = timedelta(minutes=1)
ADAPTIVE = "adaptive"
# Policy of the plan of a cell with a fixed period; replans skip it.
PERIOD = "period"
# A link to a page that never existed.
DEAD_LINK: Document = {"refreshed": 0, "consecutive_gone": {"$gt": 0}}
# The page of a feed's post is fetched once and never planned.
ONCE: Document = {"post": {"$exists": True}}
# Dead letters wait for the user (crawler/storage/runs.py), and so do muted targets
# (crawler/storage/target_queries.py).
MUTED: Document = {"muted_at": {"$exists": True}}
ALIVE: Document = {"dead_lettered_at": {"$exists": False}, "muted_at": {"$exists": False}}
# An index, see schema.py.
BY_TIME = [("spider", ASCENDING), ("next_visit", ASCENDING), ("url", ASCENDING)]
# Number of URLs to test a pattern with.
SAMPLE = 1000
# Maximum number of pages that `requested_twice` reads.
MAX_TWICE = 1000
# Maximum per target; older ones are dropped.
MAX_CATEGORIES, MAX_ALIASES = 100, 100
# Fields that a visit does not need.
NOT_FOR_A_VISIT = {"last_visit": 0, "aliases": 0}
# Pages that the server reports as missing, whatever the site definition is.
MISSING: Document = {"consecutive_gone": {"$gt": 0}, "last_visit.status": {"$in": [404, 410]}}
BATCH = 1000
# Collections with URLs of pages, and the field that has the URL.
URL_COLLECTIONS = {
    "targets": "url",
    "visits": "target",
    "versions": "target",
    "posts": "url",
    "days": "target",
    "alarms": "target",
    "outbox": "target",
    "dead_letters": "url",
}


def in_minutes(moment: datetime) -> int:
    """Return whole minutes since 1970 (UTC)."""
    return (moment - EPOCH) // MINUTE


def history_of(stored: Document | None) -> History | None:
    """Return the history in a target's document."""
    if not stored:
        return None
    from schedules.history import History

    since, until = in_minutes(stored["since"]), in_minutes(stored["until"])
    return History(since, until, bytes(stored["changes"]))


def history_document(history: History, false_dates: int = 0) -> Document:
    """Return a history in its stored form."""
    return {
        "since": EPOCH + history.since * MINUTE,
        "until": EPOCH + history.until * MINUTE,
        "changes": history.changes,
        "false_dates": false_dates,
    }


def field_history_of(stored: Document | None) -> FieldHistory | None:
    """Return the field history in a target's document."""
    if not stored:
        return None
    from schedules.history import FieldHistory

    names, changes = tuple(stored["names"]), bytes(stored["changes"])
    return FieldHistory(stored["digest"], in_minutes(stored["since"]), names, changes)


def field_history_document(history: FieldHistory) -> Document:
    """Return a field history in its stored form."""
    return {
        "digest": history.digest,
        "since": EPOCH + history.since * MINUTE,
        "names": list(history.names),
        "changes": history.changes,
    }


def planned_of(plan: Document | None) -> TargetPlan | None:
    """Return the plan in a target's document; None if it has no visits."""
    if not plan:
        return None
    from schedules.schedule import Schedule

    schedule = Schedule(
        plan.get("weeks") or 1,
        tuple(plan.get("slots") or ()),
        plan.get("every_hours") or 0.0,
        plan.get("phase_hours") or 0.0,
    )
    if not schedule.visits_per_week:
        return None
    return TargetPlan(
        plan["id"],
        schedule,
        plan.get("until"),
        plan.get("policy") == ADAPTIVE and schedule.every_hours > 0,
        plan.get("min_hours") or 0.0,
        plan.get("max_hours") or 0.0,
    )


@dataclass(frozen=True, slots=True)
class RemainingTargets:
    """The targets of a spider after a run.

    targets:  watched targets
    waiting:  not due and not visited in the run; next_visit: the earliest of their times
    failed:   waiting targets whose last visit failed; failed_until: the earliest of their times
    repeated: targets that failed in the run and are due in the next one
    """

    targets: int = 0
    waiting: int = 0
    next_visit: datetime | None = None
    failed: int = 0
    failed_until: datetime | None = None
    repeated: int = 0


def _broken_of(stored: Document | None) -> Broken | None:
    """Return how a page broke, from the field of its target."""
    if not stored:
        return None
    how, fields = Breakage(stored["how"]), tuple(stored["fields"])
    return Broken(how, stored["since"], stored["text"], fields, stored["links"], stored["digest"])


def noise_of(stored: Document | None) -> Noise | None:
    """Return the random text of a page, from the field of its target."""
    if not stored:
        return None
    places = tuple(Place(*each) for each in stored["places"])
    texts = {name: tuple(stored[name]) for name in ("lines", "suspected")}
    return Noise(**stored | texts | {"places": places})


def _noise_document(noise: Noise) -> Document:
    """Return random text in its stored form."""
    places = [[each.before, each.after, each.lines] for each in noise.places]
    texts = {"lines": list(noise.lines), "suspected": list(noise.suspected)}
    return asdict(noise) | texts | {"places": places}


def from_document(document: Document) -> Target:
    """Return the target in a document, as the spider gets it."""
    limits = document.get("limits") or {}
    return Target(
        spider=document["spider"],
        url=document["url"],
        kind=Kind(document["kind"]),
        host=document.get("host", ""),
        categories=tuple(document.get("categories", ())),
        validators=Validators(document.get("etag"), document.get("last_modified")),
        content_hash=document.get("content_hash"),
        raw_hash=document.get("raw_hash"),
        size=document.get("size", 0),
        selector_digest=document.get("selector_digest"),
        final_url=document.get("final_url"),
        hinted=document.get("hinted", False),
        hint=document.get("hint", "lastmod"),
        visits=document.get("requested", 0),
        missed_visits=document.get("missed_visits", 0),
        refreshed=document.get("refreshed", 0),
        consecutive_errors=document.get("consecutive_errors", 0),
        consecutive_gone=document.get("consecutive_gone", 0),
        history=history_of(document.get("history")),
        false_dates=document.get("history", {}).get("false_dates", 0),
        plan=planned_of(document.get("plan")),
        depth=document.get("depth", 0),
        redundant_lists=document.get("redundant_lists", 0),
        is_redundant=document.get("redundant", False),
        differing=document.get("differing", 0),
        post=document.get("post"),
        canonical_url=document.get("canonical_url"),
        alias_of=document.get("alias_of"),
        moved_to=document.get("moved_to"),
        moves=document.get("moves", 0),
        moved_at=document.get("moved_at"),
        next_visit=document["next_visit"],
        execution_ms=document.get("execution_ms"),
        kept_bytes=document.get("kept_bytes", 0),
        visited_at=document.get("visited_at"),
        fence=document.get("fence", 0),
        again=document.get("again", False),
        archived=Archived(**archived) if (archived := document.get("archived")) else None,
        broken=_broken_of(document.get("broken")),
        field_history=field_history_of(document.get("field_history")),
        noise=noise_of(document.get("noise")),
        min_hours=limits.get("min_hours") or 0.0,
        max_hours=limits.get("max_hours") or 0.0,
    )


def new_document(
    spider: str,
    url: str,
    kind: Kind,
    due: datetime,
    now: datetime,
    categories: Sequence[str] = (),
) -> Document:
    """Return the document of a new target that is due at `due`."""
    return {
        "_id": f"{spider} {url}",
        "spider": spider,
        "url": url,
        "host": host_of(url),
        "kind": str(kind),
        "start": False,
        "categories": list(categories)[-MAX_CATEGORIES:],
        "first_seen": now,
        "visited_at": None,
        "next_visit": due,
        "requested": 0,
        "refreshed": 0,
        "consecutive_errors": 0,
        "consecutive_gone": 0,
        "fence": leases.new_fence(now),
    }


def updates_of(batch: Iterable[Visit]) -> Iterator[UpdateOne]:
    """Yield the writes that acknowledge the visits of a batch."""
    for visit in batch:
        yield update_of(visit)
        if visit.every_hours is not None:
            # An adaptive plan's new interval, unless a replan has put another plan in its place.
            from schedules.schedule import WEEK_HOURS

            plan = visit.fetched.target.plan
            of_plan = _unless_taken_over(visit) | {"plan.id": plan.id if plan else None}
            per_week = WEEK_HOURS / visit.every_hours
            state = {"plan.every_hours": visit.every_hours, "plan.visits_per_week": per_week}
            yield UpdateOne(of_plan, {"$set": state})


def update_of(visit: Visit) -> UpdateOne:
    """Return the write that acknowledges a visit, with the target's next state and the visit.

    The write is atomic and includes the visit's row; `visits.recover` copies rows that a crash kept
    out of the log. It matches no target that was visited, or taken over by another process, since
    it was handed out.
    """
    fetched, target = visit.fetched, visit.fetched.target
    if fetched.push is not None:
        return _delivery_update(visit)
    state: Document = {
        "visited_at": fetched.at,
        "next_visit": visit.next_visit,
        "outcome": str(visit.outcome),
        "requested": target.visits + 1,
        "refreshed": target.refreshed + (visit.outcome in SEEN),
        "consecutive_errors": visit.consecutive_errors,
        "consecutive_gone": visit.consecutive_gone,
        "gone": visit.gone,
        "hinted": False,
        "kept_bytes": target.kept_bytes + visit.version_bytes,
        "last_visit": row_of(visit),
        "visit": visit.id,
        "fence": leases.fence_after(target.fence),
    }
    if visit.execution_ms is not None:
        state["execution_ms"] = visit.execution_ms
    if visit.missed_visits:
        state["missed_visits"] = target.missed_visits + visit.missed_visits
    update: Document = {"$set": state}
    state |= _move_state(visit)
    if visit.alias_of is not None:
        state["alias_of"] = visit.alias_of
        # Without the hash, the content is stored again if the URL becomes a page of its own.
        names = ("history", "field_history", "plan", "content_hash", "canonical_url")
        update["$unset"] = dict.fromkeys(names, "")
    elif visit.outcome in SEEN:
        state |= _content_state(visit)
        of_content = () if visit.outcome is Outcome.NOT_MODIFIED else ("again", "doubtful")
        update["$unset"] = dict.fromkeys({"alias_of", *of_content} - state.keys(), "")
        if visit.history is not None:
            state["history"] = history_document(visit.history, visit.false_dates)
        if visit.field_history is not None:
            state["field_history"] = field_history_document(visit.field_history)
        if visit.noise is not None:
            state["noise"] = _noise_document(visit.noise)
        if visit.collected is not None:
            state["feed_size"] = planned_feed_size(visit.collected.monitor)
            state["stated_interval_hours"] = visit.collected.monitor.bounds.every_hours or 0.0
    return UpdateOne(_unless_taken_over(visit), _with_breakage(update, visit))


def _move_state(visit: Visit) -> Document:
    """Return the URL that a target moved to, and the number of consecutive visits that found it.

    A failed visit ends the move of a page, so that the next one requests the page's own URL.
    """
    fetched, target = visit.fetched, visit.fetched.target
    if not (fetched.moved_to or target.moved_to):
        return {}
    if visit.outcome not in SEEN and target.kind is Kind.FEED:
        return {}
    if visit.outcome not in SEEN or visit.alias_of is not None or fetched.moved_to is None:
        return {"moved_to": None, "moves": 0}
    is_again = fetched.moved_to == target.moved_to
    state: Document = {"moved_to": fetched.moved_to, "moves": target.moves + 1 if is_again else 1}
    return state if fetched.is_direct else state | {"moved_at": fetched.at}


def _with_breakage(update: Document, visit: Visit) -> Document:
    """Return the update of a target with the state of its page after a visit."""
    if visit.broken is not None:
        stored = asdict(visit.broken) | {
            "how": str(visit.broken.how), "fields": list(visit.broken.fields),
        }  # fmt: skip
        return update | {"$set": update["$set"] | {"broken": stored}}
    if visit.fetched.target.broken is not None:
        return update | {"$unset": update.get("$unset", {}) | {"broken": ""}}
    return update


def _content_state(visit: Visit) -> Document:
    fetched, target = visit.fetched, visit.fetched.target
    of_list = {"differing": target.differing + 1 if fetched.differs else 0}
    of_kind = of_list if target.kind is Kind.LIST else {}
    state: Document = {
        "etag": fetched.validators.etag,
        "last_modified": fetched.validators.last_modified,
    }
    if visit.outcome is Outcome.NOT_MODIFIED:
        return {name: value for name, value in state.items() if value} | of_kind
    state |= of_kind | {
        "raw_hash": fetched.raw_hash,
        "content_hash": fetched.content_hash,
        "size": fetched.size,
        "selector_digest": fetched.selector_digest,
        "final_url": fetched.final_url,
    }
    if fetched.archived is not None and not (record := fetched.archived.place).is_revisit:
        names = ("file", "offset", "length", "at", "url", "digest")
        state["archived"] = {name: getattr(record, name) for name in names}
    if fetched.doubtful:
        state["doubtful"] = True
    if fetched.canonical_url or fetched.target.canonical_url:
        state["canonical_url"] = fetched.canonical_url
    if visit.has_new_content:
        state["changed_at"] = fetched.at
    return state


def _unless_taken_over(visit: Visit) -> Document:
    """Return a query for the target as it was handed out, or after this same write."""
    target = visit.fetched.target
    unchanged: list[Document] = [leases.same_fence(target.fence), {"visit": visit.id}]
    return {"_id": target.key, "$or": unchanged}


def _delivery_update(visit: Visit) -> UpdateOne:
    """Return the write for a hub delivery, which only updates the history of the feed.

    If it changed a stored post, the feed is due in the current run.
    """
    target = visit.fetched.target
    state: Document = {
        "kept_bytes": target.kept_bytes + visit.version_bytes,
        "last_visit": row_of(visit),
    }
    if visit.history is not None:
        state["history"] = history_document(visit.history, visit.false_dates)
    if visit.has_new_content:
        state["changed_at"] = visit.fetched.at
    same = {"_id": target.key} | leases.same_fence(target.fence)
    update: Document = {"$set": state}
    if visit.collected is not None and visit.collected.doubted:
        update["$min"] = {"next_visit": visit.fetched.pushed_at or visit.fetched.at}
    return UpdateOne(same, update)


async def acknowledge(db: Database, batch: Sequence[Visit]) -> list[Visit]:
    """Store the results of visits in their targets; return the visits that were too late."""
    updates = list(updates_of(batch))
    done = await db.targets.bulk_write(updates, ordered=False)
    if done.matched_count == len(updates):
        return []
    # Rare: another process has such a target, or a replan changed an adaptive plan.
    query: Document = {"_id": {"$in": [visit.fetched.target.key for visit in batch]}}
    stored = {
        (row["_id"], id_)
        async for row in db.targets.find(query, {"visit": 1, "last_visit._id": 1})
        for id_ in (row.get("visit"), row.get("last_visit", {}).get("_id"))
    }
    return [visit for visit in batch if (visit.fetched.target.key, visit.id) not in stored]


async def note_aliases(db: Database, batch: Iterable[Visit]) -> None:
    """Store the URLs that pages redirected to, after their visits are acknowledged."""
    names: list[UpdateMany] = []
    for visit in batch:
        final = visit.fetched.final_url
        if final is not None and visit.alias_of is None and visit.outcome in SEEN:
            held: Document = {"_id": visit.fetched.target.key}
            names += keep_newest(held, "aliases", [final], MAX_ALIASES)
    await write_all(db.targets, names)


async def take_over_due(db: Database, spider: str, until: datetime) -> None:
    """Prevent processes of earlier runs from storing visits of due targets."""
    due: Document = {"spider": spider, "next_visit": {"$lte": until}}
    await db.targets.update_many(due, {"$inc": {"fence": 1}})
    # For these kinds, partially stored visits cannot be detected.
    unclear: Document = {"kind": {"$in": [str(Kind.LIST), str(Kind.CELL)]}, "refreshed": {"$gt": 0}}
    await db.targets.update_many(due | unclear, {"$set": {"again": True}})


async def store_again(db: Database, keys: Sequence[str]) -> None:
    """Mark targets whose next visit stores its content even if it is unchanged."""
    for batch in in_batches(keys, BATCH):
        await db.targets.update_many({"_id": {"$in": batch}}, {"$set": {"again": True}})


async def ensure_starts(
    db: Database, spider: str, starts: Mapping[str, Match], due: datetime, now: datetime
) -> None:
    """Make start URLs targets, due at `due` if they are new or their kind has changed.

    starts: canonical start URLs and their kinds. Other start URLs lose their mark.
    """
    writes, keys = [], defaultdict(list)
    for url, match in starts.items():
        kind = match.kind or Kind.LIST
        categories = [match.category] if match.category and kind is Kind.ITEM else []
        new = new_document(spider, url, kind, due, now, categories)
        key: str = new.pop("_id")
        current = {name: new.pop(name) for name in ("kind", "start")} | {"start": True, "depth": 0}
        writes.append(UpdateOne({"_id": key}, {"$setOnInsert": new, "$set": current}, upsert=True))
        keys[str(kind)].append(key)
    for name, of_kind in keys.items():
        other_kind: Document = {"_id": {"$in": of_kind}, "kind": {"$ne": name}}
        await db.targets.update_many(other_kind, {"$set": {"next_visit": due}})
    former: Document = {"spider": spider, "start": True, "url": {"$nin": list(starts)}}
    await db.targets.update_many(former, {"$set": {"start": False}})
    await write_all(db.targets, writes)


async def of_key(db: Database, key: str) -> Target | None:
    """Return the target with this `_id`, unless it is an alias or muted."""
    query: Document = {
        "_id": key, "alias_of": {"$exists": False}, "muted_at": {"$exists": False},
    }  # fmt: skip
    row = await db.targets.find_one(query, NOT_FOR_A_VISIT)
    return from_document(row) if row else None


async def count_due(db: Database, spider: str, until: datetime) -> int:
    """Return the number of due targets of a spider."""
    return await db.targets.count_documents({"spider": spider, "next_visit": {"$lte": until}})


async def requested_twice(db: Database, spider: str, scheme: str) -> tuple[int, int]:
    """Return how many pages were requested twice, and how many of them showed other text.

    They are counted up to MAX_TWICE pages. scheme: selector digest that read the pages
    """
    of_scheme: Document = {
        "spider": spider, "noise.scheme": scheme, "noise.requests": {"$gt": 0},
    }  # fmt: skip
    cursor = db.targets.find(of_scheme, {"_id": 0, "noise": 1}).limit(MAX_TWICE)
    found = [noise_of(row["noise"]) async for row in cursor]
    return len(found), sum(each is not None and each.is_suspicious for each in found)


async def lists_are_due(db: Database, spider: str, until: datetime) -> bool:
    """Return whether a list page of a spider is due."""
    query = {"spider": spider, "kind": str(Kind.LIST), "next_visit": {"$lte": until}}
    return await db.targets.find_one(query, {"_id": 1}) is not None


def watched(spiders: Sequence[str] | None = None) -> Document:
    """Return a query for the watched targets of these spiders, of all if None."""
    query: Document = {
        "gone": {"$ne": True}, "alias_of": {"$exists": False}, "$nor": [DEAD_LINK, ONCE],
    } | ALIVE  # fmt: skip
    return query if spiders is None else query | {"spider": {"$in": list(spiders)}}


def hint_update(due: datetime, hint: str) -> list[Document]:
    """Return the update for a change hint: the target is due, after its own minimum interval."""
    minimum: Document = {"$multiply": [{"$ifNull": ["$limits.min_hours", 0]}, HOUR_MILLISECONDS]}
    earliest: Document = {"$max": [due, {"$add": ["$visited_at", minimum]}]}
    when: Document = {"$min": ["$next_visit", earliest]}
    return [{"$set": {"next_visit": when, "hinted": True, "hint": hint}}]


async def make_due(db: Database, ids: Sequence[str], now: datetime) -> None:
    """Make targets due, without a change hint."""
    due: Document = {"$set": {"next_visit": {"$min": ["$next_visit", now]}}}
    await db.targets.update_many({"_id": {"$in": list(ids)}} | ALIVE, [due])


def to_plan(spiders: Sequence[str] | None = None) -> Document:
    """Return a query for watched targets, except cells with a fixed period."""
    return watched(spiders) | {"plan.policy": {"$ne": PERIOD}}


async def remaining(
    db: Database, spider: str, started: datetime, now: datetime
) -> RemainingTargets:
    """Return the targets after a run that started at `started`; computed by the server."""
    waits: Document = {
        "$and": [
            {"$gt": ["$next_visit", started]},
            {"$lt": [{"$ifNull": ["$visited_at", None]}, started]},
        ]
    }
    fails: Document = {"$and": [waits, {"$in": ["$outcome", list(map(str, FAILED))]}]}
    repeats: Document = {
        "$and": [
            {"$gte": ["$visited_at", started]},
            {"$in": ["$outcome", list(map(str, FAILED))]},
            {"$gt": ["$next_visit", started]},
            {"$lte": ["$next_visit", now]},
        ]
    }
    sums: Document = {"_id": None, "targets": {"$sum": 1}}
    for name, condition in (("waiting", waits), ("failed", fails), ("repeated", repeats)):
        sums[name] = {"$sum": {"$cond": [condition, 1, 0]}}
    for name, condition in (("next_visit", waits), ("failed_until", fails)):
        sums[name] = {"$min": {"$cond": [condition, "$next_visit", None]}}
    cursor = await db.targets.aggregate([{"$match": watched([spider])}, {"$group": sums}])
    rows = await cursor.to_list(1)
    return (
        RemainingTargets(**{name: rows[0][name] for name in RemainingTargets.__slots__})
        if rows
        else RemainingTargets()
    )


async def count(db: Database, spider: str) -> int:
    """Return the number of watched targets of a spider."""
    return await db.targets.count_documents(watched([spider]))


async def has_read(db: Database, spider: str, kind: Kind | None = None) -> bool:
    """Return whether a page of a spider was ever read; with `kind`, only pages of this kind."""
    query: Document = {"spider": spider, "refreshed": {"$gt": 0}}
    if kind is not None:
        query["kind"] = str(kind)
    return await db.targets.find_one(query, {"_id": 1}) is not None


async def shells(db: Database, spider: str) -> tuple[int, str]:
    """Return the number of pages whose content only a browser shows, and the URL of one or ''."""
    query: Document = {"spider": spider, "outcome": str(Outcome.SHELL)}
    example = await db.targets.find_one(query, {"url": 1})
    return (await db.targets.count_documents(query), example["url"]) if example else (0, "")


async def some_urls(db: Database, spider: str, kind: Kind) -> list[str]:
    """Return the URLs of at most SAMPLE targets of a kind."""
    query = {"spider": spider, "kind": str(kind)}
    return [row["url"] async for row in db.targets.find(query, {"url": 1}).limit(SAMPLE)]


async def make_all_due(db: Database, spider: str, at: datetime) -> None:
    """Make all targets of a spider due at `at`, except aliases and retired cells."""
    later: Document = {
        "spider": spider, "next_visit": {"$gt": at},
        "alias_of": {"$exists": False}, "retired": {"$exists": False},
    } | ALIVE  # fmt: skip
    await db.targets.update_many(later, {"$set": {"next_visit": at}})


async def make_edited_due(db: Database, wrapper: Wrapper, at: datetime) -> tuple[int, int]:
    """Make failed targets, and those that a changed site definition affects, due at `at`.

    Pages that may have been login pages, broken ones, and redirects to other pages count as failed,
    and are requested without conditions: the answer may have been to missing cookies or headers.

    Returns the number of each. Skips pages that the server reports as missing, targets that are
    never visited, and aliases, unless they may be pages that redirect to a login page. Safe to
    repeat.
    """
    later: Document = {
        "spider": wrapper.name, "next_visit": {"$gt": at, "$lt": NEVER},
        "alias_of": {"$exists": False}, "$nor": [MISSING],
    } | ALIVE  # fmt: skip
    now: Document = {"$set": {"next_visit": at}}
    done = await db.targets.update_many(later | {"outcome": {"$in": list(map(str, FAILED))}}, now)
    failed, affected = done.modified_count, 0
    unclear: Document = {
        "$or": [
            {"doubtful": True}, {"broken": {"$exists": True}}, {"outcome": str(Outcome.GONE)},
        ],
    }  # fmt: skip
    unconditional = now | {"$unset": {"etag": "", "last_modified": ""}}
    failed += (await db.targets.update_many(later | unclear, unconditional)).modified_count
    unclear_pages = db.targets.find({"spider": wrapper.name, "doubtful": True}, {"url": 1})
    async for batch in in_async_batches(unclear_pages, BATCH):
        aliases: Document = {"alias_of": {"$in": [row["url"] for row in batch]}}
        failed += (await db.targets.update_many(later | aliases, unconditional)).modified_count
    plain: Document = {"$not": {"$regex": f"\\{CAPS_SEPARATOR}"}}
    for kind in (Kind.LIST, Kind.ITEM, Kind.FEED):
        stale: Document = {
            "kind": str(kind),
            "selector_digest": {"$ne": wrapper.selector_digest(kind)} | plain,
        }
        affected += (await db.targets.update_many(later | stale, now)).modified_count
    for name, scheme in wrapper.cell_digests.items():
        cell: Document = {"_id": f"{wrapper.name} {CELL}{name}", "selector_digest": {"$ne": scheme}}
        affected += (await db.targets.update_many(later | cell, now)).modified_count
    capped = db.targets.find(
        later | {"selector_digest": {"$regex": f"\\{CAPS_SEPARATOR}"}}, NOT_FOR_A_VISIT
    )
    keys = [
        row["_id"]
        async for row in capped
        if wrapper.selector_digest_of(from_document(row)) != row["selector_digest"]
    ]
    for ids in in_batches(keys, BATCH):
        done = await db.targets.update_many(later | {"_id": {"$in": ids}}, now)
        affected += done.modified_count
    return failed, affected


async def of_url(db: Database, urls: list[str], spider: str | None = None) -> list[Document]:
    """Return all targets with one of these canonical URLs, as their own or as an alias."""
    return await db.targets.find(await with_url(db, urls, spider)).sort("_id").to_list(None)


async def with_url(db: Database, urls: Sequence[str], spider: str | None = None) -> Document:
    """Return a query for the targets with one of these URLs, as their own or as an alias."""
    # The index of aliases begins with the spider.
    owners = await spiders(db) if spider is None else [spider]
    aliases: Document = {"spider": {"$in": owners}, "aliases": {"$in": list(urls)}}
    own: Document = {"url": {"$in": list(urls)}}
    return {"$or": [own if spider is None else own | {"spider": spider}, aliases]}


async def spiders(db: Database) -> list[str]:
    """Return the names of all spiders that have targets."""
    return sorted(await db.targets.distinct("spider"))


async def feed_spiders(db: Database) -> list[str]:
    """Return the names of all spiders that have feeds."""
    return sorted(await db.targets.distinct("spider", {"kind": str(Kind.FEED)}))
