"""What has to hold between the collections of any database, whatever was interrupted.

Collections are streamed in the order of an index and merged, or looked up by a batch of `_id`s, so
memory does not grow with them: the largest thing that is held is one cluster.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from pymongo import UpdateOne

from crawler.dedup.model import id_of
from crawler.items import Kind
from crawler.storage import fences
from crawler.storage.client import Database, Document
from crawler.storage.dedup.index import META
from crawler.storage.targets import EPOCH

BATCH = 1000
EXAMPLES = 3
DAY = timedelta(days=1)
# Of posts without a signature, so many are read at once: each may have a long text.
TEXTS = 50
# Of a signature, and of its post.
FENCES = {"fence": "fence", "page_fence": "page.fence"}
OF_TARGET = (
    "spider", "url", "requested", "visited_at", "outcome", "content_hash", "alias_of",
    "last_visit._id", "last_visit.at",
)  # fmt: skip
OF_POST = (
    "spider", "feed", "content_hash", "visit", "changed_at", "page.url", "page.at", "page.visit",
    "page.content_hash",
)  # fmt: skip
Say = Callable[[str], None]


class Law(StrEnum):
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
class Broken:
    """How often an invariant does not hold, and the first examples."""

    count: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """What was found.

    uncompared: posts with a text that no signature was made of
    repairs:    updates of targets that repair what was found since they were last applied
    """

    broken: dict[Law, Broken] = field(default_factory=lambda: {law: Broken() for law in Law})
    uncompared: int = 0
    repairs: list[UpdateOne] = field(default_factory=list)

    def add(self, law: Law, example: str) -> None:
        """Count one violation."""
        found = self.broken[law]
        found.count += 1
        if len(found.examples) < EXAMPLES:
            found.examples.append(example)

    def store_again(self, key: str, now: datetime, fence: int = 0) -> None:
        """Let the next run visit a target, and store all that it finds."""
        raised = {"$max": {"fence": fence}} if fence else {}
        due: Document = {"$set": {"again": True}, "$min": {"next_visit": now}}
        self.repairs.append(UpdateOne({"_id": key}, due | raised))

    @property
    def violations(self) -> int:
        """How many there are in all."""
        return sum(one.count for one in self.broken.values())


async def check(
    db: Database, say: Say = lambda _: None, repair_at: datetime | None = None
) -> Report:
    """Check all invariants.

    say:       is told of progress
    repair_at: make targets that are not as they should be due at this time; None: change nothing
    """
    report = Report()
    rolled = await _rolled(db)
    checker = _Checker(db, report, say, repair_at, rolled)
    await checker.check_targets()
    await checker.check_versions()
    await checker.check_present()
    await checker.check_posts()
    meta = await db.meta.find_one(META)
    if meta is not None and not meta.get("rebuilding"):
        await _check_signatures(db, report, say)
        await _check_clusters(db, report, say)
    return report


async def _rolled(db: Database) -> dict[str, datetime]:
    """For each spider the time before which its visits are sums of days."""
    stages: list[Document] = [{"$group": {"_id": "$spider", "day": {"$max": "$day"}}}]
    return {row["_id"]: row["day"] + DAY async for row in await db.days.aggregate(stages)}


@dataclass(slots=True)
class _Checker:
    """Compares targets, the log, versions and posts."""

    db: Database
    report: Report
    say: Say
    repair_at: datetime | None
    rolled: dict[str, datetime]

    async def check_targets(self) -> None:
        """Merge targets, the log and the days of the log by URL."""
        db = self.db
        told = ("spider", "target", "at", "outcome", "content_hash", "pushed", "fence")
        rows = _Folded(
            db.visits.find({}, told).sort([("target", 1), ("at", 1)]).batch_size(BATCH),
            "target",
            _fold,
        )
        by_day = (
            db.days.find({}, ("spider", "target"))
            .sort([("target", 1), ("day", 1)])
            .batch_size(BATCH)
        )
        days = _Folded(by_day, "target", _rolls)
        n = 0
        async for target in db.targets.find({}, OF_TARGET).sort("url", 1).batch_size(BATCH):
            url, spider = target["url"], target["spider"]
            log = (await rows.at(url)).get(spider, _Log())
            self._check_target(target, log, has_days=spider in await days.at(url))
            n += 1
            if n % BATCH == 0:
                await self._next("the log", n)
        await self._next("the log", n)

    def _check_target(self, target: Document, log: _Log, *, has_days: bool) -> None:
        key, last, visits = target["_id"], target.get("last_visit"), target.get("requested", 0)
        if not has_days and visits != log.visits:
            self.report.add(Law.REQUESTED, f"{key}: {visits}, in the log {log.visits}")
            if self.repair_at is not None:
                right: Document = {"$set": {"requested": log.visits}}
                self.report.repairs.append(UpdateOne({"_id": key}, right))
        if last is None:
            return
        if log.last is None or last["_id"] not in (log.last["_id"], log.newest_id):
            is_rolled = last["at"] < self.rolled.get(target["spider"], EPOCH)
            if log.last is None or log.last["at"] < last["at"]:
                if not is_rolled:
                    at = f"{last['at']:%Y-%m-%d %H:%M:%S}"
                    self.report.add(Law.LAST_LOGGED, f"{key}: visit of {at}")
            else:
                self._add(Law.NEWEST, key, "a later visit is logged", log)
        elif other := _differences(target, log.newest):
            self._add(Law.NEWEST, key, f"other {', '.join(other)} than its last visit", log)

    def _add(self, law: Law, key: str, why: str, log: _Log | None = None) -> None:
        """A target that has to be visited again."""
        self.report.add(law, f"{key}: {why}")
        if self.repair_at is not None:
            last = log.last if log is not None else None
            fence = fences.after(last.get("fence", 0)) if last else 0
            self.report.store_again(key, self.repair_at, fence)

    async def check_versions(self) -> None:
        """Look up the visit of each version."""
        fields = ("spider", "target", "visit", "at", "content_hash")
        n = 0
        async for rows in _batches(self.db.versions.find({"visit": {"$exists": True}}, fields)):
            ids = [row["visit"] for row in rows]
            logged = await _by_id(self.db, "visits", ids, "at", "target", "content_hash")
            for row in rows:
                self._check_version(row, logged.get(row["visit"]))
            n += len(rows)
            await self._next("versions", n)

    def _check_version(self, row: Document, visit: Document | None) -> None:
        if visit is None:
            if row["at"] >= self.rolled.get(row["spider"], row["at"]):
                self.report.add(Law.VERSION_LOGGED, f"{row['_id']}: its visit is not logged")
            return
        # A post of a feed has no visit of its own.
        is_own = visit["target"] == row["target"]
        if visit["at"] != row["at"] or (
            is_own and visit.get("content_hash") != row["content_hash"]
        ):
            self.report.add(Law.VERSION_LOGGED, f"{row['_id']}: its visit saw something else")

    async def check_present(self) -> None:
        """Look up the version that each target has now."""
        held: Document = {
            "kind": {"$ne": str(Kind.FEED)}, "alias_of": {"$exists": False},
            "content_hash": {"$type": "string"},
        }  # fmt: skip
        n = 0
        async for rows in _batches(self.db.targets.find(held, ("content_hash",))):
            keys = {f"{row['_id']} {row['content_hash']}": row["_id"] for row in rows}
            there = await _by_id(self.db, "versions", keys)
            for key in sorted(keys.keys() - there.keys()):
                self._add(Law.HAS_VERSION, keys[key], "its version is missing")
            n += len(rows)
            await self._next("targets", n)

    async def check_posts(self) -> None:
        """Look up the targets and visits of posts."""
        n = 0
        async for rows in _batches(self.db.posts.find({}, OF_POST)):
            keys = [_target_of(row) for row in rows]
            pages = [f"{row['spider']} {row['page']['url']}" for row in rows if row.get("page")]
            fields = ("kind", "content_hash", "post", "alias_of")
            found = await _by_id(self.db, "targets", [*keys, *pages], *fields)
            visits = [part["visit"] for row in rows for part, _ in _parts(row)]
            logged = await _by_id(self.db, "visits", visits)
            for row, key in zip(rows, keys, strict=True):
                self._check_post(row, key, found)
                for part, at in _parts(row):
                    is_rolled = at < self.rolled.get(row["spider"], EPOCH)
                    if part["visit"] not in logged and not is_rolled:
                        self.report.add(Law.POST_LOGGED, row["_id"])
                        if self.repair_at is not None:
                            self.report.store_again(key, self.repair_at)
            n += len(rows)
            await self._next("posts", n)

    def _check_post(self, post: Document, key: str, found: dict[Any, Document]) -> None:
        target = found.get(key)
        if target is None:
            self.report.add(Law.POST_TARGET, f"{post['_id']}: there is no target")
        elif not post.get("feed") and _is_other(post, target):
            self._add(Law.POST_TARGET, key, "its post has another content")
        page = post.get("page") or {}
        page_key = f"{post['spider']} {page.get('url')}"
        of_page = found.get(page_key, {})
        if of_page.get("post") == post["_id"] and _is_other(page, of_page):
            self._add(Law.POST_TARGET, page_key, "its post has another content")

    async def _next(self, what: str, n: int) -> None:
        """After each batch."""
        self.say(f"checking {what}: {n:,}")
        repairs, self.report.repairs = self.report.repairs, []
        if repairs:
            await self.db.targets.bulk_write(repairs, ordered=False)


def _is_other(post: Document, target: Document) -> bool:
    """Whether a post has another content than its target; an alias has another page's."""
    if target["kind"] != str(Kind.ITEM) or "alias_of" in target:
        return False
    return bool(target.get("content_hash") != post.get("content_hash"))


