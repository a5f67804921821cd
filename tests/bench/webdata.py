"""A large database for `make bench ARGS=--web`: sites, visits, versions, posts, near-duplicates.

Documents have the shapes that crawls write. Inserting them without validation, before the indexes
are created, takes minutes instead of hours. Two processes build the same arrays from
the same seed, and each writes every second batch.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from typing import Any

import numpy as np
import pymongo
from bson import Binary, ObjectId
from pymongo import AsyncMongoClient

from crawler.dedup.posts import id_of
from crawler.extract.item_names import sort_name
from crawler.storage import schema
from crawler.storage.client import UNJOURNALED, Document
from tests.bench.planned import target_row, url_of

Array = np.ndarray[Any, Any]
WORKERS, BATCH = 2, 5000
SEED = 11
DAY = 86_400
# Days over which visits are spread; targets are discovered until NEWEST_TARGET_DAYS ago.
DAYS, NEWEST_TARGET_DAYS = 70, 5
MAX_VISITS = 20_000
FEEDS = "feeds"
WORDS = 120
REASONS = ("timeout", "HTTP 503", "DNS lookup failed", "connection refused")
PLAN, FEED_PLAN = ObjectId("65f000000000000000000001"), ObjectId("65f000000000000000000002")
RUNS = 100
AUDIT_ENTRIES = 50_000
# A week of notifications to three channels; waiting and dead messages are at their limits.
CHANNELS, MESSAGES, MAX_WAITING = ("team", "phone", "mail"), 300_000, 30_000
KEYS = {
    "list_pages": "/catalogue/page", "item_pages": "/catalogue/some", "fields": {"price": "p.price"}
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of documents. copies: near-duplicates among the posts; feeds: among the targets."""

    targets: int = 1_000_000
    visits: int = 10_000_000
    versions: int = 300_000
    posts: int = 200_000
    copies: int = 50_000
    feeds: int = 2000
    sites: int = 40

    def divided_by(self, divisor: int) -> Sizes:
        """Return smaller sizes, with the same number of sites."""
        parts = (self.targets, self.visits, self.versions, self.posts, self.copies, self.feeds)
        return Sizes(*(n // divisor for n in parts), self.sites)


def site_name(number: int) -> str:
    """Return the name of a site."""
    return f"site{number:02}"


@dataclass(frozen=True)
class Data:
    """The documents of a database, by number. now: time of the last visit."""

    sizes: Sizes
    now: datetime

    @cached_property
    def spiders(self) -> list[str]:
        """Return the names of all spiders; the last one has the feeds."""
        return [*map(site_name, range(self.sizes.sites)), FEEDS]

    @cached_property
    def spider(self) -> Array:
        """Return (n,) spider numbers by target: the first site has a quarter of all targets."""
        pages = self.sizes.targets - self.sizes.feeds
        share = 1 / np.arange(1, self.sizes.sites + 1)
        ends = np.round(np.cumsum(share) / share.sum() * pages).astype(int)
        counts = np.append(np.diff(ends, prepend=0), self.sizes.feeds)
        return np.repeat(np.arange(len(counts)), counts)

    @cached_property
    def log(self) -> tuple[Array, Array, Array]:
        """Return (v,) target and seconds before `now` of visits, by target, and (n + 1,) offsets.

        A few targets have many visits; most have fewer than ten.
        """
        rng = np.random.default_rng(SEED)
        n, span = self.sizes.targets, DAYS * DAY
        weight = np.minimum(rng.pareto(1.2, n) + 0.5, n)
        counts = np.minimum(1 + weight / weight.sum() * self.sizes.visits, MAX_VISITS).astype(int)
        rest = max(0, self.sizes.visits - int(counts.sum()))
        counts += np.bincount(rng.integers(0, n, rest), minlength=n)
        of = np.repeat(np.arange(n), counts)
        known = rng.integers(NEWEST_TARGET_DAYS * DAY, span, n)
        seconds = (known[of] * rng.random(len(of))).astype(np.int64)
        # Unique times per target, oldest first.
        keys = np.unique((of << 24) | (span - seconds))
        of, seconds = keys >> 24, span - (keys & 0xFFFFFF)
        return of, seconds, np.searchsorted(of, np.arange(n + 1))

    @cached_property
    def changed(self) -> Array:
        """Return (v,) whether each visit of `log` found a change."""
        rng = np.random.default_rng(SEED + 1)
        of, _, first = self.log
        changed: Array = rng.random(len(of)) < rng.beta(0.6, 8, self.sizes.targets)[of]
        changed[first[:-1]] = False
        return changed

    @cached_property
    def version(self) -> Array:
        """Return (v,) number of the version that each visit saw, from 0 for each target."""
        of, _, first = self.log
        total = np.cumsum(self.changed)
        result: Array = total - total[first[:-1]][of]
        return result

    @cached_property
    def kept(self) -> Array:
        """Return the visits whose version is stored: newest changes and previous versions."""
        _, seconds, _ = self.log
        changes = np.flatnonzero(self.changed)
        newest = changes[np.argsort(seconds[changes], kind="stable")]
        starts = np.flatnonzero(np.diff(self.version, prepend=-1) != 0)
        before = starts[np.searchsorted(starts, newest) - 1]
        pairs = np.stack([newest, before], 1).ravel()[: self.sizes.versions]
        return np.unique(pairs)

    def at(self, seconds: int) -> datetime:
        """Return a time before `now`."""
        return self.now - timedelta(seconds=int(seconds))

    def name_of(self, i: int) -> tuple[str, str]:
        """Return the spider and the URL of a target."""
        spider = self.spiders[self.spider[i]]
        return spider, url_of(spider, i)

    def targets(self, numbers: range) -> Iterator[Document]:
        """Yield targets after their last visit."""
        _, seconds, first = self.log
        base = int(self.now.timestamp())
        for i in numbers:
            visits = slice(first[i], first[i + 1])
            row = target_row(
                i,
                (base - seconds[visits]) // 60,
                self.changed[visits],
                self.spiders[self.spider[i]],
            )
            row["content_hash"] = content_hash(i, int(self.version[visits.stop - 1]))
            row["visited_at"] = row["last_visit"]["at"] = self.at(seconds[visits.stop - 1])
            row["plan"]["id"] = FEED_PLAN if row["spider"] == FEEDS else PLAN
            # Most targets are due in the coming week; some are overdue.
            row["next_visit"] = self.now + timedelta(minutes=(i * 7919) % 10_000 - 300)
            if row["spider"] == FEEDS:
                row |= {"kind": "feed", "categories": [f"News/{i % 20}"], "feed_size": 20}
            elif i % 101 == 0:
                row |= {"consecutive_errors": 1 + i % 5, "outcome": "error"}
                row["last_visit"] |= {"outcome": "error", "reason": REASONS[i // 101 % 4]}
            elif i % 53 == 0:
                row |= {"gone": True, "consecutive_gone": 3, "outcome": "gone"}
            yield row

    def visits(self, numbers: range) -> Iterator[Document]:
        """Yield visits in the order of time."""
        of, seconds, first = self.log
        for v in self._in_time[numbers.start : numbers.stop].tolist():
            i, at = int(of[v]), self.at(seconds[v])
            spider, url = self.name_of(i)
            changed, is_first = bool(self.changed[v]), v == first[i]
            row = {
                "_id": ObjectId(struct.pack(">IQ", int(at.timestamp()), v)),
                "spider": spider, "target": url, "at": at,
                "outcome": "new" if is_first else "changed" if changed else "unchanged",
                "status": 200, "get_size": 5123, "update_size": 12 * changed,
                "diff_size": 40 * changed, "changed": int(changed),
                "content_hash": content_hash(i, int(self.version[v])), "elapsed_ms": 87, "fence": 1,
            }  # fmt: skip
            if is_first or changed:
                row["event"] = True
                # What was there at the first crawl of a site is no news.
                if changed or seconds[v] < (DAYS - 1) * DAY:
                    row["news"] = True
            yield row

    @cached_property
    def _in_time(self) -> Array:
        return np.argsort(-self.log[1], kind="stable")

    def versions(self, numbers: range) -> Iterator[Document]:
        """Yield versions."""
        of, seconds, _ = self.log
        for v in self.kept[numbers.start : numbers.stop].tolist():
            i, k = int(of[v]), int(self.version[v])
            spider, url = self.name_of(i)
            text = text_of(i, k)
            content = {"title": f"Product {i}", "price": 10 + k / 4, "main_text": text}
            yield {
                "_id": f"{spider} {url} {content_hash(i, k)}", "spider": spider, "target": url,
                "content_hash": content_hash(i, k), "at": self.at(seconds[v]), "size": 5123,
                "content": content, "fence": 1,
            }  # fmt: skip

    @cached_property
    def originals(self) -> Array:
        """Return (p,) the original of each post, or its own number; the largest cluster is first.

        The largest cluster has a tenth of all copies, the next one half of that, and so on.
        """
        largest = self.sizes.copies // 10
        counts: list[int] = []
        while sum(counts) < self.sizes.copies:
            counts.append(max(1, largest // (len(counts) + 1)))
        posts = np.random.default_rng(SEED + 2).permutation(self.sizes.posts)
        original = np.arange(self.sizes.posts)
        copies = posts[len(counts) : len(counts) + self.sizes.copies]
        original[copies] = np.repeat(posts[: len(counts)], counts)[: len(copies)]
        return original

    @cached_property
    def clusters(self) -> dict[int, ObjectId]:
        """Return the cluster of each original with copies."""
        heads = np.unique(self.originals[self.originals != np.arange(self.sizes.posts)])
        return {int(head): ObjectId(struct.pack(">IQ", 1_700_000_000, int(head))) for head in heads}

    def post_name(self, p: int) -> tuple[str, str, str | None]:
        """Return spider, URL and feed of a post; two of five posts are of feeds."""
        pages = self.sizes.targets - self.sizes.feeds
        if p % 5 < 2:
            feed = url_of(FEEDS, pages + p % self.sizes.feeds)
            return FEEDS, f"https://{FEEDS}.example/post/{p}", feed
        spider, url = self.name_of(p * (pages // self.sizes.posts))
        return spider, url, None

    def post_key(self, p: int) -> str:
        """Return the `_id` of a post."""
        spider, url, feed = self.post_name(p)
        return f"{spider} {url}" if feed is None else f"{spider} {feed} post {p}"

    def posts(self, numbers: range) -> Iterator[Document]:
        """Yield posts, original or not."""
        for p in numbers:
            spider, url, feed = self.post_name(p)
            head = int(self.originals[p])
            seen = self.at((p * 7919) % (DAYS * DAY))
            row = {
                "_id": self.post_key(p), "spider": spider, "url": url, "title": f"Post {p}",
                "text": text_of(head, 0 if head == p else 1 + p % 90), "fields": {"price": "9.90"},
                "categories": [f"category {p % 40}"], "first_seen": seen, "changed_at": seen,
                "content_hash": content_hash(p, 0), "fence": 1, "item": url.partition("//")[2],
                "original": head == p,
            }  # fmt: skip
            if feed is not None:
                row |= {"feed": feed, "guid": f"post {p}", "published": seen}
            else:
                row["sort_name"] = sort_name(f"Post {p}")
            if head in self.clusters:
                row["cluster"] = self.clusters[head]
            if head != p:
                row |= {"duplicate_of": self.post_key(head), "similarity": 0.94}
            yield row

    def signatures(self, numbers: range) -> Iterator[Document]:
        """Yield the signatures of posts, without bands, which no view reads."""
        # Slow to import.
        from crawler.dedup.minhash import by_characters

        for row in self.posts(numbers):
            sketch = by_characters(row["text"])
            assert sketch is not None
            signature = {
                "_id": id_of(row["_id"]), "post": row["_id"], "created": row["first_seen"],
                "seen": row["first_seen"], "claimed": row["first_seen"], "source": 1,
                "at": row["first_seen"], "signature_scheme": "characters-3",
                "sketch": Binary(sketch.encode()), "fence": 1,
            }  # fmt: skip
            yield signature | ({"cluster": row["cluster"]} if "cluster" in row else {})

    def heads(self, numbers: range) -> Iterator[Document]:
        """Yield the documents of clusters."""
        for head in list(self.clusters)[numbers.start : numbers.stop]:
            key, seen = self.post_key(head), self.at((head * 7919) % (DAYS * DAY))
            yield {
                "_id": self.clusters[head], "original": id_of(key), "post": key, "created": seen,
                "source": 1, "lead": [seen, 1], "order": [seen, id_of(key)],
            }  # fmt: skip

    def feeds(self, numbers: range) -> Iterator[Document]:
        """Yield the states of feeds."""
        pages = self.sizes.targets - self.sizes.feeds
        for i in range(pages + numbers.start, pages + numbers.stop):
            url = url_of(FEEDS, i)
            yield {
                "_id": f"{FEEDS} {url}", "spider": FEEDS, "url": url, "title": f"Feed {i}",
                "site": f"https://feed{i}.example", "format": "rss20", "feed_size": 20,
                "posts": 40, "newest": self.now, "missed_posts": 0.0, "gaps": 0,
                "error": "timeout" if i % 100 == 0 else None, "seen_at": self.now, "fence": 1,
            }  # fmt: skip

    def runs(self, numbers: range) -> Iterator[Document]:
        """Yield runs."""
        for number in numbers:
            days, site = divmod(number, len(self.spiders))
            started = self.at(days * DAY // 2 + 3600)
            yield {
                "spider": self.spiders[site], "started": started, "reason": "finished",
                "finished": started + timedelta(minutes=40), "counts": {"visits": 900, "new": 3},
            }  # fmt: skip

    def sites(self, numbers: range) -> Iterator[Document]:
        """Yield the settings and definitions of sites."""
        for number in numbers:
            name = self.spiders[number]
            keys = {"name": name, "start_urls": [f"https://{name}.example/"]} | KEYS
            definition = {
                "reader": "site", "keys": json.dumps(keys), "file": None, "withheld": [],
                "stored": self.now,
            }  # fmt: skip
            yield {
                "_id": name, "timezone": "Europe/Berlin", "visiting_hours": [], "blackout": [],
                "weight": 1.0, "weights": [], "cost": 1.0, "at": self.now, "tags": ["shop"],
            } | ({} if name == FEEDS else {"definition": definition})  # fmt: skip

    def plans(self, numbers: range) -> Iterator[Document]:
        """Yield the plan of the pages and the plan of the feeds."""
        kinds = ((PLAN, "pages", self.spiders[:-1]), (FEED_PLAN, "feeds", self.spiders[-1:]))
        for id_, kind, spiders in kinds[numbers.start : numbers.stop]:
            yield {
                "_id": id_, "at": self.at(DAY), "kind": kind, "spiders": spiders,
                "state": "active", "policy": "optimal", "objective": "balanced",
                "budget_per_day": float(self.sizes.targets), "shadow_price": 1.5, "totals": {},
            }  # fmt: skip

    def audit(self, numbers: range) -> Iterator[Document]:
        """Yield entries of the audit log."""
        for number in numbers:
            yield {
                "at": self.at(number * 60), "user": "anna", "action": "POST /changes/read",
                "detail": "marked 3 as read", "address": "127.0.0.1", "status": 303,
            }  # fmt: skip

    def outbox(self, numbers: range) -> Iterator[Document]:
        """Yield notification messages about the first targets: waiting, dead, delivered."""
        for number in numbers:
            at = self.at(number * 2)
            spider, url = self.name_of(number % self.sizes.targets)
            state = ("waiting", "dead", "delivered")[min(2, number // MAX_WAITING)]
            ended = {"waiting": "first_at", "dead": "dead_at", "delivered": "delivered_at"}
            row = {
                "_id": f"msg_{number:032x}", "channel": CHANNELS[number % 3], "rule": "cheap",
                "event": "changed", "spider": spider, "target": url, "at": at, "state": state,
                "due": at, "attempts": 1, ended[state]: at,
            }  # fmt: skip
            if state != "delivered":
                content = {f"field{n}": "x" * 50 for n in range(10)}
                row |= {"reason": "HTTP 503", "data": {"before": content, "after": content}}
            yield row

    def notification_rules(self, numbers: range) -> Iterator[Document]:
        """Yield one rule."""
        for number in numbers:
            keys = {"name": "cheap", "events": ["changed"], "when": ["price > 0"]}
            keys |= {"channels": ["team"]}
            yield {"_id": "cheap", "keys": keys, "by": "anna", "at": self.now, "edits": number}

    def parts(self) -> dict[str, tuple[int, Callable[[range], Iterator[Document]]]]:
        """Return for each collection the number of documents and their generator."""
        sizes = self.sizes
        return {
            "targets": (sizes.targets, self.targets),
            "visits": (len(self.log[0]), self.visits),
            "versions": (len(self.kept), self.versions),
            "posts": (sizes.posts, self.posts),
            "signatures": (sizes.posts, self.signatures),
            "clusters": (len(self.clusters), self.heads),
            "feeds": (sizes.feeds, self.feeds),
            "runs": (RUNS * len(self.spiders), self.runs),
            "sites": (len(self.spiders), self.sites),
            "plans": (2, self.plans),
            "audit": (AUDIT_ENTRIES, self.audit),
            "outbox": (MESSAGES, self.outbox),
            "notification_rules": (1, self.notification_rules),
        }


def content_hash(i: int, k: int) -> str:
    """Return the hash of version `k` of a content."""
    return f"{i:024x}{k:08x}"


def text_of(i: int, k: int) -> str:
    """Return version `k` of a text; versions differ in one word."""
    known = _vocabulary()
    words = known[np.random.default_rng(i).integers(0, len(known), WORDS)].tolist()
    if k:
        words[(k * 7) % WORDS] = f"version{k}"
    return " ".join(words) + "."


@cache
def _vocabulary() -> Array:
    rng = np.random.default_rng(SEED + 3)
    letters = np.array(list("aeiou" * 3 + "bcdfghjklmnpqrstvwxyz"))
    return np.array(["".join(rng.choice(letters, n)) for n in rng.integers(3, 11, 20_000)], object)


def fill(uri: str, sizes: Sizes) -> None:
    """Fill the database with two processes, then create its indexes."""
    data = Data(sizes, datetime.now(UTC).replace(microsecond=0))
    asyncio.run(_with_database(uri, schema.create_collections))
    process = multiprocessing.get_context("spawn").Process
    workers = [process(target=_write, args=(uri, data, part)) for part in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise RuntimeError("could not fill the database")
    asyncio.run(_with_database(uri, schema.prepare))


async def _with_database(uri: str, work: Callable[[Any], Any]) -> None:
    client: AsyncMongoClient[Document] = AsyncMongoClient(uri, tz_aware=True)
    async with client:
        await work(client.get_default_database())


def _write(uri: str, data: Data, part: int) -> None:
    """Write every second batch of each collection."""
    client: pymongo.MongoClient[Document]
    with pymongo.MongoClient(uri, tz_aware=True) as client:
        db = client.get_default_database(write_concern=UNJOURNALED)
        for name, (count, make) in data.parts().items():
            for numbers in _batches(count)[part::WORKERS]:
                db[name].insert_many(make(numbers), ordered=False, bypass_document_validation=True)


def _batches(count: int) -> Sequence[range]:
    return [range(start, min(start + BATCH, count)) for start in range(0, count, BATCH)]
