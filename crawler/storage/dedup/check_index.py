"""Indexes of `scrapy duplicates check`: temporary, or kept under a name.

Each has three collections and a document in `meta`, which is written first, so that the next run
finds and removes the collections of a killed process.
"""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from bson import ObjectId
from pymongo import WriteConcern
from typing_extensions import TypedDict

from crawler.dedup.posts import ALONE, Candidate, Verdict, Verdicts
from crawler.dedup.schemes import Scheme
from crawler.errors import ConfigError, StorageError
from crawler.storage.client import UNJOURNALED, Database, Document
from crawler.storage.dedup import claims, edits, signatures
from crawler.storage.dedup.signatures import Registry
from crawler.utils.process import has_ended, this_process

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
KEPT, TEMPORARY = "check ", "check-run "
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

    async def review(self) -> None:
        """Compare texts again in which boilerplate was found since they were compared."""
        await claims.review(self.registry, self.judged_at)

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
        noted = {"$set": {"at": now}, "$max": {"last": self.last}}
        concern = registry.signatures.write_concern
        meta = self.db.get_collection("meta", write_concern=concern)
        await meta.update_one({"_id": self.key}, noted)
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
        # A temporary index does not need to wait for the journal.
        index = Index(db, key, _registry(db, key, scheme, UNJOURNALED))
        await index.registry.create_indexes()
        yield index
    finally:
        await _drop(db, key)


def check_name(name: str) -> None:
    """Raise ConfigError for an invalid index name."""
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"invalid name: {name!r}. Use up to 40 of the characters a-z, A-Z, 0-9, - and _"
        )


async def opened(db: Database, name: str, scheme: Scheme, now: datetime) -> Index:
    """Return the index kept under a name, creating it if needed.

    Raises StorageError if the index has another scheme.
    """
    key = f"{KEPT}{name}"
    new: Document = {"scheme": scheme.name, "made": now, "at": now, "last": LONG_AGO}
    await db.meta.update_one({"_id": key}, {"$setOnInsert": new}, upsert=True)
    meta = await db.meta.find_one({"_id": key}) or new
    if meta["scheme"] != scheme.name:
        stored = meta["scheme"].partition("-")[0]
        same = f"--scheme {stored}, " if stored != scheme.name.partition("-")[0] else ""
        raise StorageError(
            f"index {name!r} has the scheme {meta['scheme']}, not {scheme.name}. Use {same}another "
            f"name, or delete the index: scrapy duplicates kept --forget {name}"
        )
    index = Index(db, key, _registry(db, key, scheme, None), meta["last"])
    await index.registry.create_indexes()
    return index


class KeptIndex(TypedDict):
    """An index that `scrapy duplicates check --keep` stored."""

    name: str
    """Name of the index."""
    scheme: str
    """How the texts are compared."""
    texts: int
    """Number of texts."""
    clusters: int
    """Number of clusters of duplicates."""
    made_at: datetime
    """Time of the first check."""
    used_at: datetime
    """Time of the last check."""


async def kept(db: Database) -> list[KeptIndex]:
    """Return the kept indexes by name."""
    rows: list[KeptIndex] = []
    async for meta in db.meta.find({"_id": {"$regex": f"^{KEPT}"}}).sort("_id"):
        texts, clusters, _ = (db[name] for name in _collections(meta["_id"]))
        rows.append(
            {
                "name": meta["_id"].removeprefix(KEPT),
                "scheme": meta["scheme"],
                "texts": await texts.count_documents({}),
                "clusters": await clusters.count_documents({}),
                "made_at": meta["made"],
                "used_at": meta["at"],
            }
        )
    return rows


async def forget(db: Database, name: str) -> None:
    """Delete the index kept under a name."""
    await _drop(db, f"{KEPT}{name}")


def _collections(key: str) -> tuple[str, str, str]:
    """Return the names of the collections. No kept name begins with a hyphen."""
    name = key.removeprefix(KEPT) if key.startswith(KEPT) else key.replace(TEMPORARY, "-run-")
    return f"check_{name}_signatures", f"check_{name}_clusters", f"check_{name}_boilerplate"


def _registry(db: Database, key: str, scheme: Scheme, concern: WriteConcern | None) -> Registry:
    texts, clusters, boilerplate = (
        db.get_collection(name, write_concern=concern) for name in _collections(key)
    )
    if not scheme.weighs:
        return Registry(texts, clusters, scheme)
    registry = Registry(texts, clusters, scheme, boilerplate=boilerplate, keeps_texts=True)
    return replace(registry, read_again=partial(signatures.text_candidates, registry))


async def _drop(db: Database, key: str) -> None:
    for name in _collections(key):
        await db[name].drop()
    await db.meta.delete_one({"_id": key})