def _differences(target: Document, newest: Document | None) -> list[str]:
    """Names of what a target holds otherwise than its newest visit saw it."""
    if newest is None:
        return []
    same = {"visited_at": "at", "outcome": "outcome"}
    if "alias_of" not in target:
        same["content_hash"] = "content_hash"
    return [name for name, of_row in same.items() if target.get(name) != newest.get(of_row)]


@dataclass(slots=True)
class _Log:
    """The log of one target.

    visits, newest: of those that are no deliveries; last: of all
    """

    visits: int = 0
    newest: Document | None = None
    last: Document | None = None

    @property
    def newest_id(self) -> Any:
        """`_id` of the newest visit that is no delivery."""
        return self.newest["_id"] if self.newest else None


def _order(row: Document) -> tuple[int, datetime]:
    return row.get("fence", 0), row["at"]


def _fold(logs: dict[str, Any], row: Document) -> None:
    log = logs.setdefault(row["spider"], _Log())
    if log.last is None or _order(row) >= _order(log.last):
        log.last = row
    if row.get("pushed"):
        return
    log.visits += 1
    if log.newest is None or _order(row) >= _order(log.newest):
        log.newest = row


def _rolls(days: dict[str, Any], row: Document) -> None:
    days[row["spider"]] = True


class _Folded:
    """A stream sorted by a name, folded to one dictionary for each name, in its order."""

    def __init__(
        self,
        cursor: AsyncIterator[Document],
        name: str,
        fold: Callable[[dict[str, Any], Document], None],
    ) -> None:
        self._cursor, self._name, self._fold = cursor, name, fold
        self._next: Document | None = None
        self._found: tuple[str, dict[str, Any]] = ("", {})
        self._is_over = False

    async def at(self, name: str) -> dict[str, Any]:
        """What stands under a name; names have to be asked for in the order of the stream."""
        if self._found[0] == name:
            return self._found[1]
        folded: dict[str, Any] = {}
        while (row := await self._peek()) is not None and row[self._name] <= name:
            if row[self._name] == name:
                self._fold(folded, row)
            self._next = None
        self._found = (name, folded)
        return folded

    async def _peek(self) -> Document | None:
        if self._next is None and not self._is_over:
            self._next = await anext(self._cursor, None)
            self._is_over = self._next is None
        return self._next


