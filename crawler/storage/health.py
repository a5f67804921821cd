"""Health of a MongoDB server, and of a database: invariants that hold after any interruption.

Nothing is created or migrated. Collections are streamed in index order and merged, or looked up in
batches of `_id`s, so memory use does not depend on their size. The largest object in memory is one
cluster.
"""

from __future__ import annotations

import asyncio
import os
import platform
import statistics
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from pymongo import UpdateOne, WriteConcern
from pymongo.errors import PyMongoError

from crawler.config import Config
from crawler.dedup.posts import id_of
from crawler.errors import StorageError
from crawler.items import Kind
from crawler.storage import leases
from crawler.storage.client import (
    Database,
    Document,
    aggregated,
    check_reachable,
    disk_of,
    in_short,
    open_client,
    read_clock,
    server_uri,
    storage_errors,
    write_all,
)
from crawler.storage.dedup.index import META, stored_scheme
from crawler.storage.schema import TEST
from crawler.utils.process import Say
from crawler.utils.time import EPOCH

PINGS = 5
# Age at which the documents of interrupted tests are deleted.
TEST_LIFETIME = timedelta(hours=1)
BATCH = 1000
# Posts without a signature are read in smaller batches: each may have a long text.
TEXTS_BATCH = 50
MAX_EXAMPLES = 3
DAY = timedelta(days=1)
# Fences of a signature, and the fields of its post with the same numbers.
FENCES = {"fence": "fence", "page_fence": "page.fence"}
TARGET_FIELDS = (
    "spider", "url", "first_seen", "requested", "visited_at", "outcome", "content_hash", "alias_of",
    "last_visit._id", "last_visit.at",
)  # fmt: skip
VISIT_FIELDS = ("spider", "target", "at", "outcome", "content_hash", "pushed", "fence")
POST_FIELDS = (
    "spider", "feed", "content_hash", "visit", "changed_at", "page.url", "page.at", "page.visit",
    "page.content_hash",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Server:
    """The properties that a server reports.

    replica_set: its name; None for a standalone server and a shard router (`is_router`)
    ahead_seconds: its clock minus ours; negative if it is behind
    free_bytes, total_bytes: of the disk with its data; None if the server does not report them
    """

    version: tuple[int, ...]
    replica_set: str | None
    members: int
    is_router: bool
    ahead_seconds: float
    round_trip_ms: float
    free_bytes: int | None
    total_bytes: int | None


@asynccontextmanager
async def reached(config: Config) -> AsyncIterator[Database]:
    """Open the database without migrating it. Raises StorageError or ConfigError.

    Starts the embedded server if needed.
    """
    uri = await asyncio.to_thread(server_uri, config)
    client = open_client(uri, config)
    try:
        with storage_errors():
            await check_reachable(client, uri)
            await read_clock(client)
            yield client.get_default_database()
    finally:
        await client.close()


async def server(db: Database) -> Server:
    """Return the properties that the server reports."""
    admin = db.client.admin
    built = await admin.command("buildInfo")
    clock = await read_clock(db.client, PINGS)
    hello = clock.hello
    free, total = await disk_of(db)
    return Server(
        version=tuple(built["versionArray"][:3]),
        replica_set=hello.get("setName"),
        members=len(hello.get("hosts", ())),
        is_router=hello.get("msg") == "isdbgrid",
        ahead_seconds=-clock.ahead_seconds,
        round_trip_ms=statistics.median(clock.round_trips) * 1000,
        free_bytes=free,
        total_bytes=total,
    )


async def write(db: Database, now: datetime, timeout_seconds: float) -> float:
    """Return how many milliseconds a write to a majority's journal takes; remove the document.

    Raises StorageError if the write or reading it back fails.
    """
    concern = WriteConcern("majority", int(timeout_seconds * 1000), j=True)
    meta = db.meta.with_options(write_concern=concern)
    key = f"{TEST} {platform.node()} {os.getpid()}"
    old: Document = {"_id": {"$regex": f"^{TEST} "}, "at": {"$lt": now - TEST_LIFETIME}}
    began = time.perf_counter()
    try:
        await meta.replace_one({"_id": key}, {"at": now}, upsert=True)
        taken = time.perf_counter() - began
        document = await meta.find_one({"_id": key})
        await meta.delete_many({"$or": [{"_id": key}, old]})
    except PyMongoError as error:
        raise StorageError(in_short(error)) from None
    if document is None:
        raise StorageError("the written test document could not be read back")
    return taken * 1000


class Invariant(StrEnum):
    """Names of the invariants, as the doctor prints them."""

    LAST_LOGGED = "last visits are logged"
    NEWEST = "targets hold their newest visit"
    REQUESTED = "targets count their visits"
    VERSION_LOGGED = "versions have their visit"
    HAS_VERSION = "targets have their version"
    POST_TARGET = "posts equal their target"
    POST_LOGGED = "posts have their visit"
    SIGNATURE_POST = "signatures have their post"
    SIGNATURE_CURRENT = "signatures are of their post's content"
    POST_SIGNATURE = "clustered posts have their signature"
    CLUSTER_ORIGINAL = "clusters have their original"
    CLUSTER_MEMBERS = "posts show their cluster"
    ONE_ORIGINAL = "clusters have one original"


@dataclass(slots=True)
class Violations:
    """The number of violations of an invariant, and the first examples."""

    count: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """The violations of all invariants.

    uncompared: number of posts with a text but no signature
    repairs:    updates of targets that are not applied yet
    """

    broken: dict[Invariant, Violations] = field(
        default_factory=lambda: {invariant: Violations() for invariant in Invariant}
    )
    uncompared: int = 0
    repairs: list[UpdateOne] = field(default_factory=list)

    def add(self, invariant: Invariant, example: str) -> None:
        """Count one violation."""
        broken = self.broken[invariant]
        broken.count += 1
        if len(broken.examples) < MAX_EXAMPLES:
            broken.examples.append(example)

    def store_again(self, key: str, now: datetime, fence: int = 0) -> None:
        """Make a target due in the next run, which stores its content again."""
        raised = {"$max": {"fence": fence}} if fence else {}
        due: Document = {"$set": {"again": True}, "$min": {"next_visit": now}}
        self.repairs.append(UpdateOne({"_id": key}, due | raised))


async def check(
    db: Database, say: Say = lambda _: None, repair_at: datetime | None = None
) -> Report:
    """Check all invariants.

    say:       called with a progress text
    repair_at: make broken targets due at this time; None: change nothing
    """
    days: Document = {"_id": "$spider", "first": {"$min": "$day"}, "last": {"$max": "$day"}}
    rows = await aggregated(db.days, [{"$group": days}])
    rolled = {row["_id"]: row["last"] + DAY for row in rows}
    first_days = {row["_id"]: row["first"] for row in rows}
    checker = _Checker(db, Report(), say, repair_at, rolled, first_days)
    await checker.check_targets()
    await checker.check_versions()
    await checker.check_current_versions()
    await checker.check_posts()
    meta = await db.meta.find_one(META)
    if meta is not None and not meta.get("rebuilding"):
        await checker.check_signatures()
        await checker.check_unsigned()
        await checker.check_clusters()
    return checker.report


@dataclass(slots=True)
class _Checker:
    """Compares collections with each other.

    rolled: by spider, the time before which the log may have daily aggregates instead of visits
    aggregated: by spider, the day of its first daily aggregates; earlier ones may have been deleted
    """

    db: Database
    report: Report
    say: Say
    repair_at: datetime | None
    rolled: dict[str, datetime]
    aggregated: dict[str, datetime]

    async def check_targets(self) -> None:
        """Compare targets with the log and the daily aggregates, merged by URL."""
        db = self.db
        by_time, by_day = [("target", 1), ("at", 1)], [("target", 1), ("day", 1)]
        visits = _ByUrl(db.visits.find({}, VISIT_FIELDS).sort(by_time).batch_size(BATCH))
        days = _ByUrl(db.days.find({}, ("spider", "target")).sort(by_day).batch_size(BATCH))
        logs: dict[str, _Log] = {}
        rolled: set[str] = set()
        last_url, n = None, 0
        async for target in db.targets.find({}, TARGET_FIELDS).sort("url", 1).batch_size(BATCH):
            url, spider = target["url"], target["spider"]
            # Targets of several spiders may have the same URL.
            if url != last_url:
                last_url, logs = url, {}
                async for row in visits.read(url):
                    logs.setdefault(row["spider"], _Log()).add(row)
                rolled = {row["spider"] async for row in days.read(url)}
            self._check_target(target, logs.get(spider, _Log()), has_days=spider in rolled)
            n += 1
            if n % BATCH == 0:
                await self._after_batch("the log", n)
        await self._after_batch("the log", n)

    def _check_target(self, target: Document, log: _Log, *, has_days: bool) -> None:
        key, last, visits = target["_id"], target.get("last_visit"), target.get("requested", 0)
        is_complete = target["first_seen"] >= self.aggregated.get(target["spider"], EPOCH)
        if is_complete and not has_days and visits != log.visits:
            self.report.add(Invariant.REQUESTED, f"{key}: {visits}, in the log {log.visits}")
            if self.repair_at is not None:
                right: Document = {"$set": {"requested": log.visits}}
                self.report.repairs.append(UpdateOne({"_id": key}, right))
        if last is None:
            return
        newest_id = log.newest["_id"] if log.newest else None
        if log.last is None or last["_id"] not in (log.last["_id"], newest_id):
            is_rolled = last["at"] < self.rolled.get(target["spider"], EPOCH)
            if log.last is not None and log.last["at"] >= last["at"]:
                self._add(Invariant.NEWEST, key, "a later visit is logged", log)
            elif not is_rolled:
                at = f"{last['at']:%Y-%m-%d %H:%M:%S}"
                self.report.add(Invariant.LAST_LOGGED, f"{key}: visit of {at}")
        elif log.newest is not None:
            same = {"visited_at": "at", "outcome": "outcome"}
            if "alias_of" not in target:
                same["content_hash"] = "content_hash"
            names = [name for name, of in same.items() if target.get(name) != log.newest.get(of)]
            if names:
                why = f"other {', '.join(names)} than its last visit"
                self._add(Invariant.NEWEST, key, why, log)

    def _add(self, invariant: Invariant, key: str, why: str, log: _Log | None = None) -> None:
        """Count a violation that the target's next visit repairs."""
        self.report.add(invariant, f"{key}: {why}")
        if self.repair_at is not None:
            last = log.last if log is not None else None
            fence = leases.fence_after(last.get("fence", 0)) if last else 0
            self.report.store_again(key, self.repair_at, fence)

    async def check_versions(self) -> None:
        """Compare each version with its visit."""
        fields = ("spider", "target", "visit", "at", "content_hash")
        versions = self.db.versions.find({"visit": {"$exists": True}}, fields)
        async for rows in self._read("versions", versions):
            ids = [row["visit"] for row in rows]
            logged = await self._by_id("visits", ids, "at", "target", "content_hash")
            for row in rows:
                problem = ""
                if (visit := logged.get(row["visit"])) is None:
                    if row["at"] >= self.rolled.get(row["spider"], row["at"]):
                        problem = "its visit is not logged"
                # Posts of a feed have no visit of their own, only the feed's.
                elif visit["at"] != row["at"] or (
                    visit["target"] == row["target"]
                    and visit.get("content_hash") != row["content_hash"]
                ):
                    problem = "its visit has another content"
                if problem:
                    self.report.add(Invariant.VERSION_LOGGED, f"{row['_id']}: {problem}")

    async def check_current_versions(self) -> None:
        """Check that the current version of each target exists."""
        query: Document = {
            "kind": {"$ne": str(Kind.FEED)}, "alias_of": {"$exists": False},
            "content_hash": {"$type": "string"},
        }  # fmt: skip
        targets = self.db.targets.find(query, ("content_hash",))
        async for rows in self._read("targets", targets):
            keys = {f"{row['_id']} {row['content_hash']}": row["_id"] for row in rows}
            stored = await self._by_id("versions", keys)
            for key in sorted(keys.keys() - stored.keys()):
                self._add(Invariant.HAS_VERSION, keys[key], "its version is missing")

    async def check_posts(self) -> None:
        """Compare posts with their targets and visits."""
        async for rows in self._read("posts", self.db.posts.find({}, POST_FIELDS)):
            keys = [
                f"{row['spider']} {row['feed']}" if row.get("feed") else str(row["_id"])
                for row in rows
            ]
            pages = [f"{row['spider']} {row['page']['url']}" for row in rows if row.get("page")]
            fields = ("kind", "content_hash", "post", "alias_of")
            targets = await self._by_id("targets", [*keys, *pages], *fields)
            visits = [visit for row in rows for visit, _ in _visits_of(row)]
            logged = await self._by_id("visits", visits)
            for row, key in zip(rows, keys, strict=True):
                self._check_post(row, key, targets)
                for visit, at in _visits_of(row):
                    is_rolled = at < self.rolled.get(row["spider"], EPOCH)
                    if visit not in logged and not is_rolled:
                        self.report.add(Invariant.POST_LOGGED, row["_id"])
                        if self.repair_at is not None:
                            self.report.store_again(key, self.repair_at)

    def _check_post(self, post: Document, key: str, targets: dict[Any, Document]) -> None:
        target = targets.get(key)
        if target is None:
            self.report.add(Invariant.POST_TARGET, f"{post['_id']}: its target is missing")
        elif not post.get("feed") and _is_other(post, target):
            self._add(Invariant.POST_TARGET, key, "its post has another content")
        page = post.get("page") or {}
        page_key = f"{post['spider']} {page.get('url')}"
        of_page = targets.get(page_key, {})
        if of_page.get("post") == post["_id"] and _is_other(page, of_page):
            self._add(Invariant.POST_TARGET, page_key, "its post has another content")

    async def check_signatures(self) -> None:
        """Compare signatures with their posts."""
        signatures = self.db.signatures.find({}, ("post", *FENCES))
        async for rows in self._read("signatures", signatures):
            posts = await self._by_id("posts", [row["post"] for row in rows], *FENCES.values())
            for row in rows:
                post = posts.get(row["post"])
                if post is None:
                    self.report.add(Invariant.SIGNATURE_POST, row["post"])
                    continue
                # The same visit must have stored post and signature, if both have fences.
                page = post.get("page") or {}
                stored = {"fence": post.get("fence"), "page_fence": page.get("fence")}
                if any(
                    number is not None and row.get(name, number) != number
                    for name, number in stored.items()
                ):
                    self.report.add(
                        Invariant.SIGNATURE_CURRENT, f"{row['post']}: stored by another visit"
                    )

    async def check_unsigned(self) -> None:
        """Check posts without a signature: no cluster, and no text to compare."""
        from crawler.storage.dedup import signatures

        scheme = stored_scheme(await self.db.meta.find_one(META) or {}, Config.model_construct())
        stored = self.db.posts.find({}, ("cluster", "original", "duplicate_of"))
        async for rows in self._read("posts without signatures", stored):
            signed = await self._by_id("signatures", [id_of(row["_id"]) for row in rows])
            unsigned = [row for row in rows if id_of(row["_id"]) not in signed]
            for row in unsigned:
                if "cluster" in row or "duplicate_of" in row or row.get("original") is False:
                    self.report.add(Invariant.POST_SIGNATURE, row["_id"])
            query: Document = {"_id": {"$in": [row["_id"] for row in unsigned]}}
            posts = self.db.posts.find(query, signatures.POST_FIELDS, batch_size=TEXTS_BATCH)
            async for post in posts:
                self.report.uncompared += signatures.candidate_of(post, scheme) is not None

    async def check_clusters(self) -> None:
        """Compare clusters with their signatures and with the posts that show them."""
        db, in_cluster = self.db, {"cluster": {"$exists": True}}
        shown = ("cluster", "original", "duplicate_of")
        cursors = {
            "cluster": db.clusters.find({}, ("original", "post")).sort("_id", 1),
            "members": db.signatures.find(in_cluster, ("post", "cluster", "item"))
            .sort("cluster", 1),
            "posts": db.posts.find(in_cluster, shown).sort("cluster", 1),
        }  # fmt: skip
        ids = {"cluster": "_id", "members": "cluster", "posts": "cluster"}
        streams = {name: cursor.batch_size(BATCH) for name, cursor in cursors.items()}
        heads = {name: await anext(stream, None) for name, stream in streams.items()}
        n = 0
        while next_ids := [row[ids[name]] for name, row in heads.items() if row is not None]:
            cluster = min(next_ids)
            rows: dict[str, list[Document]] = defaultdict(list)
            for name, stream in streams.items():
                while (row := heads[name]) is not None and row[ids[name]] == cluster:
                    rows[name].append(row)
                    heads[name] = await anext(stream, None)
            self._check_cluster(cluster, rows)
            n += 1
            if n % BATCH == 0:
                self.say(f"checking clusters: {n:,}")

    def _check_cluster(self, cluster: Any, rows: dict[str, list[Document]]) -> None:
        report = self.report
        members = {row["post"]: row for row in rows["members"]}
        posts = {row["_id"]: row for row in rows["posts"]}
        if not rows["cluster"]:
            # With Redis, each post has a cluster, but its document is created with the first copy.
            for key in posts:
                example = f"{key}: its cluster {cluster} does not exist"
                report.add(Invariant.CLUSTER_ORIGINAL, example)
            if len(members) > 1:
                example = f"cluster {cluster} of {len(members)} posts: no original"
                report.add(Invariant.CLUSTER_ORIGINAL, example)
            return
        row = rows["cluster"][0]
        original = members.get(row["post"])
        if original is None or original["_id"] != row["original"]:
            example = f"cluster {cluster}: its original {row['post']} is not a member"
            report.add(Invariant.CLUSTER_ORIGINAL, example)
            return
        for key in sorted(members.keys() ^ posts.keys()):
            why = "does not show" if key in members else "is not in"
            report.add(Invariant.CLUSTER_MEMBERS, f"{key}: {why} cluster {cluster}")
        for key, post in posts.items():
            if (member := members.get(key)) is None:
                continue
            is_source = member.get("item") is not None and member["item"] == original.get("item")
            is_original = key == row["post"] or is_source
            if bool(post.get("original")) != is_original:
                why = "is also an original of" if post.get("original") else "is not an original of"
                example = f"{key}: {why} the cluster of {row['post']}"
                report.add(Invariant.ONE_ORIGINAL, example)
            elif not is_original and post.get("duplicate_of") != row["post"]:
                example = f"{key}: its original is not {row['post']}"
                report.add(Invariant.CLUSTER_MEMBERS, example)

    async def _by_id(self, name: str, ids: Iterable[Any], *fields: str) -> dict[Any, Document]:
        """Return the documents of a collection with these `_id`s, by `_id`."""
        query: Document = {"_id": {"$in": list(ids)}}
        cursor = self.db[name].find(query, fields or ("_id",))
        return {row["_id"]: row async for row in cursor}

    async def _read(self, what: str, cursor: Any) -> AsyncIterator[list[Document]]:
        """Yield batches of documents; after each one, show the progress and apply the repairs."""
        n = 0
        # The server's default batches grow to 16 MB.
        cursor = cursor.batch_size(BATCH)
        while rows := await cursor.to_list(BATCH):
            yield rows
            n += len(rows)
            await self._after_batch(what, n)

    async def _after_batch(self, what: str, n: int) -> None:
        self.say(f"checking {what}: {n:,}")
        repairs, self.report.repairs = self.report.repairs, []
        await write_all(self.db.targets, repairs)


@dataclass(slots=True)
class _Log:
    """The log of one target.

    visits, newest: without hub deliveries; last: with them
    """

    visits: int = 0
    newest: Document | None = None
    last: Document | None = None

    def add(self, row: Document) -> None:
        """Count a visit."""
        if self.last is None or _order(row) >= _order(self.last):
            self.last = row
        if row.get("pushed"):
            return
        self.visits += 1
        if self.newest is None or _order(row) >= _order(self.newest):
            self.newest = row


def _order(row: Document) -> tuple[int, datetime]:
    return row.get("fence", 0), row["at"]


class _ByUrl:
    """A cursor sorted by `target`, merged with URLs in the same order."""

    def __init__(self, cursor: AsyncIterator[Document]) -> None:
        self._cursor = cursor
        self._next: Document | None = None

    async def read(self, url: str) -> AsyncIterator[Document]:
        """Yield the rows of a URL; skip the rows of URLs before it."""
        while row := self._next or await anext(self._cursor, None):
            self._next = row
            if row["target"] > url:
                return
            self._next = None
            if row["target"] == url:
                yield row


def _is_other(post: Document, target: Document) -> bool:
    """Return whether the content of a post differs from its target's; False for aliases."""
    if target["kind"] != str(Kind.ITEM) or "alias_of" in target:
        return False
    return bool(target.get("content_hash") != post.get("content_hash"))


def _visits_of(post: Document) -> list[tuple[Any, datetime]]:
    """Return ids and times of the visits of a post, and of its page."""
    page = post.get("page") or {}
    visits = [(post["visit"], post["changed_at"])] if "visit" in post else []
    return [*visits, (page["visit"], page["at"])] if "visit" in page else visits
