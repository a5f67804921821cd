"""Rows of `collections.toml` as JSON schemas."""

from __future__ import annotations

import tomllib

import pytest

from crawler.items import Kind
from crawler.storage.schema import schema_of


def test_a_type_is_checked_unless_it_is_in_parentheses() -> None:
    rows = tomllib.loads(
        """
        name = ["text, required", "its name"]
        size = ["count", "bytes"]
        note = ["(string or null)", "a remark"]
        """
    )

    assert schema_of("a file", rows) == {
        "bsonType": "object",
        "description": "a file",
        "required": ["name"],
        "properties": {
            "name": {"bsonType": "string", "description": "its name"},
            "size": {"bsonType": ["int", "long"], "minimum": 0, "description": "bytes"},
            "note": {"title": "string or null", "description": "a remark"},
        },
    }


def test_rules_name_enumerations_and_constants_of_the_code() -> None:
    rows = tomllib.loads(
        """
        kind = ["one of", "kind of target", {enum = "crawler.items:Kind"}]
        pages = ["array", "pages", {maxItems = "crawler.storage.readers:MAX_ITEMS"}]
        """
    )

    fields = schema_of("a row", rows)["properties"]

    assert fields["kind"]["enum"] == [str(kind) for kind in Kind]
    assert isinstance(fields["pages"]["maxItems"], int)


@pytest.mark.parametrize("is_checked", [True, False])
def test_paths_describe_documents_and_elements_of_arrays(is_checked: bool) -> None:
    rows = {"page": ["object", "a page"], "page.url": ["text", "its URL"], "hosts": ["array", "-"]}
    if is_checked:
        rows["hosts[]"] = ["object", "a host"]
    rows["hosts[].id"] = ["text, required", "its name"]

    fields = schema_of("a row", rows)["properties"]

    url = {"bsonType": "string", "description": "its URL"}
    assert fields["page"]["properties"] == {"url": url}
    element = fields["hosts"]["items"]
    assert element["required"] == ["id"]
    assert ("bsonType" in element) == is_checked
