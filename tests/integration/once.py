"""The database contents after one crawl, as a starting point for several tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from crawler.storage.schema import prepare
from tests.conftest import Databases
from tests.integration.harness import Db, Freshet, Row
from tests.integration.known_pages import on

Left = dict[str, list[Row]]


@contextmanager
def elsewhere(databases: Databases, folder: Path) -> Iterator[tuple[Freshet, Db, str]]:
    """Yield Freshet on a database shared by several tests, the database and its URI."""
    with (
        databases() as (db, uri),
        Freshet(folder, MONGO_URI=uri, FRESHET_DATA_DIR=folder / "data") as freshet,
    ):
        yield freshet, db, uri


def left_by(
    crawl: Callable[[Freshet], object], databases: Databases, folders: pytest.TempPathFactory
) -> Left:
    """Return the database contents after a function has crawled."""
    with elsewhere(databases, folders.mktemp("first")) as (freshet, db, _):
        crawl(freshet)
        return left_in(db)


def left_in(db: Db) -> Left:
    """Return all documents by collection, without the data version and ended leases."""
    names = set(db.list_collection_names()) - {"meta", "leases"}
    return {name: rows for name in sorted(names) if (rows := list(db[name].find()))}


def put_into(db: Db, uri: str, left: Left) -> None:
    """Store the documents in an empty database."""
    on(uri, prepare)
    for name, rows in left.items():
        db[name].insert_many(rows)
