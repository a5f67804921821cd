"""The summary lines printed by `scrapy changes`."""

from __future__ import annotations

from typing import Any

import pytest

from crawler.reports.changes import MAX_SUMMARY, summary_of

LONG = "word " * 30


@pytest.mark.parametrize(
    ("before", "after", "summary"),
    [
        (None, {"title": None, "price": 3}, "3"),
        (None, {"links": ["a", "b"]}, "2 links"),
        (None, {}, ""),
        ({"price": 3, "title": "x"}, {"price": 4, "title": "x"}, "price: 3 -> 4"),
        ({"price": 3}, {"price": None}, "price: removed"),
        ({}, {"price": 3}, "price: 3"),
        ({"text": "a"}, {"text": LONG}, "text edited (7 characters differ)"),
        ({}, {"text": LONG}, "text: new"),
        ({"links": ["a", "b"]}, {"links": ["b", "c", "d"]}, "links: +2 -1"),
        ({"links": ["a", "b"]}, {"links": ["b", "a"]}, "links: reordered"),
        ({"p": {"amount": 3}}, {"p": {"amount": 4}}, "p: 3 -> 4"),
        (
            {"price": {"amount": 69.6, "currency": "£"}},
            {"price": {"amount": 1250, "currency": "£"}},
            "price: £69.60 -> £1,250",
        ),
        ({"a": 1}, None, "7 characters differ"),
        (
            dict.fromkeys("abcdefg", 1), dict.fromkeys("abcdefg", 2),
            "a: 1 -> 2; b: 1 -> 2; c: 1 -> 2; d: 1 -> 2; e: 1 -> 2; and 2 more fields",
        ),
    ],
)  # fmt: skip
def test_change_is_summarized_on_one_line(
    before: dict[str, Any] | None, after: dict[str, Any] | None, summary: str
) -> None:
    assert summary_of(before, after, 7, is_new=before is None) == summary


def test_summary_is_short_and_has_no_escape_codes() -> None:
    summary = summary_of(None, {"title": "\x1b[2J" + LONG * 1000}, 0, is_new=True)
    assert len(summary) <= MAX_SUMMARY
    assert "\x1b" not in summary