async def _batches(cursor: Any, size: int = BATCH) -> AsyncIterator[list[Document]]:
    # The server's own batches grow to 16 MB.
    cursor = cursor.batch_size(size)
    while rows := await cursor.to_list(size):
        yield rows


async def _by_id(db: Database, name: str, ids: Iterable[Any], *fields: str) -> dict[Any, Document]:
    """Those documents of a collection that there are, by `_id`."""
    query: Document = {"_id": {"$in": list(ids)}}
    return {row["_id"]: row async for row in db[name].find(query, fields or ("_id",))}


def _target_of(post: Document) -> str:
    return f"{post['spider']} {post['feed']}" if post.get("feed") else str(post["_id"])


def _parts(post: Document) -> list[tuple[Document, datetime]]:
    """What visits brought a post, and when: its own, and that of the page behind a feed's post."""
    page = post.get("page") or {}
    parts = [(post, post["changed_at"])] + ([(page, page["at"])] if page else [])
    return [one for one in parts if "visit" in one[0]]


async def _check_signatures(db: Database, report: Report, say: Say) -> None:
    n = 0
    async for rows in _batches(db.signatures.find({}, ("post", *FENCES))):
        there = await _by_id(db, "posts", [row["post"] for row in rows], *FENCES.values())
        for row in rows:
            if (post := there.get(row["post"])) is None:
                report.add(Law.SIGNATURE_POST, row["post"])
            elif not _is_current(row, post):
                report.add(Law.SIGNATURE_CURRENT, f"{row['post']}: of another visit")
        n += len(rows)
        say(f"checking signatures: {n:,}")
    n = 0
    async for rows in _batches(db.posts.find({}, ("cluster", "original", "duplicate_of"))):
        there = await _by_id(db, "signatures", [id_of(row["_id"]) for row in rows])
        bare = [row for row in rows if id_of(row["_id"]) not in there]
        for row in bare:
            if "cluster" in row or "duplicate_of" in row or row.get("original") is False:
                report.add(Law.POST_SIGNATURE, row["_id"])
        report.uncompared += await _with_text(db, [row["_id"] for row in bare])
        n += len(rows)
        say(f"checking what posts are compared by: {n:,}")


