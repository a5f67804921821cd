"""Indexes apart from the posts': for one run, or kept under a name.

Each has three collections and a document in `meta`, which is there first: so what a killed process
leaves is known, and removed by the next.
"""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from bson import ObjectId
from pymongo import WriteConcern

from crawler.dedup.model import Candidate
from crawler.dedup.scheme import Scheme
from crawler.errors import ConfigError, StorageError
from crawler.storage.client import UNHURRIED, Database, Document
from crawler.storage.dedup.batch import Judged, judge
from crawler.storage.dedup.registry import Registry
from crawler.storage.dedup.signatures import candidates_of
from crawler.storage.leases import has_ended, this_process

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
KEPT, OF_A_RUN = "check ", "check-run "
MILLISECOND = timedelta(milliseconds=1)
# Whether a process of another machine is at work cannot be asked.
ABANDONED = timedelta(days=7)
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Index:
    """An index in use. last: the latest time that it gave to a text without one."""

    db: Database
    key: str
    registry: Registry
    last: datetime = LONG_AGO
    judged_at: datetime = LONG_AGO

    def tick(self, now: datetime) -> datetime:
        """A time of creation for the next text without one: later than all before."""
        self.last = max(self.last + MILLISECOND, now)
        return self.last

    async def judge(
        self, candidates: Sequence[Candidate], emptied: Sequence[str], now: datetime
    ) -> Judged:
        """What texts are; emptied: keys of texts that have nothing to compare."""
        now = self.judged_at = max(self.judged_at + MILLISECOND, now)
        judged = await judge(self.registry, candidates, emptied, now)
        noted = {"$set": {"at": now}, "$max": {"last": self.last}}
        concern = self.registry.signatures.write_concern
        meta = self.db.get_collection("meta", write_concern=concern)
        await meta.update_one({"_id": self.key}, noted)
        return judged


@asynccontextmanager
async def temporary(db: Database, scheme: Scheme, now: datetime) -> AsyncIterator[Index]:
    """An empty index that is gone afterwards, whatever happens."""
    await sweep(db, now)
    key = f"{OF_A_RUN}{ObjectId()}"
    await db.meta.insert_one({"_id": key, "at": now} | this_process())
    try:
        # What will be dropped need not wait for the journal.
        index = Index(db, key, _registry(db, key, scheme, UNHURRIED))
        await index.registry.create_indexes()
        yield index
    finally:
        await _drop(db, key)


async def sweep(db: Database, now: datetime) -> None:
    """Remove the indexes of runs whose processes have gone."""
    async for run in db.meta.find({"_id": {"$regex": f"^{OF_A_RUN}"}}):
        is_old_elsewhere = run["at"] < now - ABANDONED and run["host"] != socket.gethostname()
        if is_old_elsewhere or has_ended(run["place"], run["pid"], run["began"]):
            await _drop(db, run["_id"])


def check_name(name: str) -> None:
    """Raise ConfigError for what no index can be named."""
    if not NAME.fullmatch(name):
        raise ConfigError(f"{name!r}: a name has up to 40 of the characters a-z, A-Z, 0-9, - and _")


async def opened(db: Database, name: str, scheme: Scheme, now: datetime) -> Index:
    """The index that is kept under a name, made where there is none.

    Raises StorageError where it is of another scheme.
    """
    key = f"{KEPT}{name}"
    new: Document = {"scheme": scheme.name, "made": now, "at": now, "last": LONG_AGO}
    await db.meta.update_one({"_id": key}, {"$setOnInsert": new}, upsert=True)
    meta = await db.meta.find_one({"_id": key}) or new
    if meta["scheme"] != scheme.name:
        usual = meta["scheme"].partition("-")[0]
        same = f"--scheme {usual}, " if usual != scheme.name.partition("-")[0] else ""
        raise StorageError(
            f"{name} has been compared by {meta['scheme']}, this run asks for {scheme.name}: "
            f"{same}another name, or scrapy duplicates kept --forget {name}"
        )
    index = Index(db, key, _registry(db, key, scheme, None), meta["last"])
    await index.registry.create_indexes()
    return index


async def names(db: Database) -> list[Document]:
    """What is kept: name, scheme, how many texts and clusters, and since when."""
    rows = []
    async for meta in db.meta.find({"_id": {"$regex": f"^{KEPT}"}}).sort("_id"):
        texts, clusters, _ = (db[name] for name in _collections(meta["_id"]))
        rows.append(
            {"name": meta["_id"].removeprefix(KEPT), "scheme": meta["scheme"]}
            | {"texts": await texts.count_documents({})}
            | {"clusters": await clusters.count_documents({})}
            | {"made": meta["made"], "used": meta["at"]}
        )
    return rows


async def forget(db: Database, name: str) -> None:
    """Remove what is kept under a name."""
    await _drop(db, f"{KEPT}{name}")


def _collections(key: str) -> tuple[str, str, str]:
    """Names of the collections. No kept name begins with a hyphen."""
    name = key.removeprefix(KEPT) if key.startswith(KEPT) else key.replace(OF_A_RUN, "-run-")
    return f"check_{name}_signatures", f"check_{name}_clusters", f"check_{name}_boilerplate"


def _registry(db: Database, key: str, scheme: Scheme, concern: WriteConcern | None) -> Registry:
    signatures, clusters, boilerplate = (
        db.get_collection(name, write_concern=concern) for name in _collections(key)
    )
    if not scheme.weighs:
        return Registry(signatures, clusters, scheme)
    registry = Registry(signatures, clusters, scheme, boilerplate=boilerplate, keeps_texts=True)
    return replace(registry, read_again=partial(candidates_of, registry))


async def _drop(db: Database, key: str) -> None:
    for name in _collections(key):
        await db[name].drop()
    await db.meta.delete_one({"_id": key})
