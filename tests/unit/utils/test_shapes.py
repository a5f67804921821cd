"""Reports filled from documents and objects with fields of the same names."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import NotRequired

from typing_extensions import TypedDict

from crawler.utils.shapes import copied

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)


class Part(TypedDict):
    name: str


class Report(TypedDict):
    name: str
    at: datetime | None
    count: int
    share: float | None
    flag: bool
    names: list[str]
    parts: dict[str, Part]
    more: NotRequired[list[str]]


def test_values_of_the_same_names_are_copied() -> None:
    parts = {"a": {"name": "a"}}
    stored = {"name": "x", "at": NOON, "count": 3, "share": 0.5, "flag": True, "names": ["a"]}
    assert copied(Report, {**stored, "parts": parts, "_id": 1}) == {**stored, "parts": parts}


def test_values_that_are_not_stored_are_empty() -> None:
    empty: dict[str, object] = {
        "at": None,
        "count": 0,
        "share": None,
        "flag": False,
        "names": [],
        "parts": {},
    }
    assert copied(Report, {"name": "x", "names": None}) == {"name": "x", **empty}
    first, second = copied(Report, {}), copied(Report, {})
    first["names"].append("a")
    assert second["names"] == [], "reports share a list"


def test_text_that_is_not_stored_is_left_out() -> None:
    """A missing name is an error in the tests of JSON output, not an empty name."""
    assert "name" not in copied(Report, {})


def test_flags_may_be_stored_as_numbers() -> None:
    assert copied(Report, {"flag": 1})["flag"] is True


def test_attributes_of_objects_are_copied() -> None:
    assert copied(Report, SimpleNamespace(name="x", count=2))["count"] == 2
