"""The indexes of a database beside those of the schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pymongo.errors import OperationFailure

from crawler.storage.client import Database, Document
from crawler.storage.schema import INDEXES

# What decides how an index works; the rest is the server's.
OPTIONS = (
    "unique", "sparse", "partialFilterExpression", "expireAfterSeconds", "default_language",
    "language_override",
)  # fmt: skip
TEXT = "text"
# In place of the fields of a text index.
OF_TEXT = ("_fts", "_ftsx")
NO_COLLECTION = 26


@dataclass(frozen=True, slots=True)
class Lack:
    """An index that is not as it should be.

    differs: there is another of its name
    command: for mongosh: what makes it as it should be
    """

    collection: str
    name: str
    differs: bool
    unique: bool
    command: str


async def lacking(db: Database) -> list[Lack]:
    """The schema's indexes that are missing, or are not what the schema says."""
    found: list[Lack] = []
    for collection, models in INDEXES.items():
        there = await definitions(db, collection)
        for wanted in (model.document for model in models):
            known = there.get(wanted["name"])
            if known is None or _shape(known) != _shape(wanted):
                found.append(_lack(collection, wanted, differs=known is not None))
    return found


async def definitions(db: Database, collection: str) -> dict[str, Document]:
    """The indexes of a collection by name, but that of `_id`; empty where there is none."""
    try:
        rows = await (await db[collection].list_indexes()).to_list(None)
    except OperationFailure as error:
        if error.code != NO_COLLECTION:
            raise
        rows = []
    return {row["name"]: dict(row) for row in rows if row["name"] != "_id_"}


def _lack(collection: str, wanted: Mapping[str, Any], *, differs: bool) -> Lack:
    name = wanted["name"]
    keys = json.dumps(dict(wanted["key"]))
    options = json.dumps({key: value for key, value in wanted.items() if key != "key"})
    command = f"db.{collection}.createIndex({keys}, {options})"
    if differs:
        command = f'db.{collection}.dropIndex("{name}"); {command}'
    return Lack(collection, name, differs, bool(wanted.get("unique")), command)


def _shape(index: Mapping[str, Any]) -> Document:
    """What two indexes have in common that do the same."""
    shape = {name: index[name] for name in OPTIONS if index.get(name)}
    return shape | {"key": list(_keys(index)), "weights": _weights(index)}


def _keys(index: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Fields and directions; the server keeps those of a text index among its weights."""
    for field, direction in index["key"].items():
        if direction != TEXT and field not in OF_TEXT:
            yield field, direction


def _weights(index: Mapping[str, Any]) -> dict[str, int]:
    keys = index["key"].items()
    texts = {field: 1 for field, kind in keys if kind == TEXT and field not in OF_TEXT}
    return texts | dict(index.get("weights", {}))
