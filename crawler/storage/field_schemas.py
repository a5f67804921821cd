"""JSON schemas of stored fields, for the validators of the collections.

The server validates `bsonType`, `enum` and the like. `description` and `title` are for the
reference (docs/reference_pages.py). A field with a `title` is documented with this type, but not
validated.
"""

from __future__ import annotations

from collections.abc import Iterable

from crawler.storage.client import Document


def text(description: str) -> Document:
    """Return the schema of a text."""
    return {"bsonType": "string", "description": description}


def time(description: str) -> Document:
    """Return the schema of a time."""
    return {"bsonType": "date", "description": description}


def maybe_time(description: str) -> Document:
    """Return the schema of a time that may be null."""
    return {"bsonType": ["date", "null"], "description": description}


def count(description: str) -> Document:
    """Return the schema of a number of things."""
    return {"bsonType": ["int", "long"], "minimum": 0, "description": description}


def number(description: str) -> Document:
    """Return the schema of a number that is not negative."""
    return {"bsonType": ["int", "long", "double"], "minimum": 0, "description": description}


def typed(kind: str | list[str], description: str) -> Document:
    """Return the schema of a value of BSON types."""
    return {"bsonType": kind, "description": description}


def texts(description: str) -> Document:
    """Return the schema of an array of texts."""
    return {"bsonType": "array", "items": {"bsonType": "string"}, "description": description}


def one_of(values: Iterable[object], description: str) -> Document:
    """Return the schema of a value from a list."""
    return {"enum": list(values), "description": description}


def document(required: list[str], description: str, properties: Document) -> Document:
    """Return the schema of a document."""
    schema: Document = {
        "bsonType": "object", "description": description, "properties": properties,
    }  # fmt: skip
    return schema | ({"required": required} if required else {})


def validator(required: list[str], description: str, properties: Document) -> Document:
    """Return the validator of a collection."""
    return {"$jsonSchema": document(required, description, properties)}


def shown(kind: str, description: str) -> Document:
    """Return the schema of a field that is documented with a type, but not validated."""
    return {"title": kind, "description": description}


def shown_object(description: str, properties: Document) -> Document:
    """Return the schema of a document that is not validated, and of its fields."""
    return shown("object", description) | {"properties": properties}


def shown_rows(description: str, properties: Document) -> Document:
    """Return the schema of an array of documents that are not validated."""
    return shown("array of objects", description) | {"items": {"properties": properties}}
