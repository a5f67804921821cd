"""Temporary indexes of `scrapy duplicates check`.

Each has three collections and a document in `meta`, which is written first, so that the next run
finds and removes the collections of a killed process.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from bson import ObjectId

from crawler.dedup.posts import ALONE, Candidate, Verdict, Verdicts
from crawler.dedup.schemes import Scheme
from crawler.storage.client import UNJOURNALED, Database, Document
from crawler.storage.dedup import claims, edits, signatures
from crawler.storage.dedup.signatures import Registry
from crawler.utils.process import has_ended, this_process

TEMPORARY = "check-run "
MILLISECOND = timedelta(milliseconds=1)
# The state of a process on another machine is unknown.
ABANDONED = timedelta(days=7)
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class BatchVerdicts:
    """Verdicts on the texts of a batch that are in clusters.

    replaced: the original of an earlier batch, by the new original that took its place
    """

    verdicts: Verdicts = field(default_factory=dict)
    replaced: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Index:
    """An open index. last: the latest date that was given to a text without a date."""

    db: Database
    key: str
    registry: Registry
    last: datetime = LONG_AGO
    judged_at: datetime = LONG_AGO

    def tick(self, now: datetime) -> datetime:
        """Return the date of the next text without a date: later than all earlier ones."""
        self.last = max(self.last + MILLISECOND, now)
        return self.last

    async def judge(
        self, candidates: Sequence[Candidate], emptied: Sequence[str], now: datetime
    ) -> BatchVerdicts:
        """Claim texts, then read their clusters again, and return the verdicts.

        A claim returns each text's verdict, which another text of the batch may have changed since.
        Posts are confirmed after they are stored, but printed verdicts cannot be corrected.

        emptied: keys of texts with nothing to compare; earlier versions may have been claimed
        """
        registry = self.registry
        # No other batch has this time.
        now = self.judged_at = max(self.judged_at + MILLISECOND, now)
        await edits.release(registry, emptied, now)
        rows = await _stored_rows(registry, candidates, {"sketch": 1, "created": 1, "seen": 1})
        # Candidates that are new, have an earlier date, or have another text.
        new = [
            candidate
            for candidate in candidates
            if (row := rows.get(candidate.key)) is None
            or signatures.is_earlier(candidate, row)
            or row["sketch"] != candidate.sketch.encode()
        ]
        claimed = await claims.claim(registry, new, now)
        stored = await _stored_rows(registry, candidates, {"at": 1, "cluster": 1})
        query = {"_id": {"$in": [row["cluster"] for row in stored.values() if "cluster" in row]}}
        clusters = {row["_id"]: row async for row in registry.clusters.find(query)}
        clustered = {
            candidate: cluster
            for candidate in candidates
            if (cluster := clusters.get(stored.get(candidate.key, {}).get("cluster"))) is not None
        }
        # The original before this batch, by the current one.
        new_keys = {key for key, row in stored.items() if row["at"] == now}
        replaced = {}
        for cluster in clusters.values():
            before = [change["was"] for change in cluster.get("changes", ()) if change["at"] == now]
            if before and before[0] not in new_keys and before[0] != cluster["post"]:
                replaced[cluster["post"]] = before[0]
        meta = self.db.get_collection("meta", write_concern=UNJOURNALED)
        await meta.update_one({"_id": self.key}, {"$set": {"at": now}})
        return BatchVerdicts(await _current_verdicts(registry, claimed, clustered), replaced)


async def _stored_rows(
    registry: Registry, candidates: Sequence[Candidate], fields: Document
) -> dict[str, Document]:
    """Return the stored signatures of texts, by key."""
    query = {"_id": {"$in": [candidate.id for candidate in candidates]}}
    return {row["post"]: row async for row in registry.signatures.find(query, fields | {"post": 1})}


async def _current_verdicts(
    registry: Registry, claimed: Verdicts, clustered: dict[Candidate, Document]
) -> Verdicts:
    """Return the verdicts of texts that are in clusters now."""
    verdicts = {candidate.key: claimed.get(candidate.key, ALONE) for candidate in clustered}
    stale = {
        cluster["original"]
        for candidate, cluster in clustered.items()
        if cluster["post"] not in (candidate.key, verdicts[candidate.key].duplicate_of)
    }
    originals = await signatures.by_id(registry, stale) if stale else {}
    for candidate, cluster in clustered.items():
        if cluster["post"] == candidate.key:
            verdicts[candidate.key] = Verdict(cluster=cluster["_id"])
        elif cluster["original"] in originals:
            original = signatures.owner_of(originals[cluster["original"]])
            similarity = candidate.sketch.similarity(original.sketch)
            verdicts[candidate.key] = Verdict(original.post, similarity, cluster["_id"])
    return verdicts


@asynccontextmanager
async def temporary(db: Database, scheme: Scheme, now: datetime) -> AsyncIterator[Index]:
    """Yield an empty index, and delete it afterwards; also delete what crashes have left."""
    # Indexes of processes that have ended.
    async for run in db.meta.find({"_id": {"$regex": f"^{TEMPORARY}"}}):
        is_old_elsewhere = run["at"] < now - ABANDONED and run["host"] != socket.gethostname()
        if is_old_elsewhere or has_ended(run["place"], run["pid"], run["began"]):
            await _drop(db, run["_id"])
    key = f"{TEMPORARY}{ObjectId()}"
    await db.meta.insert_one({"_id": key, "at": now} | this_process())
    try:
        index = Index(db, key, _registry(db, key, scheme))
        await index.registry.create_indexes()
        yield index
    finally:
        await _drop(db, key)


def _collections(key: str) -> tuple[str, str, str]:
    """Return the names of the collections of an index."""
    name = key.removeprefix(TEMPORARY)
    return f"check_{name}_signatures", f"check_{name}_clusters", f"check_{name}_boilerplate"


def _registry(db: Database, key: str, scheme: Scheme) -> Registry:
    # A temporary index does not need to wait for the journal.
    texts, clusters, boilerplate = (
        db.get_collection(name, write_concern=UNJOURNALED) for name in _collections(key)
    )
    if not scheme.weighs:
        return Registry(texts, clusters, scheme)
    registry = Registry(texts, clusters, scheme, boilerplate=boilerplate, keeps_texts=True)
    return replace(registry, read_again=partial(signatures.text_candidates, registry))


async def _drop(db: Database, key: str) -> None:
    for name in _collections(key):
        await db[name].drop()
    await db.meta.delete_one({"_id": key})
