"""The indexes of a database compared with those of the schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pymongo.errors import OperationFailure

from crawler.storage.client import Database, Document
from crawler.storage.schema import INDEXES

# Options that decide how an index works; the server adds others.
OPTIONS = (
    "unique", "sparse", "partialFilterExpression", "expireAfterSeconds", "default_language",
    "language_override",
)  # fmt: skip
TEXT = "text"
# The server's replacement for the fields of a text index.
TEXT_FIELDS = ("_fts", "_ftsx")
NAMESPACE_NOT_FOUND = 26


@dataclass(frozen=True, slots=True)
class Lack:
    """An index that is missing or differs from the schema.

    differs: another index has its name
    command: for mongosh, to create it
    """

    collection: str
    name: str
    differs: bool
    unique: bool
    command: str


async def lacking(db: Database) -> list[Lack]:
    """The schema's indexes that are missing, or differ from the schema."""
    lacks: list[Lack] = []
    for collection, models in INDEXES.items():
        existing = await definitions(db, collection)
        for index in (model.document for model in models):
            name, same_name = index["name"], existing.get(index["name"])
            if same_name is not None and _shape(same_name) == _shape(index):
                continue
            keys = json.dumps(dict(index["key"]))
            options = json.dumps({key: value for key, value in index.items() if key != "key"})
            command = f"db.{collection}.createIndex({keys}, {options})"
            if same_name is not None:
                command = f'db.{collection}.dropIndex("{name}"); {command}'
            is_unique = bool(index.get("unique"))
            lacks.append(Lack(collection, name, same_name is not None, is_unique, command))
    return lacks


async def definitions(db: Database, collection: str) -> dict[str, Document]:
    """The indexes of a collection by name, without that of `_id`; empty without a collection."""
    try:
        rows = await (await db[collection].list_indexes()).to_list(None)
    except OperationFailure as error:
        if error.code != NAMESPACE_NOT_FOUND:
            raise
        rows = []
    return {row["name"]: dict(row) for row in rows if row["name"] != "_id_"}


def _shape(index: Mapping[str, Any]) -> Document:
    """The properties that two indexes with the same effect have in common."""
    options = {name: index[name] for name in OPTIONS if index.get(name)}
    # The server moves the fields of a text index to its weights.
    fields = [(name, kind) for name, kind in index["key"].items() if name not in TEXT_FIELDS]
    texts = {name: 1 for name, kind in fields if kind == TEXT}
    return options | {
        "key": [(name, kind) for name, kind in fields if kind != TEXT],
        "weights": texts | dict(index.get("weights", {})),
    }
