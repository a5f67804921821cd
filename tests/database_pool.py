"""Prepared databases that tests use one after another.

Creating the collections and indexes of a database takes a quarter of a second, ten times as long
as emptying them again.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pymongo
from pymongo.database import Database

from crawler.storage.schema import prepare
from tests.integration.known_pages import on

Row = dict[str, Any]
Db = Database[Row]
Cleaner = Callable[[str], None]
# Number of free databases that are not reused yet, because the server may still execute the last
# command of a process that a test has killed.
RESTING = 3
# Emptying larger collections takes longer than a new database.
MAX_DOCUMENTS = 2000


class DatabasePool:
    """Databases of one server.

    uri: ends with the name of any database; cleaners: functions that delete the data of a database
    on other servers, given its name.
    """

    def __init__(self, uri: str, cleaners: Sequence[Cleaner]) -> None:
        self._cleaners = cleaners
        self._base = uri.rpartition("/")[0]
        self._client: pymongo.MongoClient[Row] = pymongo.MongoClient(uri, tz_aware=True)
        self._free: deque[str] = deque()
        self._prepared: dict[str, Row] = {}
        self._meta: list[Row] = []

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    @contextmanager
    def empty(self) -> Iterator[tuple[Db, str]]:
        """Yield a database without collections, and its URI; drop it at the end."""
        name = f"t{uuid.uuid4().hex}"
        try:
            yield self._opened(name)
        finally:
            self._client.drop_database(name)

    @contextmanager
    def prepared(self) -> Iterator[tuple[Db, str]]:
        """Yield a database with empty collections, and its URI."""
        name = self._free.popleft() if len(self._free) > RESTING else self._create()
        try:
            yield self._opened(name)
        finally:
            if self._reset(self._client[name]):
                self._free.append(name)
            else:
                self._client.drop_database(name)

    def _opened(self, name: str) -> tuple[Db, str]:
        return self._client[name], f"{self._base}/{name}"

    def _create(self) -> str:
        name = f"t{uuid.uuid4().hex}"
        on(f"{self._base}/{name}", prepare)
        if not self._prepared:
            self._prepared = self._structure(name)
            self._meta = list(self._client[name].meta.find())
        return name

    def _reset(self, db: Db) -> bool:
        """Empty a database; return false if it cannot be reset to the prepared state."""
        for clean in self._cleaners:
            clean(db.name)
        structure = self._structure(db.name)
        if structure.pop("system.profile", None):
            db.command("profile", 0)
            db.drop_collection("system.profile")
        for name in structure.keys() & self._prepared.keys():
            indexes = structure[name]["indexes"]
            for index in indexes.keys() - self._prepared[name]["indexes"].keys():
                db[name].drop_index(index)
                del indexes[index]
        if structure != self._prepared:
            return False
        counts = _counts(db, self._prepared)
        if sum(counts.values()) > MAX_DOCUMENTS:
            return False
        for name, count in counts.items():
            if count:
                db[name].delete_many({})
        db.meta.insert_many(self._meta)
        return True

    def _structure(self, name: str) -> dict[str, Row]:
        """Return the type, options and indexes of each collection and view."""
        pipeline = [
            {"$listCatalog": {}},
            {"$match": {"db": name}},
            {"$project": {"name": 1, "type": 1, "md.options": 1, "md.indexes.spec": 1}},
        ]
        structure = {}
        for entry in self._client.admin.aggregate(pipeline):
            described = entry.get("md", {})
            options = described.get("options", {})
            options.pop("uuid", None)
            specs = [index["spec"] for index in described.get("indexes", ())]
            structure[entry["name"]] = {
                "type": entry["type"],
                "options": options,
                "indexes": {spec["name"]: spec for spec in specs},
            }
        return structure


def _counts(db: Db, names: Iterable[str]) -> dict[str, int]:
    """Count the documents of all collections in one command."""
    count = [{"$collStats": {"count": {}}}]
    parts = [{"$unionWith": {"coll": name, "pipeline": count}} for name in names]
    rows = db.aggregate([{"$documents": []}, *parts])
    return {row["ns"].partition(".")[2]: row["count"] for row in rows}
