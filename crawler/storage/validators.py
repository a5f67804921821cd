"""Validators of the collections, read from `collections.toml`, which also describes each field."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from crawler.storage.client import Document

# Types of `collections.toml` that are more than a BSON type.
TYPES: dict[str, Document] = {
    "text": {"bsonType": "string"},
    "texts": {"bsonType": "array", "items": {"bsonType": "string"}},
    "time": {"bsonType": "date"},
    "time or null": {"bsonType": ["date", "null"]},
    "count": {"bsonType": ["int", "long"], "minimum": 0},
    "number": {"bsonType": ["int", "long", "double"], "minimum": 0},
    "one of": {},
}
REQUIRED = ", required"


def schema_of(about: str, fields: Mapping[str, Sequence[Any]]) -> Document:
    """Return the JSON schema of documents with these rows of `collections.toml`, by path."""
    root: Document = {"bsonType": "object", "description": about}
    schemas = {"": root}
    for path, (kind, description, *rules) in fields.items():
        name = kind.removesuffix(REQUIRED)
        if name.startswith("("):
            schema: Document = {"title": name[1:-1]}
        else:
            types = name.split(" or ")
            schema = dict(TYPES.get(name, {"bsonType": types if len(types) > 1 else name}))
        schemas[path] = schema
        schema["description"] = description
        for rule, value in rules[0].items() if rules else ():
            schema[rule] = value_of(value)
        if path.endswith("[]"):
            schemas[path[:-2]]["items"] = schema
            continue
        outer, _, field = path.rpartition(".")
        if outer not in schemas:
            schemas[outer] = schemas[outer[:-2]]["items"] = {}
        parent = schemas[outer]
        parent.setdefault("properties", {})[field] = schema
        if name != kind:
            parent.setdefault("required", []).append(field)
    return root


def value_of(rule: Any) -> Any:
    """Return the value of a rule: a text names a constant or an enumeration of the code."""
    if not isinstance(rule, str):
        return rule
    value = resolve_name(rule)
    return [str(each) for each in value] if isinstance(value, Iterable) else value


VALIDATORS: dict[str, Document] = {
    name: {"$jsonSchema": schema_of(collection["about"], collection["fields"])}
    for name, collection in tomllib.loads(
        Path(__file__).with_name("collections.toml").read_text(encoding="utf-8")
    ).items()
}