def _is_current(signature: Document, post: Document) -> bool:
    """Whether a signature was stored by the visit that stored the post, where that is known."""
    numbers = {"fence": post.get("fence"), "page_fence": (post.get("page") or {}).get("fence")}
    return all(
        number is None or signature.get(name, number) == number for name, number in numbers.items()
    )


async def _with_text(db: Database, keys: Sequence[str]) -> int:
    """How many of these posts have a text to compare."""
    from crawler.config import Config
    from crawler.storage.dedup import candidates as comparing
    from crawler.storage.dedup import queries as reading

    if not keys:
        return 0
    scheme = await reading.stored_scheme(db, Config.model_construct())
    n = 0
    async for rows in _batches(
        db.posts.find({"_id": {"$in": list(keys)}}, comparing.FIELDS), TEXTS
    ):
        n += sum(comparing.candidate_of(row, scheme) is not None for row in rows)
    return n


async def _check_clusters(db: Database, report: Report, say: Say) -> None:
    """Merge clusters, the signatures in them and the posts that show them by the cluster's id."""
    streams = {
        "cluster": db.clusters.find({}, ("original", "post")).sort("_id", 1).batch_size(BATCH),
        "members": db.signatures.find({"cluster": {"$exists": True}}, ("post", "cluster", "item"))
        .sort("cluster", 1).batch_size(BATCH),
        "posts": db.posts.find(
            {"cluster": {"$exists": True}}, ("cluster", "original", "duplicate_of")
        ).sort("cluster", 1).batch_size(BATCH),
    }  # fmt: skip
    heads = {name: await anext(cursor, None) for name, cursor in streams.items()}
    n = 0
    while some := [_cluster_of(name, row) for name, row in heads.items() if row is not None]:
        cluster = min(some)
        found: dict[str, list[Document]] = defaultdict(list)
        for name, cursor in streams.items():
            while (row := heads[name]) is not None and _cluster_of(name, row) == cluster:
                found[name].append(row)
                heads[name] = await anext(cursor, None)
        _check_cluster(report, cluster, found)
        n += 1
        if n % BATCH == 0:
            say(f"checking clusters: {n:,}")


def _cluster_of(name: str, row: Document) -> Any:
    return row["_id"] if name == "cluster" else row["cluster"]


def _check_cluster(report: Report, cluster: Any, found: dict[str, list[Document]]) -> None:
    members = {row["post"]: row for row in found["members"]}
    posts = {row["_id"]: row for row in found["posts"]}
    if not found["cluster"]:
        # In Redis each post founds a cluster, which has a document once a copy comes.
        for key in posts:
            report.add(Law.CLUSTER_ORIGINAL, f"{key}: its cluster {cluster} does not exist")
        if len(members) > 1:
            report.add(Law.CLUSTER_ORIGINAL, f"cluster {cluster} of {len(members)} posts: none")
        return
    row = found["cluster"][0]
    original = members.get(row["post"])
    if original is None or original["_id"] != row["original"]:
        report.add(Law.CLUSTER_ORIGINAL, f"cluster {cluster}: {row['post']} is not in it")
        return
    for key in sorted(members.keys() ^ posts.keys()):
        why = "does not show" if key in members else "is not in"
        report.add(Law.CLUSTER_MEMBERS, f"{key}: {why} cluster {cluster}")
    for key, post in posts.items():
        member = members.get(key)
        if member is None:
            continue
        is_source = member.get("item") is not None and member["item"] == original.get("item")
        is_original = key == row["post"] or is_source
        if bool(post.get("original")) != is_original:
            why = "is flagged as an original, as" if post.get("original") else "is a copy, not"
            report.add(Law.ONE_ORIGINAL, f"{key}: {why} {row['post']}")
        elif not is_original and post.get("duplicate_of") != row["post"]:
            report.add(Law.CLUSTER_MEMBERS, f"{key}: names another original than {row['post']}")
