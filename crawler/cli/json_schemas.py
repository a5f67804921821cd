"""Schemas of the documents that commands print with `--json`."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, TypeAdapter

STRICT = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)


def adapter_of(json_type: Any) -> TypeAdapter[Any]:
    """Return the validator of a list of documents, which rejects unknown fields.

    A list, because pydantic does not accept a configuration for a TypedDict itself.

    json_type: from `FreshetCommand.json_types`
    """
    return TypeAdapter(list[json_type], config=STRICT)


def schema_of(json_type: Any) -> dict[str, Any]:
    """Return the JSON Schema of a document, with the definitions of the documents in it."""
    schema = adapter_of(json_type).json_schema()
    document: dict[str, Any] = schema["items"]
    definitions: dict[str, Any] = schema.get("$defs", {})
    if (reference := document.get("$ref")) is not None:
        document = definitions.pop(reference.rpartition("/")[2])
    return document | ({"$defs": definitions} if definitions else {})
