"""Prepared databases that tests use one after another.

Creating the collections and indexes of a database takes a quarter of a second, ten times as long
as emptying them again.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymongo
from pymongo.database import Database

from crawler.storage.schema import prepare
from tests.integration.known_pages import on

Row = dict[str, Any]
Db = Database[Row]
# Free databases rest for a while: the server may still execute the last command of a process that
# a test has killed.
RESTING = 3
# Emptying larger collections takes longer than a new database.
MAX_DOCUMENTS = 2000


class DatabasePool:
    """Databases of one server. uri: with the name of any database at its end."""

    def __init__(self, uri: str) -> None:
        self._base = uri.rpartition("/")[0]
        self._client: pymongo.MongoClient[Row] = pymongo.MongoClient(uri)
        self._free: deque[str] = deque()
        self._prepared: Row = {}

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    @contextmanager
    def empty(self) -> Iterator[tuple[Db, str]]:
        """Yield a database without collections, and its URI; drop it at the end."""
        name = f"t{uuid.uuid4().hex}"
        with self._opened(name) as opened:
            try:
                yield opened
            finally:
                self._client.drop_database(name)

    @contextmanager
    def prepared(self, reuse: bool = True) -> Iterator[tuple[Db, str]]:
        """Yield a database with empty collections, and its URI.

        reuse: whether another test may use the database afterwards. It must not if anything outside
               of MongoDB, such as Redis, still knows its name.
        """
        name = self._free.popleft() if len(self._free) > RESTING else self._create()
        with self._opened(name) as opened:
            try:
                yield opened
            finally:
                if reuse and self._reset(self._client[name]):
                    self._free.append(name)
                else:
                    self._client.drop_database(name)

    @contextmanager
    def _opened(self, name: str) -> Iterator[tuple[Db, str]]:
        uri = f"{self._base}/{name}"
        client: pymongo.MongoClient[Row]
        with pymongo.MongoClient(uri, tz_aware=True) as client:
            yield client.get_default_database(), uri

    def _create(self) -> str:
        name = f"t{uuid.uuid4().hex}"
        on(f"{self._base}/{name}", prepare)
        self._prepared = self._prepared or _structure(self._client[name])
        return name

    def _reset(self, db: Db) -> bool:
        """Delete all documents; return false if the database cannot be as a prepared one."""
        if _structure(db) != self._prepared:
            return False
        names = self._prepared.keys() - {"meta", "views"}
        if sum(db[name].estimated_document_count() for name in names) > MAX_DOCUMENTS:
            return False
        for name in names:
            db[name].delete_many({})
        return True


def _structure(db: Db) -> Row:
    """Return the options and indexes of all collections, and the data version."""
    structure: Row = {"views": list(db.list_collections(filter={"type": "view"}))}
    structure |= {
        collection["name"]: (collection["options"], db[collection["name"]].index_information())
        for collection in db.list_collections(filter={"type": "collection"})
    }
    return structure | {"meta": list(db.meta.find())}
