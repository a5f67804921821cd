"""Names of fields and keys, including names that pages choose."""

from __future__ import annotations

from typing import Any

import pytest

from crawler.extract.content import MAX_NESTED, fill, normal
from crawler.items import Fetched, Kind
from crawler.utils.text import storable_name, with_storable_names
from pipelines.content import ContentPipeline
from tests.unit.pages import fetched, target, wrapper


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("title", "title"),
        ("a_1-b c", "a_1-b c"),
        ("$where", "＄where"),
        ("$$NOW", "＄$NOW"),
        ("a$b", "a$b"),
        ("a.b.c", "a．b．c"),
        (".", "．"),
        ("$.a", "＄．a"),
        ("", "_"),
    ],
)
def test_storable_name(name: str, stored: str) -> None:
    assert storable_name(name) == stored
    assert storable_name(stored) == stored


def test_nested_names_are_made_storable() -> None:
    value = {"a.b": [{"$set": {"": 1}}, "a.b", ["$x"]], "c": "$d"}
    assert with_storable_names(value) == {"a．b": [{"＄set": {"_": 1}}, "a.b", ["$x"]], "c": "$d"}


def filled(**seen: Any) -> Fetched:
    """Return a fetch after the content pipeline."""
    page: Fetched = ContentPipeline().process_item(fetched(**seen))
    return page


def test_names_become_strings() -> None:
    page = filled(content={1: 2, None: 3, "a\0b": 4, "\ud800": 5})
    assert page.content == {"1": 2, "None": 3, "ab": 4, "\ufffd": 5}


def test_hash_uses_original_names() -> None:
    page = fetched(content={"a": {"b.c": 1, "$d": 2}, "e": "f"})
    fill(page)
    assert page.content == {"a": {"b．c": 1, "＄d": 2}, "e": "f"}
    assert page.content_hash == "f8f9e685a5b9952d62a1c77ac5dd39cc"


def test_columns_match_names_in_rows() -> None:
    cell = target(Kind.CELL)
    page = filled(of=cell, content={"columns": ["count(t.x)", ""], "rows": [{"count(t.x)": 1}]})
    assert page.content == {"columns": ["count(t．x)", "_"], "rows": [{"count(t．x)": 1}]}


def test_compared_fields_have_storable_names() -> None:
    assert wrapper(duplicates=["a.b", "title"]).compared == ("a．b", "title")


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"n": value}
    return value


def test_content_nested_too_deeply_is_an_error() -> None:
    assert normal(nested(MAX_NESTED)) == nested(MAX_NESTED)
    page = filled(content=nested(MAX_NESTED + 1))
    assert page.outcome == "error"
    assert page.reason == "cannot be normalized: ValueError: nested deeper than 90 levels"


def test_invalid_characters_in_reason_are_replaced() -> None:
    page = filled(outcome="error", reason="KeyError: a\0\ud800")
    assert page.reason == "KeyError: a\ufffd"
