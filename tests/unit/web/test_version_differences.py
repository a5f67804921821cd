"""Differences between two versions of a target: folding of unchanged lines far from an edit."""

from __future__ import annotations

import pytest

from crawler.reports.history import differences
from crawler.utils.edits import CONTEXT_LINES


def parts(unchanged: int) -> list[tuple[str, int]]:
    """Return kind and lines of the parts of a text with unchanged lines before an edit."""
    lines = [f"line {n}" for n in range(unchanged)]
    (difference,) = differences([{"text": "\n".join([*lines, word])} for word in ("old", "new")])
    (field,) = difference["fields"]
    return [(part["kind"], part["lines"]) for part in field["parts"]]


@pytest.mark.parametrize(
    ("unchanged", "expected"),
    [
        (CONTEXT_LINES, [("same", CONTEXT_LINES)]),
        (CONTEXT_LINES + 1, [("same", CONTEXT_LINES + 1)]),
        (CONTEXT_LINES + 2, [("folded", 2), ("same", CONTEXT_LINES)]),
    ],
)
def test_single_line_is_not_folded(unchanged: int, expected: list[tuple[str, int]]) -> None:
    assert parts(unchanged) == [*expected, ("changed", 1)]
