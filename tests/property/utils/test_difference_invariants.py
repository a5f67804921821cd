"""Invariants of difference sizes: they form a metric."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from crawler.utils.diff import Matcher, by_word, diff_size
from crawler.utils.edits import DiffBuilder, DiffPart

TEXTS = st.text("ab\n", max_size=40) | st.text(max_size=20)
LINES = st.lists(st.text("ab ", min_size=1, max_size=4), max_size=12)


@given(TEXTS, TEXTS)
def test_size_is_symmetric(one: str, other: str) -> None:
    assert diff_size(one, other) == diff_size(other, one)


@given(TEXTS, TEXTS)
def test_size_is_zero_only_for_equal_texts(one: str, other: str) -> None:
    assert diff_size(one, one) == 0
    assert (diff_size(one, other) == 0) == (one == other)


@given(TEXTS, TEXTS, TEXTS)
def test_size_satisfies_triangle_inequality(one: str, between: str, other: str) -> None:
    assert diff_size(one, other) <= diff_size(one, between) + diff_size(between, other)


@given(TEXTS, TEXTS)
def test_size_is_bounded_by_lengths(one: str, other: str) -> None:
    size = diff_size(one, other)
    assert abs(len(one) - len(other)) <= size <= len(one) + len(other)


@given(TEXTS, TEXTS, st.integers(0, 40))
def test_insertion_counts_its_characters(text: str, inserted: str, at: int) -> None:
    assert diff_size(text, text[:at] + inserted + text[at:]) == len(inserted)


@given(LINES, LINES)
def test_parts_reproduce_the_lines_of_both_sides(before: list[str], after: list[str]) -> None:
    parts = list(DiffBuilder(Matcher()).parts(before, after))
    assert side(parts, "deleted", before) == before
    assert side(parts, "inserted", after) == after
    assert any(part["kind"] == "changed" for part in parts) == (before != after)


def side(parts: list[DiffPart], kind: str, lines: list[str]) -> list[str]:
    """Return the lines of one side; folded ones are taken from `lines`."""
    shown: list[str] = []
    for part in parts:
        texts = [each["text"] for each in part["segments"] if each["kind"] in ("same", kind)]
        if part["kind"] == "folded":
            shown += lines[len(shown) : len(shown) + part["lines"]]
        elif any(texts):
            shown += "".join(texts).split("\n")
    return shown


@given(LINES, LINES, st.sampled_from([0, 4, 1000]))
def test_runs_are_equal_and_in_order_within_any_budget(
    one: list[str], other: list[str], pairs: int
) -> None:
    at = to = 0
    for i, j, n in Matcher(pairs).runs(one, other):
        assert i >= at
        assert j >= to
        assert n > 0
        assert one[i : i + n] == other[j : j + n]
        at, to = i + n, j + n


@given(TEXTS, TEXTS, st.sampled_from([0, 4, 1000]))
def test_word_diff_reproduces_both_texts(one: str, other: str, pairs: int) -> None:
    changes = by_word(one, other, Matcher(pairs))
    assert "".join(change.same + change.old for change in changes) == one
    assert "".join(change.same + change.new for change in changes) == other
    assert any(change.old or change.new for change in changes) == (one != other)
