"""What one crawl left in the database, for each of the tests that go on from there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crawler.storage.schema import prepare
from tests.conftest import Databases
from tests.integration.harness import Db, Freshet, Row
from tests.integration.known_pages import on

Left = dict[str, list[Row]]


@contextmanager
def elsewhere(databases: Databases, folder: Path) -> Iterator[tuple[Freshet, Db, str]]:
    """Freshet on a database that is no test's own, with that and its URI."""
    with (
        databases() as (db, uri),
        Freshet(folder, MONGO_URI=uri, FRESHET_DATA_DIR=folder / "data") as freshet,
    ):
        yield freshet, db, uri


def left_in(db: Db) -> Left:
    """All documents by collection, but for the version of the data, and leases of who is gone."""
    names = set(db.list_collection_names()) - {"meta", "leases"}
    return {name: rows for name in sorted(names) if (rows := list(db[name].find()))}


def put_into(db: Db, uri: str, left: Left) -> None:
    """Store them in a database that was empty."""
    on(uri, prepare)
    for name, rows in left.items():
        db[name].insert_many(rows)
