"""Edits between two contents: each place with whole words, short before what changed."""

from __future__ import annotations

import pytest

from crawler.utils.edits import Edit, edits
from tests.integration.claiming import text

LONG = text(1, 300)


def between(before: object, after: object) -> tuple[list[tuple[str | None, str | None]], int]:
    found, more = edits({"f": before}, {"f": after}, 5, 500)
    return [(edit.before, edit.after) for edit in found], more


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("In stock (9 available)", "Out of stock"),
        ("Open 9-17", "Open 9-18"),
        ("£510.67", "£459.60"),
        ("1.299,00 €", "1.199,00 €"),
    ],
)
def test_short_values_are_whole(before: str, after: str) -> None:
    assert between(before, after) == ([(before, after)], 0)


def test_values_are_shown_as_people_write_them() -> None:
    prices = [{"amount": amount, "currency": "£"} for amount in (510.67, 459.6)]
    assert between(*prices) == ([("£510.67", "£459.60")], 0)
    assert between(["a", "b"], ["a"]) == ([("a, b", "a")], 0)
    assert between(None, "new") == ([(None, "new")], 0)


def test_a_place_in_a_long_text_is_shown_with_the_words_around_it() -> None:
    before = f"{LONG}\nThe kettle costs 510.67 EUR today.\n{LONG}"
    ((old, new),), more = between(before, before.replace("510.67", "459.60"))
    assert (old, new, more) == (
        "The kettle costs 510.67 EUR today.", "The kettle costs 459.60 EUR today.", 0,
    )  # fmt: skip


def test_each_place_is_an_edit_and_the_rest_is_counted() -> None:
    lines = [f"{LONG} line {n} was written by A{n}" for n in range(8)]
    after = [line.replace(f"by A{n}", f"by B{n}") for n, line in enumerate(lines)]
    found, more = between("\n".join(lines), "\n".join(after))
    assert (len(found), more) == (5, 3)
    for n, (old, new) in enumerate(found):
        assert old is not None
        assert new is not None
        # What changed is visible if a channel cuts the text.
        assert (f"by A{n}" in old[:60], f"by B{n}" in new[:60]) == (True, True)


def test_inserted_and_deleted_lines_have_one_side() -> None:
    before, after = f"{LONG}\nlast line", f"{LONG}\nadded line\nlast line"
    assert between(before, after) == ([(None, "added line\nlast line")], 0)
    assert between(after, before) == ([("added line\nlast line", None)], 0)


@pytest.mark.parametrize("invisible", ["\u200b", "\u00ad", "\ufeff", "\u2060"])
def test_invisible_characters_are_no_edit(invisible: str) -> None:
    assert between("kettle", f"ket{invisible}tle") == ([], 0)
    assert between("a b", "a\u00a0b") == ([], 0)
    found, _ = edits({"a": "kettle", "b": 1}, {"a": f"ket{invisible}tle", "b": 2}, 5, 500)
    assert found == [Edit("b", "1", "2")]


def test_long_text_is_cut_at_its_end() -> None:
    ((_, new),), _ = between("a", "word " * 300)
    assert new is not None
    assert (len(new), new[-1]) == (500, "…")
